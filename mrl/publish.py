"""Verified groups into the typed records that other policies' sharing rules need."""

from collections.abc import Sequence

from bandit.probes import Group
from mrl.exchange.records import (
    GroupStats,
    Record,
    RolloutRecord,
    SuccessRecord,
    statistics,
)
from mrl.policy import Policy
from mrl.rollout.groups import Groups
from mrl.tasks import Item, Task


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
            GroupStats(item.prompt_id, policy.name, round, **statistics(rewards))
            for item, rewards in zip(items, groups.rewards, strict=True)
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
            )
            for item, group, rewards in zip(items, groups.rollouts, groups.rewards, strict=True)
            for index, (rollout, reward) in enumerate(zip(group, rewards, strict=True))
        ]
    return out
