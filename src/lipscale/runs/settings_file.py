"""Settings as YAML files: read without surprises, and written so that they can be read back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from lipscale.data.memory import reading
from lipscale.errors import UserError
from lipscale.settings import Settings

LONGEST_FILE = 1_000_000  # bytes


def read_yaml(path: Path, *, what: str, check: Callable[[Path, Any], None]) -> tuple[Any, Any]:
    """The values in a YAML file and its nodes, which are checked before anything is built from them."""
    with reading(path, f"{what} in YAML", most=LONGEST_FILE):  # a date such as 2023-99-99 is an error, too
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        check(path, node)
        return yaml.safe_load(text) or {}, node


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
