"""What a law is, and the few things that laws about credit have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from bandit.probes import Group, Probe
from bandit.probes.group import Array

When = Literal["always", "declared", "asked"]


@dataclass(frozen=True)
class Law:
    """A statement about sharing rules, with the means to try it.

    Attributes
    ----------
    name : str
        What `bandit.testing.check_rule` calls it.
    statement : str
        One line.
    section : str
        Where docs/theory.md, or another document, says so.
    example : callable
        ``example(rng, i)`` makes the i-th thing to try the law on; its ``str`` is printed when
        the law is broken.
    check : callable
        ``check(probe, example, rng)`` returns None where the law holds, and otherwise a line
        with the figures that show that it does not.
    when : {"always", "declared", "asked"}
        Holds for any rule; for rules that declare it; or only where the caller asks for it.
    declared : callable, optional
        For "declared": whether ``declared(probe)``.
    share : float
        Examples tried, relative to what the caller asks for; laws about worlds cost more.
    """

    name: str
    statement: str
    section: str
    example: Callable[[np.random.Generator, int], Any]
    check: Callable[[Probe, Any, np.random.Generator], str | None]
    when: When = "always"
    declared: Callable[[Probe], bool] | None = None
    share: float = 1.0

    def holds_for(self, probe: Probe, /) -> bool:
        """Whether `probe` is held to this law without being asked."""
        if self.when == "declared" and self.declared is not None:
            return self.declared(probe)
        return self.when == "always"


class Weights(NamedTuple):
    """What the executor multiplies scores with, before any ratio.

    `own` (..., G) and `peer` (..., M) are ``advantage / n_pg``; `likelihood` is (..., M).
    """

    own: Array
    peer: Array
    likelihood: Array


def mean_weights(probe: Probe, group: Group, /) -> Weights:
    """Weights of a rule's credit for `group`, averaged over the rule's own draws.

    Returns
    -------
    Weights
        Named tuple of ``own`` (..., G), ``peer`` (..., M) and ``likelihood`` (..., M).
    """
    own, peer, likelihood = (
        np.zeros(shape.shape)
        for shape in (group.own_rewards, group.peer_rewards, group.peer_rewards)
    )
    for probability, credit in probe.outcomes(group):
        chance = np.asarray(probability)[..., None]
        own = own + chance * credit.own_weight
        peer = peer + chance * credit.peer_weight
        likelihood = likelihood + chance * credit.nll_weight
    return Weights(own, peer, likelihood)


def differing(name: str, got: Array, expected: Array, /, *, rtol: float = 1e-9) -> str | None:
    """Tell the first entry in which two arrays differ by more than rounding; None if none does."""
    if got.shape != expected.shape:
        return f"{name} has shape {got.shape}; expected {expected.shape}"
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    wrong = ~(np.abs(got - expected) <= rtol * scale)
    if not wrong.any():
        return None
    at = tuple(int(i[0]) for i in np.nonzero(wrong))
    where = list(at) if at else ""
    return f"{name}{where} is {float(got[at])!r}; expected {float(expected[at])!r}"


def weights_differ(got: Weights, expected: Weights, /) -> str | None:
    """Tell the first of the weights that differ by more than rounding; None if none does."""
    for name, left, right in zip(
        ("own weight", "peer weight", "likelihood weight"), got, expected, strict=True
    ):
        found = differing(name, left, right)
        if found is not None:
            return found
    return None


def prefixed(found: str | None, what: str, /) -> str | None:
    """Say under which circumstance something was found; None where nothing was."""
    return None if found is None else f"{what}: {found}"
