"""The run folder: its files by name, how it is begun, and how its small files are read and written."""

import hashlib
import json
import math
from contextlib import suppress
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


def new_folder(settings: Settings) -> Path:
    """The folder that the settings name, or the next free one below runs/."""
    if settings.out is not None:
        if not _is_text(settings.out):
            raise UserError("the name of `out` is no UTF-8 text: choose another, settings and reports have to hold it")
        try:
            settings.out.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise UserError(f"{settings.out} is a file; choose another `out`") from None
        except OSError as error:
            raise UserError(f"cannot create the run folder {settings.out}: {error.strerror}") from error
        require_empty(settings.out)
        return settings.out
    stem = f"{Path(settings.data).stem}-{settings.model}-{settings.method}"
    for number in range(1, 10**6):
        folder = Path("runs") / f"{stem}-{number}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:  # also where another process was faster
            continue
        except OSError as error:
            raise UserError(f"cannot create the run folder {folder}: {error.strerror}") from error
    raise UserError("runs/ is full; choose an `out`")


def _is_text(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def require_empty(folder: Path) -> None:
    """Refuse a folder with anything in it but what a run that was killed as it began has left."""
    leftovers = (LOCK, DATA, VERSIONS)
    if any(entry.name not in leftovers and entry.suffix != PARTIAL for entry in folder.iterdir()):
        raise UserError(f"{folder} exists; choose another `out`, or go on with lipscale.resume('{folder}')")


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
    if not folder.exists():
        raise UserError(f"{folder} does not exist")
    if not (folder / SETTINGS).is_file():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{SETTINGS}"))
        hint = f"; it holds the runs {', '.join(inside[:5])}" if inside else ""
        raise UserError(f"{folder} is no run folder: it has no {SETTINGS}{hint}")
    try:
        values, place = read_settings(folder / SETTINGS)
        settings = Settings.checked(values, place=place)
    except UserError as error:
        raise UnusableError(str(error)) from None
    if settings.model == "auto" or settings.width is None or settings.batch_size is None:
        raise UnusableError(f"{folder / SETTINGS} is damaged: model, width or batch_size is missing")
    return settings


def stored_data(folder: Path) -> tuple[tuple[str, ...], Preprocessing, dict[str, str]]:
    """Class names, preprocessing and the data's fingerprints, as the run has stored them."""
    about = read_json(folder / DATA)
    try:
        return (
            TypeAdapter(Annotated[tuple[str, ...], Field(min_length=2)]).validate_python(about["classes"]),
            TypeAdapter(Preprocessing).validate_python(about["preprocessing"]),
            TypeAdapter(dict[str, str]).validate_python(about.get("digest", {})),
        )
    except ValidationError as error:
        raise UnusableError(f"{folder / DATA} is damaged ({error.errors()[0]['msg']})") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise UnusableError(f"{folder / DATA} is damaged ({error!r})") from error


def stored_attacks(folder: Path) -> dict[AttackName, Robustness]:
    """The results of earlier attacks; none where there are none, or they are damaged: attacks can be made again."""
    try:
        return TypeAdapter(dict[AttackName, Robustness]).validate_python(read_json(folder / ROBUSTNESS))
    except (UserError, ValidationError):
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
    """JSON that every parser takes."""
    return json.dumps(strict(value), indent=2, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    """Write JSON in one step."""
    write_atomically(path, f"{strict_json(value)}\n".encode())


def read_json(path: Path) -> Any:
    """What a JSON file holds."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UnusableError(f"cannot read {path}: {error}") from error
