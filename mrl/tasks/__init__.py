"""Prompts, their right answers and their verifiers; importable without torch."""

from mrl.config import JsonlTask, ReasoningGymTask
from mrl.tasks import gym, jsonl
from mrl.tasks.task import Item, Task, Verify

__all__ = ["Item", "Task", "Verify", "load_task"]


def load_task(config: JsonlTask | ReasoningGymTask, seed: int) -> Task:
    """Load the items of a task and fix its held-out split.

    Parameters
    ----------
    config : JsonlTask or ReasoningGymTask
        The ``task`` section of a run's configuration.
    seed : int
        Fixes the split (jsonl), the items themselves (reasoning_gym) and the held-out order.

    Returns
    -------
    Task
        At least one training and one held-out item, no question in both.

    Raises
    ------
    InputError
        If a file, an item or a setting cannot be right; the message names it.
    """
    if isinstance(config, JsonlTask):
        return jsonl.load(config, seed)
    return gym.load(config, seed)
