"""Everything that can be set, stage by stage: frozen, checked, and named with its place where it is wrong."""

import math
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from lipscale._objectives import BASELINES, OBJECTIVES, CalibratingName, ObjectiveName
from lipscale._stage import StageSettings, setting

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
Names = tuple[str, ...]
MethodName = Literal["list", "fixed", "standard", CalibratingName, "pgd-at", "caat", "caat-authors"]
# fast is aoc; layers/families has a file for each of those that follow
LayersName = Literal[
    "fast", "reference",
    "spectral", "bjorck", "cayley", "bcop", "aoc", "soc", "lot", "aol", "sll", "cpl", "bro", "lipnext",
]  # fmt: skip
CONSTRAINED = ("list", "fixed")  # methods that hold a Lipschitz constant; the others train the unconstrained twin


class DataSettings(StageSettings):
    """A named set or a user's own, and how a user's own is read."""

    data: str = setting(
        "digits",
        "A data set's name (see `lipscale data list`), a folder of class folders with pictures, a .csv or .parquet "
        "table, or an .npz file.",
    )
    label: str | None = setting(None, "The column of a table that names the class.")
    drop: Names = setting((), "Columns of a table to leave out, such as id,name.")
    categories: Names = setting((), "Columns that hold categories although they look like numbers.")
    numbers: Names = setting((), "Columns that hold numbers although they look like ids or zip codes.")
    test_data: Path | None = setting(None, "The test part, if it is separate: of the same kind as `data`.")
    test_fraction: Share = setting(0.2, "Share held out for the test where your data have no test part.")
    conformal_fraction: Share | None = setting(
        None,
        "Share of the training data that never trains: held out for `lipscale conformal` to calibrate its sets on.",
    )
    data_dir: Path | None = setting(None, "Where to look for data sets before $LIPSCALE_DATA and the usual folders.")
    limit: int | None = setting(None, "Train on a stratified subset of this many samples.", ge=2)
    augmentation: Literal["auto", "none", "crop", "flip", "crop+flip"] = setting(
        "auto", "Random crops and mirror images; auto takes what suits the data set and the model."
    )
    crop: int | None = setting(
        None,
        "By how many pixels random crops shift an image at most; default 2, from 20 epochs on 3, from 50 on 4.",
        ge=0,
        le=64,
    )
    cutout: int = setting(
        0,
        "Side of a square that is blanked in every training image, against over-fitting in long trainings.",
        ge=0,
        le=64,
    )
    jitter: float = setting(
        0.0,
        "By which share the contrast of a training image changes at most; its brightness by half of it.",
        ge=0,
        le=1,
    )
    image_size: int | None = setting(
        None, "Side of the squares to which pictures in folders are brought; default 64 at most.", ge=4, le=4096
    )
    image_fit: Literal["crop", "stretch", "pad"] = setting(
        "crop", "How: cut off what is too long, ignore the proportions, or add black."
    )
    image_color: Literal["auto", "grey", "rgb"] = setting(
        "auto", "Read pictures in folders in grey or colour; auto takes grey where all of them are."
    )

    @field_validator("drop", "categories", "numbers", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """A single name and "id,name" from a flag are welcome."""
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


class ModelSettings(StageSettings):
    """The topology, its size, and what it is built of."""

    model: Literal["auto", "mlp", "patchnet", "convnet", "resnet18"] = setting(
        "auto", "The network; auto takes an MLP for tables and tiny images, else patchnet."
    )
    width: int | None = setting(
        None,
        "Channels or units; default 64 (patchnet, resnet18), 32 (convnet), 256 (mlp; for tables 64 to 256).",
        ge=2,
        le=65536,
    )
    depth: int | None = setting(
        None,
        "Hidden layers of the MLP (default 3; for tables 2, or none where rows are few and a linear model is as good), "
        "residual blocks a size of patchnet (0).",
        ge=0,
        le=1000,
    )
    layers: LayersName = setting(
        "fast",
        "Lipschitz layers: our own orthogonal ones (fast, the family aoc), the slow ones of orthogonium and torchlip "
        "(reference), or another family; see docs/FAMILIES.md.",
    )
    padding: Literal["zeros", "circular"] | None = setting(
        None, "What convolutions see beyond the border; default zeros, circular for layers that need it."
    )
    mirror: bool | None = setting(
        None,
        "Answer an image as its mirror image: patchnet by construction, for half the products; others (and odd sizes) "
        "by the mean of both, in twice the time. Default: patchnet of width 96 and more, where training mirrors.",
    )


class TrainingSettings(StageSettings):
    """Everything that decides a training but its data and its network."""

    method: MethodName = setting(
        "list",
        "list finds L by calibration feedback; fixed keeps `lipschitz` and trains on all data. The others are "
        "baselines: an unconstrained network without a certificate.",
    )
    lipschitz: float | None = setting(
        None,
        "The initial constant L0 (default 1, of our convolutional networks 6), or the constant of method fixed (1).",
        ge=1e-6,
        le=1e6,
        allow_inf_nan=False,
    )
    objective: ObjectiveName = setting(
        "offset",
        "What a constrained network is trained for: the paper's cross-entropy with an offset, another way to ask for "
        "margins (see docs/FAMILIES.md), or the loss of a method that calibrates (see docs/BASELINES.md).",
    )
    offset: NotNegative = setting(
        0.0, "Margin offset xi of the loss; larger is more robust. Of annealing 2 where it is 0."
    )
    margin: NotNegative = setting(
        0.0,
        "A radius that training asks for: of objective offset xi = sqrt(2) `margin` L, on top of `offset`; "
        "also of hkr (0.5 where it is 0), emma and cll (0.25). Of mbls the margin that goes free (2; of the method, "
        "which holds no L, 10 logits).",
    )
    tau: Positive | None = setting(None, "Of objective tau: the slope that the loss sees. Default 0.7.")
    alpha: Share | None = setting(
        None,
        "Of objective hkr: the weight of the hinge against the distance (0.95); of ar-adals: how far the labels move.",
    )
    gamma: NotNegative | None = setting(
        None, "Of objective annealing and of dual-focal: the exponent (5); of certificate: the margin's weight (0.1)."
    )
    slack: Share | None = setting(
        None, "Of objective cll: the share of its distribution beyond the radius. Default 0.1."
    )
    penalty: NotNegative | None = setting(
        None, "Weight of what mmce (2), mmce-weighted (0.1), avuc (3) and mbls (0.1) add to the cross-entropy."
    )
    smoothing: float = setting(0.05, "Of label-smoothing: the share given to all classes.", ge=0, lt=1)
    focal_gamma: NotNegative = setting(3.0, "The exponent gamma of focal.")
    attack_epsilon: Positive = setting(0.5, "The l2 radius within which pgd-at and caat attack a batch.")
    attack_steps: int = setting(10, "Steps of the attacks of pgd-at, caat and caat-authors.", ge=1)
    class_weights: Literal["none", "balanced"] | tuple[Positive, ...] = setting(
        "none",
        "Weight of each class in the loss: balanced makes rare classes count as much as common ones (and the "
        "probabilities those of a balanced world), or a number for each class.",
    )
    calibration_fraction: Share | None = setting(
        None, "Share of the training data that steers L in Phase I; default a tenth, of at least 100 samples."
    )
    cross_fit: bool | None = setting(
        None,
        "Let every such part of the data take its turn (cross-fitting): twins of the network, each trained without one "
        "part, steer L, and the network itself sees all data. Default below 500 samples.",
    )
    epochs: int = setting(40, "The budget: the whole run is planned for this many epochs.", ge=1)
    phase2_epochs: int | None = setting(
        None, "Epochs of Phase II, on top of `epochs`; left out, it is their last tenth (none below 10).", ge=0
    )
    phase2_start: Literal["continue", "restart"] = setting(
        "continue", "Phase II keeps the optimizer's state, or restarts it from the averaged weights."
    )
    phase1_only: bool = setting(
        False,
        "Plan Phase II, but stop at the end of Phase I: the network before the calibration data are re-integrated.",
    )
    feedback: Literal["steady", "paper"] = setting(
        "steady", "How T* moves L: steady knows T*'s error; paper is L <- L / T* to the letter."
    )
    window: int = setting(30, "The paper's stop: L's relative range over this many epochs ...", ge=2)
    tolerance: Positive = setting(0.001, "... is below this tolerance.")
    batch_size: int | None = setting(
        None,
        "Samples a step; default 128, tables 32 to 4096 and patchnet 128 to 1024 (of the baselines to 256) by the size "
        "of the set, or all where there are fewer.",
        ge=1,
    )
    optimizer: Literal["auto", "muon", "adamw", "schedulefree"] = setting(
        "auto",
        "muon and adamw end with the budget (auto: muon for convolutional networks, else adamw); schedulefree is the "
        "paper's, until L has settled.",
    )
    learning_rate: float | None = setting(
        None,
        "Default 0.05 sqrt(batch_size / 1024) of a weight's size a step (muon), 0.2 of it (adamw) or 0.001 "
        "(schedulefree); of the baselines 0.002 (adamw; patchnet 0.004).",
        gt=0,
        le=100,
    )
    weight_decay: NotNegative = setting(0.0, "Weight decay of Muon and AdamW.")
    warmup_steps: int | None = setting(
        None, "Steps over which the learning rate rises; default 5 % of the plan, or none.", ge=0
    )
    centering_batches: int = setting(50, "Training batches that re-estimate the centering means.", ge=1)
    precision: Literal["auto", "float32", "bfloat16"] = setting(
        "auto",
        "Of the forward pass in training; weights and certificates are never reduced. auto takes bfloat16 for "
        "convolutional networks where the processor has it.",
    )
    compile: bool = setting(False, "Compile the training network with torch.compile; pays on GPUs.")
    seed: int = setting(0, "Fixes everything that is random.", ge=0)

    @field_validator("offset", "margin", "tau", "alpha", "gamma", "slack", "penalty")
    @classmethod
    def _suits_the_loss(cls, value: float | None, about: ValidationInfo) -> float | None:
        """A loss has parameters of its own; another's would be ignored in silence."""
        method, objective = about.data.get("method", "list"), about.data.get("objective", "offset")
        kind, loss, table = (
            ("objective", objective, OBJECTIVES) if method in CONSTRAINED else ("method", method, BASELINES)
        )
        if value and about.field_name not in table.get(loss, {}):
            suitable = [key for key, own in table.items() if about.field_name in own]
            instead = f"{kind} {' or '.join(suitable)}" if suitable else " or ".join(CONSTRAINED)
            raise ValueError(f"means nothing to {kind} {loss}: leave it out, or use {instead}")
        return value

    @field_validator("lipschitz", "objective", "phase1_only")
    @classmethod
    def _suits_the_method(cls, value: Any, about: ValidationInfo) -> Any:
        """A constant and what it is trained for mean nothing to a network that no constant holds, nor do phases."""
        method, name = about.data.get("method", "list"), about.field_name or ""
        suitable = ("list",) if name == "phase1_only" else CONSTRAINED
        harmless = {cls.model_fields[name].default, *({1.0} if name == "lipschitz" else ())}  # L0 = 1 scales nothing
        if method not in suitable and value not in harmless:
            raise ValueError(f"means nothing to method {method}: leave it out, or use {' or '.join(suitable)}")
        return value

    @field_validator("optimizer")
    @classmethod
    def _orthogonal_only(cls, value: str, about: ValidationInfo) -> str:
        method = about.data.get("method", "list")
        if value == "muon" and method not in CONSTRAINED:
            raise ValueError(f"muon is made for orthogonal layers, and method {method} has none: use adamw")
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

    @property
    def loss(self) -> str:
        """The loss by its name: the objective of a constrained network, else the method."""
        return self.objective if self.is_constrained else self.method

    @property
    def holds_out(self) -> bool:
        """Whether a part of the data is held out of Phase I: to steer L by, or the smoothing of ar-adals."""
        return self.method == "list" or self.loss == "ar-adals"

    def asked(self, name: str) -> float:
        """A parameter of the loss: as it was set, or where it is 0 or left out its default."""
        value: float | None = getattr(self, name)
        return value or (OBJECTIVES if self.is_constrained else BASELINES).get(self.loss, {}).get(name, 0.0)


class RunSettings(StageSettings):
    """What is measured at the end, where, and where it is written."""

    minutes: Positive | None = setting(
        None, "The budget as time: the speed of this machine decides on `epochs` and on patchnet's `width`."
    )
    epsilons: tuple[NotNegative, ...] = setting(
        (36 / 255, 0.25, 0.5), "Radii at which certified accuracy is reported.", min_length=1
    )
    calibration_tolerance: Share = setting(0.02, "A calibration error that may be ignored: 0.02 is two points.")
    device: str = setting("auto", "cpu or cuda; auto takes a GPU where there is one.")
    out: Path | None = setting(None, "The run folder; default runs/DATA-MODEL-METHOD-N.")

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

    @field_validator("method")
    @classmethod
    def _has_such_layers(cls, value: str, about: ValidationInfo) -> str:
        layers = about.data.get("layers", "fast")
        if value not in CONSTRAINED and layers != "fast":
            reason = f"{value} trains ordinary layers, to which layers {layers} mean nothing"
            raise ValueError(f"{reason}: leave `layers` out, or use {' or '.join(CONSTRAINED)}")
        return value


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
