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
    body = msgpack.packb(fields)
    return _header(body) + body


def unseal(data: bytes, /) -> list[Any]:
    """Fields of one record.

    Raises
    ------
    RecordError
        If the bytes are not exactly one undamaged record of this schema.
    """
    body = _body(data)
    try:
        fields = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException) as error:
        raise RecordError("malformed", f"record body is not msgpack: {error}") from error
    if not isinstance(fields, list) or not fields:
        raise RecordError("malformed", "record body is not an array of fields")
    return fields


def intact(data: bytes, /) -> bytes:
    """Return the bytes of one record, undamaged; its fields are not looked at.

    Raises
    ------
    RecordError
        If they are not exactly one undamaged record of this schema.
    """
    _body(data)
    return data


def _body(data: bytes, /) -> bytes:
    if type(data) is not bytes:
        raise RecordError("type", f"a record arrived as {type(data).__name__}; expected bytes")
    body = data[_HEADER.size :]
    if len(data) > MAX_RECORD_BYTES or data[: _HEADER.size] != _header(body):
        raise _damage(data)
    return body


def _header(body: bytes, /) -> bytes:
    return _HEADER.pack(MAGIC, SCHEMA, len(body), zlib.crc32(body))


def _damage(data: bytes, /) -> RecordError:
    """Say why bytes are not as any record was sealed."""
    if len(data) > MAX_RECORD_BYTES:
        return RecordError(
            "size", f"record of {len(data)} bytes; at most {MAX_RECORD_BYTES} are allowed"
        )
    if len(data) < _HEADER.size:
        return RecordError(
            "truncated", f"record of {len(data)} bytes; its header has {_HEADER.size}"
        )
    magic, schema, length, _ = _HEADER.unpack_from(data)
    if magic != MAGIC:
        return RecordError("magic", f"record starts with {magic!r}; expected {MAGIC!r}")
    if schema != SCHEMA:
        return RecordError(
            "schema", f"record schema {schema}; this version reads schema {SCHEMA} only"
        )
    size = len(data) - _HEADER.size
    if size != length:
        reason = "truncated" if size < length else "trailing"
        return RecordError(reason, f"record body has {size} bytes; its header says {length}")
    return RecordError("checksum", "record body does not match its checksum; send it again")
