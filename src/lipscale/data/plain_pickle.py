"""Plain data out of a pickle file: dictionaries, lists, texts, whole numbers and numpy arrays of bytes.

The standard library's unpickler (the one in Python, whose table of instructions can be cut short) with the instructions
of CIFAR's files and no other. It calls nothing that a file names, and counts instructions and the bytes of arrays.
"""

import io
import pickle
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lipscale.data.memory import reading

MOST_BYTES = 200_000_000  # the largest file of CIFAR has 155 MB
MOST_STEPS = 2_000_000  # and some 500,000 readings of an instruction or its value; each can build a hundred bytes
INSTRUCTIONS = b"\x80.(N\x88\x89KMJUTX}]aeus)t\x85\x86\x87qrhjcRb"
NAMES = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}
NAMES |= {"numpy ndarray", "numpy dtype", "_codecs encode"}


def read_plain_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle file."""
    with reading(path, "a pickle of plain data", most=MOST_BYTES):
        found = _Unpickler(path.read_bytes()).load()
        if not isinstance(found, dict):
            raise ValueError("no dictionary")
    return found


class _Counted(io.BytesIO):
    steps = 0

    def read(self, size: int | None = -1) -> bytes:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise ValueError(f"more than {MOST_STEPS} steps")
        return super().read(size)


class _Texts(dict[str, Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(key, str):  # a tuple of twice the tuple before, 200 times over, takes forever to hash
            raise ValueError("a key that is no text")
        super().__setitem__(key, value)


class _Unpickler(pickle._Unpickler):
    """Names stand for themselves; a "call" of one is one of the cases below."""

    stack: list[Any]

    def __init__(self, raw: bytes) -> None:
        super().__init__(_Counted(raw), encoding="latin-1")
        self.left = len(raw)

    def find_class(self, module: str, name: str) -> Any:
        if f"{module} {name}" not in NAMES:
            raise ValueError(f"a call of {module} {name}")
        return name

    def load_dictionary(self) -> None:
        self.stack.append(_Texts())

    def load_call(self) -> None:
        """REDUCE: a type, an array without content, or bytes as Python 3 writes them for Python 2."""
        arguments, name = self.stack.pop(), self.stack.pop()
        if name == "encode" and isinstance(arguments[0], str) and arguments[1] == "latin1":
            name = arguments[0]
        elif name != "_reconstruct" and (name != "dtype" or arguments[0] not in ("u1", "|u1")):
            raise ValueError(f"a call of {name}" if isinstance(name, str) else "a call of an object")
        self.stack.append(name)

    def load_content(self) -> None:
        """BUILD: the content of an array, of which a file cannot have more than its own size."""
        state = self.stack.pop()
        if self.stack[-1] == "_reconstruct":  # else it is the byte order of a byte
            _, shape, kind, fortran, content = state
            if not all(type(n) is int and n >= 0 for n in shape) or prod(shape) != len(content) or kind != "dtype":
                raise ValueError("an array of odd shape or content")
            self.left -= len(content)
            if self.left < 0:
                raise ValueError("arrays larger than the file")
            rows = np.frombuffer(content.encode("latin-1"), np.uint8)
            self.stack[-1] = rows.reshape(shape, order="F" if fortran else "C")

    def load_refused(self) -> None:
        raise ValueError("an instruction that plain data do not need")

    dispatch: ClassVar[dict[int, Any]] = dict.fromkeys(range(256), load_refused)
    dispatch |= {code: pickle._Unpickler.dispatch[code] for code in INSTRUCTIONS}
    dispatch |= {ord("}"): load_dictionary, ord("R"): load_call, ord("b"): load_content}
