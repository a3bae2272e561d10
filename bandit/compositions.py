"""Every way a group's rewards can fall, by counts: the sample space of the exact moments.

Rollouts of one source are exchangeable, so a group is described by how many rollouts of each
source fall into each *class* (a reward level, and whether the receiver can represent the text).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bandit.probes.group import Array, Group, Mask

MAX_COMPOSITIONS = 1_000_000
BATCH = 4096


@dataclass(frozen=True, eq=False)
class Source:
    """`size` rollouts of one policy over its classes.

    Attributes
    ----------
    policy : int
        The policy they are drawn from.
    size : int
        How many.
    rewards : ndarray, shape (C,)
        Reward of each class.
    representable : ndarray of bool, shape (C,)
        Whether the receiver can represent the texts of the class.
    """

    policy: int
    size: int
    rewards: Array
    representable: Mask

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """All ways to spread `size` rollouts over the classes, shape (n, C)."""
        return np.array(list(_spread(self.size, len(self.rewards))), np.int64)

    @cached_property
    def class_of(self) -> NDArray[np.int64]:
        """Class of each rollout, in sorted order, for each row of `counts`; shape (n, size)."""
        upto = np.cumsum(self.counts, axis=-1)
        return (upto[:, :, None] <= np.arange(self.size)).sum(axis=1)

    def probability(self, class_probability: Array, /) -> Array:
        """Multinomial probability of each row of `counts`.

        Parameters
        ----------
        class_probability : ndarray, shape (X, C)
            Probability of each class in each context.

        Returns
        -------
        ndarray, shape (X, n)
            Sums to 1 over the rows.
        """
        ways = [
            math.factorial(self.size) / math.prod(math.factorial(c) for c in row)
            for row in self.counts.tolist()
        ]
        return np.array(ways) * np.prod(class_probability[:, None, :] ** self.counts, axis=-1)


def composition_counts(sources: Sequence[Source], /) -> tuple[int, ...]:
    """Count the rows of each source's `counts`, without forming them.

    Raises
    ------
    ValueError
        If there are more than `MAX_COMPOSITIONS` jointly.
    """
    sizes = tuple(math.comb(s.size + len(s.rewards) - 1, s.size) for s in sources)
    total = math.prod(sizes)
    if total > MAX_COMPOSITIONS:
        raise ValueError(
            f"the groups can fall in {total} ways ({' x '.join(map(str, sizes))} by source); exact "
            f"moments enumerate at most {MAX_COMPOSITIONS}; use bandit.sampling.moments, fewer "
            "rollouts, or fewer distinct rewards"
        )
    return sizes


def compositions(sizes: tuple[int, ...], /) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """Go through the rows of each source's `counts`, jointly over all sources, in batches.

    Parameters
    ----------
    sizes : tuple of int
        As returned by `composition_counts`.

    Yields
    ------
    tuple of ndarray of int, shape (B,)
        One index array a source; B is at most `BATCH`.
    """
    total = math.prod(sizes)
    for start in range(0, total, BATCH):
        yield np.unravel_index(np.arange(start, min(start + BATCH, total)), sizes)


def group_of(
    own: Source,
    peers: Sequence[Source],
    rows: tuple[NDArray[np.int64], ...],
    success_threshold: float,
    /,
) -> Group:
    """Build the groups that a batch of compositions stands for, batch shape (B,)."""
    batch = len(rows[0])
    classes = [peer.class_of[row] for peer, row in zip(peers, rows[1:], strict=True)]
    empty = np.zeros((batch, 0))
    return Group(
        own_rewards=own.rewards[own.class_of[rows[0]]],
        peer_rewards=np.concatenate(
            [empty, *(p.rewards[c] for p, c in zip(peers, classes, strict=True))], axis=-1
        ),
        peer_source=np.repeat(
            np.array([p.policy for p in peers], np.int64), [p.size for p in peers]
        ),
        peer_representable=np.concatenate(
            [empty > 0, *(p.representable[c] for p, c in zip(peers, classes, strict=True))], axis=-1
        ),
        success_threshold=success_threshold,
    )


def _spread(size: int, classes: int, /) -> Iterator[tuple[int, ...]]:
    if classes == 1:
        yield (size,)
        return
    for first in range(size + 1):
        for rest in _spread(size - first, classes - 1):
            yield (first, *rest)
