"""Which prompts a round trains on, and what is due after it."""

from collections.abc import Sequence

import numpy as np

from mrl.config import RunConfig
from mrl.errors import InputError
from mrl.policy import Policy
from mrl.replay import check_coverage
from mrl.seeds import generator
from mrl.tasks import Item, Task


def prompts_of(items: Sequence[Item], size: int, seed: int, round: int, /) -> list[Item]:
    """The `size` prompts of a round; each epoch is a fresh permutation, its remainder left out.

    Raises
    ------
    InputError
        If there are fewer items than that.
    """
    if size > len(items):
        raise InputError(f"prompts={size} a round, but the task has {len(items)} training items")
    epoch, position = divmod(round, len(items) // size)
    order = generator(seed, "order", epoch).permutation(len(items))
    return [items[i] for i in np.sort(order[position * size : (position + 1) * size])]


def check_prompts(config: RunConfig, task: Task, policies: Sequence[Policy], /) -> None:
    """Render every prompt that the run can come to, so that it does not stop at one later.

    Raises
    ------
    InputError
        If there are fewer training items than `prompts`, a policy cannot take one, or a replayed
        run does not cover them.
    """
    prompts_of(task.train, config.prompts, config.seed, 0)
    check_coverage(config, task)
    for policy in policies:
        for item in (*task.train, *task.heldout[: config.evaluation.items]):
            policy.render(item)


def due(done: int, every: int, /) -> bool:
    """Whether something scheduled every so many rounds (0: never) is due."""
    return every > 0 and done % every == 0
