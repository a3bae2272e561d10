"""Sampled rollouts and the random streams they come from.

Source: docs/theory.md, section 1.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bandit.design import Design
from bandit.probes.group import Array
from bandit.world import World

Arms = NDArray[np.intp]


class Stream(IntEnum):
    """What random numbers are for; each purpose has its own stream."""

    ROLLOUTS = 0
    REDRAWS = 1
    DROP = 2
    DELTA = 3
    GATE = 4
    PROBE = 5
    VERDICTS = 6


@dataclass(frozen=True)
class Streams:
    """Independent random generators of one piece of a run, found by purpose and policy.

    Attributes
    ----------
    seed : int
        The run's seed.
    piece : int or tuple of int
        Which piece: a chunk of estimates, or a step and a chunk of replicas.
    """

    seed: int
    piece: int | tuple[int, ...]

    def rng(self, purpose: Stream, /, *who: int) -> np.random.Generator:
        """Make the generator for `purpose` and the policies it concerns."""
        piece = self.piece if isinstance(self.piece, tuple) else (self.piece,)
        key = (*piece, int(purpose), *who)
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))


@dataclass(frozen=True, eq=False)
class Sample:
    """Rollouts of one policy.

    Attributes
    ----------
    arms : ndarray of int, shape (..., X, R)
        What was drawn.
    rewards : ndarray, shape (..., X, R)
        What the verifier said of it.
    """

    arms: Arms
    rewards: Array

    @classmethod
    def of(cls, world: World, arms: Arms, streams: Streams, /, *who: int) -> "Sample":
        """Let the world's verifier judge drawn arms; `who` names the stream of its errors."""
        rewards = of_arms(world.rewards, arms)
        if world.wrong_verdict is not None:
            wrong = streams.rng(Stream.VERDICTS, *who).random(arms.shape) < of_arms(
                world.wrong_verdict, arms
            )
            rewards = np.where(wrong, world.rewards.min() + world.rewards.max() - rewards, rewards)
        return cls(arms, rewards)

    def first(self, groups: int, /) -> "Sample":
        """The first groups along the leading axis."""
        return Sample(self.arms[:groups], self.rewards[:groups])

    def seen(self, count: int, /) -> "Sample":
        """The first rollouts of every group."""
        return Sample(self.arms[..., :count], self.rewards[..., :count])


@dataclass(frozen=True, eq=False)
class Rollouts:
    """One receiver's own rollouts, and what it sees of each peer in `Design.peers`."""

    own: Sample
    peers: tuple[Sample, ...]


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
    # counting in the smallest integers that hold an arm makes the sum several times faster
    arms = np.zeros(uniform.shape, np.min_scalar_type(probs.shape[-1]))
    for step in np.moveaxis(cumulative[..., :-1], -1, 0):
        arms += uniform >= step
    return np.moveaxis(arms.astype(np.intp), 0, -1)


def redraw_dead(
    world: World, probs: Array, own: Sample, design: Design, streams: Streams, /
) -> Sample:
    """Own rollouts after dynamic sampling: groups of equal rewards are drawn again.

    Parameters
    ----------
    world : World
        Gives the rewards.
    probs : ndarray, shape (X, K) or (..., X, K)
        The receiver's policy.
    own : Sample
        First draws, shape (..., X, G); left as they are.
    design : Design
        Receiver and number of redraws.
    streams : Streams
        Each redraw has its own stream.

    Returns
    -------
    Sample
        The groups that stay.
    """
    who = design.receiver
    table = np.broadcast_to(probs, (*own.arms.shape[:-1], probs.shape[-1]))
    for again in range(design.redraws):
        dead = own.rewards.max(-1) == own.rewards.min(-1)
        arms = own.arms.copy()
        rng = streams.rng(Stream.REDRAWS, who, again)
        arms[dead] = draw_each(table[dead], own.arms.shape[-1], rng)
        judged = Sample.of(world, arms, streams, who, again + 1)
        own = Sample(arms, np.where(dead[..., None], judged.rewards, own.rewards))
    return own


def of_arms(table: Array, arms: Arms, /) -> Array:
    """Entries of a table (X, K) or (..., X, K) at arms (..., X, R), laid out as the arms are."""
    cell = arms
    if table.size > table.shape[-1]:
        cell = arms + np.arange(0, table.size, table.shape[-1]).reshape(*table.shape[:-1], 1)
    order = memory_order(cell)
    taken = np.take(table.ravel(), cell.transpose(order), mode="clip")
    return taken.transpose(np.argsort(order))


def memory_order(array: NDArray[Any], /) -> NDArray[np.intp]:
    """Axes from slowest to fastest: numpy is fastest where entries are taken as they lie."""
    return np.argsort([-stride for stride in array.strides], kind="stable")


def _invert(steps: Array, uniform: Array, /) -> Arms:
    """First arm whose cumulative probability exceeds each number, by a table where that is faster.

    The unit interval is cut into equal cells, a power of 2 so that finding the cell is exact. In
    most cells there is one possible arm; only in the others the steps are searched.
    """
    cells = 1 << (32 * len(steps) - 1).bit_length()
    if uniform.size < cells:
        return np.searchsorted(steps, uniform, side="right")
    edges = np.arange(cells + 1) / cells
    guide = np.searchsorted(steps, edges[:-1], side="right")
    guide[np.searchsorted(steps, edges[1:], side="left") > guide] = -1
    arms = np.take(guide, (uniform * cells).astype(np.intp), mode="clip")
    search = np.nonzero(arms < 0)
    arms[search] = np.searchsorted(steps, uniform[search], side="right")
    return arms
