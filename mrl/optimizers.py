"""The optimizer of a policy, and the course of its learning rate."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from mrl.config import OptimizerConfig

OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def optimizer_of(
    parameters: Sequence[torch.nn.Parameter], config: OptimizerConfig, rounds: int | None, /
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Optimizer and schedule; the schedule takes one step a round.

    Parameters
    ----------
    parameters : sequence of Parameter
        What is trained.
    config : OptimizerConfig
        Settings.
    rounds : int or None
        Rounds of the run, for a schedule that falls and says not itself when it is down.
    """
    settings: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.kind == "adamw":
        settings["betas"] = config.betas
    optimizer = OPTIMIZERS[config.kind](parameters, **settings)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: rate(config, done, rounds)
    )


def rate(config: OptimizerConfig, done: int, rounds: int | None = None, /) -> float:
    """Learning rate of the round after `done` rounds, as a share of the highest.

    It grows as (done + 1) / (warmup + 1), then stays or falls to 0 at the end: along a line, or as
    (1 + cos(pi x)) / 2 in the share x of the rounds after the warm-up that are done.

    Raises
    ------
    ValueError
        If the schedule falls and nothing says until when.
    """
    warmup = config.warmup_rounds
    if done < warmup:
        return (done + 1) / (warmup + 1)
    if config.schedule == "constant":
        return 1.0
    end = config.decay_rounds or rounds
    if end is None:
        raise ValueError(f"schedule={config.schedule!r} without decay_rounds; expected its end")
    x = min(1.0, (done - warmup) / max(1, end - warmup))
    return 1 - x if config.schedule == "linear" else (1 + math.cos(math.pi * x)) / 2
