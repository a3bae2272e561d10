"""The bridge: a receiver's groups and its peers' records -> Group -> Credit -> weighted rows.

Shapes: B prompts, G own rollouts, M peer rollouts (a column for each rollout that a peer can
send; columns that stayed empty are not valid), P peers.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bandit.probes import Credit, Group, RatioRule
from mrl.batch import Assignment, Row, Source, counted_length
from mrl.config import ObjectiveConfig
from mrl.exchange.records import GroupStats, Record, RolloutRecord
from mrl.peers import PeerTexts, Place, peer_texts
from mrl.policy import Policy
from mrl.rollout.groups import Groups, dead_groups
from mrl.tasks import Item, Task
from mrl.tokens import align_batch
from mrl.tokens.segments import SegmentEncoder


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
    codecs: Mapping[str, SegmentEncoder],
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
    codecs : mapping of str to SegmentEncoder
        Tokens of the peers that are known, by policy name: for ratios on aligned blocks, and for
        what their structural segments may look like.
    rng : numpy.random.Generator
        The probe's own stream.

    Returns
    -------
    Assignment
        Weighted rows, own and peers', and the round's counts.
    """
    texts = peer_texts(receiver, records, items, peers, task, reverify, codecs)
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
    peer_rows = _peer_rows(receiver, texts, items, credit, group, codecs)
    return Assignment(
        rows=rows + peer_rows,
        groups=len(items),
        ratio=credit.peer_ratio,
        gated=tuple(
            row.group
            for row in peer_rows
            if _fails_gate(row.source, credit.peer_ratio)
            and counted_length(row, receiver.objective)
        ),
        counts=_counts(own, texts, credit, group) | _trained(rows, peer_rows, receiver.objective),
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


def _own_rows(
    receiver: Policy, own: Groups, items: Sequence[Item], credit: Credit, group: Group
) -> list[Row]:
    weight_BG, valid_BG = credit.own_weight, group.own_valid
    # The divergence is a mean over the policy's own responses, whatever else the rule counts.
    kl_BG = valid_BG / np.maximum(valid_BG.sum(-1, keepdims=True), 1)
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
                    counted=bool(valid_BG[b, g]),
                    usable=~missing if missing.any() else None,
                    kl_weight=float(kl_BG[b, g]),
                    engine=rollout.logprobs,
                )
            )
    return rows


def _peer_rows(
    receiver: Policy,
    texts: PeerTexts,
    items: Sequence[Item],
    credit: Credit,
    group: Group,
    codecs: Mapping[str, SegmentEncoder],
) -> list[Row]:
    weight_BM, nll_BM, usable_BM = credit.peer_weight, credit.nll_weight, group.peer_usable
    rule = credit.peer_ratio
    counted = {place: rule is not None and bool(usable_BM[place]) for place in texts.ids}
    sources: dict[Place, Source] = {}
    if rule is not None and rule.kind != "none":
        weighted = [place for place in texts.ids if counted[place] and weight_BM[place] != 0]
        sources = _sources(receiver, texts, weighted, rule, codecs)
    return [
        Row(
            group=place[0],
            prompt=receiver.render(items[place[0]]),
            response=ids,
            pg_weight=(
                float(weight_BM[place])
                if counted[place] and not _fails_gate(sources.get(place), rule)
                else 0.0
            ),
            nll_weight=float(nll_BM[place]),
            finished=texts.record[place].finish_reason == "eos",
            source=sources.get(place),
            counted=counted[place],
        )
        for place, ids in texts.ids.items()
        if counted[place] or nll_BM[place]
    ]


def _fails_gate(source: Source | None, rule: RatioRule | None, /) -> bool:
    """Whether a peer's rollout that would have a weight has none, as it is not canonical."""
    return source is not None and rule is not None and rule.gated and not source.canonical


def _sources(
    receiver: Policy,
    texts: PeerTexts,
    places: Sequence[Place],
    rule: RatioRule,
    codecs: Mapping[str, SegmentEncoder],
) -> dict[Place, Source]:
    """The source's side of the importance ratios of some rollouts, aligned in one pass."""
    records = [texts.record[place] for place in places]
    rollouts = [one for one in records if isinstance(one, RolloutRecord)]
    if len(rollouts) != len(records):
        raise TypeError("an importance ratio needs RolloutRecords with source log-probs")
    ids = [texts.ids[place] for place in places]
    sums = [one.source_logprobs.sum(keepdims=True) for one in rollouts]
    owners = [np.zeros(len(row), np.int64) for row in ids]
    if rule.kind == "block" and places:
        theirs = [codecs[one.policy_id].lengths(one.source_ids) for one in rollouts]
        ended = np.array([one.finish_reason == "eos" for one in rollouts])
        blocks = align_batch(
            receiver.codec.lengths_batch(ids, [texts.segments[place] for place in places]),
            [len(row) for row in ids],
            np.concatenate(theirs),
            [len(row) for row in theirs],
            eos=(ended & (receiver.eos_id is not None), ended),
        )
        logprobs = np.concatenate([one.source_logprobs for one in rollouts])
        sums = np.split(blocks.sums(logprobs, "b"), blocks.first_block[1:-1])
        owners = blocks.owners("a")
    return {
        place: Source(total, owner, one.canonical, len(one.text))
        for place, total, owner, one in zip(places, sums, owners, rollouts, strict=True)
    }


def _counts(
    own: Groups,
    texts: PeerTexts,
    credit: Credit,
    group: Group,
) -> dict[str, Any]:
    """Plain figures of the round for the metrics."""
    rollouts = [rollout for rollouts in own.rollouts for rollout in rollouts]
    valid = group.own_valid
    verified = int(valid.sum())
    logprobs = np.concatenate([rollout.logprobs for rollout in rollouts])
    reasons = Counter(texts.reasons.values())
    return {
        # Without a verdict there is no reward, which is not 0.
        "reward_mean": float(own.rewards[valid].sum() / verified) if verified else None,
        "success_share": float(group.own_success.sum() / verified) if verified else None,
        "dead_share": float(dead_groups(own.rewards).mean()),
        "rescued_prompts": int((credit.nll_weight > 0).any(-1).sum()),
        "unverified": int((~valid).sum()),
        "unverified_by_reason": dict(own.unverified),
        "unverified_said": dict(own.said),
        "unrepresentable": int((~texts.representable_BM).sum()),
        "unrepresentable_by_reason": {reason: reasons[reason] for reason in sorted(reasons)},
        "reverify_refused": int(texts.refused),
        **_canonicality(texts, credit.peer_ratio, group),
        "nan_logprobs": int(np.isnan(logprobs).sum()),
        # Sampled estimate of the mean token entropy, in nats.
        "entropy": float(-np.nanmean(logprobs)),
        "truncated_share": float(np.mean([not rollout.finished for rollout in rollouts])),
        "generated": own.generated,
        "response_tokens": sum(len(rollout.ids) for rollout in rollouts),
    }


def _trained(
    rows: Sequence[Row], peer_rows: Sequence[Row], objective: ObjectiveConfig, /
) -> dict[str, int]:
    """Tokens that have a weight in the round's loss."""
    return {
        f"trained_tokens_{whose}": sum(
            counted_length(row, objective) for row in some if row.pg_weight or row.nll_weight
        )
        for whose, some in (("own", rows), ("peer", peer_rows))
    }


def _canonicality(texts: PeerTexts, rule: RatioRule | None, group: Group, /) -> dict[str, float]:
    """Shares of the usable peer rollouts that are not canonical and that the gate takes out."""
    if rule is None or rule.kind == "none":
        return {}
    usable_BM = group.peer_usable
    usable = [
        one.canonical
        for place, one in texts.record.items()
        if isinstance(one, RolloutRecord) and usable_BM[place]
    ]
    share = usable.count(False) / len(usable) if usable else 0.0
    return {"noncanonical_share": share, "gated_share": share if rule.gated else 0.0}
