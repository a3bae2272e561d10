"""XGRPO: peers' reward statistics move the baseline and the scale (value-level sharing)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bandit.probes._checks import is_real, require
from bandit.probes.advantage import own_population, peer_population
from bandit.probes.credit import Credit
from bandit.probes.group import Group
from bandit.probes.probe import Probe, peer_zeros


@dataclass(frozen=True)
class XGRPO(Probe):
    """``g = 1/G sum_own A s`` with the population of own and peers' rewards pooled.

    Own rollouts only, so the gradient stays in the span of the receiver's own scores. It needs
    only (n, mean, M2, min, max) of each peer's rewards, never a text.

    Parameters
    ----------
    peer_share : float or None
        None: the baseline is the pooled mean. ``a`` in [0, 1]: it is ``(1-a) * own mean +
        a * peer mean`` (the own mean where no peer rollout is valid). The scale is the pooled
        deviation in both cases.

    Notes
    -----
    With ``scale="none"`` the mean gradient is ``kappa g*`` with ``kappa = 1 - 1/(G+M)`` pooled
    and ``1 - (1-a)/G`` with share a. Other settings: see `AdvantageRule`.
    Source: docs/theory.md, section 2.
    """

    peer_share: float | None = None

    kind: ClassVar[str] = "xgrpo"
    needs: ClassVar[frozenset[str]] = frozenset({"group_stats"})
    pools_peers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        share = self.peer_share
        in_range = share is None or (is_real(share) and 0 <= share <= 1)
        require(in_range, "peer_share", share, "none (pooled mean) or a number in [0, 1]")

    def credit(self, group: Group, rng: np.random.Generator | None = None, /) -> Credit:
        """Advantages of the own rollouts against the pooled population."""
        own, peers = own_population(group), peer_population(group, group.peer_valid)
        baseline = None
        if self.peer_share is not None:
            share = np.where(peers.n > 0, self.peer_share, 0.0)
            baseline = (1 - share) * own.mean + share * peers.mean
        pooled = own.merge(peers)
        return Credit(
            own_advantage=self.advantage(group.own_rewards, group.own_valid, pooled, baseline),
            peer_advantage=peer_zeros(group),
            peer_ratio=None,
            nll_weight=peer_zeros(group),
            n_pg=own.n,
        )
