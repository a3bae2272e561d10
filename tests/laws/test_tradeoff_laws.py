"""Laws of the frontier, of the error, of break-even and of the recommendation."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bandit import World, exact, tradeoff
from bandit.probes import GRPO, PRP, SGT, XGRPO
from bandit.tradeoff.accuracy import context_accuracy, scale_free_error
from bandit.tradeoff.breakeven import more_own_gain
from bandit.tradeoff.search import where_reached
from bandit.worlds import random_world, rare_success

seeds = st.integers(0, 2**32 - 1)
groups = st.integers(1, 6)
# few values, so that ties are common
axis = st.one_of(st.integers(-2, 3).map(float), st.sampled_from([math.nan, math.inf]))
points = st.lists(st.tuples(axis, axis), min_size=1, max_size=12).map(np.array)
GRID = tradeoff.settings(weights=(0.05, 0.2), caps=(1.0, math.inf), peer_shares=(None, 0.5))


def one_context(seed: int) -> World:
    return random_world(np.random.default_rng(seed), contexts=1)


def dominated(points: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Whether each point is beaten by one of `by`; comparisons with NaN are false."""
    no_worse = (by[:, 0] <= points[:, :1]) & (by[:, 1] >= points[:, 1:])
    better = (by[:, 0] < points[:, :1]) | (by[:, 1] > points[:, 1:])
    return (no_worse & better).any(-1)


def check_frontier(table: np.ndarray, kept: np.ndarray) -> None:
    known = np.isfinite(table).all(-1)
    best = table[kept]
    assert not (kept & ~known).any()
    assert not dominated(best, table[known]).any()
    assert dominated(table[known & ~kept], best).all()
    assert tradeoff.non_dominated(best[:, 0], best[:, 1]).all()


@given(points)
def test_frontier_is_what_no_setting_beats_and_it_beats_all_else(table):
    check_frontier(table, tradeoff.non_dominated(table[:, 0], table[:, 1]))


@given(points, st.randoms(use_true_random=False))
def test_frontier_stays_when_beaten_settings_are_removed(table, random):
    kept = tradeoff.non_dominated(table[:, 0], table[:, 1])
    some = kept | np.array([random.random() < 0.5 for _ in kept])
    again = tradeoff.non_dominated(table[some, 0], table[some, 1])
    np.testing.assert_array_equal(again, kept[some])


@settings(max_examples=10, deadline=None)
@given(seeds)
def test_frontier_of_a_world_holds_the_laws(seed):
    world = random_world(np.random.default_rng(seed), contexts=2)
    frame = tradeoff.frontier(world, GRID, own=3, peers=3)
    check_frontier(
        frame[["stability_cost", "support_gain"]].to_numpy(), frame["on_frontier"].to_numpy()
    )


@given(st.floats(-2, 2), st.floats(0.1, 3), st.floats(0.0, 5), st.floats(0.1, 10))
def test_error_is_the_least_over_learning_rates_and_blind_to_scale(cosine, true, noise, scale):
    cosine = np.clip(cosine, -1, 1)
    inner, second = cosine * true, 1.0 + noise  # |E g| = 1
    error = scale_free_error(inner, true**2, second)
    rates = np.append(np.linspace(0, 4, 401), max(inner, 0) / second)
    tried = (rates**2 * second - 2 * rates * inner + true**2) / true**2
    assert error <= tried.min() + 1e-12
    assert error == pytest.approx(tried[-1])
    assert 0 <= error <= 1
    assert scale_free_error(scale * inner, true**2, scale**2 * second) == pytest.approx(error)


@settings(max_examples=25, deadline=None)
@given(seeds, st.sampled_from([GRPO(), GRPO(scale="none"), GRPO(ddof=0)]))
def test_error_of_grpo_falls_with_more_own_rollouts(seed, rule):
    world = one_context(seed)
    accuracy = [
        context_accuracy(exact.moments(world, rule, own=n, peers=0))[0]
        for n in (1, 2, 3, 5, 8, 9, 16, 40)
    ]
    assert (np.diff(accuracy) > -1e-12).all()


@settings(max_examples=25, deadline=None)
@given(st.floats(1e-4, 0.999), groups)
def test_gain_of_more_own_rollouts_rises_for_ever_up_to_a_success_rate_of_about_half(p, own):
    gains = [
        more_own_gain(rare_success(p), own=own, extra=m, rule=GRPO(scale="none"))[0]
        for m in (0, 1, 2, 4, 8, 16, 32, 64)
    ]
    falls = np.diff(gains) < -1e-12 * max(gains)
    if p <= (own + 1) / (2 * own + 1):
        assert not falls.any()
    # and never more than one peak
    assert (np.diff(falls.astype(int)) >= 0).all()


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-4, 0.5), groups)
def test_standardised_gain_of_more_own_rollouts_rises_where_successes_are_the_minority(p, own):
    gains = [more_own_gain(rare_success(p), own=own, extra=m)[0] for m in (0, 1, 2, 4, 8, 16, 64)]
    assert (np.diff(gains) >= -1e-12 * max(gains)).all()


@settings(max_examples=20, deadline=None)
@given(seeds, groups, st.integers(1, 6))
def test_a_clones_unweighted_rollouts_are_worth_as_many_own_ones(seed, own, peers):
    world = rare_success(0.2 * np.random.default_rng(seed).random() + 1e-3).with_policies([0, 0])
    found = tradeoff.break_even(world, PRP(ratio="none"), own=own, peers=peers, most=16)
    assert found.extra_for_gain == pytest.approx(peers)
    assert found.extra_for_error == pytest.approx(peers)
    assert found.population["error"] == pytest.approx(found.population["error_more"])


@settings(max_examples=20, deadline=None)
@given(st.floats(0.01, 0.5), groups, st.integers(1, 6))
def test_exactly_weighted_rollouts_of_an_equally_able_peer_are_worth_their_number_in_gain(
    p, own, peers
):
    world = World.tabular(
        [[[0.9 * p, 0.1 * p, 1 - p, 0.0]], [[0.2 * p, 0.8 * p, (1 - p) / 2, (1 - p) / 2]]],
        [[1.0, 1.0, 0.0, 0.0]],
    )
    found = tradeoff.break_even(world, PRP(), own=own, peers=peers, most=16)
    assert found.extra_for_gain == pytest.approx(peers)


@settings(max_examples=15, deadline=None)
@given(seeds, groups)
def test_without_peers_sharing_is_worth_no_rollout(seed, own):
    for probe in (GRPO(), XGRPO(), PRP(), SGT()):
        found = tradeoff.break_even(one_context(seed), probe, own=own, peers=0, most=2)
        assert (found.extra_for_error, found.extra_for_gain) == (0.0, 0.0)


# The peak lies between the last two numbers that are tried.
@example([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.9], [0.7, 0.6], 0.8)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=20),
    st.lists(st.floats(0, 1), max_size=20),
    st.floats(0.01, 1),
)
def test_search_finds_the_first_number_on_any_path_with_one_peak(rise, fall, mark):
    values = sorted(set(rise)) + sorted((v for v in set(fall) if v < max(rise)), reverse=True)
    most = len(values) - 1
    first = next((m for m, v in enumerate(values) if v >= mark * (1 - 1e-9)), math.inf)
    if most >= 1:
        found = where_reached(values.__getitem__, mark, most=most)
        assert found == first if first in (0, math.inf) else first - 1 < found <= first


@settings(max_examples=6, deadline=None)
@given(seeds)
def test_a_wider_bound_never_recommends_less(seed):
    world = one_context(seed)
    costs = tradeoff.frontier(world, GRID, own=3, peers=3)["stability_cost"]
    gained = -math.inf
    for bound in np.quantile(costs, [0.4, 0.7, 1.0]):
        found = tradeoff.recommend(world, float(bound), GRID, own=3, peers=3)
        assert found.figures["stability_cost"] <= bound
        assert found.figures["support_gain"] >= gained
        gained = found.figures["support_gain"]
