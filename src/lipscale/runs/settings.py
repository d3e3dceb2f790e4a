"""The settings of a run: defaults, then a YAML file, then flags; a wrong key or value is named with its place."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, field_validator

from lipscale._settings import StageSettings
from lipscale.data.settings import DataSettings
from lipscale.errors import UserError
from lipscale.models.settings import ModelSettings
from lipscale.training.settings import TrainingSettings

LONGEST_FILE = 1 << 20


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
    """The settings with some values changed and checked."""
    return make_settings({**settings.model_dump(), **changes})


def make_settings(values: dict[str, Any], *, place: dict[str, str] | None = None) -> Settings:
    """Checked settings; an error names the key, its place and the nearest valid one."""
    return Settings.checked(values, place=place)


def read_yaml(path: Path, *, what: str, check: Callable[[Path, Any], None]) -> tuple[Any, Any]:
    """The values in a YAML file and its nodes, which are checked before anything is built from them."""
    try:
        with path.open("rb") as file:
            raw = file.read(LONGEST_FILE + 1)
        if len(raw) > LONGEST_FILE:
            raise UserError(f"{path} is no file of {what}: it is longer than {LONGEST_FILE} bytes")
        text = raw.decode()
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        check(path, node)
        return yaml.safe_load(text) or {}, node
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the {what} {path}: {error}") from error
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # a date such as 2023-99-99, for one
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is no valid YAML: {' '.join(str(error).split())}") from error


def read_settings(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The values in a YAML file, and for each key the place where it stands."""
    values, node = read_yaml(path, what="settings", check=_check_flat)
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected lines like 'epochs: 100', got {type(values).__name__}")
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return values, {str(key.value): f"{path}, line {key.start_mark.line + 1}" for key, _ in pairs}


def _check_flat(path: Path, node: Any) -> None:
    """Settings are flat: a name once, and a value or a list of values. Nothing deeper is even built."""
    if not isinstance(node, yaml.MappingNode):
        return
    check_names(path, node)
    for key, value in node.value:
        where = f"{path}, line {key.start_mark.line + 1}"
        parts = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if not all(isinstance(part, yaml.ScalarNode) for part in parts):
            raise UserError(f"{where}: {key.value}: expected a value or a list of values, got something nested")


def check_names(path: Path, node: yaml.MappingNode) -> None:
    """Every key is a name, and stands once."""
    seen: set[str] = set()
    for key, _ in node.value:
        where = f"{path}, line {key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise UserError(f"{where}: expected a name such as 'epochs', got something nested")
        if key.value in seen:
            raise UserError(f"{where}: {key.value!r} is given twice")
        seen.add(key.value)


def as_yaml(settings: Settings) -> str:
    """The settings as YAML that `read_settings` takes back."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)
