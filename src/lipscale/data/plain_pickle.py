"""Plain data out of a pickle file, without unpickling it.

An unpickler runs whatever the file asks for. Here the file's instructions are only listed (by the standard library's
disassembler) and the few that build plain data are carried out: dictionaries, lists, tuples, texts, whole numbers and
numpy arrays of bytes or integers. Every other one is refused by name. Nothing is imported, called or looked up.
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from lipscale.errors import UserError

MOST_BYTES = 1 << 30
MARK = object()
RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
ARRAY_KINDS = ("u1", "|u1", "i1", "i8", "<i8", "i4", "<i4")


@dataclass(frozen=True)
class _Name:
    """A name that the file would have had imported."""

    text: str


@dataclass
class _Dtype:
    kind: str


@dataclass
class _Array:
    """A numpy array before its content has arrived."""

    value: np.ndarray | None = None


class _Refused(Exception):
    """The file holds something other than plain data."""


def read_plain_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle file; byte keys and texts become str."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} is larger than {MOST_BYTES >> 20} MB; no batch of CIFAR is")
        result = _Machine().run(path.read_bytes())
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except _Refused as refused:
        raise UserError(f"{path} holds more than plain data ({refused}); it was not opened: get it again") from refused
    # what a damaged file leads to: an unknown instruction, an empty stack, a text that is none, a missing entry
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise UserError(f"{path} is no pickle of plain data ({type(error).__name__}); get it again") from error
    return result


class _Machine:
    """The stack machine of a pickle, reduced to plain data."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, raw: bytes) -> dict[str, Any]:
        for opcode, argument, _ in pickletools.genops(raw):
            name = opcode.name
            if name == "STOP":
                break
            if name in CONSTANTS:
                self.stack.append(CONSTANTS[name]())
            elif name in VALUES:
                self.stack.append(_plain(argument))
            elif name in ACTIONS:
                ACTIONS[name](self, argument)
            elif name not in ("PROTO", "FRAME"):
                raise _Refused(f"the instruction {name}")
        result = self.stack.pop()
        if self.stack or not isinstance(result, dict):
            raise _Refused("no dictionary")
        return {key: _finished(value) for key, value in result.items()}

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not MARK:
            at -= 1
            if at < 0:
                raise ValueError("no mark")
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def append(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise _Refused("appending to no list")
        target.extend(values)

    def set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(values) % 2:
            raise _Refused("setting items of no dictionary")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str):  # hashing a nested key could take forever
                raise _Refused("a key that is no text")
            target[key] = value

    def tuple_of(self, count: int) -> None:
        values = tuple(self.stack[-count:])
        if len(values) < count:
            raise ValueError("stack too short")
        del self.stack[-count:]
        self.stack.append(values)

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Name) or not isinstance(arguments, tuple):
            raise _Refused("a call")
        if function.text in RECONSTRUCT:
            self.stack.append(_Array())
        elif function.text == "numpy dtype" and arguments and arguments[0] in ARRAY_KINDS:
            self.stack.append(_Dtype(arguments[0]))
        elif function.text == "_codecs encode" and arguments[1:] == ("latin1",) and isinstance(arguments[0], str):
            self.stack.append(arguments[0])  # bytes, as Python 3 writes them for Python 2; texts here are latin-1
        else:
            raise _Refused(f"a call of {function.text[:60]}")

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, _Dtype) and isinstance(state, tuple):
            if len(state) > 1 and state[1] not in ("<", "|", "="):
                raise _Refused("an array in another byte order")
            return
        if not isinstance(target, _Array) or not isinstance(state, tuple) or len(state) != 5:
            raise _Refused("an object with a state")
        _, shape, dtype, fortran, content = state
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
            raise _Refused("an array of odd shape")
        if not isinstance(dtype, _Dtype) or not isinstance(content, str):
            raise _Refused("an array of odd content")
        raw, kind = content.encode("latin-1"), np.dtype(dtype.kind)
        if len(raw) != prod(shape) * kind.itemsize:  # before anything is allocated
            raise ValueError("an array whose content does not fill its shape")
        target.value = np.frombuffer(raw, kind).reshape(shape, order="F" if fortran else "C")


def _plain(value: Any) -> Any:
    """Bytes as latin-1 text, so that keys compare and array content survives unchanged."""
    return bytes(value).decode("latin-1") if isinstance(value, bytes | bytearray) else value


def _finished(value: Any) -> Any:
    if not isinstance(value, _Array):
        return value
    if value.value is None:
        raise ValueError("an array without content")
    return value.value


CONSTANTS: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "MARK": lambda: MARK,
}
VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG1", "STRING", "BINSTRING", "SHORT_BINSTRING"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"),
}
ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "GLOBAL": lambda m, name: m.stack.append(_Name(name)),
    "PUT": _Machine.put,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": lambda m, _: m.put(len(m.memo)),
    "GET": _Machine.get,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "APPEND": lambda m, _: m.append([m.stack.pop()]),
    "APPENDS": lambda m, _: m.append(m.since_mark()),
    "SETITEM": lambda m, _: m.set_items([m.stack.pop(-2), m.stack.pop()]),
    "SETITEMS": lambda m, _: m.set_items(m.since_mark()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.since_mark())),
    "TUPLE1": lambda m, _: m.tuple_of(1),
    "TUPLE2": lambda m, _: m.tuple_of(2),
    "TUPLE3": lambda m, _: m.tuple_of(3),
    "REDUCE": lambda m, _: m.reduce(),
    "BUILD": lambda m, _: m.build(),
}
