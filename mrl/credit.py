"""The bridge: a receiver's groups and its peers' records -> Group -> Credit -> weighted rows.

Shapes: B prompts, G own rollouts, M peer rollouts (a column for each rollout that a peer can
send; columns that stayed empty are not valid), P peers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bandit.probes import Credit, Group, RatioRule
from mrl.batch import Assignment, Row, Source
from mrl.exchange.records import GroupStats, Record, RolloutRecord, SuccessRecord
from mrl.policy import Policy
from mrl.rollout.groups import Groups, dead_groups
from mrl.tasks import Item, Task
from mrl.tokens import TokenBytes, Unrepresentable, align
from mrl.tokens.alignment import block_sum

TextRecord = RolloutRecord | SuccessRecord


@dataclass(eq=False)
class PeerTexts:
    """Peers' responses in the receiver's tokens, one column a rollout."""

    source_M: NDArray[np.int64]
    rewards_BM: NDArray[np.float64]
    representable_BM: NDArray[np.bool_]
    record: dict[tuple[int, int], TextRecord] = field(default_factory=dict)
    ids: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    refused: int = 0
    """Records that the receiver's own checks do not confirm: the claimed verdict or, where the
    ratio needs them, the source tokens."""


def assign(
    receiver: Policy,
    own: Groups,
    records: Sequence[Record],
    items: Sequence[Item],
    /,
    *,
    peers: Mapping[str, int],
    task: Task,
    reverify: bool,
    tables: Mapping[str, TokenBytes],
    rng: np.random.Generator,
) -> Assignment:
    """What the receiver trains on this round.

    Parameters
    ----------
    receiver : Policy
        Its probe decides the credit, its tokenizer the tokens.
    own : Groups
        The receiver's verified rollouts.
    records : sequence of Record
        What the exchange delivered.
    items : sequence of Item
        The round's prompts, in the order of `own`.
    peers : mapping of str to int
        Rollouts seen of each peer a prompt (M_j).
    task : Task
        The receiver's own verifier.
    reverify : bool
        Check peers' texts with it before they are used.
    tables : mapping of str to TokenBytes
        Byte tables by fingerprint, for ratios on aligned blocks.
    rng : numpy.random.Generator
        The probe's own stream.

    Returns
    -------
    Assignment
        Weighted rows, own and peers', and the round's counts.
    """
    texts = _peer_texts(receiver, records, items, peers, task, reverify, tables)
    group = Group(
        own_rewards=own.rewards,
        **(
            {"peer_stats": _peer_stats(records, items, peers)}
            if "group_stats" in receiver.probe.needs
            else {
                "peer_rewards": texts.rewards_BM,
                "peer_source": texts.source_M,
                "peer_representable": texts.representable_BM,
            }
        ),
    )
    credit = receiver.probe.credit(group, rng)
    rows = _own_rows(receiver, own, items, credit, group)
    peer_rows = _peer_rows(receiver, texts, items, credit, group, tables)
    return Assignment(
        rows=rows + peer_rows,
        groups=len(items),
        ratio=credit.peer_ratio,
        counts=_counts(own, texts, credit, group, rows, peer_rows),
    )


def _peer_stats(
    records: Sequence[Record], items: Sequence[Item], peers: Mapping[str, int]
) -> NDArray[np.float64]:
    """Statistics (B, P, 5) of the peers' rewards; n = 0 where none came."""
    row = {item.prompt_id: i for i, item in enumerate(items)}
    column = {name: j for j, name in enumerate(sorted(name for name, n in peers.items() if n))}
    stats = np.zeros((len(items), len(column), 5))
    for one in records:
        if isinstance(one, GroupStats) and one.policy_id in column:
            stats[row[one.prompt_id], column[one.policy_id]] = (
                one.n,
                one.mean,
                one.M2,
                one.min,
                one.max,
            )
    return stats


def _peer_texts(
    receiver: Policy,
    records: Sequence[Record],
    items: Sequence[Item],
    peers: Mapping[str, int],
    task: Task,
    reverify: bool,
    tables: Mapping[str, TokenBytes],
) -> PeerTexts:
    """Place peers' responses in columns, check them, and spell them in the receiver's tokens."""
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
        _check_tokens(texts, tables)
    _spell(texts, receiver)
    return texts


def _verify(texts: PeerTexts, items: Sequence[Item], task: Task, reverify: bool, /) -> None:
    """Fill in rewards: the receiver's own verdicts, or what the peers claim."""
    # Peers often give the same answer: each different text is checked once.
    verdicts: dict[tuple[int, bytes, str], float | None] = {}
    for (b, m), one in texts.record.items():
        claim = one.reward if isinstance(one, RolloutRecord) else float(one.verdict)
        reward = claim
        if reverify:
            key = (b, one.text, one.finish_reason)
            if key not in verdicts:
                verdicts[key] = task.verify(items[b], one.text, one.finish_reason == "eos")
            reward = verdicts[key]
            texts.refused += reward != claim
        if isinstance(one, SuccessRecord):
            usable = reward is not None and reward >= Group.success_threshold
        else:
            # Without all log-probs no importance ratio can be formed.
            usable = reward is not None and not np.isnan(one.source_logprobs).any()
        texts.rewards_BM[b, m] = reward if usable else np.nan


def _check_tokens(texts: PeerTexts, tables: Mapping[str, TokenBytes], /) -> None:
    """Refuse rollouts whose source tokens do not spell their text: they cannot be aligned."""
    for place, one in texts.record.items():
        if isinstance(one, RolloutRecord) and not _spelled(one, tables.get(one.fingerprint)):
            texts.rewards_BM[place] = np.nan
            texts.refused += 1


def _spelled(record: RolloutRecord, table: TokenBytes | None, /) -> bool:
    ids = record.source_ids
    ended = record.finish_reason == "eos"
    if table is None or len(ids) < ended:
        return False
    try:
        return table.bytes_of(ids[: len(ids) - ended]) == record.text
    except ValueError:  # an id that this tokenizer does not have
        return False


def _spell(texts: PeerTexts, receiver: Policy, /) -> None:
    """Fill in the receiver's token ids, each different text encoded once."""
    different = list(dict.fromkeys(one.text for one in texts.record.values()))
    encoded = dict(zip(different, receiver.encode(different), strict=True))
    for place, one in texts.record.items():
        ids = encoded[one.text]
        if isinstance(ids, Unrepresentable):
            texts.representable_BM[place] = False
        elif one.finish_reason == "eos" and receiver.eos_id is not None:
            texts.ids[place] = (*ids, receiver.eos_id)
        else:
            texts.ids[place] = ids


def _own_rows(
    receiver: Policy, own: Groups, items: Sequence[Item], credit: Credit, group: Group
) -> list[Row]:
    weight_BG = credit.own_weight
    rows = []
    for b, (item, rollouts) in enumerate(zip(items, own.rollouts, strict=True)):
        prompt = receiver.render(item)
        for g, rollout in enumerate(rollouts):
            # A token whose engine log-prob is NaN was not sampled from a known distribution.
            missing = np.isnan(rollout.logprobs)
            rows.append(
                Row(
                    group=b,
                    prompt=prompt,
                    response=rollout.ids,
                    pg_weight=float(weight_BG[b, g]),
                    finished=rollout.finished,
                    counted=bool(group.own_valid[b, g]),
                    usable=~missing if missing.any() else None,
                )
            )
    return rows


def _peer_rows(
    receiver: Policy,
    texts: PeerTexts,
    items: Sequence[Item],
    credit: Credit,
    group: Group,
    tables: Mapping[str, TokenBytes],
) -> list[Row]:
    weight_BM, nll_BM = credit.peer_weight, credit.nll_weight
    rule = credit.peer_ratio
    rows = []
    for (b, m), ids in texts.ids.items():
        counted = rule is not None and bool(group.peer_usable[b, m])
        if not counted and not nll_BM[b, m]:
            continue
        one = texts.record[b, m]
        weighted = counted and rule is not None and rule.kind != "none" and weight_BM[b, m] != 0
        rows.append(
            Row(
                group=b,
                prompt=receiver.render(items[b]),
                response=ids,
                pg_weight=float(weight_BM[b, m]) if counted else 0.0,
                nll_weight=float(nll_BM[b, m]),
                finished=one.finish_reason == "eos",
                source=_source(receiver, one, ids, rule, tables) if weighted else None,
                counted=counted,
            )
        )
    return rows


def _source(
    receiver: Policy,
    record: TextRecord,
    ids: tuple[int, ...],
    rule: RatioRule | None,
    tables: Mapping[str, TokenBytes],
) -> Source:
    """The source's side of the importance ratio."""
    if not isinstance(record, RolloutRecord) or rule is None:
        raise TypeError("an importance ratio needs a RolloutRecord with source log-probs")
    logprobs = np.asarray(record.source_logprobs, dtype=np.float64)
    if rule.kind != "block":
        total = logprobs.sum(keepdims=True)
        return Source(total, np.zeros(len(ids), np.int64), record.canonical, len(record.text))
    ended = record.finish_reason == "eos" and receiver.eos_id is not None
    blocks = align(
        receiver.table.lengths(ids),
        tables[record.fingerprint].lengths(record.source_ids),
        eos=(ended, ended),
    )
    sums = block_sum(logprobs, blocks.b)
    block_of_token = np.repeat(np.arange(len(blocks)), np.diff(blocks.a))
    return Source(sums, block_of_token, record.canonical, len(record.text))


def _counts(
    own: Groups,
    texts: PeerTexts,
    credit: Credit,
    group: Group,
    rows: Sequence[Row],
    peer_rows: Sequence[Row],
) -> dict[str, float]:
    """Plain figures of the round for the metrics."""
    rollouts = [rollout for rollouts in own.rollouts for rollout in rollouts]
    valid = group.own_valid
    share = float(valid.sum()) or 1.0
    logprobs = np.concatenate([rollout.logprobs for rollout in rollouts])
    gated = [row for row in peer_rows if row.source is not None and not row.source.canonical]
    ratio_rows = sum(row.source is not None for row in peer_rows)
    return {
        "reward_mean": float(own.rewards[valid].sum() / share),
        "success_share": float(group.own_success.sum() / share),
        "dead_share": float(dead_groups(own.rewards).mean()),
        "rescued_prompts": int((credit.nll_weight > 0).any(-1).sum()),
        "unverified": int((~valid).sum()),
        "unrepresentable": int((~texts.representable_BM).sum()),
        "reverify_refused": int(texts.refused),
        "gated_share": len(gated) / ratio_rows if ratio_rows else 0.0,
        "nan_logprobs": int(np.isnan(logprobs).sum()),
        # Sampled estimate of the mean token entropy, in nats.
        "entropy": float(-np.nanmean(logprobs)),
        "truncated_share": float(np.mean([not rollout.finished for rollout in rollouts])),
        "generated": own.generated,
        "response_tokens": sum(len(rollout.ids) for rollout in rollouts),
        "trained_tokens_own": sum(row.length for row in rows if row.pg_weight),
        "trained_tokens_peer": sum(
            row.length for row in peer_rows if row.pg_weight or row.nll_weight
        ),
    }
