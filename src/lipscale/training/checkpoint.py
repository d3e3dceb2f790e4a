"""Checkpoints: one safetensors file, written atomically, read without executing anything."""

import hashlib
import json
import os
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from lipscale.errors import UnusableError, UnwritableError, UserError
from lipscale.training.algorithm import ListTraining

FORMAT = "lipscale-2"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write tensors and plain values; a reader finds the old file or the new one, never a part of one."""
    # buffers of the peers' layers may share memory, which the format refuses
    saved = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}
    text = json.dumps(values)
    # one key: the format writes several in any order
    write_atomically(path, save(saved, metadata={FORMAT: _checksum(saved, text) + text}))


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    """A fingerprint of all that a file holds: a disk or a cable that changes a bit shall not go unnoticed."""
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def append_durably(path: Path, line: str) -> None:
    """Add a line to a file and see it on the disk."""
    try:
        with path.open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UnwritableError(f"cannot write {path}: {error.strerror}") from error


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file in one step that survives a crash of the process or the machine."""
    partial = path.with_name(path.name + ".partial")
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
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


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


def load_network(net: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Put weights into a network of the right shape."""
    try:
        net.load_state_dict(dict(tensors))
    except RuntimeError as error:
        reason = textwrap.shorten(str(error), 200)
        raise UnusableError(f"{path} does not fit the network of its settings: {reason}") from error


def save_training(path: Path, training: ListTraining) -> None:
    """The whole state of a training: after an epoch in evaluation mode, within one as it stands.

    ScheduleFree's switch between its two sets of weights rounds, so both runs, the one that goes on and the one that
    is resumed, must start from the same side of it.
    """
    state = training.optimizer.state_dict()
    tensors = {f"net/{name}": t for name, t in training.net.state_dict().items()}
    for index, slots in state["state"].items():
        tensors |= {f"optimizer/{index}/{slot}": t for slot, t in slots.items()}
    values = {"settings": _digest(training), "training": training.state(), "param_groups": state["param_groups"]}
    save_tensors(path, tensors, values)


def _digest(training: ListTraining) -> str:
    """What tells the checkpoint of one run from that of another; where its data lie does not."""
    settings = training.settings.model_dump_json(exclude={"out", "device", "data", "data_dir", "test_data"})
    return hashlib.sha256(settings.encode()).hexdigest()


def load_training(path: Path, training: ListTraining) -> None:
    """Put a saved state into a freshly built training."""
    tensors, values = load_tensors(path)
    if values.get("settings") != _digest(training):
        raise UnusableError(f"{path} is no checkpoint of a run with these settings")
    net: dict[str, Tensor] = {}
    slots: dict[int, dict[str, Tensor]] = {}
    try:
        for name, tensor in tensors.items():
            kind, _, rest = name.partition("/")
            if kind == "net":
                net[rest] = tensor
            else:
                index, slot = rest.split("/")
                slots.setdefault(int(index), {})[slot] = tensor
        load_network(training.net, net, path)
        training.load_state(values["training"])
        training.optimizer.load_state_dict({"state": slots, "param_groups": values["param_groups"]})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        raise UnusableError(f"{path} is no checkpoint of this training ({error!r})") from error
    training.net.eval()
