"""What the theory says of the sharing rules (docs/theory.md, section 5), in random worlds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandit import Residual, World, exact, sampling
from bandit.design import Design
from bandit.execution import estimate
from bandit.moments import cosine
from bandit.policies import score_sum, squared_scores
from bandit.probes import GRPO, PRP, SGT, XGRPO, Probe, UngatedNLL
from bandit.rollouts import Rollouts, Sample, Stream, Streams, draw_arms
from bandit.worlds import random_world

GRADED = (0.0, 0.25, 1.0)
sizes = st.integers(1, 6)
rules = st.sampled_from(
    [
        GRPO(),
        XGRPO(),
        XGRPO(peer_share=0.4),
        PRP(),
        PRP(cap=1.5),
        PRP(ratio="none"),
        SGT(),
        UngatedNLL(),
    ]
)


@st.composite
def worlds(draw, policies=(2, 3), levels=(0.0, 1.0), contexts=2):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return random_world(
        rng,
        policies=draw(st.integers(*policies)),
        contexts=contexts,
        arms=draw(st.integers(len(levels), 6)),
        levels=levels,
    )


def assert_same(a, b, rtol=1e-9):
    for name in ("mean", "covariance_trace", "support_gain"):
        np.testing.assert_allclose(
            getattr(a, name), getattr(b, name), rtol=rtol, atol=1e-12, err_msg=name
        )


def parallel(world: World, probe: Probe, **design) -> np.ndarray:
    moments = exact.moments(world, probe, **design)
    assert (np.linalg.norm(moments.mean, axis=-1) > 0).all()
    return cosine(moments.mean, moments.true_gradient)


@settings(max_examples=25, deadline=None)
@given(worlds(), st.integers(2, 6), sizes, st.floats(0.0, 1.0))
def test_own_and_exactly_weighted_rules_keep_the_direction_with_binary_rewards(
    world, own, peers, share
):
    for probe in (GRPO(), XGRPO(), XGRPO(peer_share=share), PRP()):
        np.testing.assert_allclose(parallel(world, probe, own=own, peers=peers), 1.0, atol=1e-9)


@settings(max_examples=20, deadline=None)
@given(worlds(levels=GRADED), st.integers(2, 4), st.integers(1, 3), st.floats(0.0, 1.0))
def test_centred_rules_keep_the_direction_with_graded_rewards(world, own, peers, share):
    for probe in (
        GRPO(scale="none"),
        XGRPO(scale="none"),
        XGRPO(scale="none", peer_share=share),
        PRP(scale="none"),
    ):
        np.testing.assert_allclose(parallel(world, probe, own=own, peers=peers), 1.0, atol=1e-9)


def test_unweighted_sharing_does_not_keep_the_direction():
    world = random_world(np.random.default_rng(0), policies=2, contexts=2, arms=5)
    assert (parallel(world, PRP(ratio="none"), own=4, peers=4) < 0.99).all()


@settings(max_examples=25, deadline=None)
@given(worlds(levels=GRADED), st.integers(1, 4), st.integers(1, 3), st.floats(0.0, 1.0))
def test_shrinkage_of_centred_rules(world, own, peers, share):
    total = own + peers * (world.n_policies - 1)
    expected = {
        GRPO(scale="none"): 1 - 1 / own,
        XGRPO(scale="none"): 1 - 1 / total,
        XGRPO(scale="none", peer_share=share): 1 - (1 - share) / own,
    }
    for probe, kappa in expected.items():
        moments = exact.moments(world, probe, own=own, peers=peers)
        np.testing.assert_allclose(
            moments.mean, kappa * moments.true_gradient, rtol=1e-9, atol=1e-12
        )


def distance_to_own_scores(world: World, probe: Probe, seed: int, own: int) -> float:
    """Distance of one gradient to the span of the scores of the receiver's rollouts."""
    design = Design.of(world, receiver=0, own=own, peers=3)
    streams = Streams(seed, 0)
    drawn = [
        Sample.of(
            world, draw_arms(world.probs[j], 1, size, streams.rng(Stream.ROLLOUTS, j)), streams
        )
        for j, size in ((0, own), (1, 3))
    ]
    gradient, _ = estimate(
        world, world.probs, probe, design, Residual(), Rollouts(drawn[0], (drawn[1],)), streams
    )
    pi = world.probs[0, 0]
    scores = score_sum(np.eye(world.n_arms)[drawn[0].arms[0, 0]], pi)
    weights = np.linalg.lstsq(scores.T, gradient[0, 0], rcond=None)[0]
    return float(np.linalg.norm(scores.T @ weights - gradient[0, 0]))


@settings(max_examples=30, deadline=None)
@given(worlds(policies=(2, 2), contexts=1), st.integers(0, 1000), st.integers(1, 4))
def test_value_sharing_stays_in_the_span_of_own_scores(world, seed, own):
    for probe in (GRPO(), XGRPO(), XGRPO(peer_share=1.0)):
        assert distance_to_own_scores(world, probe, seed, own) < 1e-12


@pytest.mark.parametrize("probe", [PRP(), SGT()], ids=lambda probe: probe.kind)
def test_data_and_outcome_sharing_leave_the_span_of_own_scores(probe):
    world = random_world(np.random.default_rng(1), policies=2, contexts=1, arms=6)
    assert max(distance_to_own_scores(world, probe, seed, 2) for seed in range(50)) > 1e-3


@settings(max_examples=20, deadline=None)
@given(worlds(), st.integers(2, 5), sizes, st.integers(0, 1000))
def test_sgt_equals_grpo_bit_for_bit_without_a_rescue(world, own, peers, seed):
    design = {"own": own, "peers": peers, "n": 50, "seed": seed}
    plain = sampling.gradients(world, GRPO(), **design)
    shared = sampling.gradients(world, SGT(), **design)
    alive = (plain != 0).any(-1)  # a live group of binary rewards has an own success
    assert np.array_equal(plain[alive], shared[alive])


@settings(max_examples=20, deadline=None)
@given(worlds(), sizes, st.integers(0, 1000))
def test_every_rule_is_grpo_without_peers(world, own, seed):
    design = {"own": own, "peers": 0, "n": 20, "seed": seed}
    plain = sampling.gradients(world, GRPO(), **design)
    for probe in (XGRPO(), XGRPO(peer_share=0.5), PRP(), SGT(), UngatedNLL()):
        assert np.array_equal(sampling.gradients(world, probe, **design), plain)
        assert_same(
            exact.moments(world, probe, own=own, peers=0),
            exact.moments(world, GRPO(), own=own, peers=0),
        )


@settings(max_examples=20, deadline=None)
@given(worlds(), sizes, sizes, st.floats(0.0, 2.0), st.integers(0, 1000))
def test_sgt_moves_a_prompt_by_at_most_its_weight_times_the_longest_score(
    world, own, peers, weight, seed
):
    design = {"own": own, "peers": peers, "n": 50, "seed": seed}
    extra = sampling.gradients(world, SGT(weight=weight), **design)
    extra = extra - sampling.gradients(world, GRPO(), **design)
    bound = weight * np.sqrt(squared_scores(world.probs[0]).max(-1))
    assert (np.linalg.norm(extra, axis=-1) <= bound + 1e-12).all()


@settings(max_examples=20, deadline=None)
@given(worlds(policies=(2, 2)), sizes, sizes, st.floats(0.01, 2.0))
def test_sgt_raises_the_success_probability_to_first_order(world, own, peers, weight):
    moments = exact.moments(world, SGT(weight=weight), own=own, peers=peers)
    pi, p = world.probs[0], world.success_probability[0]
    rho = exact.rescue_probability(world, own=own, peers=peers)
    np.testing.assert_allclose(p * moments.fisher_gain, weight * rho * (1 - p), rtol=1e-9)
    hit = np.where(world.success, pi, 0.0)
    chosen = np.where(world.success, world.probs[1], 0.0)
    chosen = chosen / chosen.sum(-1, keepdims=True)
    miss = np.where(world.success, 0.0, pi)
    plain = (1 - p) * ((hit * chosen).sum(-1) - (hit**2).sum(-1)) + p * (miss**2).sum(-1)
    np.testing.assert_allclose(p * moments.support_gain, weight * rho * plain, rtol=1e-9)


@settings(max_examples=20, deadline=None)
@given(worlds(policies=(2, 2)), sizes, sizes, st.floats(0.2, 3.0))
def test_truncation_bias_is_bounded_by_the_mass_above_the_cap(world, own, peers, cap):
    design = {"own": own, "peers": peers}
    full = exact.moments(world, PRP(scale="none"), **design)
    capped = exact.moments(world, PRP(scale="none", cap=cap), **design)
    pi, peer = world.probs
    lost = pi * np.maximum(1 - cap * peer / pi, 0.0)  # |A| <= 1 for centred binary rewards
    bound = (lost * np.sqrt(squared_scores(pi))).sum(-1) * peers / (own + peers)
    assert (np.linalg.norm(full.mean - capped.mean, axis=-1) <= bound + 1e-12).all()


@settings(max_examples=25, deadline=None)
@given(worlds(policies=(3, 3)), rules, st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_the_order_of_peers_is_immaterial(world, probe, own, m1, m2):
    swapped = World.tabular(world.probs[[0, 2, 1]], world.rewards, world.weights)
    assert_same(
        exact.moments(world, probe, own=own, peers={1: m1, 2: m2}),
        exact.moments(swapped, probe, own=own, peers={1: m2, 2: m1}),
    )


@settings(max_examples=25, deadline=None)
@given(worlds(policies=(2, 2)), rules, st.integers(1, 4), st.integers(1, 3))
def test_two_identical_peers_are_one_peer_with_twice_the_rollouts(world, probe, own, half):
    twins = World.tabular(world.probs[[0, 1, 1]], world.rewards, world.weights)
    assert_same(
        exact.moments(world, probe, own=own, peers=2 * half),
        exact.moments(twins, probe, own=own, peers=half),
    )


@settings(max_examples=25, deadline=None)
@given(worlds(levels=GRADED, contexts=1), rules, st.floats(-3.0, 3.0), st.floats(0.1, 10.0))
def test_shifting_and_scaling_rewards_changes_nothing(world, probe, shift, factor):
    exactly = type(probe)(**{**vars(probe), "eps": 0.0})
    design = {"own": 3, "peers": 2}
    moved = World.tabular(
        world.probs,
        factor * world.rewards + shift,
        success_threshold=factor * world.success_threshold + shift,
    )
    assert_same(
        exact.moments(world, exactly, **design), exact.moments(moved, exactly, **design), rtol=1e-6
    )


@settings(max_examples=20, deadline=None)
@given(worlds(), st.integers(1, 5), st.integers(0, 4))
def test_dynamic_sampling_multiplies_grpo_by_the_expected_number_of_tries(world, own, redraws):
    once = exact.moments(world, GRPO(), own=own, peers=0)
    again = exact.moments(world, GRPO(), own=own, peers=0, redraws=redraws)
    tries = sum(exact.dead_probability(world, own=own) ** r for r in range(redraws + 1))
    np.testing.assert_allclose(again.mean, tries[:, None] * once.mean, rtol=1e-9, atol=1e-12)
