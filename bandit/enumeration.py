"""Averages of a rule's coefficients over all compositions of a group's rewards.

Source: docs/theory.md, section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bandit.compositions import Source, composition_counts, compositions, group_of
from bandit.probes import Credit, Probe
from bandit.probes.group import Array


@dataclass(frozen=True, eq=False)
class Classes:
    """One source's rollouts by class: probability (X, C) and arms given the class (X, C, K)."""

    source: Source
    probability: Array
    arms: Array

    @classmethod
    def of(
        cls,
        policy: int,
        size: int,
        levels: Array,
        rewards: Array,
        probs: Array,
        drop: Array | None,
        keep_dropped_rewards: bool,
        /,
    ) -> "Classes":
        """Sort a source's arms into classes.

        Parameters
        ----------
        policy, size : int
            The source and its rollouts.
        levels : ndarray, shape (L,)
            Distinct rewards.
        rewards, probs : ndarray, shape (X, K)
            Reward and probability of each arm.
        drop : ndarray, shape (X, K), or None
            Probability that the receiver cannot represent the arm's text; None: no text needed.
        keep_dropped_rewards : bool
            Whether the rule still sees the reward of a dropped rollout.
        """
        joint = np.where(rewards[:, None, :] == levels[:, None], probs[:, None, :], 0.0)
        values, representable = levels, np.ones(len(levels), np.bool_)
        if drop is not None and drop.any():
            lost = joint * drop[:, None, :]
            if not keep_dropped_rewards:  # their rewards are never seen: one class for all
                lost = lost.sum(1, keepdims=True)
            joint = np.concatenate([joint * (1 - drop[:, None, :]), lost], axis=1)
            values = np.concatenate([levels, levels[: lost.shape[1]]])
            representable = np.arange(len(values)) < len(levels)
        mass = joint.sum(-1)
        arms = joint / np.where(mass > 0, mass, 1.0)[..., None]
        return cls(Source(policy, size, values, representable), mass, arms)


class Averages(NamedTuple):
    """Means over compositions, for X contexts.

    A feature f is a class of a source's rollouts together with a route; ``S_f`` is the sum of the
    rule's coefficients over the class. First the own classes, then the peers' classes under the
    policy-gradient term, then the peers' classes under the likelihood term.

    Attributes
    ----------
    first : ndarray, shape (X, F)
        ``E[S_f]``.
    first_without_success : ndarray, shape (X, F)
        The same, restricted to groups without an own success.
    pairs : ndarray, shape (X, F, F)
        ``E[S_f S_f']``.
    squares : ndarray, shape (X, Q)
        Mean sums of products of coefficients of the same rollout: own classes, then the peers'
        classes for policy gradient squared, twice policy gradient times likelihood, and
        likelihood squared.
    """

    first: Array
    first_without_success: Array
    pairs: Array
    squares: Array


def average(
    probe: Probe, own: Classes, peers: Sequence[Classes], success_threshold: float, redraws: int, /
) -> Averages:
    """Put every composition before the rule and average what it answers.

    Parameters
    ----------
    probe : Probe
        The sharing rule.
    own, peers : Classes, sequence of Classes
        The receiver's rollouts and those of each peer that the rule sees.
    success_threshold : float
        Reward from which a rollout is a success.
    redraws : int
        How often a dead own group is drawn again.

    Returns
    -------
    Averages
        Over compositions and over the rule's own draws.

    Raises
    ------
    ValueError
        If there are too many compositions.
    """
    sources = [own.source, *(p.source for p in peers)]
    sizes = composition_counts(sources)
    chances = [c.source.probability(c.probability) for c in (own, *peers)]
    chances[0] = _after_redraws(chances[0], own.source, redraws)
    won = own.source.rewards >= success_threshold
    no_success = own.source.counts[:, won].sum(-1) == 0
    n_own, n_peer = len(own.source.rewards), sum(len(p.source.rewards) for p in peers)
    features, contexts = n_own + 2 * n_peer, len(own.probability)
    first, restricted = np.zeros((2, contexts, features))
    pairs = np.zeros((contexts, features * features))
    squares = np.zeros((contexts, n_own + 3 * n_peer))
    for rows in compositions(sizes):
        chance = np.prod([c[:, row] for c, row in zip(chances, rows, strict=True)], axis=0)
        group = group_of(sources[0], sources[1:], rows, success_threshold)
        peer_class = _joint_class(sources[1:], rows[1:])
        own_class = sources[0].class_of[rows[0]]
        for likelihood, credit in probe.outcomes(group):
            if not likelihood.any():
                continue
            sums, square_sums = _class_sums(credit, own_class, peer_class, n_own, n_peer)
            joint = chance * likelihood
            first += joint @ sums
            restricted += (joint * no_success[rows[0]]) @ sums
            pairs += joint @ (sums[:, :, None] * sums[:, None, :]).reshape(len(sums), -1)
            squares += joint @ square_sums
    return Averages(first, restricted, pairs.reshape(contexts, features, features), squares)


def _after_redraws(chance: Array, own: Source, redraws: int, /) -> Array:
    """Own compositions' probabilities (X, n) when dead groups are drawn again.

    With d the probability of a dead group and R redraws, a live composition gains the factor
    ``1 + d + ... + d^R``; a dead one is kept only in the last draw, ``d^R``.
    """
    dead = (own.counts > 0).sum(-1) == 1
    d = np.where(dead, chance, 0.0).sum(-1, keepdims=True)
    return np.where(dead, d**redraws, (d[..., None] ** np.arange(redraws + 1)).sum(-1)) * chance


def _joint_class(
    peers: Sequence[Source], rows: tuple[NDArray[np.int64], ...], /
) -> NDArray[np.int64]:
    """Class of each peer rollout, numbered through all peers; shape (B, M)."""
    if not peers:
        return np.zeros((0, 0), np.int64)
    start = np.cumsum([0, *(len(p.rewards) for p in peers)])
    return np.concatenate(
        [p.class_of[row] + s for p, row, s in zip(peers, rows, start[:-1], strict=True)], axis=-1
    )


def _class_sums(
    credit: Credit,
    own_class: NDArray[np.int64],
    peer_class: NDArray[np.int64],
    n_own: int,
    n_peer: int,
    /,
) -> tuple[Array, Array]:
    """Sum coefficients, (B, F), and their products, (B, Q), over each class."""
    mine, plain = credit.own_weight, credit.nll_weight
    ratio = credit.peer_weight if credit.peer_ratio is not None else np.zeros_like(plain)

    def total(values: Array, class_of: NDArray[np.int64], classes: int) -> Array:
        if classes == 0:
            return np.zeros((len(values), 0))
        cell = np.arange(len(values))[:, None] * classes + class_of
        flat: NDArray[Any] = np.bincount(
            cell.ravel(), values.ravel(), minlength=len(values) * classes
        )
        return flat.reshape(-1, classes)

    peer = [total(v, peer_class, n_peer) for v in (ratio, plain)]
    products = [total(v, peer_class, n_peer) for v in (ratio**2, 2 * ratio * plain, plain**2)]
    return (
        np.concatenate([total(mine, own_class, n_own), *peer], axis=-1),
        np.concatenate([total(mine**2, own_class, n_own), *products], axis=-1),
    )
