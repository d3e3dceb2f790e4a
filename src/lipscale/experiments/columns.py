"""What the tables show of each run."""

from lipscale.experiments.plan import AttackBudget
from lipscale.experiments.profiles import CERTIFIED_AT
from lipscale.experiments.tables import Column


def measured(attack: AttackBudget) -> tuple[Column, ...]:
    """What the paper's tables show of each run: accuracy, calibration, what an attack left, what is proven."""
    attacked = f"{'AA' if attack.name == 'autoattack' else 'PGD'} acc. ({attack.epsilon:g})"
    return (
        Column("Clean acc.", lambda r: r.metrics.accuracy, "higher"),
        Column("ECE", lambda r: r.metrics.ece, "lower"),
        Column("ESCE", lambda r: r.metrics.esce, "zero"),
        Column(attacked, lambda r: r.robust.robust_accuracy if r.robust else None, "higher"),
        Column("CRA (36/255)", lambda r: r.certified(CERTIFIED_AT) if r.metrics.is_certified else None, "higher"),
    )


CALIBRATED = (
    Column("Calibrated", lambda r: r.calibrated, shown="count"),
    Column("strictly", lambda r: r.metrics.ece <= r.strict_limit, shown="count"),
)
# by each run's own limit: LiST's allows for the error of its T*, others have none to allow for
OWN_VERDICT = Column("Calibrated", lambda r: r.metrics.calibrated, shown="count")
CONSTANT = Column("L", lambda r: r.metrics.lipschitz_constant, shown="number")
