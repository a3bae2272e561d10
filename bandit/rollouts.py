"""Sampled rollouts and the random streams they come from.

Source: docs/theory.md, section 1.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from bandit.design import Design
from bandit.probes.group import Array
from bandit.worlds import World

Arms = NDArray[np.intp]


class Stream(IntEnum):
    """What random numbers are for; each purpose has its own stream."""

    ROLLOUTS = 0
    REDRAWS = 1
    DROP = 2
    DELTA = 3
    GATE = 4
    PROBE = 5


@dataclass(frozen=True)
class Streams:
    """Independent random generators of one chunk of a run, found by purpose and policy."""

    seed: int
    chunk: int

    def rng(self, purpose: Stream, /, *who: int) -> np.random.Generator:
        """Make the generator for `purpose` and the policies it concerns."""
        key = (self.chunk, int(purpose), *who)
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Sampled arms of one receiver's group and of what it sees of its peers.

    Attributes
    ----------
    own : ndarray of int, shape (..., X, G)
        Arms that the receiver drew.
    peers : tuple of ndarray of int, shape (..., X, M_j)
        Arms of each peer in `Design.peers`.
    """

    own: Arms
    peers: tuple[Arms, ...]


def draw_arms(probs: Array, n: int, size: int, rng: np.random.Generator, /) -> Arms:
    """Draw independent arms by inversion of the distribution function.

    Parameters
    ----------
    probs : ndarray, shape (X, K)
        Arm probabilities in each context. An arm of probability 0 is never drawn.
    n : int
        Groups of each context.
    size : int
        Rollouts of each group.
    rng : numpy.random.Generator
        Gives one uniform number for each rollout.

    Returns
    -------
    ndarray of int, shape (n, X, size)
        Arm indices. In memory the groups run fastest: sums over a group's few rollouts are then
        sums of long vectors, several times faster than the other way round.
    """
    uniform = rng.random((len(probs), size, n))
    arms = np.empty(uniform.shape, np.intp)
    cumulative = np.cumsum(probs, axis=-1)
    cumulative /= cumulative[:, -1:]
    for x, steps in enumerate(cumulative):
        arms[x] = _invert(steps, uniform[x])
    return np.moveaxis(arms, -1, 0)


def draw_each(probs: Array, size: int, rng: np.random.Generator, /) -> Arms:
    """`size` independent arms of each distribution in a batch.

    Parameters
    ----------
    probs : ndarray, shape (..., K)
        One distribution for each group; `draw_arms` is faster where many groups share one.
    size : int
        Rollouts of each group.
    rng : numpy.random.Generator
        Gives one uniform number for each rollout.

    Returns
    -------
    ndarray of int, shape (..., size)
        Arm indices; an arm of probability 0 is never drawn.
    """
    cumulative = np.cumsum(probs, axis=-1)
    cumulative /= cumulative[..., -1:]
    uniform = rng.random((size, *probs.shape[:-1]))
    arms = np.zeros(uniform.shape, np.intp)
    for step in np.moveaxis(cumulative[..., :-1], -1, 0):
        arms += uniform >= step
    return np.moveaxis(arms, 0, -1)


def redraw_dead(world: World, probs: Array, own: Arms, design: Design, streams: Streams, /) -> Arms:
    """Own rollouts after dynamic sampling: groups of equal rewards are drawn again.

    Parameters
    ----------
    world : World
        Gives the rewards.
    probs : ndarray, shape (X, K) or (..., X, K)
        The receiver's policy.
    own : ndarray of int, shape (..., X, G)
        First draws; left as they are.
    design : Design
        Receiver and number of redraws.
    streams : Streams
        Each redraw has its own stream.

    Returns
    -------
    ndarray of int, shape (..., X, G)
        The groups that stay.
    """
    kept = own.copy()
    table = np.broadcast_to(probs, (*own.shape[:-1], probs.shape[-1]))
    for again in range(design.redraws):
        rewards = of_arms(world.rewards, kept)
        dead = rewards.max(-1) == rewards.min(-1)
        rng = streams.rng(Stream.REDRAWS, design.receiver, again)
        kept[dead] = draw_each(table[dead], own.shape[-1], rng)
    return kept


def of_arms(table: Array, arms: Arms, /) -> Array:
    """Entries of a table (X, K) or (..., X, K) at arms (..., X, R)."""
    if table.ndim == 2:
        return table[np.arange(len(table))[:, None], arms]
    return np.take_along_axis(table, arms, axis=-1)


def _invert(steps: Array, uniform: Array, /) -> Arms:
    """First arm whose cumulative probability exceeds each number, by a table where that is faster.

    The unit interval is cut into equal cells, a power of 2 so that finding the cell is exact. In
    most cells there is one possible arm; only in the others the steps are searched.
    """
    cells = 1 << (8 * len(steps) - 1).bit_length()
    if uniform.size < 4 * cells:
        return np.searchsorted(steps, uniform, side="right")
    edges = np.arange(cells + 1) / cells
    lowest = np.searchsorted(steps, edges[:-1], side="right")
    unclear = np.searchsorted(steps, edges[1:], side="left") > lowest
    cell = (uniform * cells).astype(np.intp)
    arms = lowest[cell]
    search = np.nonzero(unclear[cell])
    arms[search] = np.searchsorted(steps, uniform[search], side="right")
    return arms
