"""Moments of a ratio under the tokenizer residual, and the draws that go with them."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from bandit import Residual
from bandit.probes import RatioRule


@pytest.mark.parametrize("cap", [0.3, 1.0, 4.0, float("inf")])
@pytest.mark.parametrize(("log_ratio", "mu", "sigma"), [(0.4, -0.3, 0.5), (-2.0, 0.2, 1.1)])
def test_normal_moments_are_the_integrals(cap, log_ratio, mu, sigma):
    rule = RatioRule(cap=cap)
    first, second = Residual(mu=mu, sigma=sigma).weight_moments(rule, log_ratio, 1)

    def integral(power: int) -> float:
        def density(delta: float) -> float:
            weight = float(rule.weights(log_ratio + delta))
            return weight**power * float(norm.pdf(delta, mu, sigma))

        kink = np.log(cap) - log_ratio
        cuts = np.clip([mu - 12 * sigma, kink, mu + 12 * sigma], mu - 12 * sigma, mu + 12 * sigma)
        return sum(quad(density, a, b)[0] for a, b in zip(cuts, cuts[1:], strict=False))

    np.testing.assert_allclose(first, integral(1), rtol=1e-7)
    np.testing.assert_allclose(second, integral(2), rtol=1e-7)


def test_vanishing_sigma_is_the_limit_of_small_sigma():
    rule, ratios = RatioRule(cap=2.0), np.array([-1.0, 0.2, 3.0])
    exact = Residual(mu=0.1).weight_moments(rule, ratios, 1)
    near = Residual(mu=0.1, sigma=1e-7).weight_moments(rule, ratios, 1)
    np.testing.assert_allclose(exact, near, rtol=1e-5)
    np.testing.assert_allclose(exact[0], [np.exp(-0.9), np.exp(0.3), 2.0])


def test_an_arm_that_the_receiver_never_plays_has_weight_zero():
    for residual in (Residual(sigma=0.5), Residual(), Residual.empirical([0.1, 0.2])):
        for cap in (2.0, float("inf")):
            first, second = residual.weight_moments(RatioRule(cap=cap), -np.inf, 1)
            assert first == second == 0.0


def test_extreme_log_ratios_do_not_overflow_under_a_cap():
    first, second = Residual(sigma=1.0).weight_moments(RatioRule(cap=3.0), 800.0, 1)
    np.testing.assert_allclose([first, second], [3.0, 9.0])


def test_the_gate_thins_gated_weights_only():
    residual = Residual(gate={1: 0.25})
    assert residual.weight_moments(RatioRule(), 0.0, 1) == (0.75, 0.75)
    assert residual.weight_moments(RatioRule(), 0.0, 2) == (1.0, 1.0)
    assert residual.weight_moments(RatioRule(gated=False), 0.0, 1) == (1.0, 1.0)
    assert residual.weight_moments(RatioRule(kind="none"), 5.0, 1) == (1.0, 1.0)


def test_empirical_moments_average_over_the_samples():
    residual = Residual.empirical({1: [0.0, 0.0, np.log(2.0), np.log(8.0)]})
    first, second = residual.weight_moments(RatioRule(cap=4.0), 0.0, 1)
    assert (first, second) == pytest.approx((2.0, 5.5))
    assert residual.weight_moments(RatioRule(cap=4.0), 0.0, 2) == (1.0, 1.0)


def test_draws_have_the_moments_of_the_setting():
    residual = Residual(mu=-0.2, sigma=0.5, gate=0.3)
    rng = np.random.default_rng(0)
    arms = rng.integers(0, 3, (50_000, 1, 2))
    delta = residual.draw_delta(1, arms, (1, 3), rng)
    assert delta.mean() == pytest.approx(-0.2, abs=0.01)
    assert delta.std() == pytest.approx(0.5, abs=0.01)
    assert residual.draw_canonical(1, arms, (1, 3), rng).mean() == pytest.approx(0.7, abs=0.01)
    drawn = Residual.empirical([1.0, 2.0]).draw_delta(1, arms[:50], (1, 3), rng)
    assert set(drawn.ravel()) == {1.0, 2.0}


def test_every_setting_may_depend_on_peer_context_and_arm():
    table = [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]
    residual = Residual(mu={1: table}, sigma={1: [0.0, 0.5, 1.0]}, gate={1: [[0.0], [1.0]]})
    rule, zeros = RatioRule(cap=1.3), np.zeros((2, 3))
    first, second = residual.weight_moments(rule, zeros, 1)
    for x, k in np.ndindex(2, 3):
        alone = Residual(mu=table[x][k], sigma=[0.0, 0.5, 1.0][k], gate=float(x))
        assert alone.weight_moments(rule, 0.0, 1) == pytest.approx((first[x, k], second[x, k]))
    assert residual.weight_moments(rule, zeros, 2)[0].tolist() == np.ones((2, 3)).tolist()
    arms = np.tile(np.arange(3), (10_000, 2, 1))
    delta = residual.draw_delta(1, arms, (2, 3), np.random.default_rng(0))
    np.testing.assert_allclose(delta.mean(0), table, atol=0.05)
    np.testing.assert_allclose(delta.std(0), [[0.0, 0.5, 1.0]] * 2, atol=0.03)
    passing = residual.draw_canonical(1, arms, (2, 3), np.random.default_rng(0))
    assert passing[:, 0].all()
    assert not passing[:, 1].any()


def test_drop_may_depend_on_peer_context_and_arm():
    residual = Residual(drop={1: [0.1, 0.2], 2: [[0.3], [0.4]]})
    np.testing.assert_array_equal(residual.drop_table(1, (2, 2)), [[0.1, 0.2], [0.1, 0.2]])
    np.testing.assert_array_equal(residual.drop_table(2, (2, 2)), [[0.3, 0.3], [0.4, 0.4]])
    assert not residual.drop_table(3, (2, 2)).any()
    with pytest.raises(ValueError, match=r"drop of peer 1 has shape \(2,\)"):
        residual.drop_table(1, (2, 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sigma": -0.1}, "sigma=-0.1"),
        ({"mu": np.nan}, "mu=nan"),
        ({"drop": 1.1}, "drop=1.1"),
        ({"gate": {1: -0.5}}, "gate=.*-0.5"),
        ({"samples": []}, "samples has an entry of shape"),
        ({"samples": 0.5}, "samples has an entry of shape"),
        ({"samples": [0.1], "sigma": 0.2}, "samples together with mu or sigma"),
    ],
)
def test_impossible_residuals_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Residual(**settings)
