"""Rules and estimators that are wrong are caught by name; the shipped ones keep every law."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings

from bandit import World, exact, sampling
from bandit.probes import GRPO, PRP, SGT, XGRPO, Group, Probe, RatioRule, UngatedNLL
from bandit.probes.advantage import own_population
from bandit.probes.probe import peer_zeros
from bandit.rollouts import of_arms
from bandit.testing import (
    LAWS,
    Law,
    check_estimator,
    check_rule,
    from_rollouts,
    groups,
    weighted_scores,
    worlds,
)
from bandit.worlds import random_world, rare_success

DOCS = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
SHIPPED = [
    GRPO(),
    GRPO(scale="none"),
    GRPO(ddof=0, eps=1e-4),
    XGRPO(),
    XGRPO(peer_share=0.0),
    XGRPO(peer_share=0.7, scale="none"),
    PRP(),
    PRP(cap=2.0, gated=False),
    PRP(ratio="none", ddof=0),
    PRP(ratio="block", cap=1.5),
    PRP(ratio="length_normalised", scale="none"),
    SGT(),
    SGT(weight=1.5, scale="none"),
    UngatedNLL(),
]


@pytest.mark.parametrize("probe", SHIPPED, ids=str)
def test_shipped_rules_keep_the_laws(probe):
    check_rule(probe, ["shift and scale", "grpo alone", "splitting"], examples=24)


@dataclass(frozen=True)
class FirstSuccess(SGT):
    """Takes the first peer success there is, not one at random."""

    def credit(self, group, rng=None, /):
        success = group.peer_success & self.rescued(group)[..., None]
        first = success & (np.cumsum(success, -1) == 1)
        return replace(GRPO().credit(group), nll_weight=np.where(first, self.weight, 0.0))

    def outcomes(self, group, /):
        yield np.ones(group.batch_shape), self.credit(group)


@dataclass(frozen=True)
class NoVerdictIsFailure(GRPO):
    def credit(self, group, rng=None, /):
        filled = Group(own_rewards=np.nan_to_num(np.where(group.own_valid, group.own_rewards, 0)))
        return replace(
            super().credit(filled), peer_advantage=peer_zeros(group), nll_weight=peer_zeros(group)
        )


@dataclass(frozen=True)
class DeadByAdvantage(GRPO):
    """Trusts that equal rewards centre to 0."""

    def credit(self, group, rng=None, /):
        own = own_population(group)
        centred = np.where(group.own_valid, group.own_rewards - own.mean[..., None], 0.0)
        scale = np.sqrt(own.m2 / np.maximum(own.n - 1, 1))[..., None] + 1e-12
        return replace(super().credit(group), own_advantage=centred / scale)


@dataclass(frozen=True)
class WritesToItsInput(GRPO):
    def credit(self, group, rng=None, /):
        rewards = group.own_rewards
        rewards.flags.writeable = True
        np.copyto(rewards, 0.0, where=~group.own_valid)
        return super().credit(group)


@dataclass(frozen=True)
class WritesToAView(GRPO):
    def credit(self, group, rng=None, /):
        group.own_rewards[...] -= 0.5
        return super().credit(group)


@dataclass(frozen=True)
class CountsUnverified(GRPO):
    def credit(self, group, rng=None, /):
        sound = super().credit(group)
        return replace(sound, n_pg=np.full(group.batch_shape, float(group.own_rewards.shape[-1])))


@dataclass(frozen=True)
class CountsUnrepresentable(PRP):
    def credit(self, group, rng=None, /):
        sound = super().credit(group)
        return replace(sound, n_pg=group.own_valid.sum(-1) + group.peer_valid.sum(-1) * 1.0)


@dataclass(frozen=True)
class RescuesWithTextsItCannotRead(SGT):
    def credit(self, group, rng=None, /):
        return super().credit(replace(group, peer_representable=None), rng)

    def outcomes(self, group, /):
        yield from super().outcomes(replace(group, peer_representable=None))


@dataclass(frozen=True)
class RescuesTheUnverified(SGT):
    def rescued(self, group, /):
        return group.peer_success.any(-1) & ~group.own_success.any(-1)


@dataclass(frozen=True)
class DrawsFromNowhere(SGT):
    def credit(self, group, rng=None, /):
        return super().credit(group, np.random.default_rng())


@dataclass(frozen=True)
class OutcomesWithoutNoRescue(SGT):
    def outcomes(self, group, /):
        yield from list(super().outcomes(group))[1:]


@dataclass(frozen=True)
class UnderstatesItself(SGT):
    """Lists half of the weight that it gives."""

    def outcomes(self, group, /):
        yield from SGT(weight=self.weight / 2).outcomes(group)


@dataclass(frozen=True)
class HalvesOfTwo(SGT):
    """Half the weight on each of two draws, as often as the outcomes say on average."""

    def credit(self, group, rng=None, /):
        one, two = super().credit(group, rng), super().credit(group, rng)
        return replace(one, nll_weight=(one.nll_weight + two.nll_weight) / 2)


@dataclass(frozen=True)
class UsesWhatItDoesNotAskFor(XGRPO):
    needs: ClassVar[frozenset[str]] = frozenset()


@dataclass(frozen=True)
class UsesFailuresOfPeers(SGT):
    """Weighs a success by how rare successes are among the peers' rollouts."""

    def outcomes(self, group, /):
        rate = group.peer_success.sum(-1) / np.maximum(group.peer_usable.sum(-1), 1)
        for chance, credit in super().outcomes(group):
            yield chance, replace(credit, nll_weight=credit.nll_weight * (2 - rate[..., None]))


@dataclass(frozen=True)
class MixesTheBatch(GRPO):
    def credit(self, group, rng=None, /):
        sound = super().credit(group)
        size = np.abs(sound.own_advantage).max(initial=1.0)
        return replace(sound, own_advantage=sound.own_advantage / size)


@dataclass(frozen=True)
class LosesTheBatch(GRPO):
    def credit(self, group, rng=None, /):
        sound = super().credit(group)
        return replace(sound, n_pg=np.asarray(float(sound.n_pg.mean()))[None])


@dataclass(frozen=True)
class DividesByZero(GRPO):
    def credit(self, group, rng=None, /):
        own = own_population(group)
        with np.errstate(all="ignore"):
            score = (group.own_rewards - own.mean[..., None]) / np.sqrt(own.m2)[..., None]
        return replace(super().credit(group), own_advantage=np.where(group.own_valid, score, 0.0))


@dataclass(frozen=True)
class ChangesItsRatio(PRP):
    def credit(self, group, rng=None, /):
        cap = 1.0 if group.own_success.any() else 2.0
        return replace(super().credit(group), peer_ratio=RatioRule(cap=cap))


@dataclass(frozen=True)
class PrefersHighNumbers(SGT):
    """Takes a success of the peer with the highest number."""

    def outcomes(self, group, /):
        sources = np.where(group.peer_success.any(tuple(range(len(group.batch_shape)))), 1, 0)
        best = (sources * group.peer_source).max(initial=0)
        yield from super().outcomes(replace(group, peer_valid=group.peer_source == best))


@dataclass(frozen=True)
class PoolsOnPaper(XGRPO):
    """Averages the peers' means, and says that only the pool counts."""

    pools_peers: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"rollout"})

    def credit(self, group, rng=None, /):
        sound = super().credit(group)
        means = [
            own_population(
                replace(
                    group,
                    own_rewards=group.peer_rewards[..., group.peer_source == j],
                    own_valid=group.peer_valid[..., group.peer_source == j],
                )
            ).mean
            for j in np.unique(group.peer_source)
        ]
        shift = np.mean(means, axis=0)[..., None] if means else 0.0
        moved = np.where(sound.own_advantage != 0, sound.own_advantage - shift, 0.0)
        return replace(sound, own_advantage=moved)


@dataclass(frozen=True)
class ReadsRewardsForStatistics(XGRPO):
    def credit(self, group, rng=None, /):
        sound = super().credit(group)
        top = group.peer_success.any(-1)[..., None]
        return replace(sound, own_advantage=np.where(top, 1.0, 0.5) * sound.own_advantage)


@dataclass(frozen=True)
class ClaimsSupport(XGRPO):
    claims_support: ClassVar[bool] = True


@dataclass(frozen=True)
class DoubtsPeersThatAreThere(XGRPO):
    """Takes the mean of peers without a verdict for 0."""

    def credit(self, group, rng=None, /):
        shown = group.peer_rewards.shape[-1] > 0
        return XGRPO().credit(group) if shown else GRPO(eps=0.5).credit(group)


MUTANTS = [
    (WritesToItsInput(), "inputs"),
    (WritesToAView(), "inputs"),
    (LosesTheBatch(), "shapes"),
    (DividesByZero(), "shapes"),
    (ChangesItsRatio(), "shapes"),
    (DrawsFromNowhere(), "repeatable"),
    (NoVerdictIsFailure(), "no verdict"),
    (CountsUnverified(), "no verdict"),
    (CountsUnrepresentable(), "no representation"),
    (RescuesWithTextsItCannotRead(), "no representation"),
    (DeadByAdvantage(), "dead groups"),
    (RescuesTheUnverified(), "no own rollout"),
    (FirstSuccess(), "order"),
    (PrefersHighNumbers(), "names"),
    (MixesTheBatch(), "batch"),
    (OutcomesWithoutNoRescue(), "outcomes"),
    (HalvesOfTwo(), "outcomes"),
    (UsesWhatItDoesNotAskFor(), "needs"),
    (UsesFailuresOfPeers(), "needs"),
    (DoubtsPeersThatAreThere(), "silent peers"),
    (UnderstatesItself(), "outcomes"),
    (UnderstatesItself(), "simulation"),
    (PoolsOnPaper(), "pool"),
    (ReadsRewardsForStatistics(), "statistics"),
    (ClaimsSupport(), "support"),
]


def names_of(part):
    return part if isinstance(part, str) else type(part).__name__


def check_by(law: str, probe: Probe, **options) -> None:
    """Hold a rule to one law of those that always hold, or to one that is asked for."""
    check_rule(probe, [law], without={known.name for known in LAWS} - {law}, **options)


@pytest.mark.parametrize(("probe", "law"), MUTANTS, ids=names_of)
def test_a_wrong_rule_is_caught_by_the_law_it_breaks(probe, law):
    others = {known.name for known in LAWS} - {law}
    with pytest.raises(AssertionError, match=rf"breaks the law '{law}'") as caught:
        check_rule(probe, without=others)
    refused_by_numpy = isinstance(probe, WritesToAView)
    assert ("the rule raised" in str(caught.value)) == refused_by_numpy


@pytest.mark.parametrize("law", [law.name for law in LAWS if law.when != "asked"])
def test_every_law_of_any_rule_catches_some_rule(law):
    assert law in {name for _, name in MUTANTS}


@pytest.mark.parametrize(
    ("probe", "law", "kept"),
    [
        (GRPO(), "direction", True),
        (XGRPO(peer_share=0.3), "direction", True),
        (PRP(), "direction", True),
        (PRP(ratio="none"), "direction", False),
        (SGT(), "direction", False),
        (GRPO(scale="none"), "graded direction", True),
        (GRPO(), "graded direction", False),
        (XGRPO(), "own scores", True),
        (PRP(), "own scores", False),
        (SGT(), "own scores", False),
        (SGT(weight=0.5), "bounded extra", True),
        (UngatedNLL(), "bounded extra", True),
        (XGRPO(), "bounded extra", False),
        (PRP(), "bounded extra", False),
        (NoVerdictIsFailure(), "shift and scale", False),
        (PoolsOnPaper(), "shift and scale", False),
        (PoolsOnPaper(), "splitting", True),
        (PRP(), "splitting", True),
        (DoubtsPeersThatAreThere(), "grpo alone", False),
    ],
    ids=names_of,
)
def test_what_is_asked_for_tells_rules_apart(probe, law, kept):
    if kept:
        check_by(law, probe)
    else:
        with pytest.raises(AssertionError, match=rf"breaks the law '{law}'"):
            check_by(law, probe)


@dataclass(frozen=True)
class BestPeerSetsTheBaseline(XGRPO):
    """Against the best peer's mean: two halves of a peer have a better best than the whole."""

    needs: ClassVar[frozenset[str]] = frozenset({"rollout"})

    def credit(self, group, rng=None, /):
        means = [
            own_population(Group(own_rewards=group.peer_rewards[..., group.peer_source == j])).mean
            for j in np.unique(group.peer_source)
        ]
        sound = XGRPO(scale="none").credit(group)
        best = np.max(means, axis=0)[..., None] if means else 0.0
        moved = np.where(sound.own_advantage != 0, group.own_rewards - best, 0.0)
        return replace(sound, own_advantage=moved)


def test_splitting_a_peer_is_noticed():
    with pytest.raises(AssertionError, match="breaks the law 'splitting'"):
        check_by("splitting", BestPeerSetsTheBaseline())


def test_a_failure_can_be_repeated_from_its_message():
    messages = []
    for _ in range(2):
        with pytest.raises(AssertionError) as caught:
            check_rule(CountsUnverified(), seed=3)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    for part in ("CountsUnverified(", "section 1", "of seed 3: group", "own [", "expected"):
        assert part in messages[0]


def test_laws_of_ones_own_are_tried_too():
    def small(probe: Probe, rewards: np.ndarray, rng: np.random.Generator) -> str | None:
        most = np.abs(probe.credit(Group(own_rewards=rewards)).own_advantage).max()
        return None if most <= 1 else f"an advantage of {most:.3g}"

    law = Law("small", "advantages are at most 1", "1", lambda rng, i: rng.integers(0, 2, 8), small)
    check_rule(GRPO(scale="none"), [law], examples=5)
    with pytest.raises(AssertionError, match="law 'small': advantages are at most 1"):
        check_rule(GRPO(), [law], examples=20)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_documentation_says_what_each_law_says(law):
    titles = {
        "always": "that any rule keeps",
        "declared": "that a rule declares",
        "asked": "to ask for",
    }
    (part,) = (p for p in DOCS.split("\n### ") if p.startswith(f"Laws {titles[law.when]}"))
    assert f"`{law.name}`" in part


def test_what_is_no_rule_or_no_law_is_refused():
    with pytest.raises(TypeError, match="instance of a subclass of Probe"):
        check_rule(GRPO)
    with pytest.raises(ValueError, match=r"no law \['paralel'\]; expected any of \['inputs'"):
        check_rule(GRPO(), ["paralel"])
    with pytest.raises(ValueError, match="examples=0"):
        check_rule(GRPO(), examples=0)


# --- estimators ---------------------------------------------------------------------------------


def small_world() -> World:
    return random_world(np.random.default_rng(2), policies=2, contexts=2, arms=4, max_ratio=6.0)


def reinforce(world: World):
    return from_rollouts(
        lambda own, _: weighted_scores(world, own, of_arms(world.rewards, own)), world, own=4
    )


def off_policy(world: World, power: int):
    def estimate(own: np.ndarray, peers: dict[int, np.ndarray]) -> np.ndarray:
        ratio = of_arms(world.probs[0] / world.probs[1], peers[1])
        rewards = of_arms(world.rewards, peers[1])
        return weighted_scores(world, peers[1], ratio**power * rewards)

    return from_rollouts(estimate, world, own=1, peers=4)


def test_unbiased_estimators_pass_and_are_described():
    world = small_world()
    for draw in (reinforce(world), off_policy(world, 1)):
        frame = check_estimator(draw, world, n=8000)
        assert frame["context"].tolist() == [0, 1]
        assert (frame["bias_cosine"] > 0.98).all()
        assert (frame["distance"] < 4 * frame["distance_se"]).all()
        assert frame["variance_ratio"].isna().all()


def test_a_ratio_used_twice_is_a_bias():
    world = small_world()
    with pytest.raises(AssertionError, match="standard errors"):
        check_estimator(off_policy(world, 2), world, n=8000)


def simulated(world: World, probe: Probe, **sizes):
    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        return sampling.gradients(world, probe, **sizes, n=n, seed=int(rng.integers(2**31)))

    return draw


@pytest.mark.parametrize("probe", [GRPO(), XGRPO(), PRP(), SGT()], ids=names_of)
def test_simulated_rules_pass_against_exact_moments(probe):
    world, sizes = small_world(), {"own": 3, "peers": 3}
    expected = exact.moments(world, probe, **sizes)
    frame = check_estimator(simulated(world, probe, **sizes), world, expected=expected, n=8000)
    np.testing.assert_allclose(frame["expected_variance"], expected.covariance_trace)
    np.testing.assert_allclose(frame["variance_ratio"], 1.0, atol=0.15)


def test_the_right_mean_with_the_wrong_variance_is_refused():
    world, sizes = small_world(), {"own": 3, "peers": 3}
    one = simulated(world, PRP(), **sizes)
    expected = exact.moments(world, PRP(), **sizes)
    with pytest.raises(AssertionError, match=r"tr Cov of 8000 estimates.*ratio 0\.[45]"):
        check_estimator(
            lambda rng, n: (one(rng, n) + one(rng, n)) / 2, world, expected=expected, n=8000
        )


def test_a_right_estimator_is_refused_as_seldom_as_promised():
    world = rare_success(0.3, arms=4)
    expected = exact.moments(world, GRPO(), own=4, peers=0)
    refused = 0
    for seed in range(100):
        try:
            check_estimator(
                simulated(world, GRPO(), own=4, peers=0),
                world,
                expected=expected,
                n=500,
                seed=seed,
                alpha=0.1,
            )
        except AssertionError:
            refused += 1
    assert refused <= 100 * 0.1 + 4 * np.sqrt(100 * 0.1 * 0.9)


def test_an_estimate_that_never_varies_must_be_right():
    world = rare_success(0.3, arms=4)
    true = world.true_gradient(0)
    check_estimator(lambda rng, n: np.repeat(true, n, axis=0), world, n=200)
    with pytest.raises(AssertionError, match="inf standard errors"):
        check_estimator(lambda rng, n: np.repeat(true + 1e-3, n, axis=0), world, n=200)


def test_weighted_scores_are_the_mean_of_weight_times_score():
    world, rng = small_world(), np.random.default_rng(0)
    arms, weights = rng.integers(0, 4, (5, 2, 3)), rng.normal(size=(5, 2, 3))
    scores = np.eye(4)[arms] - world.probs[1][:, None]
    np.testing.assert_allclose(
        weighted_scores(world, arms, weights, receiver=1),
        (weights[..., None] * scores).mean(-2),
        atol=1e-12,
    )


def test_estimators_in_linear_features_are_checked_in_their_parameters():
    rng = np.random.default_rng(1)
    features = [rng.normal(size=(2, 4, 3)) for _ in range(2)]
    world = World.linear(features, rng.normal(size=(2, 3)), np.eye(4)[:2])
    frame = check_estimator(reinforce(world), world, n=8000)
    assert (frame["bias_cosine"] > 0.98).all()


@pytest.mark.parametrize(
    ("draw", "options", "message"),
    [
        (lambda rng, n: np.zeros((n, 3)), {}, r"returned shape \(200, 3\)"),
        (lambda rng, n: np.full((n, 4), np.nan), {}, "not finite"),
        (lambda rng, n: np.zeros((n, 4)), {"n": 99}, "n=99"),
        (lambda rng, n: np.zeros((n, 4)), {"alpha": 0.0}, r"alpha=0\.0"),
        (lambda rng, n: np.zeros((n, 4)), {"expected": np.zeros(4)}, r"expected \(1, 4\)"),
    ],
)
def test_what_cannot_be_checked_is_refused(draw, options, message):
    with pytest.raises(ValueError, match=message):
        check_estimator(draw, rare_success(0.3, arms=4), **({"n": 200} | options))


# --- strategies ---------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(worlds(levels=(0.0, 0.5, 1.0), policies=(2, 3), evenness=4))
def test_worlds_are_sound(world):
    assert 2 <= world.n_policies <= 3
    assert (world.probs > 0).all()
    within = world.probs.max(-1) / world.probs.min(-1)
    assert (within <= 4 + 1e-9).all()
    for rewards in world.rewards:
        assert set(rewards) == {0.0, 0.5, 1.0}


@settings(max_examples=40, deadline=None)
@given(groups(complete=True, peers=(1, 2)))
def test_complete_groups_have_verdict_and_representation(group):
    assert group.own_valid.all()
    assert group.peer_usable.all()
    assert 1 <= len(np.unique(group.peer_source)) <= 2


def test_groups_without_verdict_or_representation_are_found():
    unshrunk = settings(phases=[Phase.generate])
    find(groups(), lambda group: not group.own_valid.all(), settings=unshrunk)
    find(groups(), lambda g: (g.peer_valid & ~g.peer_representable).any(), settings=unshrunk)
    smallest = find(groups(), lambda group: group.peer_success.any())
    assert smallest.peer_rewards.tolist() == [1.0]
    assert smallest.own_rewards.tolist() == [0.0]


@pytest.mark.parametrize("strategy", [worlds, groups])
def test_without_hypothesis_the_way_out_is_named(strategy, monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(ImportError, match=r"pip install 'mutual-rl\[testing\]'"):
        strategy()


def test_laws_may_be_named_one_by_one():
    check_rule(GRPO(), "own scores", without="dead groups", examples=5)
    with pytest.raises(ValueError, match=r"no law \['no such'\]"):
        check_rule(GRPO(), "no such")
