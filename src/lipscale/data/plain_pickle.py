"""Plain data out of a pickle file: dictionaries, lists, texts, whole numbers and numpy arrays of bytes.

An unpickler calls whatever the file names. Here a file may name four functions only, and each is ours. What is left
to fear is a small file that builds much, so the instructions are listed, checked and counted before any is carried out.
"""

import io
import pickle
import pickletools
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from lipscale.data.memory import require_file
from lipscale.errors import UserError

MOST_BYTES = 200_000_000  # the largest file of CIFAR has 155 MB
MOST_STEPS = 2_000_000  # and some 300,000 instructions; each can build an object of a hundred bytes
PUTS, GETS = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
SHARED = {"GLOBAL", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "BINBYTES", "SHORT_BINBYTES"}
ALLOWED = (
    SHARED
    | GETS
    | {
        *("PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG1"),
        *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("APPEND", "APPENDS", "SETITEM", "SETITEMS", "REDUCE", "BUILD"),
    }
)


def read_plain_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle file; bytes become text."""
    require_file(path, most=MOST_BYTES)
    try:
        raw = path.read_bytes()
        _check_steps(raw)
        found = _Unpickler(raw).load()
        if not isinstance(found, dict) or not all(isinstance(key, str | bytes) for key in found):
            _refuse("no dictionary of names")
        return {_text(key): _finished(value) for key, value in found.items()}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except _Refused as refused:
        raise UserError(f"{path} holds more than plain data ({refused}); get it again") from refused
    except Exception as error:  # a damaged file leads to any of a dozen kinds
        raise UserError(f"{path} is no pickle of plain data ({type(error).__name__}); get it again") from error


class _Refused(Exception):
    """The file holds something other than plain data."""


def _refuse(what: str) -> NoReturn:
    raise _Refused(what[:80])


def _check_steps(raw: bytes) -> None:
    """Only instructions that build plain data, not too many of them, and only texts and names are used twice.

    Without that last rule a tuple of twice the tuple before, 200 times over, would take forever to hash as a key.
    """
    memo: set[Any] = set()
    before = ""
    argument: Any
    for count, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
        if count > MOST_STEPS:
            _refuse(f"more than {MOST_STEPS} instructions")
        if opcode.name in PUTS:
            if argument > count:  # the unpickler takes memory for as many
                _refuse("a memo out of order")
            (memo.add if before in SHARED else memo.discard)(argument)
        elif opcode.name in GETS and argument not in memo:
            _refuse("what is used twice, such as in a key, is no text")
        elif opcode.name not in ALLOWED:
            _refuse(f"the instruction {opcode.name}")
        before = opcode.name


class _Unpickler(pickle.Unpickler):
    """The standard one, in which every name is one of ours, and the bytes of arrays are counted."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(io.BytesIO(raw), encoding="latin-1")
        self.left = len(raw)

    def find_class(self, module: str, name: str) -> Any:
        """What a name stands for; functions are made anew, so that nothing a file does to them stays."""

        def dtype(kind: Any, *_: Any) -> _Bytes:
            return _Bytes() if kind in ("u1", "|u1") else _refuse(f"a call of numpy dtype {kind!r}")

        def encode(text: Any, code: Any) -> str:  # bytes, as Python 3 writes them for Python 2
            return text if isinstance(text, str) and code == "latin1" else _refuse("a call of _codecs encode")

        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return lambda *_: _Array(self)
        known = {"numpy ndarray": "ndarray", "numpy dtype": dtype, "_codecs encode": encode}
        return known.get(f"{module} {name}") or _refuse(f"a call of {module} {name}")


class _Bytes:
    """The only type of an array."""

    def __setstate__(self, state: Any) -> None:
        pass  # a byte has no byte order


class _Array:
    """An array of bytes: made empty, then given its content, of which a file cannot have more than its own size."""

    def __init__(self, unpickler: _Unpickler) -> None:
        self.unpickler = unpickler
        self.value: np.ndarray = np.empty(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
            _refuse("an array of odd shape")
        if not isinstance(dtype, _Bytes) or not isinstance(content, str | bytes):
            _refuse("an array of odd content")
        if len(content) != prod(shape):
            raise ValueError("an array whose content does not fill its shape")
        self.unpickler.left -= len(content)
        if self.unpickler.left < 0:
            _refuse("arrays larger than the file")
        raw = content.encode("latin-1") if isinstance(content, str) else content
        self.value = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


def _text(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _finished(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_text, value))
    return value.value if isinstance(value, _Array) else _text(value)
