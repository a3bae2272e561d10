"""What the theory says of responses of L tokens (docs/theory.md, section 7), in random worlds."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bandit.exact import rescue_probability
from bandit.length import LengthWorld, long_answer, moments, token_moments
from bandit.moments import cosine
from bandit.policies import squared_scores
from bandit.probes import GRPO, PRP, SGT, XGRPO, RatioRule, UngatedNLL

RULES = (
    GRPO(),
    XGRPO(),
    PRP(),
    PRP(cap=1.5),
    PRP(ratio="length_normalised"),
    PRP(ratio="block"),
    PRP(ratio="none"),
    SGT(),
    UngatedNLL(),
)
rules = st.sampled_from(RULES)
# the exponent of a length-normalised ratio depends on the length
of_any_length = st.sampled_from([r for r in RULES if r != PRP(ratio="length_normalised")])
sizes = st.integers(1, 4)


@st.composite
def length_worlds(draw, lengths=(1, 5), policies=2, shared=False):
    """Worlds with full support, right and wrong tokens at every position."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    length, tokens = draw(st.integers(*lengths)), draw(st.integers(2, 4))
    positions = 1 if shared else length
    probs = rng.dirichlet(np.full(tokens, 2.0), size=(policies, positions))
    probs = 0.95 * probs + 0.05 / tokens
    right = np.arange(tokens) < rng.integers(1, tokens, size=(positions, 1))
    return LengthWorld.of(
        np.repeat(probs, length // positions, axis=1),
        np.repeat(right, length // positions, axis=0),
    )


def with_free_positions(world: LengthWorld, seed: int, agreed: bool) -> LengthWorld:
    """Two positions at which every token is right; `agreed`: the policies do not differ there."""
    shape = world.probs.shape
    style = np.random.default_rng(seed).dirichlet(np.full(shape[2], 3.0), size=(shape[0], 2))
    if agreed:
        style[:] = style[0]
    free = np.ones((2, shape[2]), bool)
    return LengthWorld.of(
        np.concatenate([world.probs, style], axis=1), np.concatenate([world.right, free])
    )


@settings(max_examples=40, deadline=None)
@given(length_worlds(lengths=(1, 40), shared=True), sizes)
def test_chi_squared_is_a_product_and_the_sequence_ess_decays_with_it(world, peers):
    one = LengthWorld.of(world.probs[:, :1], world.right[:1])
    growth = 1 + one.chi_squared(0, 1)
    np.testing.assert_allclose(1 + world.chi_squared(0, 1), growth**world.length, rtol=1e-9)
    _, second = token_moments(world.probs[0], world.probs[1], world.right, RatioRule("sequence"))
    np.testing.assert_allclose(second.sum((0, 2)), growth**world.length, rtol=1e-9)
    sequence = moments(world, PRP(), own=2, peers=peers).ess
    np.testing.assert_allclose(sequence, peers / growth**world.length, rtol=1e-9)
    block = moments(world, PRP(ratio="block"), own=2, peers=peers).ess
    np.testing.assert_allclose(block, peers / growth, rtol=1e-9)


@settings(max_examples=30, deadline=None)
@given(length_worlds(), st.integers(2, 5), sizes)
def test_own_and_sequence_weighted_rules_keep_the_direction_at_any_length(world, own, peers):
    for probe in (GRPO(), XGRPO(), PRP()):
        np.testing.assert_allclose(
            moments(world, probe, own=own, peers=peers).bias_cosine, 1.0, atol=1e-9
        )
    kappa = {GRPO(scale="none"): 1 - 1 / own, PRP(scale="none"): 1 - 1 / (own + peers)}
    for probe, expected in kappa.items():
        placed = moments(world, probe, own=own, peers=peers)
        np.testing.assert_allclose(
            placed.mean, expected * placed.true_gradient, rtol=1e-9, atol=1e-12
        )


@settings(max_examples=30, deadline=None)
@given(length_worlds(), st.integers(2, 5), sizes)
def test_a_block_ratio_weighs_positions_by_how_often_the_peer_is_right_elsewhere(world, own, peers):
    placed = moments(world, PRP(ratio="block"), own=own, peers=peers)
    right = np.where(world.right, world.probs, 0.0).sum(-1)
    mine, its = world.success_probability[:, None] / right
    ratio = placed.peer_mean / (placed.true_gradient * (its / mine)[:, None])
    np.testing.assert_allclose(ratio, ratio.flat[0], rtol=1e-6)


@settings(max_examples=20, deadline=None)
@given(length_worlds(lengths=(1, 1)), st.integers(0, 1000), st.integers(2, 4), sizes)
def test_block_and_sequence_have_the_same_mean_where_one_token_decides(world, seed, own, peers):
    world = with_free_positions(world, seed, agreed=False)
    block, sequence, plain = (
        moments(world, PRP(ratio=ratio), own=own, peers=peers)
        for ratio in ("block", "sequence", "none")
    )
    np.testing.assert_allclose(block.mean, sequence.mean, rtol=1e-9, atol=1e-12)
    assert np.abs(block.mean[1:]).max() < 1e-12
    assert np.abs(plain.mean[1:]).max() > 1e-9


@settings(max_examples=20, deadline=None)
@given(length_worlds(), st.integers(0, 1000), of_any_length, sizes, sizes)
def test_positions_that_neither_decide_nor_differ_only_add_noise(world, seed, probe, own, peers):
    longer = with_free_positions(world, seed, agreed=True)
    base, placed = (moments(w, probe, own=own, peers=peers) for w in (world, longer))
    np.testing.assert_allclose(placed.mean[:-2], base.mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(placed.mean[-2:], 0.0, atol=1e-12)
    np.testing.assert_allclose(placed.support_gain, base.support_gain, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(longer.chi_squared(0, 1), world.chi_squared(0, 1), rtol=1e-9)
    assert placed.covariance_trace >= base.covariance_trace * (1 - 1e-12)


@settings(max_examples=30, deadline=None)
@given(length_worlds(), rules, sizes, sizes, st.randoms(use_true_random=False))
def test_the_order_of_positions_is_immaterial(world, probe, own, peers, random):
    order = list(range(world.length))
    random.shuffle(order)
    shuffled = LengthWorld.of(world.probs[:, order], world.right[order])
    a, b = (moments(w, probe, own=own, peers=peers) for w in (world, shuffled))
    np.testing.assert_allclose(b.mean, a.mean[order], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(b.covariance_trace, a.covariance_trace, rtol=1e-9, atol=1e-14)


@settings(max_examples=30, deadline=None)
@given(length_worlds(), rules, sizes, st.integers(1, 3))
def test_a_peer_is_two_identical_ones_with_half_the_rollouts(world, probe, own, half):
    doubled = LengthWorld.of(world.probs[[0, 1, 1]], world.right)
    one = moments(world, probe, own=own, peers=2 * half)
    two = moments(doubled, probe, own=own, peers=half)
    for name in ("mean", "covariance_trace", "support_gain", "fisher_gain", "ess"):
        np.testing.assert_allclose(
            getattr(two, name), getattr(one, name), rtol=1e-9, atol=1e-12, err_msg=name
        )


@settings(max_examples=30, deadline=None)
@given(length_worlds(lengths=(1, 12)), sizes, sizes, st.floats(0.01, 2.0))
def test_a_rescue_gains_the_failures_of_each_position_in_the_fisher_geometry(
    world, own, peers, weight
):
    plain = moments(world, GRPO(), own=own, peers=peers)
    placed = moments(world, SGT(weight=weight), own=own, peers=peers)
    rho = rescue_probability(world.outcomes, own=own, peers=peers)[0]
    right = np.where(world.right, world.probs[0], 0.0).sum(-1)
    expected = weight * rho * ((1 - right) / right).sum()
    np.testing.assert_allclose(placed.fisher_gain, expected, rtol=1e-9)
    longest = np.sqrt(squared_scores(world.probs[0]).max(-1).sum())
    assert longest <= np.sqrt(2 * world.length)
    assert np.linalg.norm(placed.mean - plain.mean) <= weight * rho * longest * (1 + 1e-9)


def test_a_length_normalised_ratio_becomes_no_ratio_while_its_ess_looks_perfect():
    worlds = [long_answer(length) for length in (4, 64, 1024)]
    weighted, plain = (
        [moments(w, PRP(ratio=ratio), own=8, peers=8) for w in worlds]
        for ratio in ("length_normalised", "none")
    )
    alike = [
        cosine(a.peer_mean.ravel(), b.peer_mean.ravel())
        for a, b in zip(weighted, plain, strict=True)
    ]
    assert alike == sorted(alike)
    assert alike[-1] > 0.999
    ess = [placed.ess for placed in weighted]
    assert ess == sorted(ess)
    assert ess[-1] > 7.99
    bias = [placed.peer_cosine for placed in weighted]
    assert bias == sorted(bias, reverse=True)
    assert bias[-1] < 0.1
