"""Everything that can be set, stage by stage: frozen, checked, and named with its place where it is wrong."""

import difflib
import math
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from lipscale.errors import UserError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Names = tuple[str, ...]
MethodName = Literal["list", "fixed", "standard", "label-smoothing", "focal", "focal-schedule", "pgd-at", "caat"]
CONSTRAINED = ("list", "fixed")  # methods that hold a Lipschitz constant; the others train the unconstrained twin


class StageSettings(BaseModel):
    """The settings of one stage; a run's are those of all stages together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_numbers(cls, value: Any, about: ValidationInfo) -> Any:
        """`seed: yes` is a slip and no number."""
        if isinstance(value, bool) and cls.model_fields[about.field_name or ""].annotation is not bool:
            raise ValueError("yes and no (true, false) are no value of this setting")
        return value

    def __init__(self, /, place_of: dict[str, str] | None = None, **values: Any) -> None:
        """`place_of` says where each value stands, such as a line of a file, for errors to name."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UserError(_explain(type(self), error, values, place_of or {})) from None

    @classmethod
    def checked(cls, values: dict[str, Any], *, place: dict[str, str] | None = None) -> Self:
        """Checked settings from a mapping; an error names the key, its place and the nearest valid one."""
        return cls(place, **{str(key): value for key, value in values.items()})


class DataSettings(StageSettings):
    """A named set or a user's own, and how a user's own is read."""

    data: str = Field(
        "digits",
        description="A data set's name (see `lipscale data list`), a folder of class folders with pictures, a .csv or "
        ".parquet table, or an .npz file.",
    )
    label: str | None = Field(None, description="The column of a table that names the class.")
    drop: Names = Field((), description="Columns of a table to leave out, such as id,name.")
    categories: Names = Field((), description="Columns that hold categories although they look like numbers.")
    test_data: Path | None = Field(None, description="The test part, if it is separate: of the same kind as `data`.")
    test_fraction: float = Field(
        0.2, gt=0, lt=1, description="Share held out for the test where your data have no test part."
    )
    data_dir: Path | None = Field(
        None, description="Where data sets lie; else $LIPSCALE_DATA and the system's folders."
    )
    limit: int | None = Field(None, ge=2, description="Train on a stratified subset of this many samples.")
    augmentation: Literal["auto", "none", "crop", "flip", "crop+flip"] = Field(
        "auto", description="Random crops and mirror images; auto takes what suits the data set and the model."
    )
    crop: int = Field(2, ge=0, le=64, description="By how many pixels random crops shift an image at most.")
    image_size: int | None = Field(
        None,
        ge=4,
        le=4096,
        description="Side of the squares to which pictures in folders are brought; default 64 at most.",
    )
    image_fit: Literal["crop", "stretch", "pad"] = Field(
        "crop", description="How: cut off what is too long, ignore the proportions, or add black."
    )
    image_color: Literal["auto", "grey", "rgb"] = Field(
        "auto", description="Read pictures in folders in grey or colour; auto takes grey where all of them are."
    )

    @field_validator("drop", "categories", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """A single name and "id,name" from a flag are welcome."""
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


class ModelSettings(StageSettings):
    """The topology, its size, and what it is built of."""

    model: Literal["auto", "mlp", "patchnet", "convnet", "resnet18"] = Field(
        "auto", description="The network; auto takes an MLP for tables and tiny images, else patchnet."
    )
    width: int | None = Field(
        None, ge=2, le=65536, description="Channels or units; default 64 (patchnet, resnet18), 32 (convnet), 256 (mlp)."
    )
    depth: int | None = Field(
        None, ge=0, le=1000, description="Hidden layers of the MLP (default 3), residual blocks a size of patchnet (0)."
    )
    layers: Literal["fast", "reference"] = Field(
        "fast", description="Orthogonal layers: our own, or the slow ones of orthogonium and torchlip."
    )
    padding: Literal["zeros", "circular"] = Field("zeros", description="What convolutions see beyond the border.")
    mirror: bool = Field(
        False, description="Answer by the mean over an image and its mirror image: twice the time, same certificates."
    )


class TrainingSettings(StageSettings):
    """Everything that decides a training but its data and its network."""

    method: MethodName = Field(
        "list",
        description="list finds L by calibration feedback; fixed keeps `lipschitz` and trains on all data. The others "
        "are baselines: an unconstrained network without a certificate.",
    )
    lipschitz: float | None = Field(
        None,
        ge=1e-6,
        le=1e6,
        allow_inf_nan=False,
        description="The initial constant L0, default 1 and of convolutional networks 6, or the constant of method "
        "fixed, default 1.",
    )
    offset: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Margin offset xi of the loss; larger is more robust."
    )
    margin: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="The offset as a radius that training asks for, xi = sqrt(2) `margin` L; on top of `offset`.",
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
    minutes: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="The budget as time: the speed of this machine decides on `epochs` and on patchnet's `width`.",
    )
    phase2_epochs: int | None = Field(
        None,
        ge=0,
        description="Epochs of Phase II, on top of `epochs`; left out, it is their last tenth (none below 10).",
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
    optimizer: Literal["auto", "muon", "adamw", "schedulefree"] = Field(
        "auto",
        description="muon and adamw end with the budget (auto: muon for convolutional networks, else adamw); "
        "schedulefree is the paper's, until L has settled.",
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        le=100,
        description="Default 0.05 sqrt(batch_size / 1024) of a weight's size a step (muon), 0.2 of it (adamw) or 0.001 "
        "(schedulefree); of the baselines 0.002 (adamw).",
    )
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False, description="Weight decay of AdamW.")
    warmup_steps: int | None = Field(
        None, ge=0, description="Steps over which the learning rate rises; default 5 % of the plan, or none."
    )
    centering_batches: int = Field(50, ge=1, description="Training batches that re-estimate the centering means.")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Of the forward pass in training; weights and certificates are never reduced. auto takes bfloat16 "
        "for convolutional networks where the processor has it.",
    )
    compile: bool = Field(False, description="Compile the training network with torch.compile; pays on GPUs.")
    seed: int = Field(0, ge=0, description="Fixes everything that is random.")

    @field_validator("lipschitz", "offset", "margin")
    @classmethod
    def _needs_a_constraint(cls, value: float, about: ValidationInfo) -> float:
        """A constant and a margin in its units mean nothing to a network that no constant holds."""
        method = about.data.get("method", "list")
        if method not in CONSTRAINED and value != cls.model_fields[about.field_name or ""].default:
            raise ValueError(f"method {method} trains an unconstrained network: leave it out, or use list or fixed")
        return value

    @field_validator("optimizer")
    @classmethod
    def _orthogonal_only(cls, value: str, about: ValidationInfo) -> str:
        method = about.data.get("method", "list")
        if value == "muon" and method not in CONSTRAINED:
            raise ValueError(f"muon is made for orthogonal layers, and method {method} has none: use adamw")
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


class RunSettings(StageSettings):
    """What is measured at the end, where, and where it is written."""

    epsilons: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] = Field(
        (36 / 255, 0.25, 0.5), min_length=1, description="Radii at which certified accuracy is reported."
    )
    calibration_tolerance: float = Field(
        0.02, gt=0, lt=1, description="A calibration error that may be ignored: 0.02 is two points."
    )
    device: str = Field("auto", description="cpu or cuda; auto takes a GPU where there is one.")
    out: Path | None = Field(None, description="The run folder; default runs/DATA-MODEL-METHOD-N.")

    @field_validator("epsilons", mode="before")
    @classmethod
    def _lists_and_fractions(cls, value: Any) -> Any:
        """A single number, "0.1,36/255" from a flag, and fractions in a list are welcome."""
        parts = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int | float) else value
        try:
            if any(isinstance(p, bool) for p in parts):
                raise ValueError
            return tuple(float(Fraction(p)) if isinstance(p, str) else p for p in parts)
        except (TypeError, ValueError, ZeroDivisionError, OverflowError):
            raise ValueError("expected numbers or fractions such as 0.1,36/255") from None


class Settings(RunSettings, TrainingSettings, ModelSettings, DataSettings):
    """Everything that decides a run. Change one with `replace(settings, offset=3.0)`."""


def replace(settings: Settings, **changes: Any) -> Settings:
    """The settings with some values changed and checked.

    Args:
        settings: Where to start from.
        changes: New values, by name.

    Returns:
        New settings; the old ones stay as they are.

    Example:
        >>> import lipscale
        >>> lipscale.replace(lipscale.Settings(), offset=3.0).offset
        3.0
    """
    return Settings.checked({**settings.model_dump(), **changes})


def _explain(kind: type[BaseModel], error: ValidationError, values: dict[str, Any], place: dict[str, str]) -> str:
    first = error.errors()[0]
    key = str(first["loc"][0])
    where = f"{place[key]}: " if key in place else ""
    name = "" if where.startswith("--") else f"{key}: "  # a flag is a name already
    if first["type"] == "extra_forbidden":
        nearest = difflib.get_close_matches(key, kind.model_fields, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "lipscale.Settings lists them all"
        return f"{where}unknown setting {key!r}; {hint}"
    message = first["msg"].removeprefix("Input ").removeprefix("Value error, ")
    if first["type"] == "literal_error":
        choices = first["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        nearest = difflib.get_close_matches(str(values[key]), choices, n=1)
        message += f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"{where}{name}{message}, got {values.get(key)!r}"
