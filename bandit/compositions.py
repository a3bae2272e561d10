"""Every way a group's rewards can fall, by counts: the sample space of the exact moments.

Rollouts that a rule cannot tell apart form a *pool*: the receiver's own; those of one peer; or
those of all peers, for a rule that looks at nothing but the pool. A pool is described by how many
of its rollouts fall into each *class* (a reward level, and whether the receiver can represent the
text).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import comb

from bandit.probes.group import Array, Group, Mask

MAX_COMPOSITIONS = 1_000_000
MAX_ROLLOUTS = 50_000_000  # of all compositions together: what is put before a rule
BATCH = 4096

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pool:
    """Rollouts of one or several policies over common classes.

    Attributes
    ----------
    members : tuple of (policy, rollouts)
        Whose rollouts are pooled.
    rewards : ndarray, shape (C,)
        Reward of each class.
    representable : ndarray of bool, shape (C,)
        Whether the receiver can represent the texts of the class.
    """

    members: tuple[tuple[int, int], ...]
    rewards: Array
    representable: Mask

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rollouts of each member."""
        return tuple(size for _, size in self.members)

    @property
    def size(self) -> int:
        """Rollouts of the pool."""
        return sum(self.sizes)

    @cached_property
    def counts(self) -> Integers:
        """All ways to spread the rollouts over the classes, shape (n, C)."""
        return _spread(self.size, len(self.rewards))

    @cached_property
    def class_of(self) -> Integers:
        """Class of each rollout, in sorted order, for each row of `counts`; shape (n, size)."""
        upto = np.cumsum(self.counts, axis=-1)
        return (upto[:, :, None] <= np.arange(self.size)).sum(axis=1)


@dataclass(frozen=True, eq=False)
class Chances:
    """How probable the rows of a pool's `counts` are, and whose the rollouts in a class are.

    Attributes
    ----------
    row : ndarray, shape (X, n)
        Probability of each row.
    member : ndarray, shape (X, n, J, C)
        The same, times the expected share of member j among the rollouts of class a.
    pair : ndarray, shape (X, n, J, C, J, C)
        The same, times the expected share of (j, k) among the pairs of different rollouts, one of
        class a and one of class b.
    """

    row: Array
    member: Array
    pair: Array

    @classmethod
    def of(cls, pool: Pool, probability: Array, /) -> "Chances":
        """Chances of a pool's rows.

        Parameters
        ----------
        pool : Pool
            J members, C classes, n rows.
        probability : ndarray, shape (X, J, C)
            Probability of each class in each context, by member.

        Notes
        -----
        With P the distribution of the pool's counts and P^-j the one with a rollout of member j
        left out, ``E[c_ja; counts = c] = M_j q_ja P^-j(c - e_a)``: any one of the M_j rollouts is
        in class a, and the others make up the rest. Pairs leave out two. So the work is polynomial
        in the number of members.
        """
        row = distribution(probability, pool.sizes)
        contexts, rows = row.shape
        members, classes = probability.shape[1:]
        if members == 1:  # all rollouts are one policy's
            whole = (contexts, rows, 1, classes)
            return cls(
                row,
                np.broadcast_to(row[..., None, None], whole),
                np.broadcast_to(row[..., None, None, None, None], (*whole, 1, classes)),
            )
        member = np.zeros((contexts, rows, members, classes))
        pair = np.zeros((contexts, rows, members, classes, members, classes))
        for j, k in itertools.combinations_with_replacement(range(members), 2):
            left = np.array(pool.sizes)
            left[j] -= 1
            if j == k:
                once = distribution(probability, tuple(left))
                for a in range(classes):
                    chance = (
                        _with_one_more(once, pool.size, classes, a) * probability[:, j, a, None]
                    )
                    member[:, :, j, a] = pool.sizes[j] * chance / np.maximum(pool.counts[:, a], 1)
            ways = pool.sizes[j] * left[k]
            left[k] -= 1
            if ways == 0:
                continue
            twice = distribution(probability, tuple(left))
            for a, b in np.ndindex(classes, classes):
                chance = _with_one_more(
                    _with_one_more(twice, pool.size - 1, classes, b), pool.size, classes, a
                )
                chance = ways * chance * (probability[:, j, a] * probability[:, k, b])[:, None]
                pairs = pool.counts[:, a] * (pool.counts[:, b] - (a == b))
                pair[:, :, j, a, k, b] = chance / np.maximum(pairs, 1)
                pair[:, :, k, b, j, a] = pair[:, :, j, a, k, b]
        return cls(row, member, pair)

    def rows(self, rows: Integers, /) -> "Chances":
        """Chances of some rows."""
        return Chances(self.row[:, rows], self.member[:, rows], self.pair[:, rows])


def distribution(probability: Array, sizes: Sequence[int], /) -> Array:
    """Distribution of the counts of independent rollouts of several policies together.

    Parameters
    ----------
    probability : ndarray, shape (X, J, C)
        Probability of each class, by policy.
    sizes : sequence of int, length J
        Rollouts of each policy.

    Returns
    -------
    ndarray, shape (X, n)
        By composition, in the order of `Pool.counts`; sums to 1.

    Notes
    -----
    Rollouts are added one at a time. All terms are positive, so nothing cancels, overflows or needs
    a logarithm.
    """
    classes = probability.shape[-1]
    chance = np.ones((len(probability), 1))
    total = 0
    for j, size in enumerate(sizes):
        for _ in range(size):
            total += 1
            grown = [
                _with_one_more(chance, total, classes, a) * probability[:, j, a, None]
                for a in range(classes)
            ]
            chance = np.sum(grown, axis=0)
    return chance


def composition_counts(pools: Sequence[Pool], /) -> tuple[int, ...]:
    """Count the rows of each pool's `counts`, without forming them.

    Raises
    ------
    ValueError
        If there are more than `MAX_COMPOSITIONS` jointly, or more than `MAX_ROLLOUTS` in them.
    """
    sizes = tuple(math.comb(p.size + len(p.rewards) - 1, p.size) for p in pools)
    total = math.prod(sizes)
    rollouts = total * sum(p.size for p in pools)
    if total > MAX_COMPOSITIONS or rollouts > MAX_ROLLOUTS:
        raise ValueError(
            f"the groups can fall in {total} ways ({' x '.join(map(str, sizes))} by pool), of "
            f"{rollouts} rollouts in all; exact moments enumerate at most {MAX_COMPOSITIONS} ways "
            f"and {MAX_ROLLOUTS} rollouts; use bandit.sampling.moments, fewer "
            "rollouts, or fewer distinct rewards (a rule that looks at nothing but the pool of its "
            "peers' rewards may say so with pools_peers = True, which makes one pool of them)"
        )
    return sizes


def compositions(sizes: tuple[int, ...], /) -> Iterator[tuple[Integers, ...]]:
    """Go through the rows of each pool's `counts`, jointly over all pools, in batches.

    Parameters
    ----------
    sizes : tuple of int
        As returned by `composition_counts`.

    Yields
    ------
    tuple of ndarray of int, shape (B,)
        One index array a pool; B is at most `BATCH`.
    """
    total = math.prod(sizes)
    for start in range(0, total, BATCH):
        yield np.unravel_index(np.arange(start, min(start + BATCH, total)), sizes)


def group_of(
    own: Pool, peers: Sequence[Pool], rows: tuple[Integers, ...], success_threshold: float, /
) -> Group:
    """Build the groups that a batch of compositions stands for, batch shape (B,).

    In a pool of several members rollouts are named after them in order, which is immaterial: the
    rule does not look.
    """
    batch = len(rows[0])
    classes = [peer.class_of[row] for peer, row in zip(peers, rows[1:], strict=True)]
    empty = np.zeros((batch, 0))
    members = [member for peer in peers for member in peer.members]
    return Group(
        own_rewards=own.rewards[own.class_of[rows[0]]],
        peer_rewards=np.concatenate(
            [empty, *(p.rewards[c] for p, c in zip(peers, classes, strict=True))], axis=-1
        ),
        peer_source=np.repeat(
            np.array([j for j, _ in members], np.int64), [size for _, size in members]
        ),
        peer_representable=np.concatenate(
            [empty > 0, *(p.representable[c] for p, c in zip(peers, classes, strict=True))], axis=-1
        ),
        success_threshold=success_threshold,
    )


def _spread(size: int, classes: int, /) -> Integers:
    """All compositions of `size` into `classes` parts, in lexicographic order, shape (n, C)."""
    if classes == 1:
        return np.array([[size]], np.int64)
    if classes == 2:
        first = np.arange(size + 1)
        return np.stack([first, size - first], axis=-1)
    bars = np.array(
        list(itertools.combinations(range(size + classes - 1), classes - 1)), np.int64
    ).reshape(-1, classes - 1)
    edges = np.pad(bars, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, size + classes - 1)))
    return np.diff(edges, axis=-1) - 1


def _with_one_more(chance: Array, size: int, classes: int, of_class: int, /) -> Array:
    """Chances (X, n') of compositions of size - 1, carried to those with one more in a class.

    Returns
    -------
    ndarray, shape (X, n)
        ``P(c - e_a)`` for each composition c of `size`; 0 where c has none of class a.
    """
    grown = _spread(size - 1, classes)
    grown[:, of_class] += 1
    carried = np.zeros((len(chance), math.comb(size + classes - 1, size)))
    carried[:, _rank(grown)] = chance
    return carried


def _rank(counts: Integers, /) -> Integers:
    """Position of each composition (n, C) in the lexicographic order of `_spread`, shape (n,)."""
    # the parts from class i on hold what is left of the rollouts; those whose part i is smaller
    # come first, and there are comb(left + k, k) - comb(left - c_i + k, k) of them
    parts = np.arange(counts.shape[-1] - 1, 0, -1)
    left = np.cumsum(counts[:, ::-1], axis=-1)[:, ::-1][:, :-1]
    smaller = comb(left + parts, parts) - comb(left - counts[:, :-1] + parts, parts)
    return np.rint(smaller.sum(-1)).astype(np.int64)
