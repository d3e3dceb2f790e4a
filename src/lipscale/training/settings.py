"""How to train: the method, its budget, the optimizer."""

import math
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from lipscale._settings import Positive, StageSettings

MethodName = Literal["list", "fixed", "standard", "label-smoothing", "focal", "focal-schedule", "pgd-at", "caat"]
CONSTRAINED = ("list", "fixed")  # methods that hold a Lipschitz constant; the others train the unconstrained twin


class TrainingSettings(StageSettings):
    """Everything that decides a training but its data and its network."""

    method: MethodName = Field(
        "list",
        description="list finds L by calibration feedback; fixed keeps --lipschitz and trains on all data. The others "
        "are baselines: an unconstrained network without a certificate.",
    )
    lipschitz: float = Field(
        1.0,
        ge=1e-6,
        le=1e6,
        allow_inf_nan=False,
        description="The initial constant L0, or the constant of method fixed.",
    )
    offset: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Margin offset xi of the loss; larger is more robust."
    )
    smoothing: float = Field(0.05, ge=0, lt=1, description="Of label-smoothing: the share given to all classes.")
    focal_gamma: float = Field(3.0, ge=0, allow_inf_nan=False, description="The exponent gamma of method focal.")
    attack_epsilon: Positive = Field(0.5, description="The l2 radius within which pgd-at and caat attack a batch.")
    attack_steps: int = Field(10, ge=1, description="Steps of those attacks.")
    class_weights: Literal["none", "balanced"] | tuple[Positive, ...] = Field(
        "none",
        description="Weight of each class in the loss: balanced makes rare classes count as much as common ones (and "
        "the probabilities those of a balanced world), or a number for each class.",
    )
    calibration_fraction: float = Field(
        0.1, gt=0, lt=1, description="Share of the training data that steers L in Phase I."
    )
    epochs: int = Field(40, ge=1, description="The budget: the whole run is planned for this many epochs.")
    phase2_epochs: int | None = Field(
        None,
        ge=0,
        description="Epochs of Phase II, on top of --epochs; left out, it is their last tenth (none below 10).",
    )
    phase2_start: Literal["continue", "restart"] = Field(
        "continue",
        description="Phase II keeps the optimizer's state, or restarts it from the averaged weights.",
    )
    phase1_only: bool = Field(
        False,
        description="Plan Phase II, but stop at the end of Phase I: the network before the calibration data are "
        "re-integrated.",
    )
    feedback: Literal["steady", "paper"] = Field(
        "steady", description="How T* moves L: steady knows T*'s error; paper is L <- L / T* to the letter."
    )
    window: int = Field(30, ge=2, description="The paper's stop: L's relative range over this many epochs ...")
    tolerance: Positive = Field(0.001, description="... is below this tolerance.")
    batch_size: int | None = Field(None, ge=1, description="Samples a step; default 128, or all where there are fewer.")
    optimizer: Literal["planned", "schedulefree"] = Field(
        "planned",
        description="planned: AdamW that ends with the budget; schedulefree: the paper's, until L has settled.",
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        le=100,
        description="Default 0.2 of a weight's size a step (planned) or 0.001 (schedulefree); of the baselines "
        "0.002 or 0.001.",
    )
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False, description="Weight decay of AdamW.")
    warmup_steps: int | None = Field(
        None, ge=0, description="Steps over which the learning rate rises; default 5 % of the plan, or none."
    )
    centering_batches: int = Field(50, ge=1, description="Training batches that re-estimate the centering means.")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="Of the forward pass in training; weights and certificates are never reduced."
    )
    compile: bool = Field(False, description="Compile the training network with torch.compile; pays on GPUs.")
    seed: int = Field(0, ge=0, description="Fixes everything that is random.")

    @field_validator("lipschitz", "offset")
    @classmethod
    def _needs_a_constraint(cls, value: float, about: ValidationInfo) -> float:
        """A constant and a margin in its units mean nothing to a network that no constant holds."""
        method = about.data.get("method", "list")
        if method not in CONSTRAINED and value != cls.model_fields[about.field_name or ""].default:
            raise ValueError(f"method {method} trains an unconstrained network: leave it out, or use list or fixed")
        return value

    @field_validator("phase1_only")
    @classmethod
    def _needs_phases(cls, value: bool, about: ValidationInfo) -> bool:
        method = about.data.get("method", "list")
        if value and method != "list":
            raise ValueError(f"only method list has two phases, and the method is {method}")
        return value

    @field_validator("class_weights", mode="before")
    @classmethod
    def _weights(cls, value: Any) -> Any:
        """Numbers in a list, or "1,5" from a flag."""
        if value in ("none", "balanced"):
            return value
        try:
            weights = tuple(map(float, value.split(",") if isinstance(value, str) else value))
            if weights and all(0 < weight < math.inf for weight in weights):
                return weights
        except (TypeError, ValueError):
            pass
        raise ValueError("expected none, balanced or a positive number for each class such as 1,5")

    @property
    def is_constrained(self) -> bool:
        """Whether the method holds a Lipschitz constant."""
        return self.method in CONSTRAINED
