"""The run folder: its files by name, how it is begun, and how its small files are read and written."""

import hashlib
import json
import math
import platform
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from lipscale._files import PARTIAL, write_atomically
from lipscale.certificates.robustness import AttackName, Robustness
from lipscale.data import Preprocessing
from lipscale.errors import UnusableError, UserError
from lipscale.runs.lock import LOCK
from lipscale.runs.settings_file import read_settings
from lipscale.settings import Settings

SETTINGS, DATA, HISTORY = "settings.yaml", "data.json", "history.jsonl"
CHECKPOINT, MODEL, PREDICTIONS = "checkpoint.safetensors", "model.safetensors", "predictions.safetensors"
METRICS, VERSIONS, ROBUSTNESS, ATTACKS = "metrics.json", "versions.json", "robustness.json", "attacks"
EVALUATIONS, UNCERTAINTY = "evaluations", "uncertainty.json"


def new_folder(settings: Settings) -> Path:
    """The folder that the settings name, or the next free one below runs/."""
    out = settings.out
    if str(out) != str(out).encode(errors="ignore").decode():
        raise UserError("the name of `out` is no UTF-8 text: choose another, settings and reports have to hold it")
    stem = f"{Path(settings.data).stem}-{settings.model}-{settings.method}"
    for folder in (Path("runs") / f"{stem}-{number}" for number in count(1)) if out is None else (out,):
        try:
            folder.mkdir(parents=True, exist_ok=out is not None)
        except FileExistsError:  # below runs/ also where another process was faster
            if out is not None:
                raise UserError(f"{out} is a file; choose another `out`") from None
            continue
        except OSError as error:
            raise UserError(f"cannot create the run folder {folder}: {error.strerror}") from error
        break
    require_empty(folder)
    return folder


def require_empty(folder: Path) -> None:
    """Refuse a folder with anything in it but what a run that was killed as it began has left."""
    leftovers = (LOCK, DATA, VERSIONS)
    if any(entry.name not in leftovers and entry.suffix != PARTIAL for entry in folder.iterdir()):
        raise UserError(f"{folder} exists; choose another `out`, or go on with lipscale.resume('{folder}')")


def require_shared(path: Path, *, wait: float = 5.0) -> None:
    """Refuse a file that another process has written and this one cannot see; network storage may take a moment."""
    until = time.monotonic() + wait
    while not path.exists():
        if time.monotonic() > until:
            raise UserError(f"{path} cannot be seen on {platform.node()}: choose an `out` on storage that all share")
        time.sleep(0.1)


def clear(folder: Path) -> None:
    """Take back the first files of a run that could not be begun."""
    with suppress(OSError):
        for name in (DATA, VERSIONS, SETTINGS, LOCK):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def fingerprints(folder: Path) -> dict[str, str]:
    """The SHA-256 of the small files that decide what the network answers; its weights carry them along."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (SETTINGS, DATA)}


def remove_partials(folder: Path) -> None:
    """What a killed process had begun to write."""
    for path in folder.glob(f"*{PARTIAL}"):
        path.unlink(missing_ok=True)


def stored_settings(folder: Path) -> Settings:
    """The resolved settings of a run; what is no run folder is named."""
    if not (folder / SETTINGS).is_file():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{SETTINGS}"))
        hint = f"; it holds the runs {', '.join(inside[:5])}" if inside else ""
        problem = f"is no run folder: it has no {SETTINGS}{hint}" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {problem}")
    try:
        values, place = read_settings(folder / SETTINGS)
        settings = Settings.checked(values, place=place)
    except UserError as error:
        raise UnusableError(str(error)) from None
    if settings.model == "auto" or settings.width is None or settings.batch_size is None:
        raise UnusableError(f"{folder / SETTINGS} is damaged: model, width or batch_size is missing")
    return settings


@dataclass(frozen=True)
class StoredData:
    """What data.json holds."""

    classes: Annotated[tuple[str, ...], Field(min_length=2)]
    preprocessing: Preprocessing
    digest: dict[str, str] = field(default_factory=dict)  # of the training and the test part


def stored_attacks(folder: Path) -> dict[AttackName, Robustness]:
    """The results of earlier attacks; none where there are none, or they are damaged: attacks can be made again."""
    try:
        return read_json(folder / ROBUSTNESS, dict[AttackName, Robustness])
    except UserError:
        return {}


def strict(value: Any) -> Any:
    """Values that strict JSON can hold: infinities as the strings that float() reads back."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [strict(v) for v in value]
    return value


def strict_json(value: Any) -> str:
    """JSON that every parser takes, with a list of numbers on one line, as a row of a matrix should be."""
    text = json.dumps(strict(value), indent=2, allow_nan=False)
    # no text can be hit: a line break within one is written as \\n
    return re.sub(r'\[\n\s*([^"\[\]{}]*?)\s*\]', lambda found: f"[{' '.join(found[1].split())}]", text)


def write_json(path: Path, value: Any) -> None:
    """Write JSON in one step."""
    write_atomically(path, f"{strict_json(value)}\n".encode())


def read_json(path: Path, kind: Any = Any, *, way_out: str = "put the old one back, or start a new run") -> Any:
    """What a JSON file holds, checked to be of a kind."""
    try:
        return TypeAdapter(kind).validate_python(json.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise UnusableError(f"{path} is damaged ({reason}): {way_out}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UnusableError(f"cannot read {path}: {error}") from error
