"""The metadata at the head of a GGUF file: names and values before the tensors.

Layout, little-endian: the magic ``GGUF``, version (u32), tensors (u64), entries (u64), then for
each entry its name, the type of its value (u32) and the value. Strings are a length (u64) and
UTF-8; arrays are a type (u32), a count (u64) and the values. Source: the GGUF specification.
"""

import struct
from pathlib import Path
from typing import Any, BinaryIO

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"} | {
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9


def metadata_of(path: Path, /) -> dict[str, Any]:
    """Read all entries.

    Raises
    ------
    ValueError
        If the file is not GGUF of version 2 or later, or holds an unknown type.
    """
    with path.open("rb") as file:
        magic, version = file.read(4), _number(file, "I")
        if magic != b"GGUF" or version < 2:
            raise ValueError(
                f"{path} begins with {magic!r} and version {version}; expected a GGUF file of "
                "version 2 or later"
            )
        _, entries = _number(file, "Q"), _number(file, "Q")
        return {_text(file): _value(file, _number(file, "I")) for _ in range(entries)}


def _value(file: BinaryIO, kind: int, /) -> Any:
    if kind in _NUMBERS:
        return _number(file, _NUMBERS[kind])
    if kind == _STRING:
        return _text(file)
    if kind == _ARRAY:
        inner, count = _number(file, "I"), _number(file, "Q")
        if inner in _NUMBERS:
            layout = struct.Struct(f"<{count}{_NUMBERS[inner]}")
            return list(layout.unpack(file.read(layout.size)))
        return [_value(file, inner) for _ in range(count)]
    raise ValueError(f"value of type {kind}; expected one of the types 0 to 12 of GGUF")


def _number(file: BinaryIO, code: str, /) -> Any:
    layout = struct.Struct(f"<{code}")
    return layout.unpack(file.read(layout.size))[0]


def _text(file: BinaryIO, /) -> str:
    return file.read(_number(file, "Q")).decode()
