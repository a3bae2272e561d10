"""How a record looks as bytes: a fixed header, then one msgpack array.

    magic "MRL" | schema (1 byte) | body length (4) | CRC-32 of the body (4) | body

The header tells a truncated, extended or damaged record from a good one before anything in it is
read. The checksum finds accidents, not forgeries: what a peer sends is checked field by field
when the record is built. Nothing is ever unpickled.
"""

import struct
import zlib
from typing import Any

import msgpack

MAGIC = b"MRL"
SCHEMA = 2
MAX_RECORD_BYTES = 8 << 20

_HEADER = struct.Struct("<3sBII")


class RecordError(ValueError):
    """A record that cannot be accepted.

    Parameters
    ----------
    reason : str
        One word, used to count refusals: ``magic``, ``schema``, ``truncated``, ``trailing``,
        ``checksum``, ``malformed``, ``kind``, ``fields``, ``type``, ``range``, ``size``,
        ``length``, ``nonfinite`` or ``inconsistent``.
    message : str
        What was got and what was expected.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return self.message


def seal(fields: list[Any], /) -> bytes:
    """Bytes of one record with the given fields."""
    body = msgpack.packb(fields, use_bin_type=True)
    return _HEADER.pack(MAGIC, SCHEMA, len(body), zlib.crc32(body)) + body


def unseal(data: bytes, /) -> list[Any]:
    """Fields of one record.

    Raises
    ------
    RecordError
        If the bytes are not exactly one undamaged record of this schema.
    """
    if not isinstance(data, bytes):
        raise RecordError("type", f"a record arrived as {type(data).__name__}; expected bytes")
    size = len(data)
    if size > MAX_RECORD_BYTES:
        raise RecordError("size", f"record of {size} bytes; at most {MAX_RECORD_BYTES} are allowed")
    if size < _HEADER.size:
        raise RecordError("truncated", f"record of {size} bytes; its header has {_HEADER.size}")
    magic, schema, length, checksum = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise RecordError("magic", f"record starts with {magic!r}; expected {MAGIC!r}")
    if schema != SCHEMA:
        raise RecordError(
            "schema", f"record schema {schema}; this version reads schema {SCHEMA} only"
        )
    body = memoryview(data)[_HEADER.size :]
    if len(body) != length:
        reason = "truncated" if len(body) < length else "trailing"
        raise RecordError(reason, f"record body has {len(body)} bytes; its header says {length}")
    if zlib.crc32(body) != checksum:
        raise RecordError("checksum", "record body does not match its checksum; send it again")
    try:
        fields = msgpack.unpackb(body, raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise RecordError("malformed", f"record body is not msgpack: {error}") from error
    if not isinstance(fields, list) or not fields:
        raise RecordError("malformed", "record body is not an array of fields")
    return fields
