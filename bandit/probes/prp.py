"""PRP: peers' rollouts enter the group (data-level sharing)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bandit.probes.advantage import own_population, peer_population
from bandit.probes.credit import Credit, RatioKind, RatioRule
from bandit.probes.group import Group
from bandit.probes.probe import Probe, peer_zeros, require_rollouts


@dataclass(frozen=True)
class PRP(Probe):
    """``g = 1/(G+M) [sum_own A s + sum_peer w A s]``, the population being all G+M rewards.

    Parameters
    ----------
    ratio, cap, gated
        The weight w of a peer's rollout, see `RatioRule`; ``ratio="none"`` is weight 1.

    Notes
    -----
    A rollout that the receiver cannot represent does not exist here: it is missing from the
    population and from the normaliser. One that fails the canonicality gate keeps its place in
    both and has weight 0. A group without a valid own rollout gives no gradient.
    Other settings: see `AdvantageRule`. Source: docs/theory.md, section 2.
    """

    ratio: RatioKind = "sequence"
    cap: float = float("inf")
    gated: bool = True

    kind: ClassVar[str] = "prp"
    needs: ClassVar[frozenset[str]] = frozenset({"rollout"})
    pools_peers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        RatioRule(self.ratio, self.cap, self.gated)

    def credit(self, group: Group, rng: np.random.Generator | None = None, /) -> Credit:
        """Advantages of own and peers' rollouts against the pooled population."""
        require_rollouts(self, group)
        own = own_population(group)
        pooled = own.merge(peer_population(group, group.peer_usable))
        live = (own.n > 0)[..., None]
        usable = group.peer_usable & live
        return Credit(
            own_advantage=self.advantage(group.own_rewards, group.own_valid, pooled),
            peer_advantage=self.advantage(group.peer_rewards, usable, pooled),
            peer_ratio=RatioRule(self.ratio, self.cap, self.gated),
            nll_weight=peer_zeros(group),
            n_pg=pooled.n,
        )
