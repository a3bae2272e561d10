"""Verified groups into the typed records that other policies' sharing rules need.

And what the source alone can measure of them: how far its sampled tokens are from canonical ones.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bandit.probes import Group
from mrl.batch import Row
from mrl.exchange.records import (
    GroupStats,
    Record,
    RolloutRecord,
    SuccessRecord,
    statistics_batch,
)
from mrl.policy import Policy
from mrl.rollout.groups import Groups
from mrl.tasks import Item, Task
from mrl.tokens import Unrepresentable, canonicality_residual, summarise_residual


def records_of(
    policy: Policy,
    groups: Groups,
    items: Sequence[Item],
    needs: frozenset[str],
    task: Task,
    round: int,
    /,
) -> list[Record]:
    """Records of the kinds in `needs` for one policy's rollouts of a round."""
    out: list[Record] = []
    if "group_stats" in needs:
        out += [
            GroupStats(item.prompt_id, policy.name, round, **figures)
            for item, figures in zip(items, statistics_batch(groups.rewards), strict=True)
        ]
    if "success" in needs:
        out += [
            SuccessRecord(
                prompt_id=item.prompt_id,
                policy_id=policy.name,
                version=round,
                index=index,
                text=rollout.text,
                finish_reason=rollout.finish_reason,
                verifier_id=task.verifier_id,
                verdict=True,
                segments=rollout.segments,
            )
            for item, group, rewards in zip(items, groups.rollouts, groups.rewards, strict=True)
            for index, (rollout, reward) in enumerate(zip(group, rewards, strict=True))
            if reward >= Group.success_threshold
        ]
    if "rollout" in needs:
        rollouts = [rollout for group in groups.rollouts for rollout in group]
        canonical = iter(policy.canonical(rollouts))
        out += [
            RolloutRecord(
                prompt_id=item.prompt_id,
                policy_id=policy.name,
                version=round,
                index=index,
                text=rollout.text,
                source_ids=rollout.ids,
                source_logprobs=rollout.logprobs,
                canonical=next(canonical),
                reward=None if reward != reward else float(reward),
                finish_reason=rollout.finish_reason,
                fingerprint=policy.table.fingerprint,
                segments=rollout.segments,
            )
            for item, group, rewards in zip(items, groups.rollouts, groups.rewards, strict=True)
            for index, (rollout, reward) in enumerate(zip(group, rewards, strict=True))
        ]
    return out


def residual_of(
    policy: Policy, records: Sequence[Record], items: Sequence[Item], sample: int, /
) -> dict[str, Any]:
    """How far a source's sampled tokens are from the canonical ones of their text.

    Measured on `sample` rollouts, evenly spaced over the round. The residual of a canonical
    rollout is 0 and costs nothing; of the others the canonical tokens are scored in a forward pass
    by the weights that sampled them, so this must come before the round's update.

    Parameters
    ----------
    policy : Policy
        The source.
    records : sequence of Record
        What it publishes this round.
    items : sequence of Item
        The round's prompts.
    sample : int
        Rollouts looked at.

    Returns
    -------
    dict
        ``canonical_share`` of all rollouts. Of those looked at that have canonical tokens and all
        log-probs: their number ``residual_rollouts``, the quantiles ``residual_q50``, ``_q75``,
        ``_q90`` and ``_q99`` of the magnitude in nats, and the share ``residual_above_5_nats``.
        ``residual_unreachable`` counts those among them whose canonical tokens lie outside the
        source's nucleus (top-p); they count as above 5 nats and are in no quantile. Empty without
        rollout records.
    """
    rollouts = [one for one in records if isinstance(one, RolloutRecord)]
    if not rollouts:
        return {}
    figures: dict[str, Any] = {
        "canonical_share": float(np.mean([one.canonical for one in rollouts]))
    }
    places = np.linspace(0, len(rollouts) - 1, min(sample, len(rollouts))).round().astype(int)
    residual = _residual(policy, [rollouts[place] for place in places], items)
    finite = residual[np.isfinite(residual)]
    figures |= {
        "residual_rollouts": len(residual),
        "residual_unreachable": len(residual) - len(finite),
    }
    if len(finite):
        found = summarise_residual(finite)
        figures |= {
            f"residual_q{level:.0%}".rstrip("%"): size
            for level, size in zip(found.levels, found.magnitude, strict=True)
        }
        large = found.large_share * len(finite) + figures["residual_unreachable"]
        figures["residual_above_5_nats"] = large / len(residual)
    return figures


def _residual(
    policy: Policy, rollouts: Sequence[RolloutRecord], items: Sequence[Item], /
) -> np.ndarray:
    """Residuals in nats of the rollouts that have one; inf where it is outside the nucleus."""
    known = [one for one in rollouts if not np.isnan(one.source_logprobs).any()]
    others = [one for one in known if not one.canonical]
    encoded = policy.encode([one.text for one in others], [one.segments for one in others])
    prompts = {item.prompt_id: policy.render(item) for item in items}
    rows, sampled = [], []
    for one, ids in zip(others, encoded, strict=True):
        if isinstance(ids, Unrepresentable):
            continue  # no canonical tokens: no receiver can represent it either
        response = policy.ended(ids, one.finish_reason)
        rows.append(Row(0, prompts[one.prompt_id], response, 0.0))
        sampled.append(one.source_logprobs.sum())
    scores = [row.sum() for row in policy.score(rows)] if rows else []
    residual = canonicality_residual(sampled, scores, np.zeros(len(rows), bool))
    return np.concatenate([np.zeros(len(known) - len(others)), residual])
