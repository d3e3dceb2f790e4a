"""Three scales of the same experiments: the paper's, for a GPU; complete sets on two CPU cores; and a quick look."""

from dataclasses import dataclass
from typing import Any

from lipscale.errors import UserError
from lipscale.experiments.plan import AttackBudget

CERTIFIED_AT = 36 / 255


@dataclass(frozen=True)
class Profile:
    """The data, networks, budgets and seeds that the recipes are carried out with."""

    name: str
    sets: dict[str, dict[str, Any]]  # by title; the first is the main one, the first two have fronts and figures
    shared: dict[str, Any]  # settings of every run
    search: dict[str, Any]  # settings of LiST
    epochs: dict[str, int]  # of each method
    fixed_as_long_as_list: bool  # fixed L trains for the epochs that LiST took; else for its planned budget
    seeds: dict[str, tuple[int, ...]]  # by title
    more_seeds: dict[str, tuple[int, ...]]  # where LiST is compared with itself, and differences are small
    sizes: tuple[int, ...]  # N of the low-data regimes on the main set
    attack: AttackBudget
    settling: dict[str, Any]  # the long run of the paper's rule that shows when its stop fires
    constants: tuple[float, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    offsets: tuple[float, ...] = (0, 0.5, 1, 2, 3)
    starts: tuple[float, ...] = (0.01, 0.1, 1, 10)

    @property
    def main(self) -> str:
        """The set of the main table."""
        return next(iter(self.sets))

    @property
    def pair(self) -> tuple[str, ...]:
        """The two sets of the figures."""
        return tuple(self.sets)[:2]


PAPER = Profile(
    name="paper",
    sets={
        "CIFAR-10": {"data": "cifar10"},
        "CIFAR-100": {"data": "cifar100"},
        "Tiny-ImageNet": {"data": "tiny-imagenet"},
    },
    # Sec. 5.1 and App. E; the learning rate and the batch size are ours, the paper names none
    shared={
        **{"model": "resnet18", "width": 64, "optimizer": "schedulefree", "batch_size": 128, "centering_batches": 50},
        **{"precision": "float32", "crop": 4},
    },
    search={
        "feedback": "paper",
        "lipschitz": 1.0,
        "epochs": 5000,  # a limit only: the stop fires before
        "window": 30,
        "tolerance": 0.001,
        "phase2_epochs": 100,
        "calibration_fraction": 0.1,
    },
    epochs={
        **{"standard": 100, "label-smoothing": 100, "focal": 350, "focal-schedule": 350},
        **{"pgd-at": 200, "caat": 200, "fixed": 2200},
    },
    fixed_as_long_as_list=True,
    seeds={"CIFAR-10": (0, 1, 2), "CIFAR-100": (0,), "Tiny-ImageNet": (0,)},
    more_seeds={"CIFAR-10": (0, 1, 2), "CIFAR-100": (0,), "Tiny-ImageNet": (0,)},
    sizes=(50_000, 25_000, 10_000, 5_000, 1_000),
    attack=AttackBudget("autoattack", samples=10_000),
    settling={"data": "cifar10", "epochs": 5000, "tolerance": 0.0002},
)

MINI = Profile(
    name="mini",
    sets={
        "CIFAR-10": {"data": "cifar10", "width": 24},
        "CIFAR-100": {"data": "cifar100", "width": 32},
        "Tiny-ImageNet": {"data": "tiny-imagenet", "width": 32},
    },
    shared={"model": "patchnet"},
    search={"epochs": 12, "lipschitz": 6.0},
    # some 40 CPU-seconds a run, on Tiny-ImageNet three times that; a step of PGD-AT and CAAT costs eleven others
    epochs={
        **{"standard": 15, "label-smoothing": 15, "focal": 15, "focal-schedule": 15},
        **{"pgd-at": 3, "caat": 3, "fixed": 12},
    },
    fixed_as_long_as_list=False,
    seeds={"CIFAR-10": (0, 1, 2), "CIFAR-100": (0,), "Tiny-ImageNet": (0,)},
    more_seeds={"CIFAR-10": (0, 1, 2), "CIFAR-100": (0,), "Tiny-ImageNet": (0,)},
    sizes=(50_000, 25_000, 10_000, 5_000, 1_000),
    attack=AttackBudget("autoattack", samples=100),
    settling={
        **{"data": "fashion-mnist", "limit": 2000, "model": "mlp", "width": 64},
        **{"optimizer": "schedulefree", "epochs": 2000, "tolerance": 0.0001},
    },
)

SMOKE = Profile(
    name="smoke",
    sets={
        "CIFAR-10 (5,000)": {"data": "cifar10", "limit": 5000, "model": "mlp", "width": 64, "augmentation": "none"},
        "Fashion-MNIST (5,000)": {"data": "fashion-mnist", "limit": 5000, "model": "mlp", "width": 64},
        "digits": {"data": "digits", "model": "mlp", "width": 64},
    },
    shared={"device": "cpu"},
    search={"epochs": 40, "lipschitz": 1.0},
    # as in the paper, standard training and label smoothing get less than the others; here LiST needs no more
    epochs={
        **{"standard": 20, "label-smoothing": 20, "focal": 40, "focal-schedule": 40},
        **{"pgd-at": 40, "caat": 40, "fixed": 40},
    },
    fixed_as_long_as_list=False,
    seeds=dict.fromkeys(("CIFAR-10 (5,000)", "Fashion-MNIST (5,000)", "digits"), (0, 1, 2)),
    more_seeds=dict.fromkeys(("CIFAR-10 (5,000)", "Fashion-MNIST (5,000)", "digits"), (0, 1, 2, 3, 4)),
    sizes=(5000, 2500, 1000, 500, 250),
    attack=AttackBudget("autoattack", samples=200),
    constants=(0.25, 0.5, *PAPER.constants),  # small networks on little data are calibrated near L = 1
    settling={
        **{"data": "fashion-mnist", "limit": 2000, "model": "mlp", "width": 64},
        **{"optimizer": "schedulefree", "epochs": 2000, "tolerance": 0.0001},
    },
)

PROFILES = {profile.name: profile for profile in (MINI, SMOKE, PAPER)}


def profile_of(name: str) -> Profile:
    """A profile by name."""
    if name not in PROFILES:
        raise UserError(f"`profile`: expected {' or '.join(PROFILES)}, got {name!r}")
    return PROFILES[name]
