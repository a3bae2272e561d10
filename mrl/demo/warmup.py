"""Warm-up of the demo's models: supervised steps that give each policy its own skill."""

from collections.abc import Callable, Sequence

import torch

from mrl.batch import Assignment, Row
from mrl.policy import Policy
from mrl.seeds import generator
from mrl.tasks import Item
from mrl.update import accumulate


def warm_up(
    policy: Policy,
    own: Sequence[Item],
    other: Sequence[Item],
    /,
    *,
    other_share: float,
    steps: int,
    batch: int,
    lr: float,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Maximise the likelihood of right answers with AdamW on a one-cycle schedule.

    Parameters
    ----------
    policy : Policy
        Its weights change; its own optimizer is left alone.
    own, other : sequence of Item
        Items of the policy's own skill and of the other one.
    other_share : float
        Share of other items in a batch, in expectation; in [0, 1].
    steps, batch : int
        Optimizer steps, and items a step.
    lr : float
        Highest learning rate.
    seed : int
        Fixes which items.
    progress : callable, optional
        Called with the steps done.
    """
    rng = generator(seed, "warm-up", policy.name)
    optimizer = torch.optim.AdamW(policy.parameters, lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        pools = [other if foreign else own for foreign in rng.random(batch) < other_share]
        items = [pool[int(rng.integers(len(pool)))] for pool in pools]
        rows = [_answer(policy, group, item) for group, item in enumerate(items)]
        accumulate(policy, Assignment(rows, batch))
        torch.nn.utils.clip_grad_norm_(policy.parameters, 1.0)
        optimizer.step()
        schedule.step()
        if progress is not None:
            progress(step + 1)


def _answer(policy: Policy, group: int, item: Item, /) -> Row:
    """The right answer as a row of weight 1 on the likelihood route."""
    (ids,) = policy.encode([item.answer.encode()])
    if isinstance(ids, Exception):
        raise ids
    end = () if policy.eos_id is None else (policy.eos_id,)
    return Row(group, policy.render(item), (*ids, *end), pg_weight=0.0, nll_weight=1.0)
