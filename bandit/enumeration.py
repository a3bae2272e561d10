"""Averages of a rule's coefficients over all compositions of a group's rewards.

Source: docs/theory.md, section 3.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bandit.compositions import (
    Chances,
    Integers,
    Pool,
    composition_counts,
    compositions,
    group_of,
)
from bandit.probes import Credit, Group, Probe
from bandit.probes.group import Array, Mask


@dataclass(frozen=True, eq=False)
class Classes:
    """A pool's rollouts by class.

    Attributes
    ----------
    pool : Pool
        J members and C classes.
    probability : ndarray, shape (X, J, C)
        Of each class in each context, by member.
    arms : ndarray, shape (X, J, C, K)
        Of each arm given the class; 0 where a member never falls into the class.
    """

    pool: Pool
    probability: Array
    arms: Array

    @classmethod
    def of(
        cls,
        members: Sequence[tuple[int, int]],
        levels: Array,
        verdicts: Array,
        probs: Array,
        drop: Array,
        keep_dropped_rewards: bool,
        /,
    ) -> "Classes":
        """Sort the members' arms into classes.

        Parameters
        ----------
        members : sequence of (policy, rollouts)
            Whose rollouts are pooled, J of them.
        levels : ndarray, shape (L,)
            Distinct rewards.
        verdicts : ndarray, shape (X, L, K)
            Probability that an arm gets each reward.
        probs : ndarray, shape (X, J, K)
            The members' policies.
        drop : ndarray, shape (X, J, K)
            Probability that the receiver cannot represent the arm's text, as far as it matters.
        keep_dropped_rewards : bool
            Whether the rule still sees the reward of a dropped rollout.
        """
        joint = verdicts[:, None] * probs[:, :, None, :]
        values, representable = levels, np.ones(len(levels), np.bool_)
        if drop.any():
            lost = joint * drop[:, :, None, :]
            if not keep_dropped_rewards:  # their rewards are never seen: one class for all
                lost = lost.sum(2, keepdims=True)
            joint = np.concatenate([joint * (1 - drop[:, :, None, :]), lost], axis=2)
            values = np.concatenate([levels, levels[: lost.shape[2]]])
            representable = np.arange(len(values)) < len(levels)
        mass = joint.sum(-1)
        joint /= np.where(mass > 0, mass, 1.0)[..., None]
        return cls(Pool(tuple(members), values, representable), mass, joint)

    @cached_property
    def chances(self) -> Chances:
        """How the pool's rollouts can fall."""
        return Chances.of(self.pool, self.probability)


class Averages(NamedTuple):
    """Means over compositions, for X contexts.

    A *feature* f is a member of a pool, a class and a route; ``S_f`` is the sum of the rule's
    coefficients over its rollouts. First come the own classes, then the peers' under the
    policy-gradient term, then the peers' under the likelihood term; within a route by pool, member,
    class.

    Attributes
    ----------
    first : ndarray, shape (X, F)
        ``E[S_f]``.
    first_without_success : ndarray, shape (X, F)
        The same, restricted to groups without an own success.
    pairs : ndarray, shape (X, F, F)
        Mean sum of ``c_i c_k`` over pairs of *different* rollouts, i of f and k of f'.
    own_squares : ndarray, shape (X, F_own)
        Mean sum of squared coefficients of own rollouts.
    peer_squares : ndarray, shape (X, 3, F_peer)
        The same for peers: policy gradient squared, twice policy gradient times likelihood, and
        likelihood squared.
    """

    first: Array
    first_without_success: Array
    pairs: Array
    own_squares: Array
    peer_squares: Array


def average(
    probe: Probe, own: Classes, peers: Sequence[Classes], success_threshold: float, redraws: int, /
) -> Averages:
    """Put every composition before the rule and average what it answers.

    Parameters
    ----------
    probe : Probe
        The sharing rule.
    own, peers : Classes, sequence of Classes
        The receiver's rollouts, and the pools of peers' rollouts that the rule sees.
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
    everyone = [own, *peers]
    pools = [c.pool for c in everyone]
    sizes = composition_counts(pools)
    chances = [c.chances for c in everyone]
    if redraws:
        chances[0] = _after_redraws(chances[0], own.pool, redraws)
    won = own.pool.rewards >= success_threshold
    no_success = own.pool.counts[:, won].sum(-1) == 0
    totals = _Totals.over(everyone)
    for rows in compositions(sizes):
        group = group_of(pools[0], pools[1:], rows, success_threshold)
        seen = [c.rows(r) for c, r in zip(chances, rows, strict=True)]
        totals.add(_ask(probe, group, pools, rows), seen, no_success[rows[0]])
    return totals.averages


@dataclass(frozen=True, eq=False)
class _Answer:
    """What a rule answers to compositions (B of them), summed over the rollouts of each class.

    Classes are numbered as features are: own, peers' under the policy gradient, peers' under the
    likelihood. `distinct` is summed over pairs of different rollouts.
    """

    first: Array  # (B, Fc)
    distinct: Array  # (B, Fc, Fc)
    own_squares: Array  # (B, C_own)
    peer_squares: Array  # (B, 3, C_peer)


def _ask(
    probe: Probe, group: Group, pools: Sequence[Pool], rows: tuple[Integers, ...], /
) -> _Answer:
    """Average the answer over the rule's own draws."""
    n_own = len(pools[0].rewards)
    n_peer = sum(len(p.rewards) for p in pools[1:])
    own_class, peer_class = pools[0].class_of[rows[0]], _joint_class(pools[1:], rows[1:])
    batch, features = len(own_class), n_own + 2 * n_peer
    first, distinct = np.zeros((batch, features)), np.zeros((batch, features, features))
    own_squares, peer_squares = np.zeros((batch, n_own)), np.zeros((batch, 3, n_peer))
    for likelihood, credit in probe.outcomes(group):
        if not likelihood.any():
            continue
        sums, own_square, peer_square = _class_sums(credit, own_class, peer_class, n_own, n_peer)
        first += likelihood[:, None] * sums
        distinct += likelihood[:, None, None] * (sums[:, :, None] * sums[:, None, :])
        own_squares += likelihood[:, None] * own_square
        peer_squares += likelihood[:, None, None] * peer_square
    # a rollout and itself are no pair
    mine, ratio = np.arange(n_own), n_own + np.arange(n_peer)
    distinct[:, mine, mine] -= own_squares
    distinct[:, ratio, ratio] -= peer_squares[:, 0]
    distinct[:, ratio, ratio + n_peer] -= peer_squares[:, 1] / 2
    distinct[:, ratio + n_peer, ratio] -= peer_squares[:, 1] / 2
    distinct[:, ratio + n_peer, ratio + n_peer] -= peer_squares[:, 2]
    return _Answer(first, distinct, own_squares, peer_squares)


@dataclass(frozen=True)
class _Slot:
    """Where the classes of one pool stand under one route, among classes and among features."""

    pool: int
    classes: slice
    features: slice


@dataclass(frozen=True, eq=False)
class _Totals:
    """Averages as they are added up, and where in them each pool stands."""

    averages: Averages
    own: _Slot
    ratio: tuple[_Slot, ...]
    plain: tuple[_Slot, ...]

    @classmethod
    def over(cls, everyone: Sequence[Classes], /) -> "_Totals":
        """Start at 0."""
        slots = []
        at_class = at_feature = 0
        others = range(1, len(everyone))
        for pool in (0, *others, *others):
            members, classes = everyone[pool].probability.shape[1:]
            slots.append(
                _Slot(
                    pool,
                    slice(at_class, at_class + classes),
                    slice(at_feature, at_feature + members * classes),
                )
            )
            at_class, at_feature = slots[-1].classes.stop, slots[-1].features.stop
        contexts, own = len(everyone[0].probability), slots[0].features.stop
        averages = Averages(
            np.zeros((contexts, at_feature)),
            np.zeros((contexts, at_feature)),
            np.zeros((contexts, at_feature, at_feature)),
            np.zeros((contexts, own)),
            np.zeros((contexts, 3, (at_feature - own) // 2)),
        )
        n = len(others)
        return cls(averages, slots[0], tuple(slots[1 : n + 1]), tuple(slots[n + 1 :]))

    def add(self, answer: _Answer, seen: Sequence[Chances], no_success: Mask, /) -> None:
        """Add a batch of compositions with their chances."""
        slots = (self.own, *self.ratio, *self.plain)
        for slot in slots:
            share = seen[slot.pool].member * _elsewhere(seen, slot.pool)[..., None, None]
            coefficients = answer.first[:, slot.classes]
            self.averages.first[:, slot.features] += _over_rows(share, coefficients)
            self.averages.first_without_success[:, slot.features] += _over_rows(
                share * no_success[:, None, None], coefficients
            )
            if slot is self.own:
                self.averages.own_squares[:] += _over_rows(share, answer.own_squares)
            elif slot in self.ratio:
                # peers' squares are numbered from the first peer's class and feature on
                classes, features = (
                    _from(slot.classes, self.own.classes),
                    _from(slot.features, self.own.features),
                )
                for route in range(3):
                    self.averages.peer_squares[:, route, features] += _over_rows(
                        share, answer.peer_squares[:, route, classes]
                    )
        for u, v in itertools.product(slots, slots):
            if u.features.start <= v.features.start:
                self._add_pairs(answer, seen, u, v)

    def _add_pairs(self, answer: _Answer, seen: Sequence[Chances], u: _Slot, v: _Slot, /) -> None:
        products = answer.distinct[:, u.classes, v.classes]
        if not products.any():
            return
        elsewhere = _elsewhere(seen, u.pool, v.pool)
        if u.pool == v.pool:
            total = np.einsum("xn,xnjakb,nab->xjakb", elsewhere, seen[u.pool].pair, products)
        else:
            ours, theirs = seen[u.pool].member, seen[v.pool].member
            total = np.einsum("xn,xnja,xnkb,nab->xjakb", elsewhere, ours, theirs, products)
        contexts = len(total)
        rows, columns = total.shape[1] * total.shape[2], total.shape[3] * total.shape[4]
        block = total.reshape(contexts, rows, columns)
        self.averages.pairs[:, u.features, v.features] += block
        if u is not v:
            self.averages.pairs[:, v.features, u.features] += block.swapaxes(1, 2)


def _elsewhere(seen: Sequence[Chances], *pools: int) -> Array:
    """Probability (X, B) of the other pools' rows."""
    others = [chances.row for i, chances in enumerate(seen) if i not in pools]
    return np.prod(others, axis=0) if others else np.ones_like(seen[0].row)


def _over_rows(share: Array, coefficients: Array, /) -> Array:
    """Sum shares (X, B, J, C) times coefficients (B, C) over rows, shape (X, J * C)."""
    total = np.einsum("xnja,na->xja", share, coefficients)
    return total.reshape(len(total), -1)


def _from(part: slice, start: slice, /) -> slice:
    return slice(part.start - start.stop, part.stop - start.stop)


def _after_redraws(chances: Chances, own: Pool, redraws: int, /) -> Chances:
    """Own compositions' probabilities (X, n) when dead groups are drawn again.

    With d the probability of a dead group and R redraws, a live composition gains the factor
    ``1 + d + ... + d^R``; a dead one is kept only in the last draw, ``d^R``.
    """
    dead = (own.counts > 0).sum(-1) == 1
    d = np.where(dead, chances.row, 0.0).sum(-1, keepdims=True)
    factor = np.where(dead, d**redraws, (d[..., None] ** np.arange(redraws + 1)).sum(-1))
    return Chances(
        chances.row * factor,
        chances.member * factor[..., None, None],
        chances.pair * factor[..., None, None, None, None],
    )


def _joint_class(pools: Sequence[Pool], rows: tuple[Integers, ...], /) -> Integers:
    """Class of each peer rollout, numbered through all pools; shape (B, M)."""
    if not pools:
        return np.zeros((0, 0), np.int64)
    start = np.cumsum([0, *(len(p.rewards) for p in pools)])
    return np.concatenate(
        [p.class_of[row] + s for p, row, s in zip(pools, rows, start[:-1], strict=True)], axis=-1
    )


def _class_sums(
    credit: Credit, own_class: Integers, peer_class: Integers, n_own: int, n_peer: int, /
) -> tuple[Array, Array, Array]:
    """Sum coefficients, (B, Fc), and their products, (B, C_own) and (B, 3, C_peer), by class."""
    mine, plain = credit.own_weight, credit.nll_weight
    ratio = credit.peer_weight if credit.peer_ratio is not None else np.zeros_like(plain)

    def total(values: Array, class_of: Integers, classes: int) -> Array:
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
        total(mine**2, own_class, n_own),
        np.stack(products, axis=1),
    )
