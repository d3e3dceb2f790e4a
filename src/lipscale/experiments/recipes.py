"""The paper's runs: a function for each row of its tables and each figure, on the profile's data and budgets.

Every recipe returns rows, and a row is the same run under several seeds. Its settings are data:
`replace(list_cifar10(), offset=3.0)`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lipscale.experiments.plan import AttackBudget, Planned, Row
from lipscale.experiments.profiles import PAPER, Profile
from lipscale.runs.settings import Settings

UNCONSTRAINED, LIPSCHITZ = "Unconst.", "Lipschitz"


# --- the rows of the main table (Tab. 1) ---


def standard(profile: Profile) -> Row:
    """Cross-entropy, unconstrained: the reference for clean accuracy."""
    return _baseline(profile, "Standard", "standard")


def label_smoothing(profile: Profile) -> Row:
    """Label smoothing against over-confidence."""
    return _baseline(profile, "Label Smooth.", "label-smoothing")


def focal(profile: Profile) -> Row:
    """Focal loss with one gamma."""
    return _baseline(profile, "Focal Loss", "focal")


def focal_schedule(profile: Profile) -> Row:
    """Focal loss with the sample-dependent gamma; not in the paper's table."""
    return _baseline(profile, "Focal Loss (FLSD)", "focal-schedule")


def pgd_at(profile: Profile) -> Row:
    """Adversarial training with l2 PGD."""
    return _baseline(profile, "PGD-AT", "pgd-at")


def caat(profile: Profile) -> Row:
    """Calibration attack adversarial training."""
    return _baseline(profile, "CAAT", "caat")


def fixed(profile: Profile, constant: float, data: str | None = None) -> Row:
    """A fixed L, trained on all data for as long as LiST took."""
    data = data or profile.main
    first = _list(profile, data, seed=profile.seeds[data][0])
    runs = []
    for seed in profile.seeds[data]:
        settings = _settings(
            profile, data, seed=seed, method="fixed", lipschitz=constant, epochs=profile.epochs["fixed"]
        )
        follow: dict[str, Any] = {"follows": first, "takes": "epochs"} if profile.fixed_as_long_as_list else {}
        runs.append(Planned(settings, _attack(profile, data), **follow))
    return Row(f"L = {constant:g}", tuple(runs), LIPSCHITZ)


def lipschitz_scaling(profile: Profile, offset: float = 0.0, data: str | None = None) -> Row:
    """LiST, both phases, with an offset xi in the loss."""
    data = data or profile.main
    runs = tuple(_list(profile, data, seed=seed, offset=offset) for seed in profile.seeds[data])
    return Row(f"LiST (xi = {offset:g})", runs, LIPSCHITZ)


def main_table(profile: Profile) -> list[Row]:
    """Tab. 1: every method on the main set."""
    return [
        *(recipe(profile) for recipe in (standard, label_smoothing, focal, focal_schedule, pgd_at, caat)),
        *(fixed(profile, constant) for constant in profile.constants),
        *(lipschitz_scaling(profile, offset) for offset in (0.0, 3.0)),
    ]


# --- the rows of the ablation table (Tab. 2) ---


def low_data(profile: Profile, samples: int) -> Row:
    """LiST on N samples of the main set."""
    data = profile.main
    limit = {} if samples == profile.sizes[0] else {"limit": samples}
    runs = tuple(_list(profile, data, seed=seed, **limit) for seed in profile.seeds[data])
    return Row(f"N = {samples}", runs)


def phases(profile: Profile, data: str) -> list[Row]:
    """LiST at the end of Phase I, after Phase II, and after a Phase II that restarts the optimizer."""
    changes: dict[str, dict[str, Any]] = {
        "I": {"phase1_only": True},
        "II": {},
        "II, restarted": {"phase2_start": "restart"},
    }
    return [
        Row(
            name,
            tuple(replace(_list(profile, data, seed=s, **change), attack=profile.attack) for s in _more(profile, data)),
            data,
        )
        for name, change in changes.items()
    ]


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
    return [
        Row(
            f"LiST (xi = {offset:g})",
            tuple(replace(_list(profile, data, seed=s, offset=offset), attack=None) for s in _more(profile, data)),
            LIPSCHITZ,
        )
        for offset in profile.offsets
    ]


def starts_figure(profile: Profile, data: str) -> list[Row]:
    """The dynamics of L and T* from several L0 (Fig. 2)."""
    return [
        Row(
            f"L0 = {start:g}",
            tuple(replace(_list(profile, data, seed=s, lipschitz=start), attack=None) for s in _more(profile, data)),
        )
        for start in profile.starts
    ]


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


# --- single settings, for `lipscale train --recipe` and for notebooks ---


def list_cifar10() -> Settings:
    """LiST on CIFAR-10 (Tab. 1): about 2,200 epochs until L settles, then 100 epochs of Phase II."""
    return lipschitz_scaling(PAPER, data="CIFAR-10").runs[0].settings


def list_cifar100() -> Settings:
    """LiST on CIFAR-100 (Tab. 2)."""
    return lipschitz_scaling(PAPER, data="CIFAR-100").runs[0].settings


def list_tiny_imagenet() -> Settings:
    """LiST on Tiny-ImageNet (Tab. 2)."""
    return lipschitz_scaling(PAPER, data="Tiny-ImageNet").runs[0].settings


def fixed_cifar10() -> Settings:
    """A fixed constant on CIFAR-10 for as long as LiST took; the paper's grid is 1, 2, 4, ..., 128."""
    return fixed(PAPER, 32, "CIFAR-10").runs[0].settings


def fixed_cifar100() -> Settings:
    """A fixed constant on CIFAR-100."""
    return fixed(PAPER, 32, "CIFAR-100").runs[0].settings


RECIPES: dict[str, Callable[[], Settings]] = {
    "list-cifar10": list_cifar10,
    "list-cifar100": list_cifar100,
    "list-tiny-imagenet": list_tiny_imagenet,
    "fixed-cifar10": fixed_cifar10,
    "fixed-cifar100": fixed_cifar100,
    "standard-cifar10": lambda: standard(PAPER).runs[0].settings,
    "label-smoothing-cifar10": lambda: label_smoothing(PAPER).runs[0].settings,
    "focal-cifar10": lambda: focal(PAPER).runs[0].settings,
    "focal-schedule-cifar10": lambda: focal_schedule(PAPER).runs[0].settings,
    "pgd-at-cifar10": lambda: pgd_at(PAPER).runs[0].settings,
    "caat-cifar10": lambda: caat(PAPER).runs[0].settings,
}


def _baseline(profile: Profile, name: str, method: str) -> Row:
    data = profile.main
    runs = (
        Planned(_settings(profile, data, seed=seed, method=method, epochs=profile.epochs[method]), profile.attack)
        for seed in profile.seeds[data]
    )
    return Row(name, tuple(runs), UNCONSTRAINED)


def _list(profile: Profile, data: str, *, seed: int, **changes: Any) -> Planned:
    """LiST in the profile's version."""
    return Planned(_settings(profile, data, seed=seed, **{**profile.search, **changes}), _attack(profile, data))


def _more(profile: Profile, data: str) -> tuple[int, ...]:
    """The seeds with which LiST is compared with itself: its phases, offsets and starts differ by little."""
    return profile.more_seeds[data]


def _attack(profile: Profile, data: str) -> AttackBudget | None:
    """Attacks cost more than training: the main set's tables show them, the second set's figures need none."""
    return profile.attack if data == profile.main else None


def _settings(profile: Profile, data: str, *, seed: int, **changes: Any) -> Settings:
    return Settings.model_validate({**profile.shared, **profile.sets[data], **changes, "seed": seed})


def figure_rows(profile: Profile) -> list[Row]:
    """Every row that a figure shows."""
    rows = [lipschitz_scaling(profile, 0.0, data) for data in profile.sets]
    for data in profile.pair:
        rows += [*constants_figure(profile, data), *offsets_figure(profile, data), *starts_figure(profile, data)]
    return rows


def all_rows(profile: Profile) -> list[Row]:
    """Every row that any table, figure or claim is made of."""
    tables = [*main_table(profile), *low_data_table(profile), *phase_table(profile)]
    claims = [settling(profile), *(retrained(profile, data) for data in profile.pair)]
    return [*tables, *figure_rows(profile), *claims]
