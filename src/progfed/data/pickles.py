"""Reads CIFAR's batches, which are pickles. A pickle is a program: only one that rebuilds arrays of bytes is run here.

The opcodes are read before anything is executed and must be in a short list; the three names that NumPy's own
pickles mention are bound to the plain classes below, so not even NumPy's functions are called.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from progfed.data.integrity import damaged, reading

_OPCODES = """
    PROTO STOP MARK EMPTY_DICT DICT SETITEM SETITEMS EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2
    TUPLE3 BINSTRING SHORT_BINSTRING BINUNICODE BINBYTES SHORT_BINBYTES BININT BININT1 BININT2 LONG1 NONE NEWTRUE
    NEWFALSE BINPUT LONG_BINPUT BINGET LONG_BINGET GLOBAL REDUCE BUILD
"""
_NAMES = frozenset(
    {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"}
)


class _Type:
    """Stands for `numpy.dtype`: remembers its code, such as `u1`."""

    def __init__(self, code: object = b"", *_: object) -> None:
        self.code = code.decode() if isinstance(code, bytes) else code

    def __setstate__(self, _: object) -> None:
        """Byte order and alignment: of no meaning for single bytes."""


class _Array:
    """Stands for `numpy.ndarray`: an array of unsigned bytes from its shape and content."""

    def __init__(self, *_: object) -> None:
        self.value = np.zeros(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, content = state
        if not isinstance(kind, _Type) or kind.code != "u1" or not isinstance(content, bytes):
            raise ValueError("its array is not made of unsigned bytes")
        flat = np.frombuffer(content, np.uint8)
        self.value = flat.reshape(shape, order="F" if fortran else "C")


class _Unpickler(pickle.Unpickler):
    """An unpickler that knows the three names that NumPy's pickles mention, and no other."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module} {name}" not in _NAMES:
            raise ValueError(f"it asks for {module}.{name}, which is never run")
        return _Type if name == "dtype" else _Array


def load_arrays(content: bytes, path: Path, *, scan: bool = True) -> dict[str, Any]:
    """The dictionary in a CIFAR pickle: lists, numbers, bytes, and arrays of unsigned bytes.

    Args:
        content: The bytes of the file.
        path: What errors call the file.
        scan: Whether the opcodes are read first; False saves that for content whose hash is the published one.
    """
    with reading(path):
        if scan:
            _check_opcodes(content)
        try:
            value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        except (pickle.UnpicklingError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise ValueError(f"not a CIFAR pickle: {error}") from error
    if not isinstance(value, dict):
        raise damaged(path, f"holds a {type(value).__name__} where a dictionary belongs")
    return {_text(key): item.value if isinstance(item, _Array) else item for key, item in value.items()}


def _check_opcodes(content: bytes) -> None:
    """Refuse a pickle with an opcode that is not in the short list, before anything of it is run."""
    allowed = frozenset(_OPCODES.split())
    argument: Any
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if opcode.name not in allowed:
            raise ValueError(f"its pickle uses {opcode.name}, which no CIFAR file does; nothing of it was run")
        if opcode.name == "GLOBAL" and argument not in _NAMES:
            raise ValueError(f"its pickle asks for {argument.replace(' ', '.')}; nothing of it was run")
        # The unpickler allocates its memo up to the largest index: a lying index would take all memory.
        if opcode.name in ("BINPUT", "LONG_BINPUT") and argument > count + 1:
            raise ValueError("its pickle numbers its objects wrongly; nothing of it was run")


def _text(key: object) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)
