"""Policies with linear features: contexts that share parameters."""

import numpy as np
import pytest

from bandit import Residual, World, dynamics, exact, sampling
from bandit.optimizers import DAMPING, Optimizer
from bandit.policies import softmax
from bandit.probes import GRPO, PRP, SGT, XGRPO
from bandit.worlds import shared_representation

RULES = [GRPO(), XGRPO(peer_share=0.4), PRP(cap=5.0), SGT(weight=0.3)]


def linear_world(rng: np.random.Generator, levels=(0.0, 1.0)) -> World:
    """Three policies with 2, 4 and 3 features over three contexts of five arms."""
    features = [rng.normal(size=(3, 5, d)) for d in (2, 4, 3)]
    rewards = np.stack([rng.permutation(np.resize(levels, 5)) for _ in range(3)])
    return World.linear(
        features,
        [0.7 * rng.normal(size=f.shape[-1]) for f in features],
        rewards,
        weights=[1.0, 2.0, 3.0],
    )


def test_a_table_of_logits_is_the_special_case_of_indicator_features():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 4))
    rewards = rng.integers(0, 2, (3, 4)).astype(float)
    rewards[:, 0] = 1.0
    table = World.tabular(softmax(logits), rewards)
    indicators = np.eye(12).reshape(3, 4, 12)
    linear = World.linear([indicators, indicators], logits.reshape(2, 12), rewards)
    np.testing.assert_allclose(linear.probs, table.probs, rtol=1e-12)
    for rule in RULES:
        a = exact.moments(table, rule, own=3, peers=2, residual=Residual(sigma=0.2, drop=0.1))
        b = exact.moments(linear, rule, own=3, peers=2, residual=Residual(sigma=0.2, drop=0.1))
        for x in range(3):
            own_columns = slice(4 * x, 4 * x + 4)
            np.testing.assert_allclose(b.mean[x, own_columns], a.mean[x], atol=1e-13)
            assert np.abs(np.delete(b.mean[x], np.r_[own_columns])).max() < 1e-15
        np.testing.assert_allclose(b.covariance_trace, a.covariance_trace, rtol=1e-10)
        np.testing.assert_allclose(b.support_gain, a.support_gain, rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(b.fisher_gain, a.fisher_gain, rtol=1e-8, atol=1e-13)
        np.testing.assert_allclose(b.kappa, a.kappa, rtol=1e-9)
        np.testing.assert_allclose(
            b.population_mean, a.population_mean.ravel(), rtol=1e-9, atol=1e-14
        )
        np.testing.assert_allclose(
            b.population_support_gain, a.population_support_gain, rtol=1e-9, atol=1e-14
        )


@pytest.mark.parametrize("levels", [(0.0, 1.0), (0.0, 0.5, 1.0)])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_simulation_agrees_with_enumeration(rule, levels):
    world = linear_world(np.random.default_rng(1), levels)
    settings = {
        "receiver": 1,
        "own": 3,
        "peers": {0: 2, 2: 3},
        "residual": Residual(sigma={0: 0.2}, drop=0.1, gate=0.1),
    }
    computed = exact.moments(world, rule, **settings)
    simulated = sampling.moments(world, rule, n=60_000, seed=3, **settings)
    assert computed.mean.shape == (3, 4)
    spread = np.sqrt(np.einsum("xdd->xd", computed.covariance()) / simulated.n)
    assert (np.abs(simulated.mean - computed.mean) <= 4.5 * spread + 1e-12).all()
    for name in ("covariance_trace", "support_gain"):
        gap = np.abs(getattr(simulated, name) - getattr(computed, name))
        assert (gap <= 4.5 * getattr(simulated, f"{name}_se") + 1e-12).all(), name
    np.testing.assert_allclose(
        np.einsum("xdd->x", computed.covariance()), computed.covariance_trace, rtol=1e-10
    )


def test_the_true_gradient_is_the_derivative_of_the_value():
    world = linear_world(np.random.default_rng(2), (0.0, 0.5, 1.0))
    step = 1e-6
    for policy in range(3):
        slope = world.true_gradient(policy).T @ world.weights
        for d, direction in enumerate(np.eye(len(world.parameters[policy]))):
            values = [
                World.linear(
                    world.features,
                    [
                        theta + sign * step * direction if i == policy else theta
                        for i, theta in enumerate(world.parameters)
                    ],
                    world.rewards,
                    world.weights,
                ).value[policy]
                for sign in (1, -1)
            ]
            assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope[d], abs=1e-8)


def test_shared_parameters_interfere():
    world = shared_representation()
    moments = exact.moments(world, SGT(weight=1.0), own=8, peers=8)
    alone = world.weights * moments.support_gain
    assert not np.allclose(moments.population_support_gain, alone, rtol=0.1)
    # what the population's step does to a context is a sum over where it comes from
    uphill = world.log_success_gradient(0)
    each = uphill @ (world.weights[:, None] * moments.mean_without_success).T
    np.testing.assert_allclose(moments.population_support_gain, each.sum(1), rtol=1e-9)
    np.testing.assert_allclose(np.diag(each), alone, rtol=1e-9)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "natural"])
def test_policies_with_features_learn(optimizer):
    world = shared_representation()
    lr = {"sgd": 5.0, "adam": 0.05, "natural": 0.3}[optimizer]
    frame = dynamics.run(
        world, SGT(), steps=60, lr=lr, own=8, peers=8, replicas=8, optimizer=optimizer
    )
    start, end = (
        frame[frame["step"] == step].groupby("policy")["rescue_value"].mean() for step in (0, 60)
    )
    assert (end > 5 * start).all()


def test_natural_steps_precondition_by_the_population_fisher_matrix():
    world = linear_world(np.random.default_rng(4))
    features, probs = world.features[1], world.probs[1]
    rule = Optimizer.start("natural", None, world.weights, features, np.zeros((1, 4)))
    gradient = np.arange(4.0)[None]
    direction, norms = rule.direction(gradient, probs[None], 1)
    fisher = DAMPING * np.eye(4)
    for weight, phi, pi in zip(world.weights, features, probs, strict=True):
        fisher += weight * phi.T @ (np.diag(pi) - np.outer(pi, pi)) @ phi
    np.testing.assert_allclose(fisher @ direction[0], gradient[0], rtol=1e-9)
    assert norms == pytest.approx(np.linalg.norm(gradient))


@pytest.mark.parametrize(
    ("features", "parameters", "message"),
    [
        ([], [], "features of 0 policies"),
        ([np.ones((2, 3, 4))], [np.ones(3)], "parameters of policy 0 have shape"),
        ([np.ones((2, 3))], [np.ones(3)], "features of policy 0 have shape"),
        ([np.ones((2, 3, 4)), np.ones((2, 4, 4))], [np.ones(4)] * 2, "features of policy 1"),
        ([np.full((2, 3, 4), np.nan)], [np.ones(4)], "not all finite"),
    ],
)
def test_impossible_features_are_refused(features, parameters, message):
    with pytest.raises(ValueError, match=message):
        World.linear(features, parameters, np.zeros((2, 3)))
