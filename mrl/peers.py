"""Peers' responses as a receiver sees them: verified by itself, in its own tokens.

Shapes: B prompts, M peer rollouts (a column for each rollout that a peer can send; columns that
stayed empty are not valid).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import ne

import numpy as np
from numpy.typing import NDArray

from bandit.probes import Group
from mrl.distributed import once
from mrl.exchange.fields import Segment
from mrl.exchange.records import Record, RolloutRecord, SuccessRecord
from mrl.policy import Policy
from mrl.tasks import Item, Task
from mrl.tokens import Unrepresentable
from mrl.tokens.segments import SegmentEncoder

TextRecord = RolloutRecord | SuccessRecord
Place = tuple[int, int]


@dataclass(eq=False)
class PeerTexts:
    """Peers' responses in the receiver's tokens, one column a rollout."""

    source_M: NDArray[np.int64]
    rewards_BM: NDArray[np.float64]
    representable_BM: NDArray[np.bool_]
    record: dict[Place, TextRecord] = field(default_factory=dict)
    ids: dict[Place, tuple[int, ...]] = field(default_factory=dict)
    segments: dict[Place, tuple[Segment, ...]] = field(default_factory=dict)
    """Structural segments that are tokens of the receiver's own."""
    reasons: dict[Place, str] = field(default_factory=dict)
    """Why the receiver cannot represent a text."""
    refused: int = 0
    """Records that the receiver's own checks do not confirm: the claimed verdict or, where the
    ratio needs them, the source tokens."""


def peer_texts(
    receiver: Policy,
    records: Sequence[Record],
    items: Sequence[Item],
    peers: Mapping[str, int],
    task: Task,
    reverify: bool,
    codecs: Mapping[str, SegmentEncoder],
    /,
) -> PeerTexts:
    """Place peers' responses in columns, check them, and spell them in the receiver's tokens.

    Parameters
    ----------
    receiver : Policy
        Who reads them.
    records : sequence of Record
        What the exchange delivered.
    items : sequence of Item
        The round's prompts.
    peers : mapping of str to int
        Columns of each peer: rollouts seen of it a prompt.
    task : Task
        The receiver's own verifier.
    reverify : bool
        Check responses with it, or believe what peers claim.
    codecs : mapping of str to SegmentEncoder
        Tokens of the peers that are known, by policy name.
    """
    names = sorted(peers)
    ends = np.cumsum([peers[name] for name in names], dtype=np.int64).tolist()
    first = {name: end - peers[name] for name, end in zip(names, ends, strict=True)}
    source_M = np.repeat(np.arange(len(names)), [peers[name] for name in names])
    shape = (len(items), len(source_M))
    texts = PeerTexts(source_M, np.full(shape, np.nan), np.ones(shape, np.bool_))
    row = {item.prompt_id: i for i, item in enumerate(items)}
    for one in records:
        if isinstance(one, TextRecord) and one.index < peers.get(one.policy_id, 0):
            texts.record[row[one.prompt_id], first[one.policy_id] + one.index] = one
    _verify(texts, items, task, reverify)
    if getattr(receiver.probe, "ratio", None) == "block":
        _check_tokens(texts, codecs)
    _spell(texts, receiver, codecs)
    return texts


def _verify(texts: PeerTexts, items: Sequence[Item], task: Task, reverify: bool, /) -> None:
    """Fill in rewards: the receiver's own verdicts, or what the peers claim."""
    claims = [
        one.reward if isinstance(one, RolloutRecord) else float(one.verdict)
        for one in texts.record.values()
    ]
    rewards = claims
    if reverify:
        jobs = [
            (items[b], one.text, one.finish_reason == "eos") for (b, _), one in texts.record.items()
        ]
        # As in `verify_all`: processes whose verdicts differ would part.
        rewards = [verdict.reward for verdict in once(lambda: task.verdicts(jobs))]
        texts.refused += sum(map(ne, rewards, claims))
    for (place, one), reward in zip(texts.record.items(), rewards, strict=True):
        if isinstance(one, SuccessRecord):
            usable = reward is not None and reward >= Group.success_threshold
        else:
            # Without all log-probs no importance ratio can be formed.
            usable = reward is not None and not np.isnan(one.source_logprobs).any()
        texts.rewards_BM[place] = reward if usable else np.nan


def _check_tokens(texts: PeerTexts, codecs: Mapping[str, SegmentEncoder], /) -> None:
    """Refuse rollouts whose source tokens do not spell their text: they cannot be aligned."""
    for place, one in texts.record.items():
        if isinstance(one, RolloutRecord) and not _spelled(one, codecs.get(one.policy_id)):
            texts.rewards_BM[place] = np.nan
            texts.refused += 1


def _spelled(record: RolloutRecord, codec: SegmentEncoder | None, /) -> bool:
    ids = record.source_ids
    ended = record.finish_reason == "eos"
    if codec is None or len(ids) < ended or codec.content.table.fingerprint != record.fingerprint:
        return False
    try:
        return codec.spell(ids[: len(ids) - ended]) == (record.text, record.segments)
    except ValueError:  # an id that this tokenizer does not have
        return False


def _spell(texts: PeerTexts, receiver: Policy, codecs: Mapping[str, SegmentEncoder], /) -> None:
    """Fill in the receiver's token ids, each different typed text encoded once."""
    for place, one in texts.record.items():
        source = codecs.get(one.policy_id)
        texts.segments[place] = receiver.codec.accept(
            one.text, one.segments, None if source is None else source.structure
        )
    keys = {place: (one.text, texts.segments[place]) for place, one in texts.record.items()}
    different = list(dict.fromkeys(keys.values()))
    responses = receiver.encode([text for text, _ in different], [marks for _, marks in different])
    encoded = dict(zip(different, responses, strict=True))
    for place, one in texts.record.items():
        ids = encoded[keys[place]]
        if isinstance(ids, Unrepresentable):
            texts.representable_BM[place] = False
            texts.reasons[place] = ids.reason
        else:
            texts.ids[place] = receiver.ended(ids, one.finish_reason)
