"""The interface of a sharing rule."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bandit.probes.advantage import AdvantageRule
from bandit.probes.credit import Credit
from bandit.probes.group import Array, Group

RECORDS = frozenset({"rollout", "group_stats", "success"})


@dataclass(frozen=True, kw_only=True)
class Probe(AdvantageRule):
    """A sharing rule: a frozen dataclass with one function, `credit`.

    A rule of one's own subclasses this and gives `credit`; a rule that draws random numbers in
    `credit` also gives `outcomes`, so that it can be analysed exactly.

    Attributes
    ----------
    kind : str
        Name of the rule in configurations.
    needs : frozenset of {"rollout", "group_stats", "success"}
        Record types the rule consumes; the exchange ships only these. A rule that needs neither
        ``rollout`` nor ``success`` needs no text, so tokenizers cannot stand in its way.
    pools_peers : bool
        Whether credit depends on peers' rewards only through their pool, so that it is immaterial
        which peer a rollout came from. Exact analysis is then polynomial in the number of peers;
        `bandit.testing` holds a rule to the claim.
    claims_support : bool
        Whether the rule promises gains where the receiver has no success of its own; validation
        then demands them.
    """

    kind: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()
    pools_peers: ClassVar[bool] = False
    claims_support: ClassVar[bool] = False

    def __init_subclass__(cls, **settings: Any) -> None:
        """Check what a rule declares; without a `kind` it is called after its class."""
        super().__init_subclass__(**settings)
        if not hasattr(cls, "kind"):
            cls.kind = cls.__name__.lower()
        if not isinstance(cls.needs, frozenset | set) or not cls.needs <= RECORDS:
            raise TypeError(
                f"{cls.__name__}.needs is {cls.needs!r}; expected a frozenset of names out of "
                f"{sorted(RECORDS)}"
            )

    def credit(self, group: Group, rng: np.random.Generator | None = None, /) -> Credit:
        """What each rollout of `group` is worth to the receiver.

        Parameters
        ----------
        group : Group
            Rewards of a batch of prompts, any leading shape.
        rng : numpy.random.Generator, optional
            The rule's own random stream; only rules that draw use it.

        Returns
        -------
        Credit
            Advantages, weights and the ratio rule, same leading shape.
        """
        raise TypeError(f"{type(self).__name__} is a sharing rule without a credit function")

    def outcomes(self, group: Group, /) -> Iterator[tuple[Array, Credit]]:
        """Every credit the rule can give for `group`, each with its probability.

        Yields
        ------
        probability : ndarray, shape (...)
            Over the rule's own draws; sums to 1 over the outcomes.
        credit : Credit
            The credit of that outcome.
        """
        never: Any = _NeverDraws(type(self).__name__)
        yield np.ones(group.batch_shape), self.credit(group, never)


class _NeverDraws:
    """Stands for a generator where a rule must not draw."""

    def __init__(self, rule: str) -> None:
        self._rule = rule

    def __getattr__(self, name: str) -> Any:
        raise ValueError(
            f"{self._rule} draws random numbers in credit, so its credit has more than one "
            "outcome; give it `outcomes` as well, which lists them with their probabilities"
        )


def peer_zeros(group: Group, /) -> Array:
    """Zero for each peer rollout, shape (..., M)."""
    return np.zeros(group.peer_rewards.shape)


def require_rollouts(probe: Probe, group: Group, /) -> None:
    """Raise if only statistics of the peers are at hand."""
    if group.peer_stats is not None:
        raise ValueError(
            f"{probe.kind} needs the peers' rollouts, but the group holds peer_stats only; "
            "give peer_rewards and peer_source"
        )
