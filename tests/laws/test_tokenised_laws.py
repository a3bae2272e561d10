"""Laws of the tokenised bandit: what the gate keeps, what a sum over tokenisations adds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandit import exact
from bandit.probes import PRP, SGT, RatioRule
from mrl.gate.tokenised import TokenPolicy, TokenWorld, toy_world
from mrl.gate.tokenised.toys import KINDS

GATED, UNGATED = RatioRule("sequence"), RatioRule("sequence", gated=False)

worlds = st.builds(
    lambda kinds, size, spread, seed: toy_world(
        kinds, max_bytes=size, spread=spread, canonical_share=None, seed=seed
    ),
    st.permutations(KINDS),
    st.integers(1, 3),
    st.floats(0.05, 1.5),
    st.integers(0, 10**6),
)
few = settings(max_examples=25, deadline=None)


@given(worlds)
@few
def test_a_text_is_at_least_as_likely_as_its_canonical_tokens(world: TokenWorld) -> None:
    assert (world.delta >= 0).all()
    assert not world.delta[[p.canonical.all() for p in world.policies]].any()
    np.testing.assert_allclose(world.probs.sum(-1), 1.0, rtol=1e-12)
    shares = [policy.canonical_share for policy in world.policies]
    np.testing.assert_allclose(world.canonical_probs.sum(-1), shares, rtol=1e-12)


@given(worlds)
@few
def test_the_gated_mean_weight_is_the_receivers_canonical_share(world: TokenWorld) -> None:
    for source in range(3):
        for receiver in range(3):
            moved = world.transfer(source, receiver)
            mean, _ = moved.weight_moments(GATED)
            assert mean == pytest.approx(moved.receiver.canonical_share, rel=1e-10)
            assert moved.covered_share == pytest.approx(mean, rel=1e-10)


@given(worlds)
@few
def test_the_ungated_mean_weight_counts_tokenisations(world: TokenWorld) -> None:
    for policy, arms in zip(world.policies, world.arms, strict=True):
        number = np.bincount(arms, minlength=len(world.texts))
        receiver = world.policies.index(policy)
        mean, _ = world.transfer(receiver, receiver).weight_moments(UNGATED)
        assert mean == pytest.approx(number @ world.canonical_probs[receiver], rel=1e-10)
        assert mean >= policy.canonical_share * (1 - 1e-12)


@given(worlds)
@few
def test_self_transfer_through_the_gate_has_weight_one(world: TokenWorld) -> None:
    for i, policy in enumerate(world.policies):
        for kind in ("sequence", "block", "length_normalised"):
            weights = world.transfer(i, i).weights(RatioRule(kind))
            np.testing.assert_allclose(weights, policy.canonical, rtol=1e-12)


@given(worlds)
@few
def test_the_product_of_block_ratios_is_the_sequence_ratio(world: TokenWorld) -> None:
    block = RatioRule("block", gated=False)
    moved = world.transfer(1, 2)
    for a, b in enumerate(moved.spelled.tolist()):
        tokens = moved.token_weights(block)[a]
        changes = np.flatnonzero(np.diff(tokens, prepend=np.nan) != 0)
        # Neighbouring blocks of one ratio look like one block, so only a bound from below holds
        # there; with random logits no two are alike.
        whole = moved.token_weights(UNGATED)[a][0]
        assert np.prod(tokens[changes]) == pytest.approx(whole, rel=1e-9)
        assert len(tokens) == len(moved.receiver.sequences[b]) + 1


@given(worlds)
@few
def test_gradients_of_all_sequences_without_reward_cancel(world: TokenWorld) -> None:
    for policy in world.policies:
        total = policy.gradient(range(len(policy)), policy.probs)
        np.testing.assert_allclose(total, 0.0, atol=1e-12)


@given(worlds)
@few
def test_a_receiver_with_one_spelling_a_text_is_learned_from_without_bias(
    world: TokenWorld,
) -> None:
    receiver = next(i for i, policy in enumerate(world.policies) if policy.canonical.all())
    truth = world.true_gradient(receiver)
    for source in range(3):
        found = world.peer_gradient(source, receiver, GATED)
        np.testing.assert_allclose(found, truth, atol=1e-12)


@given(worlds)
@few
def test_the_bias_of_the_gate_is_the_stratum_of_other_tokenisations(world: TokenWorld) -> None:
    for receiver, policy in enumerate(world.policies):
        advantage = world.rewards[world.arms[receiver]] - world.probs[receiver] @ world.rewards
        other = np.flatnonzero(~policy.canonical)
        missing = policy.gradient(other, (policy.probs * advantage)[other])
        found = world.peer_gradient(0, receiver, GATED)
        np.testing.assert_allclose(found + missing, world.true_gradient(receiver), atol=1e-12)


@given(worlds)
@few
def test_the_true_gradient_is_the_slope_of_the_expected_reward(world: TokenWorld) -> None:
    for receiver, policy in enumerate(world.policies):
        direction = np.random.default_rng(0).normal(size=policy.conditional.shape)
        values = [
            moved(policy, step * direction) @ world.rewards[world.arms[receiver]]
            for step in (-1e-5, 1e-5)
        ]
        slope = (values[1] - values[0]) / 2e-5
        inner = (world.true_gradient(receiver) * direction).sum()
        assert slope == pytest.approx(inner, abs=1e-8)


def moved(policy: TokenPolicy, step: np.ndarray) -> np.ndarray:
    """Probabilities of the sequences after a step in the logits."""
    weights = policy.conditional * np.exp(step)
    return replace(policy, conditional=weights / weights.sum(-1, keepdims=True)).probs


@given(worlds, st.sampled_from(["sequence", "length_normalised"]), st.booleans())
@few
def test_the_residual_gives_the_bandit_over_texts_the_weights_of_the_tokens(
    world: TokenWorld, kind: str, gated: bool
) -> None:
    rule = RatioRule(kind, gated=gated)
    residual, arms = world.residual(1, rule), world.to_world()
    for source in (0, 2):
        ratio = np.log(arms.probs[1]) - np.log(arms.probs[source])
        first, second = residual.weight_moments(rule, ratio, source)
        expected = world.transfer(source, 1).weight_moments(rule)
        assert arms.probs[source][0] @ first[0] == pytest.approx(expected[0], rel=1e-9)
        assert arms.probs[source][0] @ second[0] == pytest.approx(expected[1], rel=1e-9)


@given(worlds)
@few
def test_gated_sequence_errors_are_the_difference_of_the_deltas(world: TokenWorld) -> None:
    residual = world.residual(0, GATED)
    for source in (1, 2):
        expected = world.delta[source] - world.delta[0]
        np.testing.assert_allclose(residual.mu[source][0], expected, atol=1e-9)
        assert not residual.sigma[source].any()
        np.testing.assert_allclose(
            residual.gate[source][0], 1 - np.exp(-world.delta[source]), atol=1e-12
        )
        canonical = world.policies[source].canonical
        np.testing.assert_allclose(
            world.transfer(source, 0).residual[canonical],
            expected[world.arms[source]][canonical],
            atol=1e-9,
        )


@given(worlds)
@few
def test_exact_moments_predict_what_the_tokens_do(world: TokenWorld) -> None:
    """One peer rollout beside one own, no scale: E g is the mean of the two halves."""
    probe = PRP(scale="none")
    found = exact.moments(
        world.to_world(), probe, receiver=1, own=1, peers={0: 1}, residual=world.residual(1, GATED)
    )
    arms, rewards = world.arms[0], world.rewards
    source = world.policies[0]
    weights = world.transfer(0, 1).weights(GATED)
    # A = +-(r - r')/2 for rewards r, r' of the two rollouts.
    own = world.probs[1] * (rewards - world.probs[0] @ rewards) / 2
    peer = np.bincount(
        arms,
        source.probs * weights * (rewards[arms] - world.probs[1] @ rewards) / 2,
        minlength=len(rewards),
    )
    total = (own + peer) / 2
    np.testing.assert_allclose(found.mean[0], total - total.sum() * world.probs[1], atol=1e-12)


@given(worlds)
@few
def test_sgt_pays_for_no_token(world: TokenWorld) -> None:
    """No ratio: the bandit over texts has neither error nor gate."""
    residual = world.residual(1, exact.ratio_rule(SGT()) or RatioRule("none"))
    assert not any(np.any(table) for table in (*residual.mu.values(), *residual.gate.values()))
