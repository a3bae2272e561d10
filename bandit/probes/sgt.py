"""SGT: a verified peer success stands in where the receiver has none (outcome-level sharing)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from bandit.probes._checks import is_real, require
from bandit.probes.credit import Credit
from bandit.probes.group import Array, Group, Mask
from bandit.probes.grpo import GRPO
from bandit.probes.probe import require_rollouts


@dataclass(frozen=True)
class SGT(GRPO):
    """``g = g_GRPO + weight * 1[no own success, a peer success] * s(y+)``.

    On the rescue event the score of ONE peer success, drawn uniformly from all that the receiver
    can represent, is added. No density ratio appears.

    Parameters
    ----------
    weight : float
        Weight lambda of the likelihood term; >= 0. The published setting is 0.1.

    Notes
    -----
    Without a rescue the credit equals GRPO's bit for bit. A group without a valid own rollout
    gives no rescue. Other settings: see `AdvantageRule`. Source: docs/theory.md, section 2.
    """

    weight: float = 0.1

    kind: ClassVar[str] = "sgt"
    needs: ClassVar[frozenset[str]] = frozenset({"success"})
    claims_support: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range = is_real(self.weight) and 0 <= self.weight < float("inf")
        require(in_range, "weight", self.weight, "a finite number >= 0")

    def rescued(self, group: Group, /) -> Mask:
        """Prompts on which a peer success is used, shape (...)."""
        verified = group.own_valid.any(-1) & group.peer_success.any(-1)
        return verified & ~group.own_success.any(-1)

    def credit(self, group: Group, rng: np.random.Generator | None = None, /) -> Credit:
        """GRPO's credit, and `weight` on one peer success of each rescued prompt."""
        require_rollouts(self, group)
        base = super().credit(group)
        rescued = self.rescued(group)
        if not rescued.any():
            return base
        if rng is None:
            raise ValueError("sgt draws a peer success at random; pass a numpy.random.Generator")
        success = group.peer_success
        rank = np.cumsum(success, axis=-1)
        drawn = np.floor(rng.random(rescued.shape) * rank[..., -1]) + 1
        chosen = success & (rank == drawn[..., None]) & rescued[..., None]
        return replace(base, nll_weight=np.where(chosen, self.weight, 0.0))

    def outcomes(self, group: Group, /) -> Iterator[tuple[Array, Credit]]:
        """One outcome for each peer rollout that can be chosen, and one for no rescue."""
        require_rollouts(self, group)
        base = super().credit(group)
        rescued = self.rescued(group)
        yield np.where(rescued, 0.0, 1.0), base
        success = group.peer_success & rescued[..., None]
        share = success / np.maximum(success.sum(-1, keepdims=True), 1)
        for i in range(success.shape[-1]):
            chosen = np.zeros(success.shape)
            chosen[..., i] = np.where(success[..., i], self.weight, 0.0)
            yield share[..., i], replace(base, nll_weight=chosen)


@dataclass(frozen=True)
class UngatedNLL(SGT):
    """SGT without its gate: a peer success is used whenever there is one.

    A control, not a sharing rule to recommend: it shows what the gate is for.
    Source: docs/theory.md, section 4.
    """

    kind: ClassVar[str] = "nll"

    def rescued(self, group: Group, /) -> Mask:
        """Prompts with a valid own rollout and a peer success, shape (...)."""
        return group.own_valid.any(-1) & group.peer_success.any(-1)
