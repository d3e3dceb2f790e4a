"""Checkpoints: one safetensors file, written atomically, read without executing anything."""

import hashlib
import json
import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from lipscale.errors import UserError
from lipscale.training.algorithm import ListTraining

FORMAT = "lipscale-1"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write tensors and plain values; a reader finds the old file or the new one, never a part of one."""
    # buffers of the peers' layers may share memory, which the format refuses
    data = save(
        {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()},
        metadata={FORMAT: json.dumps(values)},  # one key: the format writes several in any order
    )
    write_atomically(path, data)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file in one step that survives a crash of the process or the machine."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
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
                raise UserError(f"{path} was not written by this version of lipscale (expected format {FORMAT})")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        return tensors, json.loads(metadata[FORMAT])
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is truncated or no lipscale file ({error})") from error


def load_network(net: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Put weights into a network of the right shape."""
    try:
        net.load_state_dict(dict(tensors))
    except RuntimeError as error:
        reason = textwrap.shorten(str(error), 200)
        raise UserError(f"{path} does not fit the network of its settings: {reason}") from error


def save_training(path: Path, training: ListTraining) -> None:
    """The whole state of a training; called in evaluation mode, where the averaged weights are in place.

    ScheduleFree's switch between its two sets of weights rounds, so both runs, the one that goes on and the one that
    is resumed, must start from this side of it.
    """
    state = training.optimizer.state_dict()
    tensors = {f"net/{name}": t for name, t in training.net.state_dict().items()}
    for index, slots in state["state"].items():
        tensors |= {f"optimizer/{index}/{slot}": t for slot, t in slots.items()}
    values = {"settings": _digest(training), "training": training.state(), "param_groups": state["param_groups"]}
    save_tensors(path, tensors, values)


def _digest(training: ListTraining) -> str:
    """What tells the checkpoint of one run from that of another."""
    settings = training.settings.model_dump_json(exclude={"out", "device", "data_dir"})
    return hashlib.sha256(settings.encode()).hexdigest()


def load_training(path: Path, training: ListTraining) -> None:
    """Put a saved state into a freshly built training."""
    tensors, values = load_tensors(path)
    if values.get("settings") != _digest(training):
        raise UserError(f"{path} is no checkpoint of a run with these settings")
    net: dict[str, Tensor] = {}
    slots: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "net":
            net[rest] = tensor
        else:
            index, slot = rest.split("/")
            slots.setdefault(int(index), {})[slot] = tensor
    load_network(training.net, net, path)
    try:
        training.load_state(values["training"])
        training.optimizer.load_state_dict({"state": slots, "param_groups": values["param_groups"]})
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is no checkpoint of this training ({error!r})") from error
    training.net.eval()
