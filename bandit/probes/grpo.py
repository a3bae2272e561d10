"""GRPO: group-relative advantages on the receiver's own rollouts, nothing shared."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bandit.probes.advantage import own_population
from bandit.probes.credit import Credit
from bandit.probes.group import Group
from bandit.probes.probe import Probe, peer_zeros


@dataclass(frozen=True)
class GRPO(Probe):
    """``g = 1/G sum_own A s``, the population being the receiver's own group.

    ``E[g] = kappa g*``; with ``scale="none"``, ``kappa = 1 - 1/G``. Groups whose rewards are all
    equal give no signal: with binary rewards that has probability ``(1-p)^G + p^G``.
    Settings: see `AdvantageRule`. Source: docs/theory.md, section 2.
    """

    kind: ClassVar[str] = "grpo"
    pools_peers: ClassVar[bool] = True

    def credit(self, group: Group, rng: np.random.Generator | None = None, /) -> Credit:
        """Advantages within the own group; peers count for nothing."""
        own = own_population(group)
        return Credit(
            own_advantage=self.advantage(group.own_rewards, group.own_valid, own),
            peer_advantage=peer_zeros(group),
            peer_ratio=None,
            nll_weight=peer_zeros(group),
            n_pg=own.n,
        )
