"""Verifiers that err: rules see verdicts, and are judged by the truth."""

import numpy as np
import pytest

from bandit import Residual, World, dynamics, exact, sampling
from bandit.probes import GRPO, PRP, SGT, XGRPO, UngatedNLL
from bandit.worlds import noisy_verifier, random_world, rare_success

RULES = [GRPO(), XGRPO(), PRP(cap=3.0), SGT(weight=0.3), UngatedNLL(weight=0.2)]


def noisy(seed=0) -> World:
    world = random_world(np.random.default_rng(seed), policies=3, contexts=2, arms=5)
    by_arm = np.random.default_rng(1).uniform(0, 0.3, world.rewards.shape)
    return world.noisy(false_positive=by_arm, false_negative=0.2)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_simulation_agrees_with_enumeration(rule):
    settings = {"own": 3, "peers": {1: 2, 2: 2}, "residual": Residual(drop=0.1, sigma=0.1)}
    computed = exact.moments(noisy(), rule, redraws=1, **settings)
    simulated = sampling.moments(noisy(), rule, n=80_000, seed=5, redraws=1, **settings)
    spread = np.sqrt(np.einsum("xkk->xk", computed.covariance()) / simulated.n)
    assert (np.abs(simulated.mean - computed.mean) <= 4.5 * spread + 1e-12).all()
    for name in ("covariance_trace", "support_gain"):
        gap = np.abs(getattr(simulated, name) - getattr(computed, name))
        assert (gap <= 4.5 * getattr(simulated, f"{name}_se") + 1e-12).all(), name


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_a_verifier_that_never_errs_changes_nothing(rule):
    world = random_world(np.random.default_rng(2), policies=2, contexts=2, arms=4)
    a = exact.moments(world, rule, own=3, peers=2)
    b = exact.moments(world.noisy(), rule, own=3, peers=2)
    np.testing.assert_allclose(b.mean, a.mean, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(b.covariance_trace, a.covariance_trace, rtol=1e-12)
    drawn = [sampling.gradients(w, rule, own=3, peers=2, n=20) for w in (world, world.noisy())]
    np.testing.assert_array_equal(*drawn)


def test_a_verifier_that_is_sure_of_a_wrong_arm_is_another_reward_table():
    world = rare_success(0.1)
    lie = np.zeros((1, 8))
    lie[0, 5] = 1.0
    believed = World.tabular(world.probs, np.where(lie, 1.0, world.rewards))
    for rule in RULES:
        a = exact.moments(world.noisy(false_positive=lie), rule, own=4, peers=4)
        b = exact.moments(believed, rule, own=4, peers=4)
        np.testing.assert_allclose(a.mean, b.mean, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(a.mean_without_success, b.mean_without_success, atol=1e-14)
        np.testing.assert_allclose(a.true_gradient, world.true_gradient(0))


@pytest.mark.parametrize("flip", [0.1, 0.3, 0.5])
def test_symmetric_errors_shrink_the_gradient_and_keep_its_direction(flip):
    world = random_world(np.random.default_rng(3), policies=2, contexts=3, arms=5)
    errs = world.noisy(false_positive=flip, false_negative=flip)
    moments = exact.moments(errs, GRPO(scale="none"), own=4, peers=0)
    expected = (1 - 1 / 4) * (1 - 2 * flip) * moments.true_gradient
    np.testing.assert_allclose(moments.mean, expected, rtol=1e-9, atol=1e-13)


def test_wrong_verified_successes_teach_wrong_answers():
    gains = []
    for rate in (0.0, 0.02, 0.2):
        world = noisy_verifier(false_positive=rate, false_negative=0.0)
        gains.append(exact.moments(world, SGT(), own=8, peers=8).support_gain[2])
        taught = exact.rescue_distribution(world, own=8, peers=8)
        right = np.where(world.success, taught, 0.0).sum(-1)
        q = world.success_probability[1]
        np.testing.assert_allclose(right, q / (q + (1 - q) * rate), rtol=1e-9)
    assert gains[0] > gains[1] > gains[2]


def test_rescues_by_several_peers_are_shared_as_in_simulation():
    world = random_world(np.random.default_rng(4), policies=3, contexts=1, arms=5)
    residual = Residual(drop={1: 0.5})
    sizes = {"own": 2, "peers": {1: 1, 2: 3}, "residual": residual}
    taught = exact.rescue_distribution(world, **sizes)
    np.testing.assert_allclose(taught.sum(-1), 1.0)
    assert not taught[~world.success].any()
    # E[g; no own success] = lambda rho (mu+ - pi)
    moments = exact.moments(world, SGT(weight=0.4), **sizes)
    rho = exact.rescue_probability(world, **sizes)
    expected = 0.4 * rho[:, None] * (taught - world.probs[0])
    np.testing.assert_allclose(moments.mean_without_success, expected, rtol=1e-9, atol=1e-14)


def test_peers_see_the_verdict_that_a_rollout_got():
    # with own verdicts always wrong for failures, nobody ever sees a failure
    world = rare_success(0.2).noisy(false_positive=1.0)
    frame = dynamics.run(world, GRPO(), steps=5, lr=5.0, own=4, peers=4, replicas=3)
    assert frame["gradient_norm"].dropna().eq(0).all()


def test_dead_and_rescue_probabilities_count_verdicts():
    world = rare_success(0.05).noisy(false_positive=0.1, false_negative=0.2)
    p, q = 0.05 * 0.8 + 0.95 * 0.1, 0.5 * 0.8 + 0.5 * 0.1
    np.testing.assert_allclose(world.verdict_probability[:, 0], [p, q])
    np.testing.assert_allclose(exact.dead_probability(world, own=4), p**4 + (1 - p) ** 4)
    rho = exact.rescue_probability(world, own=4, peers=3)
    np.testing.assert_allclose(rho, (1 - p) ** 4 * (1 - (1 - q) ** 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"false_positive": 1.5}, "false_positive=1.5"),
        ({"false_negative": [0.1, 0.2]}, r"false_negative has shape \(2,\)"),
    ],
)
def test_impossible_error_rates_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        rare_success(0.1).noisy(**settings)


def test_errors_need_two_rewards():
    world = World.tabular([[[0.2, 0.3, 0.5]]], [[0.0, 0.5, 1.0]])
    with pytest.raises(ValueError, match="exactly two"):
        world.noisy(false_positive=0.1)
