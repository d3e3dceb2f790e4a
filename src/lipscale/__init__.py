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
    posthoc      other calibrators, to compare with
    attacks      PGD, AutoAttack, attacks on the confidence
    robustness   what attacks leave, held against the certificate sample by sample
    run          settings -> run folder, and back
    report       figures, and a page to open
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lipscale import attacks, data, experiments, layers, losses, metrics, models, posthoc, report
    from lipscale.bounds import lipschitz_bound, register_rule
    from lipscale.certificate import Certificate, certified_accuracy, certified_confidence, certified_radius
    from lipscale.config import Settings, replace
    from lipscale.errors import DivergedError, UnsoundError, UserError
    from lipscale.export import export_plain
    from lipscale.feedback import PaperFeedback, SteadyFeedback
    from lipscale.lipschitz import get_lipschitz, set_lipschitz
    from lipscale.losses import offset_cross_entropy
    from lipscale.mode import evaluation_mode
    from lipscale.run import Run, load, resume, train
    from lipscale.temperature import fit_temperature, measure_temperature

_HOME = {
    "Settings": "config",
    "replace": "config",
    "UserError": "errors",
    "DivergedError": "errors",
    "UnsoundError": "errors",
    "PaperFeedback": "feedback",
    "SteadyFeedback": "feedback",
    "Run": "run",
    "load": "run",
    "resume": "run",
    "train": "run",
    "Certificate": "certificate",
    "certified_accuracy": "certificate",
    "certified_confidence": "certificate",
    "certified_radius": "certificate",
    "evaluation_mode": "mode",
    "export_plain": "export",
    "fit_temperature": "temperature",
    "measure_temperature": "temperature",
    "get_lipschitz": "lipschitz",
    "lipschitz_bound": "bounds",
    "register_rule": "bounds",
    "set_lipschitz": "lipschitz",
    "offset_cross_entropy": "losses",
}
_MODULES = ("attacks", "data", "experiments", "layers", "losses", "metrics", "models", "posthoc", "report")

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
    "Certificate",
    "certified_radius",
    "certified_confidence",
    "certified_accuracy",
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
    "posthoc",
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
