"""Checks of single record fields: each returns the value in its one stored form, or raises."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mrl.exchange.framing import RecordError

MAX_TEXT_BYTES = 1 << 20
MAX_TOKENS = 1 << 18
MAX_TOKEN_ID = 2**31 - 1
MAX_NAME_CHARACTERS = 1024
MAX_SEGMENTS = 4096
MAX_COUNT = 2**63 - 1
# Squares of rewards and their sums stay finite, so no peer can overflow a receiver's statistics.
MAX_REWARD = 1e100
# On the wire token ids and log-probs are the bytes of these numbers, in order.
WIRE_ID, WIRE_LOGPROB = np.dtype("<i4"), np.dtype("<f8")


class Segment(NamedTuple):
    """A structural token inside a response: bytes ``start:stop`` of the text are of `kind`.

    What lies between segments is plain text. A receiver that declares the same kind maps the
    segment to its own token, any other reads the bytes as text.
    """

    kind: str
    start: int
    stop: int


def name(field: str, value: Any, /) -> str:
    """Check a short, non-empty text: an identifier."""
    if type(value) is not str:
        raise _wrong_type(field, value, "a string")
    if not 0 < len(value) <= MAX_NAME_CHARACTERS:
        raise RecordError(
            "size", f"{field} has {len(value)} characters; expected 1 to {MAX_NAME_CHARACTERS}"
        )
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise RecordError("type", f"{field}={value!r} is not valid Unicode text") from error
    return value


def count(field: str, value: Any, /) -> int:
    """Check a whole number >= 0; numpy integers are taken as well."""
    if type(value) is not int:
        if not isinstance(value, np.integer):
            raise _wrong_type(field, value, "an integer")
        value = int(value)
    if not 0 <= value <= MAX_COUNT:
        raise RecordError("range", f"{field}={value} is out of range; expected 0 to 2**63 - 1")
    return value


def number(field: str, value: Any, /, limit: float = MAX_REWARD) -> float:
    """Check a finite number of at most `limit` in size; numpy numbers are taken as well."""
    if type(value) is not float:
        if not isinstance(value, int | np.integer | np.floating) or isinstance(value, bool):
            raise _wrong_type(field, value, "a number")
        if isinstance(value, int) and abs(value) > limit:  # float() of it may overflow
            raise RecordError("range", f"{field} is larger than {limit:g} in size")
        value = float(value)
    if not math.isfinite(value):
        raise RecordError("nonfinite", f"{field}={value} is not finite")
    if abs(value) > limit:
        raise RecordError("range", f"{field}={value} is larger than {limit:g} in size")
    return value


def flag(field: str, value: Any, /) -> bool:
    """Check for True or False; 0 and 1 are not taken for them."""
    if type(value) is not bool:
        if not isinstance(value, np.bool_):
            raise _wrong_type(field, value, "True or False")
        value = bool(value)
    return value


def finish_reason(field: str, value: Any, /) -> str:
    """Check how a response ended."""
    if value not in ("eos", "length"):
        raise RecordError("range", f"{field}={value!r}; expected 'eos' or 'length'")
    return value


def text(field: str, value: Any, /) -> bytes:
    """Check response text as bytes, of bounded size."""
    if type(value) is not bytes:
        raise _wrong_type(field, value, "bytes")
    if len(value) > MAX_TEXT_BYTES:
        raise RecordError(
            "size", f"{field} has {len(value)} bytes; at most {MAX_TEXT_BYTES} are allowed"
        )
    return value


def token_ids(field: str, values: Any, /) -> NDArray[np.int64]:
    """Return token ids as a read-only array of shape (T,)."""
    array = _vector(field, values)
    if array.size and array.dtype.kind not in "iu":
        raise _wrong_type(field, array.dtype, "integers")
    ids = array.astype(np.int64, copy=False)
    # As unsigned numbers negative ids are the largest, so one pass finds both kinds of misfit.
    if ids.size and np.maximum.reduce(ids.view(np.uint64)) > MAX_TOKEN_ID:
        raise RecordError(
            "range", f"{field} spans {ids.min()} to {ids.max()}; expected 0 to {MAX_TOKEN_ID}"
        )
    return _frozen(ids)


def logprobs(field: str, values: Any, /) -> NDArray[np.float64]:
    """Return log-probabilities as a read-only array of shape (T,); NaN: the engine gave none."""
    array = _vector(field, values)
    if array.size and array.dtype.kind not in "fiu":
        raise _wrong_type(field, array.dtype, "floats")
    return _frozen(without_infinity(field, array.astype(np.float64, copy=False)))


def without_infinity(field: str, array: NDArray[np.float64], /) -> NDArray[np.float64]:
    """Check that numbers are finite or NaN."""
    # A finite sum of squares rules infinities out in a fraction of the time of looking for them
    # (vdot, since dot warns of them).
    if not math.isfinite(np.vdot(array, array)) and np.isinf(array).any():
        raise RecordError("nonfinite", f"{field} holds an infinity; a sampled token has none")
    return array


def segments(field: str, values: Any, size: int, /) -> tuple[Segment, ...]:
    """Return the segments of a text of `size` bytes: in order, not empty and not overlapping."""
    if not isinstance(values, tuple | list):
        raise RecordError("type", f"{field} is {type(values).__name__}; expected a tuple")
    if len(values) > MAX_SEGMENTS:
        raise RecordError(
            "size", f"{field} has {len(values)} entries; at most {MAX_SEGMENTS} are allowed"
        )
    checked: list[Segment] = []
    end = 0
    for value in values:
        if not isinstance(value, tuple | list) or len(value) != 3:
            raise RecordError("type", f"segment {value!r}; expected (kind, start, stop)")
        segment = Segment(
            name("segment kind", value[0]),
            count("segment start", value[1]),
            count("segment stop", value[2]),
        )
        if not end <= segment.start < segment.stop <= size:
            raise RecordError(
                "range",
                f"{segment} does not fit a text of {size} bytes after byte {end}; expected "
                "segments in order, not empty and not overlapping",
            )
        checked.append(segment)
        end = segment.stop
    return tuple(checked)


def unpacked(field: str, data: Any, dtype: np.dtype[Any], /) -> NDArray[Any]:
    """Return the array that arrived as bytes."""
    if not isinstance(data, bytes):
        raise RecordError("type", f"{field} is {type(data).__name__}; expected bytes")
    if len(data) % dtype.itemsize:
        raise RecordError(
            "length", f"{field} has {len(data)} bytes; expected a multiple of {dtype.itemsize}"
        )
    return np.frombuffer(data, dtype)


def _vector(field: str, values: Any, /) -> NDArray[Any]:
    try:
        array = np.array(values)  # a copy: what a record holds cannot change
    except (ValueError, TypeError, OverflowError) as error:
        raise RecordError("type", f"{field} is not an array: {error}") from error
    if array.ndim != 1:
        raise RecordError("type", f"{field} has shape {array.shape}; expected (tokens,)")
    if array.size > MAX_TOKENS:
        raise RecordError(
            "size", f"{field} has {array.size} tokens; at most {MAX_TOKENS} are allowed"
        )
    return array


def _frozen(array: NDArray[Any], /) -> NDArray[Any]:
    array.setflags(write=False)
    return array


def _wrong_type(field: str, value: Any, expected: str, /) -> RecordError:
    got = value if isinstance(value, np.dtype) else type(value).__name__
    return RecordError("type", f"{field} is {got}; expected {expected}")
