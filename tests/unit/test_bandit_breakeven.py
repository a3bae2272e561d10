"""Sharing counted in own rollouts of GRPO."""

import itertools
import math

import numpy as np
import pytest

from bandit import Residual, World, exact, tradeoff
from bandit.policies import score_sum
from bandit.probes import GRPO, PRP, SGT, XGRPO, Group
from bandit.tradeoff.accuracy import context_accuracy
from bandit.tradeoff.breakeven import more_own_gain
from bandit.tradeoff.search import where_reached
from bandit.worlds import random_world, rare_success, specialists


@pytest.mark.parametrize("rule", [GRPO(), GRPO(scale="none"), GRPO(ddof=0, eps=0.1)])
@pytest.mark.parametrize("levels", [(0.0, 1.0), (0.0, 0.5, 1.0)])
def test_gain_of_more_own_rollouts_is_that_of_every_sequence_of_draws(rule, levels):
    world = random_world(np.random.default_rng(1), contexts=1, arms=3, levels=levels)
    own, extra = 2, 2
    probs, rewards = world.probs[0, 0], world.rewards[0]
    draws = np.array(list(itertools.product(range(3), repeat=own + extra)))
    chance = np.prod(probs[draws], axis=-1)
    hopeless = ~(rewards[draws[:, :own]] >= world.success_threshold).any(-1)
    weight = rule.credit(Group(own_rewards=rewards[draws])).own_weight
    arms = (weight[..., None] * np.eye(3)[draws]).sum(1)
    mean = (chance * hopeless) @ score_sum(arms, probs)
    expected = world.log_success_gradient(0)[0] @ mean
    got = more_own_gain(world, own=own, extra=extra, rule=rule)
    np.testing.assert_allclose(got, [expected], rtol=1e-12)


def test_a_clone_keeps_everything_but_the_other_policies():
    world = random_world(np.random.default_rng(3), policies=3, contexts=2)
    clone = world.with_policies([2, 2])
    np.testing.assert_array_equal(clone.probs, world.probs[[2, 2]])
    np.testing.assert_array_equal(clone.rewards, world.rewards)
    np.testing.assert_array_equal(clone.weights, world.weights)
    assert clone.success_threshold == world.success_threshold
    assert not clone.probs.flags.writeable
    np.testing.assert_array_equal(clone.success_probability, world.success_probability[[2, 2]])


def test_numbers_lie_just_below_the_first_at_which_grpo_is_as_good():
    world = rare_success(1e-2)
    found = tradeoff.break_even(world, SGT(), own=8, peers=8)
    target = exact.moments(world, SGT(), own=8, peers=8)

    def accuracy(m):
        return context_accuracy(exact.moments(world, GRPO(), own=8 + m, peers=0))[0]

    m = math.ceil(found.extra_for_error)
    assert accuracy(m) >= context_accuracy(target)[0] > accuracy(m - 1)
    m = math.ceil(found.extra_for_gain)
    before, at = (more_own_gain(world, own=8, extra=n)[0] for n in (m - 1, m))
    assert at >= target.support_gain[0] > before


def test_a_population_of_one_context_is_that_context():
    found = tradeoff.break_even(rare_success(1e-2), SGT(), own=4, peers=4)
    row = found.contexts.iloc[0]
    assert row["extra_for_error"] == found.extra_for_error
    assert row["extra_for_gain"] == found.extra_for_gain
    for name, value in found.population.items():
        assert row[name] == pytest.approx(value), name


def test_contexts_are_counted_each_by_itself():
    world = World.tabular(
        [[[0.01, 0.99], [0.4, 0.6]], [[0.5, 0.5], [0.5, 0.5]]], [[1.0, 0.0], [1.0, 0.0]]
    )
    found = tradeoff.break_even(world, SGT(), own=4, peers=4, most=64)
    for x, row in found.contexts.iterrows():
        alone = World.tabular(world.probs[:, [x]], world.rewards[[x]])
        single = tradeoff.break_even(alone, SGT(), own=4, peers=4, most=64)
        assert row["extra_for_error"] == pytest.approx(single.extra_for_error)
        assert row["extra_for_gain"] == pytest.approx(single.extra_for_gain)
    assert found.contexts["extra_for_error"][0] > found.contexts["extra_for_error"][1]
    np.testing.assert_array_equal(found.contexts["weight"], world.weights)


def test_population_figures_are_those_of_the_plane():
    world = specialists(contexts_each=2)
    found = tradeoff.break_even(world, XGRPO(), own=4, peers=4, most=8)
    row = tradeoff.aggregate(tradeoff.plane(world, {"X": XGRPO()}, own=4, peers=4)).iloc[0]
    for name in ("error", "support_gain"):
        assert found.population[name] == pytest.approx(row[name])
    for name, size in (("error_own", 4), ("error_more", 8)):
        plane = tradeoff.plane(world, {"G": GRPO()}, own=size, peers=0)
        assert found.population[name] == pytest.approx(tradeoff.aggregate(plane)["error"].item())


def test_never_within_the_bound_is_infinite_and_says_so():
    found = tradeoff.break_even(rare_success(1e-6), SGT(), own=4, peers=4, most=16)
    assert math.isinf(found.extra_for_error)
    assert math.isinf(found.extra_for_gain)
    assert str(found).count("more than 16 more own rollouts") == 2


def test_hopeless_receivers_have_no_number():
    found = tradeoff.break_even(rare_success(0.0), SGT(), own=4, peers=4)
    assert math.isnan(found.extra_for_error)
    assert math.isnan(found.extra_for_gain)
    assert found.contexts[["extra_for_error", "extra_for_gain"]].isna().all(axis=None)


def test_dropped_text_is_worth_no_rollout():
    found = tradeoff.break_even(
        rare_success(1e-2), SGT(), own=4, peers=4, residual=Residual(drop=1.0)
    )
    assert (found.extra_for_error, found.extra_for_gain) == (0.0, 0.0)


def test_the_yardstick_keeps_the_rules_conventions():
    world = specialists(contexts_each=1)
    found = tradeoff.break_even(world, SGT(scale="none"), own=4, peers=4, most=4)
    alone = tradeoff.plane(world, {"G": GRPO(scale="none")}, own=4, peers=0)
    assert found.population["error_own"] == pytest.approx(tradeoff.aggregate(alone)["error"].item())


def test_map_has_the_break_even_of_every_world_and_rule():
    worlds = {(p, "a"): rare_success(p) for p in (0.1, 0.01)}
    rules = {"SGT": SGT(), "PRP": PRP(), "centred": SGT(scale="none")}
    sizes = {"own": 4, "peers": 4, "most": 32}
    frame = tradeoff.break_even_map(worlds, rules, parameter=("p", "name"), **sizes)
    assert frame[["p", "name", "label"]].to_numpy().tolist() == [
        [p, "a", label] for p in (0.1, 0.01) for label in rules
    ]
    for _, row in frame.iterrows():
        single = tradeoff.break_even(worlds[row["p"], "a"], rules[row["label"]], **sizes)
        assert row["extra_for_error"] == pytest.approx(single.extra_for_error)
        assert row["extra_for_gain"] == pytest.approx(single.extra_for_gain)
        assert row["error"] == single.population["error"]


def test_map_refuses_what_it_cannot_name():
    world = rare_success(0.1)
    with pytest.raises(ValueError, match="at least one of each"):
        tradeoff.break_even_map({}, {"SGT": SGT()}, parameter="p")
    with pytest.raises(ValueError, match="names 2 columns"):
        tradeoff.break_even_map({(1, 2, 3): world}, {"SGT": SGT()}, parameter=("p", "q"))
    with pytest.raises(ValueError, match="most=0"):
        tradeoff.break_even(world, SGT(), most=0)


@pytest.mark.parametrize("most", [5, 16, 23])
@pytest.mark.parametrize("mark", [0.0, 2.0, 6.9, 7.0, 7.1, 9.0, math.nan])
def test_search_passes_over_a_peak(mark, most):
    values = [0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0, 6.0, 3.0, 2.0, *[1.0] * 20]
    first = next((m for m, v in enumerate(values[: most + 1]) if v >= mark), math.inf)
    found = where_reached(lambda m: values[m], mark, most=most)
    if math.isnan(mark):
        assert math.isnan(found)
    elif first in (0, math.inf):
        assert found == first
    else:
        assert first - 1 < found <= first
        assert np.interp(found, range(len(values)), values) == pytest.approx(mark)
