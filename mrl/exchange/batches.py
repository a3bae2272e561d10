"""Many records at a time, each beside its bytes.

Decoding one record is a dozen calls that look at one value each. Rollouts, of which nearly all
that is sent consists, are therefore checked a field at a time over all of them. Where that finds
anything unusual, each is decoded by itself: what a valid record is, and why another is not, is
decided by `mrl.exchange.records` alone.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mrl.exchange import fields as check
from mrl.exchange.framing import RecordError, unseal
from mrl.exchange.records import Record, RecordKey, RolloutRecord, decode, record_of

# Each sets one field of a record that nobody has yet.
_SETTERS = [getattr(RolloutRecord, name).__set__ for name in RolloutRecord.__match_args__]


class Sealed(NamedTuple):
    """A record, its identity, and its bytes: as they arrived, or else its own encoding."""

    record: Record
    key: RecordKey
    encoded: bytes


def encode_all(records: Iterable[Record], /) -> list[Sealed]:
    """Return records with their encodings."""
    return [Sealed(record, record.key, record.encode()) for record in records]


def decode_all(encoded: Sequence[bytes], /) -> list[Record]:
    """Return the records in `encoded`.

    Raises
    ------
    RecordError
        If one cannot be decoded: what is wrong with the first such.
    """
    accepted, refused = accept(encoded)
    if refused:
        return [decode(data) for data in encoded]
    return [one.record for one in accepted]


def accept(encoded: Iterable[bytes], /) -> tuple[list[Sealed], Counter[str]]:
    """Return the records in `encoded`, and how many could not be decoded, by reason."""
    accepted: list[Sealed] = []
    refused: Counter[str] = Counter()
    opened: list[tuple[bytes, list[Any]]] = []
    for data in encoded:
        try:
            opened.append((data, unseal(data)))
        except RecordError as error:
            refused[error.reason] += 1
    rollouts = iter(_rollouts([values for _, values in opened if _is_rollout(values)]))
    for data, values in opened:
        ready = next(rollouts, None) if _is_rollout(values) else None
        try:
            record = ready or record_of(values)
        except RecordError as error:
            refused[error.reason] += 1
        else:
            accepted.append(Sealed(record, record.key, data))
    return accepted, refused


def _is_rollout(values: list[Any], /) -> bool:
    return values[0] == RolloutRecord.KIND and len(values) == 1 + len(_SETTERS)


def _rollouts(rows: list[list[Any]], /) -> list[RolloutRecord]:
    """Return the records of unsealed rollouts; none if any of them might be invalid."""
    if not rows:
        return []
    try:
        columns = _checked(rows)
    except (TypeError, ValueError):
        return []
    records = [object.__new__(RolloutRecord) for _ in rows]
    for setter, column in zip(_SETTERS, columns, strict=True):
        deque(map(setter, records, column), maxlen=0)
    return records


def _checked(rows: list[list[Any]], /) -> list[list[Any]]:
    """Return each field of all rollouts, in order, as records have them.

    Raises
    ------
    TypeError, ValueError
        If a value is invalid, or of another type than a record's encoding has.
    """
    fields = [list(values) for values in zip(*rows, strict=True)][1:]
    prompts, policies, versions, indices, texts, ids, logprobs = fields[:7]
    canonical, rewards, reasons, fingerprints, segments = fields[7:]
    verified = [reward for reward in rewards if reward is not None]
    for kind, values in (
        (int, (*versions, *indices)),
        (bytes, (*texts, *ids, *logprobs)),
        (bool, canonical),
        (float, verified),
    ):
        if not set(map(type, values)) <= {kind}:
            raise TypeError(f"not all of {kind}")
    # Of equal values one is enough to check, and of lengths the largest.
    for name in {*prompts, *policies, *fingerprints}:
        check.name("name", name)
    for number in {*versions, *indices}:
        check.count("number", number)
    for reward in set(verified):
        check.number("reward", reward)
    for reason in set(reasons):
        check.finish_reason("finish_reason", reason)
    check.text("text", max(texts, key=len))
    fields[11] = [
        check.segments("segments", part, len(text)) if part != [] else ()
        for part, text in zip(segments, texts, strict=True)
    ]
    fields[5], fields[6] = _arrays(ids, logprobs)
    return fields


def _arrays(ids: Sequence[bytes], logprobs: Sequence[bytes], /) -> tuple[list[Any], list[Any]]:
    """Return the arrays that arrived as bytes.

    Raises
    ------
    ValueError
        If they are of different or too large size, or hold what they must not.
    """
    ids_of = [np.frombuffer(one, check.WIRE_ID).astype(np.int64) for one in ids]
    # Bytes do not change, so the other needs no copy.
    logprobs_of = [
        np.frombuffer(one, check.WIRE_LOGPROB).astype(np.float64, copy=False) for one in logprobs
    ]
    sizes = list(map(len, ids_of))
    if sizes != list(map(len, logprobs_of)) or max(sizes) > check.MAX_TOKENS:
        raise ValueError("arrays of different or too large size")
    # The last byte of each id holds its sign: all are ASCII if and only if no id is negative.
    if not b"".join(ids)[3::4].isascii():
        raise ValueError("negative token ids")
    together = np.frombuffer(b"".join(logprobs), check.WIRE_LOGPROB)
    check.without_infinity("source_logprobs", together)
    for array in (*ids_of, *logprobs_of):
        array.setflags(write=False)
    return ids_of, logprobs_of
