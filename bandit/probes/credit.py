"""What each rollout is worth to the receiver, and by which route it reaches the loss."""

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from bandit.probes._checks import is_real, require
from bandit.probes.group import Array

RatioKind = Literal["none", "sequence", "block", "length_normalised"]


@dataclass(frozen=True)
class RatioRule:
    """How the executor weights a peer's rollout in the policy-gradient term.

    Parameters
    ----------
    kind : {"sequence", "block", "length_normalised", "none"}
        ``sequence``: ``pi(text) / pi_peer(text)``. ``block``: the same on each of the aligned
        blocks of the two tokenisations. ``length_normalised``: the log-ratio divided by bytes.
        ``none``: weight 1. In the bandit a response is one arm and the first three coincide.
    cap : float
        Upper bound on the ratio that is really computed, residual included; > 0, may be inf.
        Not used by ``none``.
    gated : bool
        Weight 0 for a rollout whose sampled tokens are not the canonical tokens of its text.
        Not used by ``none``.

    Notes
    -----
    Source: docs/theory.md, section 2 (PRP).
    """

    kind: RatioKind = "sequence"
    cap: float = float("inf")
    gated: bool = True

    def __post_init__(self) -> None:
        kinds = get_args(RatioKind)
        require(self.kind in kinds, "ratio", self.kind, f"one of {kinds}")
        require(is_real(self.cap) and self.cap > 0, "cap", self.cap, "a number > 0 (inf: no cap)")
        require(isinstance(self.gated, bool), "gated", self.gated, "true or false")

    def weights(self, log_ratio: ArrayLike, canonical: ArrayLike = True, /) -> Array:
        """Weights ``min(exp(log_ratio), cap)``, 0 where gated out.

        Parameters
        ----------
        log_ratio : array_like, shape (...)
            Log of the computed ratio, residual included, in nats.
        canonical : array_like of bool, shape (...)
            Whether the source sampled the canonical tokens of the text.

        Returns
        -------
        ndarray, shape (...)
            The weights; 1 everywhere for ``kind="none"``.
        """
        log_ratio = np.asarray(log_ratio, dtype=np.float64)
        if self.kind == "none":
            return np.ones_like(log_ratio)
        with np.errstate(over="ignore"):
            weights = np.minimum(np.exp(log_ratio), self.cap)
        return np.where(canonical, weights, 0.0) if self.gated else weights


@dataclass(frozen=True, eq=False)
class Credit:
    """Per-rollout credit of a batch of prompts; plain numbers, never gradients.

    The executor forms, for each prompt, ``1/n_pg * [sum own_advantage * grad logp +
    sum ratio * peer_advantage * grad logp] + sum nll_weight * grad logp``. In the bandit
    ``grad logp`` is the exact score; in the trainer it is autograd through the token loss.

    Parameters
    ----------
    own_advantage : ndarray, shape (..., G)
        Advantages of the receiver's rollouts; 0 where not valid.
    peer_advantage : ndarray, shape (..., M)
        Advantages of the peers' rollouts; 0 where not valid or not representable.
    peer_ratio : RatioRule or None
        How peers' rollouts are weighted; None: the rule has no peer policy-gradient term.
    nll_weight : ndarray, shape (..., M)
        Weight of each peer rollout in the likelihood term.
    n_pg : ndarray, shape (...)
        Rollouts that the policy-gradient term averages over; may be 0.
    """

    own_advantage: Array
    peer_advantage: Array
    peer_ratio: RatioRule | None
    nll_weight: Array
    n_pg: Array

    @property
    def own_weight(self) -> Array:
        """``own_advantage / n_pg``, 0 for an empty group; shape (..., G)."""
        return self.own_advantage / np.maximum(self.n_pg, 1)[..., None]

    @property
    def peer_weight(self) -> Array:
        """``peer_advantage / n_pg`` before the ratio, 0 for an empty group; shape (..., M)."""
        return self.peer_advantage / np.maximum(self.n_pg, 1)[..., None]

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Credit):
            return NotImplemented
        mine, its = (
            [getattr(credit, field.name) for field in fields(credit)] for credit in (self, other)
        )
        return all(
            a == b if a is None or isinstance(a, RatioRule) else np.array_equal(a, b)
            for a, b in zip(mine, its, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]


def effective_sample_size(weights: ArrayLike, /) -> Array:
    """Kish's effective sample size ``(sum w)^2 / sum w^2`` along the last axis.

    Parameters
    ----------
    weights : array_like, shape (..., M)
        Importance weights, >= 0.

    Returns
    -------
    ndarray, shape (...)
        Between 1 and M; 0 where all weights are 0.
    """
    weights = np.asarray(weights, dtype=np.float64)
    top = weights.max(axis=-1, initial=0.0, keepdims=True)
    scaled = np.divide(weights, top, out=np.zeros_like(weights), where=top > 0)
    square = np.square(scaled).sum(-1)
    return np.divide(np.square(scaled.sum(-1)), square, out=np.zeros_like(square), where=square > 0)
