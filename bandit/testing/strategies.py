"""Hypothesis strategies for worlds and groups; hypothesis is needed only when one is called."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bandit.probes import Group
from bandit.world import World

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def worlds(
    *,
    policies: tuple[int, int] = (1, 3),
    contexts: tuple[int, int] = (1, 3),
    arms: tuple[int, int] = (2, 6),
    levels: Sequence[float] = (0.0, 1.0),
    evenness: int = 9,
) -> "SearchStrategy[World]":
    """Worlds in which every policy plays every arm; they shrink to few and even policies.

    Parameters
    ----------
    policies, contexts, arms : (least, most)
        Sizes; there are at least as many arms as levels.
    levels : sequence of float
        Rewards; each context has an arm of each, and the largest is the success threshold.
    evenness : int
        Within a context no arm is played more than this many times as often as another.

    Returns
    -------
    SearchStrategy

    Raises
    ------
    ImportError
        If hypothesis is not installed.
    """
    st = _hypothesis()

    @st.composite
    def build(draw: Any) -> World:
        n, x = draw(st.integers(*policies)), draw(st.integers(*contexts))
        k = draw(st.integers(max(arms[0], len(levels)), max(arms[1], len(levels))))
        flat = st.lists(st.integers(1, evenness), min_size=n * x * k, max_size=n * x * k)
        table = np.array(draw(flat), np.float64).reshape(n, x, k)
        cycle = np.resize(np.asarray(levels, np.float64), k).tolist()
        rewards = [draw(st.permutations(cycle)) for _ in range(x)]
        return World.tabular(
            table / table.sum(-1, keepdims=True), rewards, success_threshold=max(levels)
        )

    return build()


def groups(
    *,
    own: tuple[int, int] = (1, 5),
    peers: tuple[int, int] = (0, 3),
    rollouts: tuple[int, int] = (1, 4),
    levels: Sequence[float] = (0.0, 1.0),
    complete: bool = False,
) -> "SearchStrategy[Group]":
    """Groups of one prompt, batch shape (); they shrink to few rollouts of the first level.

    Parameters
    ----------
    own, peers, rollouts : (least, most)
        Own rollouts, peers, and rollouts of each peer.
    levels : sequence of float
        Rewards; the largest is the success threshold.
    complete : bool
        Every rollout has a verdict and a representation; otherwise some lack one.

    Returns
    -------
    SearchStrategy

    Raises
    ------
    ImportError
        If hypothesis is not installed.
    """
    st = _hypothesis()

    @st.composite
    def build(draw: Any) -> Group:
        size = draw(st.integers(*own))
        counts = draw(
            st.lists(st.integers(*rollouts), min_size=peers[0], max_size=peers[1]),
        )
        total = sum(counts)

        def rewards(number: int) -> Any:
            return draw(st.lists(st.sampled_from(levels), min_size=number, max_size=number))

        def flags(number: int) -> Any:
            likely = st.just(True) if complete else st.integers(0, 4).map(lambda i: i != 4)
            return np.array(draw(st.lists(likely, min_size=number, max_size=number)), np.bool_)

        return Group(
            own_rewards=np.array(rewards(size), np.float64),
            peer_rewards=np.array(rewards(total), np.float64),
            peer_source=np.repeat(np.arange(1, len(counts) + 1), counts),
            own_valid=flags(size),
            peer_valid=flags(total),
            peer_representable=flags(total),
            success_threshold=float(max(levels)),
        )

    return build()


def _hypothesis() -> Any:
    try:
        from hypothesis import strategies
    except ImportError:
        raise ImportError(
            "bandit.testing's strategies need hypothesis, which is not installed; "
            "pip install 'mutual-rl[testing]'"
        ) from None
    return strategies
