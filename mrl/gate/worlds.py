"""The toy world in which the gate looks at a run's sharing rules.

Source: docs/gate.md.
"""

import numpy as np

from bandit import World
from bandit.probes.group import Array
from mrl.config import RunConfig
from mrl.errors import InputError

SUCCESS_ARMS = 2
# Shares of one group of arms differ between two policies by a factor of at most 4.
MAX_SKEW = 4.0


def gate_world(run: RunConfig, /) -> World:
    """Build the world of ``run.gate``: contexts of equal weight, binary rewards, no randomness.

    In each context the first two arms are the successes. A policy's success mass is
    ``gate.success[policy][context]``. Both that mass and the rest are spread over their arms
    geometrically, from the first to the last arm by a factor that goes from 1/2 for the first
    policy to 2 for the last. So policies prefer different answers, and a probability ratio is at
    most 4 times the ratio of the masses.

    Raises
    ------
    InputError
        If `gate.success` does not have one row a policy.
    """
    success = np.array(run.gate.success)
    names = [policy.name for policy in run.policies]
    if len(success) != len(names):
        raise InputError(
            f"gate.success has {len(success)} rows and the run has {len(names)} policies "
            f"({', '.join(names)}); set gate.success to one row a policy: its success probability "
            "on each kind of prompt"
        )
    failures = run.gate.arms - SUCCESS_ARMS
    probs = np.zeros((*success.shape, run.gate.arms))
    half = np.sqrt(MAX_SKEW)
    for i, factor in enumerate(np.geomspace(1 / half, half, len(names))):
        probs[i, :, :SUCCESS_ARMS] = success[i, :, None] * _spread(SUCCESS_ARMS, factor)
        probs[i, :, SUCCESS_ARMS:] = (1 - success[i, :, None]) * _spread(failures, factor)
    rewards = np.zeros(probs.shape[1:])
    rewards[:, :SUCCESS_ARMS] = 1.0
    return World.tabular(probs, rewards)


def peers_by_index(run: RunConfig, receiver: str, /) -> dict[int, int]:
    """Rollouts that a receiver sees of each other policy, by position in the run."""
    index = {policy.name: i for i, policy in enumerate(run.policies)}
    return {index[name]: n for name, n in run.peers_of(receiver).items()}


def _spread(arms: int, factor: float, /) -> Array:
    """Shares of `arms` arms, growing geometrically; the last is `factor` times the first."""
    shares = np.geomspace(1.0, factor, arms)
    return shares / shares.sum()
