"""What networks are trained for, by name, and the parameters that each loss has of its own."""

from typing import Literal, get_args

# losses that calibrate: methods of unconstrained networks, and by the same names objectives of constrained ones
CalibratingName = Literal[
    "label-smoothing", "focal", "focal-schedule", "dual-focal", "mmce", "mmce-weighted", "avuc", "mbls", "ar-adals"
]
ObjectiveName = Literal["offset", "tau", "hkr", "annealing", "emma", "cll", "certificate", CalibratingName]
# the parameters that a method has of its own, and what they are unless told otherwise; docs/BASELINES.md has whose
BASELINES: dict[str, dict[str, float]] = {
    "dual-focal": {"gamma": 5.0},
    "mmce": {"penalty": 2.0},
    "mmce-weighted": {"penalty": 0.1},
    "avuc": {"penalty": 3.0},
    "mbls": {"penalty": 0.1, "margin": 10.0},
    "ar-adals": {"alpha": 0.05},
}
# likewise of an objective, where a margin is a radius; docs/FAMILIES.md has how these were found
OBJECTIVES: dict[str, dict[str, float]] = {
    "offset": {"offset": 0.0, "margin": 0.0},
    "tau": {"tau": 0.7},
    "hkr": {"margin": 0.5, "alpha": 0.95},
    "annealing": {"offset": 2.0, "gamma": 5.0},
    "emma": {"margin": 0.25},
    "cll": {"margin": 0.25, "slack": 0.1},
    "certificate": {"gamma": 0.1},
    **{name: BASELINES.get(name, {}) for name in get_args(CalibratingName)},
    "mbls": {"penalty": 0.1, "margin": 2.0},
}
