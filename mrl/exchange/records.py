"""The typed records that policies exchange; importable without a deep-learning library.

Each record is checked when it is built, and it is built anew from its fields when it is decoded,
so a record that exists is a valid one, wherever it came from. Two records are equal when their
encodings are. A receiver that needs no text asks for `GroupStats`: text then never travels.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bandit.probes import Population
from mrl.exchange import fields as check
from mrl.exchange.fields import Segment
from mrl.exchange.framing import RecordError, seal, unseal

FinishReason = Literal["eos", "length"]


class RecordKey(NamedTuple):
    """What makes a record unique; a second record with the same key is never stored."""

    kind: str
    policy_id: str
    version: int
    prompt_id: str
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """What all records share: which policy, at which version, on which prompt.

    Parameters
    ----------
    prompt_id : str
        Hash of the task item.
    policy_id : str
        The policy that made the record.
    version : int
        Round of that policy's weights, >= 0.
    """

    KIND: ClassVar[str]

    prompt_id: str
    policy_id: str
    version: int

    @property
    def key(self) -> RecordKey:
        """The record's identity; records of a whole group have position 0."""
        position = getattr(self, "index", 0)
        return RecordKey(self.KIND, self.policy_id, self.version, self.prompt_id, position)

    def encode(self) -> bytes:
        """Return the record as bytes; equal records give equal bytes."""
        return seal([self.KIND, *self._wire()])

    @classmethod
    def decode(cls, data: bytes, /) -> Self:
        """Return the record of this type in `data`.

        Raises
        ------
        RecordError
            If the bytes are damaged, of another schema or kind, or hold an invalid field.
        """
        record = decode(data)
        if not isinstance(record, cls):
            raise RecordError("kind", f"got a {record.KIND} record; expected {cls.__name__}")
        return record

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return self.encode() == other.encode()

    def __hash__(self) -> int:
        return hash(self.key)

    def _wire(self) -> list[Any]:
        return [getattr(self, field.name) for field in fields(self)]

    @classmethod
    def _from_wire(cls, values: list[Any], /) -> Self:
        return cls(*values)


@dataclass(frozen=True, slots=True, eq=False)
class RolloutRecord(Record):
    """One sampled response with all that a receiver needs to reuse it.

    Parameters
    ----------
    index : int
        Position in its group, >= 0.
    text : bytes
        The response without turn-end tokens, at most 1 MiB.
    source_ids : array_like of int, shape (T,)
        Token ids as sampled by the source.
    source_logprobs : array_like, shape (T,)
        Log-probabilities of those tokens at the real sampling distribution, in nats. NaN where the
        engine gave none; infinities are refused.
    canonical : bool
        Whether `source_ids` is what the source's tokenizer makes of `text`.
    reward : float or None
        Verifier reward; None: not verified, which is not 0.
    finish_reason : {"eos", "length"}
        Whether the source ended the response or ran into its length limit.
    fingerprint : str
        Fingerprint of the source's tokenizer.
    segments : tuple of Segment
        Structural segments in order, not overlapping. Default: the whole response is text.

    Raises
    ------
    RecordError
        If a field has a wrong type, size or value; `reason` names which.

    Notes
    -----
    `prompt_id`, `policy_id` and `version`: see `Record`.
    """

    KIND: ClassVar[str] = "rollout"

    index: int
    text: bytes
    source_ids: Any
    source_logprobs: Any
    canonical: bool
    reward: float | None
    finish_reason: FinishReason
    fingerprint: str
    segments: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        ids = check.token_ids("source_ids", self.source_ids)
        logprobs = check.logprobs("source_logprobs", self.source_logprobs)
        if ids.size != logprobs.size:
            raise RecordError(
                "length",
                f"{ids.size} source_ids but {logprobs.size} source_logprobs; expected one each",
            )
        check.finish_reason("finish_reason", self.finish_reason)
        text = check.text("text", self.text)
        reward = None if self.reward is None else check.number("reward", self.reward)
        _set_identity(self)
        _set(self, "index", check.count("index", self.index))
        _set(self, "source_ids", ids)
        _set(self, "source_logprobs", logprobs)
        _set(self, "canonical", check.flag("canonical", self.canonical))
        _set(self, "reward", reward)
        _set(self, "segments", check.segments("segments", self.segments, len(text)))
        check.name("fingerprint", self.fingerprint)

    def _wire(self) -> list[Any]:
        return [
            self.prompt_id,
            self.policy_id,
            self.version,
            self.index,
            self.text,
            self.source_ids.astype(check.WIRE_ID).tobytes(),
            self.source_logprobs.astype(check.WIRE_LOGPROB, copy=False).tobytes(),
            self.canonical,
            self.reward,
            self.finish_reason,
            self.fingerprint,
            self.segments,
        ]

    @classmethod
    def _from_wire(cls, values: list[Any], /) -> Self:
        values[5] = check.unpacked("source_ids", values[5], check.WIRE_ID)
        values[6] = check.unpacked("source_logprobs", values[6], check.WIRE_LOGPROB)
        return cls(*values)


@dataclass(frozen=True, slots=True, eq=False)
class GroupStats(Record):
    """Sufficient statistics of one group's verified rewards; carries no text.

    Parameters
    ----------
    n : int
        Number of verified rollouts. With n = 0 the other figures are 0.
    mean, M2 : float
        Mean, and sum of squared deviations from it.
    min, max : float
        Extremes; they decide whether the group has reward variance at all.

    Raises
    ------
    RecordError
        If a figure has a wrong type or value, or no rewards can have these statistics.

    Notes
    -----
    `prompt_id`, `policy_id` and `version`: see `Record`. Made by
    ``GroupStats(prompt_id, policy_id, version, **statistics(rewards))``.
    """

    KIND: ClassVar[str] = "group_stats"

    n: int
    mean: float
    M2: float
    min: float
    max: float

    def __post_init__(self) -> None:
        _set_identity(self)
        _set(self, "n", check.count("n", self.n))
        for field in ("mean", "min", "max"):
            _set(self, field, check.number(field, getattr(self, field)))
        _set(self, "M2", check.number("M2", self.M2, limit=sys.float_info.max))
        # A mean of equal rewards may lie outside them by rounding, and M2 above zero likewise.
        slack = 1e-9 * (1.0 + abs(self.mean))
        spread = self.max - self.min + slack
        sound = (
            self.min <= self.max
            and self.min - slack <= self.mean <= self.max + slack
            and 0.0 <= self.M2 <= self.n * spread * spread
        )
        if self.n == 0:
            sound = self.mean == self.M2 == self.min == self.max == 0.0
        if not sound:
            raise RecordError(
                "inconsistent",
                f"no rewards have n={self.n}, mean={self.mean}, M2={self.M2}, min={self.min}, "
                f"max={self.max}; expected min <= mean <= max, 0 <= M2 <= n (max - min)^2, "
                "and zeros where n = 0",
            )


@dataclass(frozen=True, slots=True, eq=False)
class SuccessRecord(Record):
    """One response that the source's verifier accepted.

    Parameters
    ----------
    index : int
        Position in its group, >= 0.
    text : bytes
        The response without turn-end tokens, at most 1 MiB.
    verifier_id : str
        Verifier that the source used.
    verdict : bool
        What it said. A receiver decides by its own verifier, not by this.
    finish_reason : {"eos", "length"}
        Whether the source ended the response: a receiver puts its own end token only then.
    segments : tuple of Segment
        Structural segments in order, not overlapping. Default: the whole response is text.

    Raises
    ------
    RecordError
        If a field has a wrong type, size or value.

    Notes
    -----
    `prompt_id`, `policy_id` and `version`: see `Record`.
    """

    KIND: ClassVar[str] = "success"

    index: int
    text: bytes
    verifier_id: str
    verdict: bool
    finish_reason: FinishReason = "eos"
    segments: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        _set_identity(self)
        _set(self, "index", check.count("index", self.index))
        text = check.text("text", self.text)
        _set(self, "segments", check.segments("segments", self.segments, len(text)))
        check.finish_reason("finish_reason", self.finish_reason)
        check.name("verifier_id", self.verifier_id)
        _set(self, "verdict", check.flag("verdict", self.verdict))


RECORD_TYPES: Mapping[str, type[Record]] = MappingProxyType(
    {cls.KIND: cls for cls in (RolloutRecord, GroupStats, SuccessRecord)}
)
_FIELDS = {kind: len(fields(cls)) for kind, cls in RECORD_TYPES.items()}


def decode(data: bytes, /) -> Record:
    """Return the record in `data`, of whichever type it is.

    Raises
    ------
    RecordError
        If the bytes are damaged, of another schema or kind, or hold an invalid field.
    """
    return record_of(unseal(data))


def record_of(unsealed: list[Any], /) -> Record:
    """Return the record that has been unsealed, of whichever type it is.

    Raises
    ------
    RecordError
        If it is of another kind, or holds an invalid field.
    """
    kind, *values = unsealed
    record_type = RECORD_TYPES.get(kind) if isinstance(kind, str) else None
    if record_type is None:
        raise RecordError("kind", f"record kind {kind!r}; expected one of {sorted(RECORD_TYPES)}")
    expected = _FIELDS[kind]
    if len(values) != expected:
        raise RecordError("fields", f"{kind} record has {len(values)} fields; expected {expected}")
    return record_type._from_wire(values)


def statistics(rewards: Sequence[float | None], /) -> dict[str, Any]:
    """Return the reward fields of `GroupStats`, by the same sums that the sharing rules use.

    Parameters
    ----------
    rewards : sequence of float or None, shape (G,)
        Verifier rewards of one group; None or NaN: not verified, left out of every figure.

    Returns
    -------
    dict
        ``n, mean, M2, min, max``; all 0 for a group without a verified reward.
    """
    return statistics_batch([rewards])[0]


def statistics_batch(
    rewards: Sequence[Sequence[float | None]] | NDArray[np.float64], /
) -> list[dict[str, Any]]:
    """`statistics` of groups of one size in one call; rewards of shape (B, G)."""
    values = np.asarray(rewards, dtype=np.float64)
    population = Population.of(values, ~np.isnan(values))
    return [
        {"n": int(n), "mean": mean, "M2": m2, "min": low, "max": high}
        if n
        else {"n": 0, "mean": 0.0, "M2": 0.0, "min": 0.0, "max": 0.0}
        for n, mean, m2, low, high in zip(*(field.tolist() for field in population), strict=True)
    ]


def _set(record: Record, field: str, value: Any, /) -> None:
    object.__setattr__(record, field, value)


def _set_identity(record: Record, /) -> None:
    check.name("prompt_id", record.prompt_id)
    check.name("policy_id", record.policy_id)
    _set(record, "version", check.count("version", record.version))
