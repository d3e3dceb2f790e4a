"""Files that survive a crash: written in one step, with a checksum, and read without executing anything."""

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from lipscale.errors import UnusableError, UnwritableError, UserError

FORMAT = "lipscale-3"
PARTIAL = ".partial"  # how the names of files end that are not whole yet


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file in one step that survives a crash of the process or the machine."""
    # a name of its own: two processes that write the same file do not write into each other's
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()  # on a full disk its space is wanted back
        raise UnwritableError(f"cannot write {path}: {error.strerror}") from error
    if os.name == "posix":  # elsewhere a folder cannot be opened, and need not be
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def append_durably(path: Path, line: str) -> None:
    """Add a line to a file and see it on the disk."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UnwritableError(f"cannot write {path}: {error.strerror}") from error


def save_tensors(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write tensors and plain values; a reader finds the old file or the new one, never a part of one."""
    # buffers of the peers' layers may share memory, which the format refuses
    saved = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}
    text = json.dumps(values)
    # one key: the format writes several in any order
    write_atomically(path, save(saved, metadata={FORMAT: _checksum(saved, text) + text}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and plain values of a file that `save_tensors` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if FORMAT not in metadata:
                raise UnusableError(f"{path} was not written by this version of lipscale (expected format {FORMAT})")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        checksum, text = metadata[FORMAT][:64], metadata[FORMAT][64:]
        if _checksum(tensors, text) != checksum:
            raise UnusableError(f"{path} is damaged: its content does not match its checksum")
        return tensors, json.loads(text)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise UnusableError(f"{path} is truncated or no lipscale file ({error})") from error


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    """A fingerprint of all that a file holds: a disk or a cable that changes a bit shall not go unnoticed."""
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
