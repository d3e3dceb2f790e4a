"""The paper's runs: a function for each row of its tables and each figure, on the profile's data and budgets.

Every recipe returns rows, and a row is the same run under several seeds. Its settings are data:
`replace(RECIPES["list-cifar10"](), offset=3.0)`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
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


# --- the rows of the main table (Tab. 1) ---


def baseline(profile: Profile, method: str) -> Row:
    """An unconstrained method on the main set."""
    settings = {"method": method, "epochs": profile.epochs[method]}
    return _row(profile, profile.main, BASELINES[method], settings, group=UNCONSTRAINED)


def fixed(profile: Profile, constant: float, data: str | None = None) -> Row:
    """A fixed L, trained on all data for as long as LiST took."""
    data = data or profile.main
    settings = {"method": "fixed", "lipschitz": constant, "epochs": profile.epochs["fixed"]}
    row = _row(profile, data, f"L = {constant:g}", settings, group=LIPSCHITZ)
    if not profile.fixed_as_long_as_list:
        return row
    first = lipschitz_scaling(profile, 0.0, data).runs[0]
    return replace(row, runs=tuple(replace(run, follows=first, takes="epochs") for run in row.runs))


def lipschitz_scaling(profile: Profile, offset: float = 0.0, data: str | None = None) -> Row:
    """LiST, both phases, with an offset xi in the loss."""
    settings = {**profile.search, "offset": offset}
    return _row(profile, data or profile.main, f"LiST (xi = {offset:g})", settings, group=LIPSCHITZ)


def main_table(profile: Profile) -> list[Row]:
    """Tab. 1: every method on the main set."""
    return [
        *(baseline(profile, method) for method in BASELINES),
        *(fixed(profile, constant) for constant in profile.constants),
        *(lipschitz_scaling(profile, offset) for offset in (0.0, 3.0)),
    ]


# --- the rows of the ablation table (Tab. 2) ---


def low_data(profile: Profile, samples: int) -> Row:
    """LiST on N samples of the main set."""
    limit = {} if samples == profile.sizes[0] else {"limit": samples}
    return _row(profile, profile.main, f"N = {samples}", {**profile.search, **limit})


def phases(profile: Profile, data: str) -> list[Row]:
    """LiST at the end of Phase I, after Phase II, and after a Phase II that restarts the optimizer."""
    rows = _compared(profile, data, PHASES)
    return [Row(row.name, tuple(replace(run, attack=profile.attack) for run in row.runs), data) for row in rows]


def low_data_table(profile: Profile) -> list[Row]:
    """Tab. 2, top: the low-data regimes."""
    return [low_data(profile, samples) for samples in profile.sizes]


def phase_table(profile: Profile) -> list[Row]:
    """Tab. 2, bottom: the phases on the three data sets."""
    return [row for data in profile.sets for row in phases(profile, data)]


# --- the rows of the figures ---


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
    rows = [lipschitz_scaling(profile, 0.0, data) for data in profile.sets]
    for data in profile.pair:
        rows += [*constants_figure(profile, data), *offsets_figure(profile, data), *starts_figure(profile, data)]
    return rows


# --- what only the claims need ---


def retrained(profile: Profile, data: str) -> Row:
    """The heuristic that fails (Sec. 3.2): take T* of a 1-Lipschitz network, retrain at L' = 1 / T*."""
    unit = fixed(profile, 1.0, data)
    runs = tuple(Planned(run.settings, None, follows=run, takes="lipschitz") for run in unit.runs)
    return Row("L' = 1 / T*", runs, LIPSCHITZ)


def settling(profile: Profile) -> Row:
    """The paper's rule for longer than its stop would let it run, to see when which stop fires."""
    search = {**profile.search, "feedback": "paper", "window": 30, "phase2_epochs": 0}
    settings = Settings.model_validate({**profile.shared, **search, **profile.settling, "seed": 0})
    return Row("settling", (Planned(settings),))


def all_rows(profile: Profile) -> list[Row]:
    """Every row that any table, figure or claim is made of."""
    tables = [*main_table(profile), *low_data_table(profile), *phase_table(profile)]
    claims = [settling(profile), *(retrained(profile, data) for data in profile.pair)]
    return [*tables, *figure_rows(profile), *claims]


# --- how rows are built ---


def _row(profile: Profile, data: str, name: str, settings: dict[str, Any], *, group: str = "") -> Row:
    """A run for each seed; attacks cost more than training, and only the main set's tables show them."""
    attack = profile.attack if data == profile.main else None
    return Row(name, _runs(profile, data, settings, profile.seeds[data], attack), group)


def _compared(profile: Profile, data: str, changes: dict[str, dict[str, Any]]) -> list[Row]:
    """LiST compared with itself, where differences are small: under more seeds, and not attacked."""
    seeds = profile.more_seeds[data]
    return [
        Row(name, _runs(profile, data, {**profile.search, **change}, seeds, None)) for name, change in changes.items()
    ]


def _runs(
    profile: Profile, data: str, settings: dict[str, Any], seeds: tuple[int, ...], attack: AttackBudget | None
) -> tuple[Planned, ...]:
    values = {**profile.shared, **profile.sets[data], **settings}
    return tuple(Planned(Settings.model_validate({**values, "seed": seed}), attack) for seed in seeds)


# --- single settings by name, for the command line and for notebooks ---


def _settings(recipe: Callable[..., Row], *arguments: Any) -> Settings:
    return recipe(PAPER, *arguments).runs[0].settings


RECIPES: dict[str, Callable[[], Settings]] = {
    "list-cifar10": partial(_settings, lipschitz_scaling, 0.0, "CIFAR-10"),
    "list-cifar100": partial(_settings, lipschitz_scaling, 0.0, "CIFAR-100"),
    "list-tiny-imagenet": partial(_settings, lipschitz_scaling, 0.0, "Tiny-ImageNet"),
    "fixed-cifar10": partial(_settings, fixed, 32, "CIFAR-10"),
    "fixed-cifar100": partial(_settings, fixed, 32, "CIFAR-100"),
    **{f"{method}-cifar10": partial(_settings, baseline, method) for method in BASELINES},
}
