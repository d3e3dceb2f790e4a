"""The settings of the paper's runs, one function each; change one with `replace(list_cifar10(), offset=3.0)`."""

from lipscale.config import Settings


def list_cifar10() -> Settings:
    """LiST on CIFAR-10 (Tab. 1): about 2,200 epochs until L settles, then 100 epochs of Phase II."""
    return _paper(data="cifar10")


def list_cifar100() -> Settings:
    """LiST on CIFAR-100 (Tab. 2)."""
    return _paper(data="cifar100")


def fixed_cifar10() -> Settings:
    """A fixed constant on CIFAR-10 for as long as LiST took; the paper's grid is 1, 2, 4, ..., 128."""
    return _paper(data="cifar10", method="fixed", lipschitz=32.0, epochs=2200)


def fixed_cifar100() -> Settings:
    """A fixed constant on CIFAR-100."""
    return _paper(data="cifar100", method="fixed", lipschitz=32.0, epochs=2200)


RECIPES = {
    "list-cifar10": list_cifar10,
    "list-cifar100": list_cifar100,
    "fixed-cifar10": fixed_cifar10,
    "fixed-cifar100": fixed_cifar100,
}


def _paper(**changes: object) -> Settings:
    """What all runs of the paper share (Sec. 5.1, App. E); the learning rate and batch size are ours."""
    shared = {
        "model": "resnet18",
        "width": 64,
        "lipschitz": 1.0,
        "offset": 0.0,
        "epochs": 5000,  # a limit only: the stop fires before
        "feedback": "paper",
        "optimizer": "schedulefree",
        "window": 30,
        "tolerance": 0.001,
        "phase2_epochs": 100,
        "calibration_fraction": 0.1,
        "batch_size": 128,
        "centering_batches": 50,
    }
    return Settings.model_validate({**shared, **changes})
