"""Which prompts a round trains on, and what is due after it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mrl.config import RunConfig
from mrl.errors import InputError, PromptTooLong
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


def check_prompts(config: RunConfig, task: Task, policies: Sequence[Policy], /) -> Task:
    """Render every prompt that the run can come to, so that it does not stop at one later.

    Returns
    -------
    Task
        The task; where ``task.too_long`` is ``skip``, without the items whose prompt some policy
        cannot take, and with a note of how many they are.

    Raises
    ------
    InputError
        If there are fewer training items than `prompts`, none held out, a policy cannot take a
        prompt, or a replayed run does not cover them.
    """
    if config.task.too_long == "skip":
        task = _fitting(task, policies)
    prompts_of(task.train, config.prompts, config.seed, 0)
    check_coverage(config, task)
    for policy in policies:
        for item in (*task.train, *task.heldout[: config.evaluation.items]):
            policy.render(item)
    return task


def _fitting(task: Task, policies: Sequence[Policy], /) -> Task:
    def fits(item: Item) -> bool:
        try:
            for policy in policies:
                policy.render(item)
        except PromptTooLong as error:
            problems.append(str(error))
            return False
        return True

    problems: list[str] = []
    train, heldout = tuple(filter(fits, task.train)), tuple(filter(fits, task.heldout))
    if not problems:
        return task
    if not heldout:
        raise InputError(f"every held-out prompt is too long; the last: {problems[-1]}")
    note = f"{len(problems)} item(s) left out whose prompts are too long; the first: {problems[0]}"
    return replace(task, train=train, heldout=heldout, notes=(*task.notes, note))


def due(done: int, every: int, /) -> bool:
    """Whether something scheduled every so many rounds (0: never) is due."""
    return every > 0 and done % every == 0
