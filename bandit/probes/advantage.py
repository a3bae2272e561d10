"""The one definition of the advantage: population mean, scale and dead groups.

For a population of n rewards with mean b and sum of squared deviations M2 the advantage of a
rollout with reward r is

    A = (r - b) / (sqrt(M2 / (n - ddof)) + eps)    scale "std"
    A = r - b                                      scale "none"

and 0 for a population without reward variance. That is decided on rewards (``max == min``), not
on advantages: six rewards of 0.1 centre to 1e-17. Source: docs/theory.md, section 1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from bandit.probes._checks import is_real, require
from bandit.probes.group import Array, Group, Mask

Scale = Literal["std", "none"]


class Population(NamedTuple):
    """Sufficient statistics of rewards: all that a baseline and a scale can need.

    Each field has the same shape; an empty population has n = mean = m2 = 0, low = inf and
    high = -inf.
    """

    n: Array
    mean: Array
    m2: Array
    low: Array
    high: Array

    @classmethod
    def of(
        cls, rewards: Array, valid: Mask, columns: Iterable[int] | None = None, /
    ) -> "Population":
        """Statistics of the valid rewards along the last axis, of all `columns` or of some.

        Rollouts are added one after another, so that a group's figures have the same bits in any
        batch, layout or selection of columns; and over a large batch it is fast.
        """
        if rewards.ndim == 1:  # one group alone: a batch of one
            batch = cls.of(rewards[None], valid[None], columns)
            return cls(*(field[0] for field in batch))
        every = bool(valid.all())
        rollouts = [
            (rewards[..., i], np.True_ if every else valid[..., i])
            for i in (range(rewards.shape[-1]) if columns is None else columns)
        ]
        shape = rewards.shape[:-1]
        n, total, m2 = np.zeros((3, *shape))
        low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
        for reward, counts in rollouts:
            n += counts
            np.add(total, reward, out=total, where=counts)
            np.minimum(low, reward, out=low, where=counts)
            np.maximum(high, reward, out=high, where=counts)
        mean = total / np.maximum(n, 1)
        for reward, counts in rollouts:
            np.add(m2, np.square(reward - mean), out=m2, where=counts)
        return cls(n, mean, m2, low, high)

    def merge(self, other: "Population", /) -> "Population":
        """Statistics of the union; merging an empty population changes no bit."""
        n = self.n + other.n
        share = other.n / np.maximum(n, 1)
        gap = other.mean - self.mean
        return Population(
            n,
            self.mean + gap * share,
            self.m2 + other.m2 + np.square(gap) * self.n * share,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )


def own_population(group: Group, /) -> Population:
    """Statistics of the receiver's valid rewards, fields of shape (...)."""
    return Population.of(group.own_rewards, group.own_valid)


def peer_population(group: Group, counted: Mask, /) -> Population:
    """Statistics of the counted peer rewards, merged peer by peer, fields of shape (...).

    From rewards or from `Group.peer_stats` the same bits result, as long as the statistics were
    computed by `Population.of`.
    """
    if group.peer_stats is not None:
        n, mean, m2, low, high = np.moveaxis(group.peer_stats, -1, 0)
        seen = n > 0
        low, high = np.where(seen, low, np.inf), np.where(seen, high, -np.inf)
        rows = Population(n, np.where(seen, mean, 0.0), np.where(seen, m2, 0.0), low, high)
        peers = [Population(*(field[..., j] for field in rows)) for j in range(n.shape[-1])]
    else:
        peers = [
            Population.of(group.peer_rewards, counted, np.flatnonzero(group.peer_source == j))
            for j in np.unique(group.peer_source)
        ]
    empty = np.zeros(group.batch_shape)
    total = Population(empty, empty, empty, empty + np.inf, empty - np.inf)
    for peer in peers:
        total = total.merge(peer)
    return total


@dataclass(frozen=True, kw_only=True)
class AdvantageRule:
    """Scale conventions of the advantage, shared by all probes.

    Parameters
    ----------
    scale : {"std", "none"}
        Divide by the population's standard deviation, or centre only.
    ddof : {0, 1}
        Delta degrees of freedom of that deviation; a population with ``n <= ddof`` has
        advantage 0.
    eps : float
        Added to the deviation; >= 0.
    """

    scale: Scale = "std"
    ddof: int = 1
    eps: float = 1e-6

    def __post_init__(self) -> None:
        scales = get_args(Scale)
        require(self.scale in scales, "scale", self.scale, f"one of {scales}")
        require(self.ddof in (0, 1) and is_real(self.ddof), "ddof", self.ddof, "0 or 1")
        finite = is_real(self.eps) and 0 <= self.eps < float("inf")
        require(finite, "eps", self.eps, "a finite number >= 0")

    def advantage(
        self, rewards: Array, valid: Mask, population: Population, baseline: Array | None = None, /
    ) -> Array:
        """Advantages of `rewards` against a population.

        Parameters
        ----------
        rewards : ndarray, shape (..., R)
            Rewards of the rollouts that get credit.
        valid : ndarray of bool, shape (..., R)
            Which of them count; the others get 0.
        population : Population
            What mean and scale are taken from, fields of shape (...).
        baseline : ndarray, shape (...), optional
            Baseline in place of the population's mean.

        Returns
        -------
        ndarray, shape (..., R)
            Finite everywhere; 0 for a population without reward variance.
        """
        mean = population.mean if baseline is None else baseline
        centred = rewards - mean[..., None]
        alive = population.high > population.low
        if self.scale == "std":
            freedom = population.n - self.ddof
            deviation = np.sqrt(population.m2 / np.maximum(freedom, 1))
            alive = alive & (freedom > 0) & (deviation > 0)
            centred = centred / np.where(alive, deviation + self.eps, 1.0)[..., None]
        return np.where(valid & alive[..., None], centred, 0.0)
