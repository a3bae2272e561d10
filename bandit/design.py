"""Who receives, how many rollouts it draws, and how many it sees of each peer."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bandit.probes import Probe
from bandit.residual import Residual
from bandit.world import World


@dataclass(frozen=True)
class Design:
    """Group sizes of one receiver, checked against a world.

    Attributes
    ----------
    receiver : int
        The policy whose gradient is estimated.
    own : int
        G, own rollouts for each context; >= 1.
    peers : tuple of (policy, rollouts)
        M_j for each peer that is seen at all, in order of policy.
    redraws : int
        How often an own group without reward variance may be drawn again (dynamic sampling).
        The last draw stays, dead or not.
    """

    receiver: int
    own: int
    peers: tuple[tuple[int, int], ...]
    redraws: int = 0

    @classmethod
    def of(
        cls,
        world: World,
        /,
        *,
        receiver: int,
        own: int,
        peers: int | Mapping[int, int],
        redraws: int = 0,
    ) -> "Design":
        """Check and complete the sizes; ``peers=8`` means 8 rollouts of every other policy.

        Raises
        ------
        ValueError
            If a policy does not exist, the receiver is named as its own peer, or a number is not
            a whole number in range.
        """
        if not isinstance(world, World):
            raise TypeError(f"got {world!r} as world; expected a bandit.World")
        receiver = whole_number("receiver", receiver, 0)
        if receiver >= world.n_policies:
            raise ValueError(
                f"receiver={receiver} is not a policy; the world has policies 0 to "
                f"{world.n_policies - 1}"
            )
        others = [j for j in range(world.n_policies) if j != receiver]
        named = dict(peers) if isinstance(peers, Mapping) else dict.fromkeys(others, peers)
        for j in named:
            if j not in others:
                raise ValueError(
                    f"peers names policy {j!r}; expected any of {others}, the "
                    f"policies other than receiver {receiver}"
                )
        counts = {j: whole_number(f"peers[{j}]", m, 0) for j, m in named.items()}
        return cls(
            receiver,
            whole_number("own", own, 1),
            tuple((j, counts[j]) for j in sorted(counts) if counts[j] > 0),
            whole_number("redraws", redraws, 0),
        )

    @property
    def rollouts(self) -> int:
        """G + M, all rollouts of one context."""
        return self.own + sum(m for _, m in self.peers)

    @property
    def peer_source(self) -> NDArray[np.int64]:
        """Policy of each peer rollout, shape (M,)."""
        return np.repeat(
            np.array([j for j, _ in self.peers], np.int64), [m for _, m in self.peers]
        ).astype(np.int64)

    def pools(self, probe: Probe, /) -> list[tuple[tuple[int, int], ...]]:
        """Peers that a rule cannot tell apart, together: none if it needs no peers at all."""
        if not probe.needs or not self.peers:
            return []
        return [self.peers] if probe.pools_peers else [(peer,) for peer in self.peers]


def check_rule_and_residual(world: World, probe: Any, residual: Any, /) -> None:
    """Check the kinds of the arguments that all of the theory's functions take.

    Raises
    ------
    TypeError
        If one is something else, such as a rule's class or name.
    ValueError
        If a residual is given for a policy that does not exist.
    """
    if not isinstance(probe, Probe):
        raise TypeError(
            f"got {probe!r} as sharing rule; expected an instance of a subclass of Probe, such as "
            "PRP() or SGT(weight=0.1)"
        )
    if not isinstance(residual, Residual):
        raise TypeError(
            f"got {residual!r} as residual; expected a bandit.Residual, such as Residual(drop=0.1)"
        )
    unknown = sorted(residual.named - set(range(world.n_policies)), key=str)
    if unknown:
        raise ValueError(
            f"the residual names policies {unknown}; the world has policies 0 to "
            f"{world.n_policies - 1}"
        )


def needs_text(probe: Probe, /) -> bool:
    """Tell whether a rule uses peers' texts, so that an unrepresentable one is lost to it."""
    return not probe.needs.isdisjoint({"rollout", "success"})


def whole_number(name: str, value: Any, least: int, /) -> int:
    """Check that a setting is a whole number >= `least`, and return it as an int.

    Raises
    ------
    ValueError
        If it is not; the message names the setting.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise ValueError(f"{name}={value!r} is not allowed; expected a whole number >= {least}")
    return number
