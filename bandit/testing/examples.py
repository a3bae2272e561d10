"""What laws are tried on: groups and worlds drawn from a seed, printed in a line.

The first few kinds of group are those in which rules go wrong, in turn; the rest is chance.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bandit.probes import Group
from bandit.residual import NO_RESIDUAL, Residual
from bandit.world import World
from bandit.worlds import random_world

BINARY, GRADED = (0.0, 1.0), (0.0, 0.3, 1.0)
LEVELS = (BINARY, BINARY, GRADED, (-1.0, 1.0), (0.1, 0.7, 1.2))
KINDS = ("any", "rescue", "dead", "any", "no verdict", "no peers")
MISMATCH = Residual(mu=-0.05, sigma=0.2, drop=0.2, gate=0.15)


@dataclass(frozen=True, eq=False)
class Example:
    """A group, or a batch of groups, that prints in a line a row."""

    group: Group

    def __str__(self) -> str:
        group = self.group
        rows = [()] if not group.batch_shape else list(np.ndindex(group.batch_shape))
        lines = [_row(group, at) for at in rows[:4]]
        more = [f"... {len(rows) - 4} more rows"] if len(rows) > 4 else []
        start = f"group, success from {group.success_threshold:g}: "
        return start + "\n    ".join(lines + more)


@dataclass(frozen=True, eq=False)
class Case:
    """A world with the settings of an analysis, as `bandit.exact.moments` takes them.

    Attributes
    ----------
    world : World
        Policy 0 receives.
    own : int
        Its rollouts.
    peers : {policy: int}
        Rollouts seen of each peer.
    residual : Residual
        Tokenizer mismatch.
    origin : str
        How the world was made, for messages.
    """

    world: World
    own: int
    peers: Mapping[int, int]
    residual: Residual
    origin: str

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments of `bandit.exact.moments` and `bandit.sampling.moments`."""
        return {"own": self.own, "peers": self.peers, "residual": self.residual}

    def __str__(self) -> str:
        p = np.array2string(self.world.success_probability, precision=3, separator=", ")
        mismatch = "" if self.residual is NO_RESIDUAL else f", residual={self.residual}"
        return (
            f"{self.origin}, own={self.own}, peers={dict(self.peers)}{mismatch}; success "
            f"probabilities by policy and context {' '.join(p.split())}"
        )


def any_group(
    rng: np.random.Generator, i: int, /, *, batch: tuple[int, ...] = (), least_peers: int = 0
) -> Example:
    """A random group of binary or graded rewards, in part without verdict or representation."""
    kind = KINDS[i % len(KINDS)]
    levels = np.array(LEVELS[rng.integers(len(LEVELS))])
    threshold = float(levels[-1])
    fewest = max(least_peers, 1 if kind in ("rescue", "no verdict") else 0)
    n_peers = least_peers if kind == "no peers" else int(rng.integers(fewest, 4))
    counts = rng.integers(1, 4, n_peers)
    size, total = int(rng.integers(2, 6)), int(counts.sum())
    own, peer = rng.choice(levels, (*batch, size)), rng.choice(levels, (*batch, total))
    if kind == "rescue":
        own = np.where(own >= threshold, levels[0], own)
        peer[..., 0] = threshold
    if kind == "dead":
        own[...], peer[...] = 0.1, 0.1
    unverified = 0.6 if kind == "no verdict" else rng.choice([0.0, 0.25])
    own_valid = rng.random(own.shape) >= unverified
    own_valid[..., 0] = True
    usable = rng.random((2, *peer.shape)) >= rng.choice([0.0, 0.3])
    if kind == "rescue":
        usable[..., 0] = True
    shown = np.where(rng.random(own.shape) < 0.5, np.nan, own)
    labels = np.sort(rng.choice(9, n_peers, replace=False)) + 1
    group = Group(
        own_rewards=np.where(own_valid, own, shown),
        peer_rewards=np.where(usable[0] | (rng.random(peer.shape) < 0.5), peer, np.nan),
        peer_source=np.repeat(labels, counts),
        own_valid=own_valid,
        peer_valid=usable[0],
        peer_representable=usable[1],
        success_threshold=threshold,
    )
    return Example(group)


def group_with_peers(rng: np.random.Generator, i: int, /) -> Example:
    """A random group that has peers' rollouts."""
    return any_group(rng, i, least_peers=1)


def group_with_two_peers(rng: np.random.Generator, i: int, /) -> Example:
    """A random group that has rollouts of at least two peers."""
    return any_group(rng, i, least_peers=2)


def some_batch(rng: np.random.Generator, i: int, /) -> Example:
    """A batch of four random groups of the same sizes."""
    return any_group(rng, i, batch=(4,))


def dead_group(rng: np.random.Generator, i: int, /) -> Example:
    """A group whose rewards, peers' included, are all the same number."""
    group = any_group(rng, i).group
    same = float(rng.choice([0.1, 0.3, 0.7, 0.0, 1.0]))
    return Example(
        replace(
            group,
            own_rewards=np.full(group.own_rewards.shape, same),
            peer_rewards=np.full(group.peer_rewards.shape, same),
        )
    )


def silent_group(rng: np.random.Generator, i: int, /) -> Example:
    """A group in which no own rollout got a verdict."""
    group = any_group(rng, i).group
    return Example(replace(group, own_valid=np.zeros(group.own_rewards.shape, np.bool_)))


def case(rng: np.random.Generator, i: int, /) -> Case:
    """A random world: 0 to 3 peers in turn, then the same with a tokenizer residual."""
    n_peers, mismatch = i % 4, (i // 4) % 2 == 1
    levels = GRADED if n_peers < 2 and rng.random() < 0.5 else BINARY
    peers = {j: int(rng.integers(1, 4)) for j in range(1, n_peers + 1)}
    return _case(rng, peers, levels, MISMATCH if mismatch else NO_RESIDUAL)


def binary_case(rng: np.random.Generator, i: int, /) -> Case:
    """A random world of binary rewards with 1 or 2 peers and no residual."""
    peers = {j: int(rng.integers(1, 4)) for j in range(1, 2 + i % 2)}
    return _case(rng, peers, BINARY, NO_RESIDUAL)


def graded_case(rng: np.random.Generator, i: int, /) -> Case:
    """A random world of graded rewards with a peer and no residual."""
    return _case(rng, {1: int(rng.integers(1, 4))}, GRADED, NO_RESIDUAL)


def rescue_case(rng: np.random.Generator, i: int, /) -> Case:
    """A world whose receiver hardly succeeds, with a peer that does half the time."""
    p = float(10 ** rng.uniform(-4, -2))
    hit = np.array([0.5, 0.5]) * p
    probs = [[[*hit, *np.full(3, (1 - p) / 3)]], [[0.3, 0.2, *np.full(3, 0.5 / 3)]]]
    world = World.tabular(probs, [[1.0, 1.0, 0.0, 0.0, 0.0]])
    own, peers = (int(n) for n in rng.integers(2, 6, 2))
    return Case(world, own, {1: peers}, NO_RESIDUAL, f"two success arms, each with p={p / 2:.2g}")


def select(
    group: Group, /, own: NDArray[Any] | None = None, peer: NDArray[Any] | None = None
) -> Group:
    """Make the group of some of the rollouts, in the order given."""
    rows = np.arange(group.own_rewards.shape[-1]) if own is None else own
    others = np.arange(group.peer_rewards.shape[-1]) if peer is None else peer
    return replace(
        group,
        own_rewards=group.own_rewards[..., rows],
        own_valid=group.own_valid[..., rows],
        peer_rewards=group.peer_rewards[..., others],
        peer_source=group.peer_source[others],
        peer_valid=group.peer_valid[..., others],
        peer_representable=group.peer_representable[..., others],
    )


def row_of(group: Group, at: Any, /) -> Group:
    """Make the group of a row of a batch, or of what else an index of its batch shape picks."""
    return replace(
        group,
        own_rewards=group.own_rewards[at],
        own_valid=group.own_valid[at],
        peer_rewards=group.peer_rewards[at],
        peer_valid=group.peer_valid[at],
        peer_representable=group.peer_representable[at],
    )


def _case(
    rng: np.random.Generator,
    peers: Mapping[int, int],
    levels: tuple[float, ...],
    residual: Residual,
    /,
) -> Case:
    seed, arms = int(rng.integers(2**31)), int(rng.integers(len(levels), 6))
    shape: dict[str, Any] = {"policies": 1 + len(peers), "contexts": 2, "arms": arms}
    # bounded ratios: with heavy ones a simulation of any affordable size cannot be trusted
    world = random_world(np.random.default_rng(seed), **shape, levels=levels, max_ratio=8.0)
    origin = (
        f"random_world(np.random.default_rng({seed}), "
        + ", ".join(f"{k}={v}" for k, v in shape.items())
        + f", levels={levels}, max_ratio=8.0)"
    )
    return Case(world, int(rng.integers(2, 5)), peers, residual, origin)


def _row(group: Group, at: tuple[int, ...], /) -> str:
    own = " ".join(
        f"{r:g}" if v else f"({r:g})"
        for r, v in zip(group.own_rewards[at], group.own_valid[at], strict=True)
    )
    peers = []
    for j in dict.fromkeys(group.peer_source.tolist()):
        rows = np.flatnonzero(group.peer_source == j)
        parts = [
            (
                f"{group.peer_rewards[at][m]:g}"
                if group.peer_valid[at][m]
                else f"({group.peer_rewards[at][m]:g})"
            )
            + ("" if group.peer_representable[at][m] else "x")
            for m in rows
        ]
        peers.append(f"peer {j} [{' '.join(parts)}]")
    return f"own [{own}] " + " ".join(peers)
