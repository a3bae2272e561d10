"""The toy world in which the gate looks at a run's sharing rules.

Source: docs/gate.md.
"""

import numpy as np

from bandit import World
from bandit.worlds import from_success
from mrl.config import RunConfig
from mrl.errors import InputError


def gate_world(run: RunConfig, /) -> World:
    """Build the world of ``run.gate``: contexts of equal weight, binary rewards, no randomness.

    See `bandit.worlds.from_success`; the table is ``gate.success``, the arms are ``gate.arms``.

    Raises
    ------
    InputError
        If `gate.success` does not have one row a policy, or peers are replayed.
    """
    if run.exchange.replay is not None:
        raise InputError(
            f"exchange.replay={run.exchange.replay!r}: the gate looks at policies that learn "
            "together, not at replayed ones; place the rules in a world of the stored run with "
            f"mrl study --world-from {run.exchange.replay}, and train with --unvalidated"
        )
    success = np.array(run.gate.success)
    names = [policy.name for policy in run.policies]
    if len(success) != len(names):
        raise InputError(
            f"gate.success has {len(success)} rows and the run has {len(names)} policies "
            f"({', '.join(names)}); set gate.success to one row a policy: its success probability "
            "on each kind of prompt"
        )
    return from_success(success, arms=run.gate.arms)


def peers_by_index(run: RunConfig, receiver: str, /) -> dict[int, int]:
    """Rollouts that a receiver sees of each other policy, by position in the run."""
    index = {policy.name: i for i, policy in enumerate(run.policies)}
    return {index[name]: n for name, n in run.peers_of(receiver).items()}
