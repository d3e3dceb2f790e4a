"""lipscale: classifiers that are calibrated and certifiably robust out of the box.

The flow, each stage a package; a stage imports only those before it:

    data -> network (L-Lipschitz) -> loss -> feedback on L -> certificate and metrics -> run folder -> report

    settings      everything that can be set
    data          real sets and users' own; the stratified train/calibration split
    layers        1-Lipschitz parts with a scale, the evaluation mode
    bounds        set L, read L, and the proven bound, rule by rule
    models        resnet18, convnet, mlp, their unconstrained twins, and export to ordinary torch layers
    losses        offset cross-entropy, and the baselines' losses
    metrics       accuracy, NLL, Brier, calibration errors, with their uncertainty
    calibration   T* and its error, the feedback L <- L / T*, LipschitzScheduler, post-hoc calibrators
    attacks       PGD, APGD, AutoAttack, attacks on the confidence
    certificates  radii, certified confidence, what attacks leave of them, the audit
    training      Algorithm 1, both phases; `fit`; the baselines on the same loop; checkpoints
    runs          settings -> run folder, and back
    sklearn       a classifier for scikit-learn's pipelines
    lightning     the feedback on L as a callback of Lightning
    report        figures, and a page to open
    serve         a page to try a run on, and REST
    experiments   the paper's tables, figures and claims; sweeps
    cli           the command line
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lipscale import attacks, calibration, data, experiments, layers, losses, metrics, models, report
    from lipscale.bounds import get_lipschitz, lipschitz_bound, register_rule, set_lipschitz
    from lipscale.calibration import LipschitzScheduler, fit_temperature, measure_temperature
    from lipscale.certificates import Certificate, certify
    from lipscale.errors import DivergedError, UnsoundError, UserError
    from lipscale.layers import estimate_means, evaluation_mode
    from lipscale.losses import offset_cross_entropy
    from lipscale.models.export import export_plain
    from lipscale.models.lipschitzify import lipschitzify
    from lipscale.runs import Run, load, resume, train
    from lipscale.settings import Settings, replace
    from lipscale.training import Fit, fit

    __version__: str

# torch takes seconds to import: a name is fetched from its stage when it is first used
_NAMES = {
    "training": ("fit", "Fit"),
    "calibration": ("LipschitzScheduler", "fit_temperature", "measure_temperature"),
    "bounds": ("set_lipschitz", "get_lipschitz", "lipschitz_bound", "register_rule"),
    "layers": ("evaluation_mode", "estimate_means"),
    "losses": ("offset_cross_entropy",),
    "certificates": ("certify", "Certificate"),
    "models.export": ("export_plain",),
    "models.lipschitzify": ("lipschitzify",),
    "runs": ("train", "resume", "load", "Run"),
    "settings": ("Settings", "replace"),
    "errors": ("UserError", "DivergedError", "UnsoundError"),
}
_MODULES = ("attacks", "calibration", "data", "experiments", "layers", "losses", "metrics", "models", "report")
_HOME = {name: home for home, names in _NAMES.items() for name in names}

# fmt: off
__all__ = [  # noqa: RUF022 (in the order of the flow)
    "lipschitzify", "fit", "Fit", "LipschitzScheduler", "fit_temperature", "measure_temperature",
    "set_lipschitz", "get_lipschitz", "lipschitz_bound", "register_rule",
    "evaluation_mode", "estimate_means", "offset_cross_entropy", "certify", "Certificate", "export_plain",
    "Settings", "replace", "train", "resume", "load", "Run",
    "UserError", "DivergedError", "UnsoundError",
    "attacks", "calibration", "data", "experiments", "layers", "losses", "metrics", "models", "report",
]
# fmt: on


if not TYPE_CHECKING:  # which would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version  # slow to import

            return version("lipscale")
        if name in _HOME:
            return getattr(import_module(f"lipscale.{_HOME[name]}"), name)
        if name in _MODULES:
            return import_module(f"lipscale.{name}")
        raise AttributeError(f"module 'lipscale' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
