"""What the tables show of each run."""

from lipscale.experiments.plan import AttackBudget
from lipscale.experiments.profiles import CERTIFIED_AT
from lipscale.experiments.results import Result
from lipscale.experiments.tables import Column


def measured(attack: AttackBudget) -> tuple[Column, ...]:
    """What the paper's tables show of each run: accuracy, calibration, what an attack left, what is proven."""

    def left(result: Result) -> float | None:
        return None if result.robust is None else float(result.robust["robust_accuracy"])

    return (
        Column("Clean acc.", lambda r: r.metrics["accuracy"], "higher"),
        Column("ECE", lambda r: r.metrics["ece"], "lower"),
        Column("ESCE", lambda r: r.metrics["esce"], "zero"),
        Column(f"{'AA' if attack.name == 'autoattack' else 'PGD'} acc. ({attack.epsilon:g})", left, "higher"),
        Column("CRA (36/255)", lambda r: r.certified(CERTIFIED_AT) if r.constrained else None, "higher"),
    )


CALIBRATED = (
    Column("Calibrated", lambda r: float(r.calibrated), shown="count"),
    Column("strictly", lambda r: float(r.metrics["ece"] <= r.strict_limit), shown="count"),
)
# by each run's own limit: LiST's allows for the error of its T*, others have none to allow for
OWN_VERDICT = Column("Calibrated", lambda r: float(r.metrics["calibrated"]), shown="count")
CONSTANT = Column("L", lambda r: r.constant if r.constrained else None, shown="number")
