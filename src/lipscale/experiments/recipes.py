"""The paper's runs: a function for each row or block of its tables and figures, on the profile's data and budgets.

A row is the same run under several seeds. Its settings are data: `replace(RECIPES["list-cifar10"](), offset=3.0)`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lipscale.experiments.plan import AttackBudget, Planned, Row
from lipscale.experiments.profiles import PAPER, Profile
from lipscale.settings import Settings

UNCONSTRAINED, LIPSCHITZ = "Unconst.", "Lipschitz"
BASELINES = {
    "standard": "Standard",  # cross-entropy: the reference for clean accuracy
    "label-smoothing": "Label Smooth.",
    "focal": "Focal Loss",  # with one gamma
    "focal-schedule": "Focal Loss (FLSD)",  # with the sample-dependent gamma; not in the paper's table
    "pgd-at": "PGD-AT",  # adversarial training with l2 PGD
    "caat": "CAAT",  # calibration attack adversarial training
}
PHASES: dict[str, dict[str, Any]] = {
    "I": {"phase1_only": True},
    "II": {},
    "II, restarted": {"phase2_start": "restart"},  # of the optimizer
}


def baseline(profile: Profile, method: str) -> Row:
    """An unconstrained method on the main set."""
    settings = {"method": method, "epochs": profile.epochs[method]}
    return _row(profile, profile.main, BASELINES[method], settings, UNCONSTRAINED)


def fixed(profile: Profile, constant: float, data: str | None = None) -> Row:
    """A fixed L, trained on all data for as long as LiST took."""
    data = data or profile.main
    settings = {"method": "fixed", "lipschitz": constant, "epochs": profile.epochs["fixed"]}
    row = _row(profile, data, f"L = {constant:g}", settings, LIPSCHITZ)
    if not profile.fixed_as_long_as_list:
        return row
    first = lipschitz_scaling(profile, 0.0, data).runs[0]
    return replace(row, runs=tuple(replace(run, follows=first, takes="epochs") for run in row.runs))


def lipschitz_scaling(profile: Profile, offset: float = 0.0, data: str | None = None) -> Row:
    """LiST, both phases, with an offset xi in the loss."""
    settings = {**profile.search, "offset": offset}
    return _row(profile, data or profile.main, f"LiST (xi = {offset:g})", settings, LIPSCHITZ)


def main_table(profile: Profile) -> list[Row]:
    """Tab. 1: every method on the main set."""
    baselines = [baseline(profile, method) for method in BASELINES]
    ours = [lipschitz_scaling(profile, offset) for offset in (0.0, 3.0)]
    return [*baselines, *constants_figure(profile, profile.main), *ours]


def low_data_table(profile: Profile) -> list[Row]:
    """Tab. 2, top: LiST on N samples of the main set; the first N is all of them."""
    limits = {f"N = {size}": {"limit": size} if size != profile.sizes[0] else {} for size in profile.sizes}
    return [_row(profile, profile.main, name, {**profile.search, **limit}) for name, limit in limits.items()]


def phases(profile: Profile, data: str) -> list[Row]:
    """LiST at the end of Phase I, after Phase II, and after a Phase II that restarts the optimizer."""
    return _compared(profile, data, PHASES, data, profile.attack)


def phase_table(profile: Profile) -> list[Row]:
    """Tab. 2, bottom: the phases on the three data sets."""
    return [row for data in profile.sets for row in phases(profile, data)]


def constants_figure(profile: Profile, data: str) -> list[Row]:
    """ECE over fixed L, its reliability diagrams, and the front over fixed L (Fig. 1a, 3 left, App. C)."""
    return [fixed(profile, constant, data) for constant in profile.constants]


def offsets_figure(profile: Profile, data: str) -> list[Row]:
    """The calibrated front over xi (Fig. 3, right); it is attacked where a table shows the attack."""
    return _compared(profile, data, {f"LiST (xi = {offset:g})": {"offset": offset} for offset in profile.offsets})


def starts_figure(profile: Profile, data: str) -> list[Row]:
    """The dynamics of L and T* from several L0 (Fig. 2)."""
    return _compared(profile, data, {f"L0 = {start:g}": {"lipschitz": start} for start in profile.starts})


def figure_rows(profile: Profile) -> list[Row]:
    """Every row that a figure shows."""
    by_set = (constants_figure, offsets_figure, starts_figure)
    rows = [lipschitz_scaling(profile, 0.0, data) for data in profile.sets]
    return rows + [row for data in profile.pair for figure in by_set for row in figure(profile, data)]


def retraining(profile: Profile, data: str) -> list[Row]:
    """The heuristic that fails (Sec. 3.2), T* of a 1-Lipschitz network and retraining at L' = 1 / T*; and LiST."""
    unit = fixed(profile, 1.0, data)
    runs = tuple(Planned(run.settings, follows=run, takes="lipschitz") for run in unit.runs)
    return [Row("L' = 1 / T*", runs), lipschitz_scaling(profile, 0.0, data)]


def settling(profile: Profile) -> Row:
    """The paper's rule for longer than its stop would let it run, to see when which stop fires."""
    search = {**profile.search, "feedback": "paper", "window": 30, "phase2_epochs": 0}
    settings = Settings.model_validate({**profile.shared, **search, **profile.settling, "seed": 0})
    return Row("settling", (Planned(settings),))


def all_rows(profile: Profile) -> list[Row]:
    """Every row that any table, figure or claim is made of."""
    tables = [*main_table(profile), *low_data_table(profile), *phase_table(profile)]
    again = [row for data in profile.pair for row in retraining(profile, data)]
    return [*tables, *figure_rows(profile), settling(profile), *again]


def _row(profile: Profile, data: str, name: str, settings: dict[str, Any], group: str = "") -> Row:
    """A run for each seed; attacks cost more than training, and only the main set's tables show them."""
    attack = profile.attack if data == profile.main else None
    values = {**profile.shared, **profile.sets[data], **settings}
    seeds = profile.seeds[data]
    return Row(name, tuple(Planned(Settings.model_validate({**values, "seed": seed}), attack) for seed in seeds), group)


def _compared(
    profile: Profile, data: str, changes: dict[str, dict[str, Any]], group: str = "", attack: AttackBudget | None = None
) -> list[Row]:
    """LiST compared with itself, where differences are small: under more seeds, and mostly not attacked."""
    more = replace(profile, seeds=profile.more_seeds)
    rows = [_row(more, data, name, {**profile.search, **change}, group) for name, change in changes.items()]
    return [replace(row, runs=tuple(replace(run, attack=attack) for run in row.runs)) for row in rows]


def _of_the_paper(recipe: Callable[..., Row], *arguments: Any) -> Callable[[], Settings]:
    return lambda: recipe(PAPER, *arguments).runs[0].settings


# single settings by name, for the command line and for notebooks
RECIPES: dict[str, Callable[[], Settings]] = {
    **{f"list-{PAPER.sets[data]['data']}": _of_the_paper(lipschitz_scaling, 0.0, data) for data in PAPER.sets},
    **{f"fixed-{PAPER.sets[data]['data']}": _of_the_paper(fixed, 32, data) for data in PAPER.pair},
    **{f"{method}-cifar10": _of_the_paper(baseline, method) for method in BASELINES},
}
