"""`check_rule`: a sharing rule is run through the laws that it has to keep."""

import zlib
from collections.abc import Iterable

import numpy as np

from bandit.probes import Probe
from bandit.testing import claims as c
from bandit.testing import examples as of
from bandit.testing import group_laws as g
from bandit.testing import world_laws as w
from bandit.testing.law import Law

_ANY = (
    ("inputs", "credit does not change its input", "1", of.any_group, g.inputs_untouched),
    ("shapes", "credit is finite, of the group's shapes, by one ratio rule", "1",
     of.any_group, g.sound_credit),
    ("repeatable", "the same group and generator give the same credit", "5, fact 4",
     of.some_batch, g.credit_is_repeatable),
    ("no verdict", "a rollout without verdict is as if it were not there", "1",
     of.any_group, g.unverified_is_absent),
    ("no representation", "a text that the receiver cannot represent has no weight", "2 (PRP)",
     of.any_group, g.unusable_is_absent),
    ("dead groups", "equal rewards give no policy gradient, exactly", "1",
     of.dead_group, g.dead_group_is_silent),
    ("no own rollout", "without a verified own rollout there is no gradient", "1",
     of.silent_group, g.needs_own_rollouts),
    ("order", "the order of rollouts is immaterial", "5, fact 8",
     of.any_group, g.order_is_immaterial),
    ("names", "the numbers of peers are immaterial", "5, fact 8",
     of.group_with_two_peers, g.names_are_immaterial),
    ("batch", "a batch is its rows", "1", of.some_batch, g.batch_is_its_rows),
    ("outcomes", "outcomes are what credit draws, with their probabilities", "3",
     of.any_group, g.outcomes_match_draws),
    ("needs", "what the rule does not ask for changes nothing", "3",
     of.any_group, g.asks_for_what_it_uses),
    ("silent peers", "peers without a verdict are no peers", "5, fact 4",
     of.group_with_peers, g.silent_peers_are_none),
)  # fmt: skip
_ASKED = (
    ("shift and scale", "only differences of rewards count, in units of their scale", "5, fact 9",
     of.any_group, c.shift_and_scale),
    ("own scores", "the gradient is in the span of the receiver's own scores", "5, fact 3",
     of.any_group, c.own_scores_only),
    ("bounded extra", "beyond GRPO there is at most `weight` of likelihood", "5, fact 5",
     of.any_group, c.bounded_extra),
    ("grpo alone", "without peers the rule is GRPO", "5, fact 4",
     of.any_group, c.grpo_without_peers),
)  # fmt: skip

LAWS: tuple[Law, ...] = (
    *(Law(*row) for row in _ANY),
    Law(
        "simulation",
        "simulated mean and tr Cov are the exact ones, within z bounds",
        "5, fact 10",
        of.case,
        w.simulation_agrees,
        share=0.1,
    ),
    Law(
        "statistics",
        "reward statistics of a peer stand for its rewards",
        "2 (XGRPO)",
        of.any_group,
        c.statistics_suffice,
        when="declared",
        declared=lambda probe: probe.needs == {"group_stats"},
    ),
    Law(
        "pool",
        "who a peer's rollout came from is immaterial",
        "3",
        of.group_with_two_peers,
        c.source_is_immaterial,
        when="declared",
        declared=lambda probe: probe.pools_peers,
    ),
    Law(
        "support",
        "where only a peer succeeds, the update flows into success arms",
        "4",
        of.rescue_case,
        w.opens_support,
        when="declared",
        declared=lambda probe: probe.claims_support,
        share=0.1,
    ),
    *(Law(*row, when="asked") for row in _ASKED),
    Law(
        "direction",
        "E[g] is parallel to the true gradient, with binary rewards",
        "5, fact 1",
        of.binary_case,
        w.keeps_direction,
        when="asked",
        share=0.1,
    ),
    Law(
        "graded direction",
        "E[g] is parallel to the true gradient, with graded rewards",
        "5, fact 1",
        of.graded_case,
        w.keeps_direction,
        when="asked",
        share=0.1,
    ),
    Law(
        "splitting",
        "a peer is the same as two identical ones with half of its rollouts each",
        "5, fact 8",
        of.binary_case,
        w.splitting_is_immaterial,
        when="asked",
        share=0.1,
    ),
)


def check_rule(
    probe: Probe,
    /,
    laws: str | Law | Iterable[str | Law] | None = None,
    *,
    without: str | Iterable[str] = (),
    examples: int = 60,
    seed: int = 0,
) -> None:
    """Hold a sharing rule to the laws that hold for any rule, and to those it declares.

    Parameters
    ----------
    probe : Probe
        The rule, with the settings it is to be tested at.
    laws : str or Law, or iterable of such, optional
        More laws that the rule is to keep: names of `LAWS` with ``when="asked"``, or laws of your
        own.
    without : str or iterable of str
        Names of laws that the rule is not meant to keep.
    examples : int
        Groups tried for each law; a tenth as many worlds, but at least one.
    seed : int
        Examples are a function of (seed, law).

    Raises
    ------
    AssertionError
        If a law is broken; the message names the law, the rule, the example and the figures.
    TypeError
        If `probe` is not a rule, for example its class.
    ValueError
        If there is no law of a name, or `examples` is not positive.
    """
    if not isinstance(probe, Probe):
        raise TypeError(f"got {probe!r}; expected a rule, an instance of a subclass of Probe")
    if not isinstance(examples, int) or examples < 1:
        raise ValueError(f"examples={examples!r} is not allowed; expected a whole number >= 1")
    laws = [laws] if isinstance(laws, str | Law) else laws
    without = [without] if isinstance(without, str) else without
    asked = {law if isinstance(law, str) else law.name: law for law in laws or ()}
    left_out = set(without)
    known = {law.name: law for law in LAWS}
    given = {name for name, law in asked.items() if isinstance(law, str)}
    unknown = sorted((given | left_out) - known.keys())
    if unknown:
        raise ValueError(f"there is no law {unknown}; expected any of {list(known)}")
    chosen = [law for law in LAWS if law.holds_for(probe) or law.name in given]
    chosen += [law for law in asked.values() if isinstance(law, Law)]
    for law in sorted(chosen, key=lambda law: -law.share):  # what is cheap to try comes first
        if law.name not in left_out:
            _try(law, probe, max(1, round(examples * law.share)), seed)


def _try(law: Law, probe: Probe, examples: int, seed: int, /) -> None:
    for i in range(examples):
        rng = np.random.default_rng([seed, zlib.crc32(law.name.encode()), i])
        example, cause = law.example(rng, i), None
        try:
            found = law.check(probe, example, rng)
        except Exception as error:  # whatever a rule raises, the reader needs the example
            found, cause = f"the rule raised {type(error).__name__}: {error}", error
        if found is not None:
            raise AssertionError(
                f"{probe} breaks the law {law.name!r}: {law.statement} "
                f"(docs/theory.md, section {law.section})\n"
                f"  example {i} of seed {seed}: {example}\n"
                f"  {found}"
            ) from cause
