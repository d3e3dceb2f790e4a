"""lipscale: classifiers that are calibrated and certifiably robust out of the box.

The flow, each stage a module:

    data -> network (L-Lipschitz) -> loss -> feedback on L -> certificate and metrics -> run folder

    data         real sets and users' own; the stratified train/calibration split
    layers       1-Lipschitz parts with a scale
    models       resnet18, convnet, mlp, and their unconstrained twins
    lipschitz    set L, read L
    bounds       the proven bound, composed rule by rule
    losses       offset cross-entropy, and the baselines' losses
    temperature  T* = argmin NLL(z / T), and its standard error
    feedback     L <- L / T* and its steadier default, and their stops
    training     Algorithm 1, both phases; the baselines on the same loop; checkpoints
    certificate  margins, radii, certified accuracy and confidence
    audit        attacks on our own certificates
    export       the same network in ordinary torch layers
    metrics      accuracy, NLL, Brier, calibration errors, with their uncertainty
    calibration      other calibrators, to compare with
    attacks      PGD, AutoAttack, attacks on the confidence
    robustness   what attacks leave, held against the certificate sample by sample
    run          settings -> run folder, and back
    report       figures, and a page to open
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lipscale import attacks, calibration, data, experiments, layers, losses, metrics, models, report
    from lipscale.bounds import lipschitz_bound, register_rule
    from lipscale.bounds.constant import get_lipschitz, set_lipschitz
    from lipscale.calibration.feedback import PaperFeedback, SteadyFeedback
    from lipscale.calibration.temperature import fit_temperature, measure_temperature
    from lipscale.certificates import Certificate, certify
    from lipscale.errors import DivergedError, UnsoundError, UserError
    from lipscale.layers.evaluation import evaluation_mode
    from lipscale.losses import offset_cross_entropy
    from lipscale.models.export import export_plain
    from lipscale.runs.run import Run, load, resume, train
    from lipscale.runs.settings import Settings, replace

_HOME = {
    "Settings": "runs.settings",
    "replace": "runs.settings",
    "UserError": "errors",
    "DivergedError": "errors",
    "UnsoundError": "errors",
    "PaperFeedback": "calibration.feedback",
    "SteadyFeedback": "calibration.feedback",
    "Run": "runs.run",
    "load": "runs.run",
    "resume": "runs.run",
    "train": "runs.run",
    "Certificate": "certificates",
    "certify": "certificates",
    "evaluation_mode": "layers.evaluation",
    "export_plain": "models.export",
    "fit_temperature": "calibration.temperature",
    "measure_temperature": "calibration.temperature",
    "get_lipschitz": "bounds.constant",
    "lipschitz_bound": "bounds",
    "register_rule": "bounds",
    "set_lipschitz": "bounds.constant",
    "offset_cross_entropy": "losses",
}
_MODULES = ("attacks", "data", "experiments", "layers", "losses", "metrics", "models", "calibration", "report")

__all__ = [  # noqa: RUF022 (in the order of the flow)
    "Settings",
    "replace",
    "train",
    "resume",
    "load",
    "Run",
    "set_lipschitz",
    "get_lipschitz",
    "lipschitz_bound",
    "register_rule",
    "offset_cross_entropy",
    "fit_temperature",
    "measure_temperature",
    "SteadyFeedback",
    "PaperFeedback",
    "evaluation_mode",
    "certify",
    "Certificate",
    "export_plain",
    "UserError",
    "DivergedError",
    "UnsoundError",
    "attacks",
    "data",
    "experiments",
    "layers",
    "losses",
    "metrics",
    "models",
    "calibration",
    "report",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("lipscale")
    # torch takes seconds to import: a name is fetched when it is first used
    if name in _HOME:
        return getattr(import_module(f"lipscale.{_HOME[name]}"), name)
    if name in _MODULES:
        return import_module(f"lipscale.{name}")
    raise AttributeError(f"module 'lipscale' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
