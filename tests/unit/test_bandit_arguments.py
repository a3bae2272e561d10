"""What the theory says to arguments of the wrong kind, and at the ends of their range."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from bandit import Residual, World, dynamics, exact, sampling, tradeoff
from bandit.compositions import MAX_ROLLOUTS
from bandit.probes import GRPO, PRP, SGT, Credit, Group, Probe
from bandit.worlds import rare_success, specialists

SIZES = {"own": 2, "peers": 2}
CALLS = {
    "exact": lambda world, rule, **more: exact.moments(world, rule, **SIZES, **more),
    "bias": lambda world, rule, **more: exact.bias(world, rule, **SIZES, **more),
    "gradients": lambda world, rule, **more: sampling.gradients(world, rule, n=9, **SIZES, **more),
    "moments": lambda world, rule, **more: sampling.moments(world, rule, n=9, **SIZES, **more),
    "dynamics": lambda world, rule, **more: dynamics.run(world, rule, steps=1, **SIZES, **more),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
class TestKinds:
    @pytest.mark.parametrize("rule", [PRP, "PRP", None])
    def test_a_rule_must_be_a_rule(self, call, rule):
        with pytest.raises(TypeError, match="as sharing rule; expected an instance"):
            call(rare_success(0.1), rule)

    @pytest.mark.parametrize("residual", [None, 0.1, {"drop": 0.1}])
    def test_a_residual_must_be_a_residual(self, call, residual):
        with pytest.raises(TypeError, match=r"as residual; expected a bandit\.Residual"):
            call(rare_success(0.1), PRP(), residual=residual)

    def test_a_residual_of_a_policy_that_is_not_there_is_refused(self, call):
        with pytest.raises(ValueError, match=r"the residual names policies \[7\]"):
            call(rare_success(0.1), PRP(), residual=Residual(drop={7: 0.1}))


@pytest.mark.parametrize("world", ["w", None, 3])
def test_a_world_must_be_a_world(world):
    with pytest.raises(TypeError, match="as world; expected a bandit.World"):
        exact.moments(world, PRP(), **SIZES)


@pytest.mark.parametrize("seed", [-1, 1.5, None])
def test_a_seed_is_a_whole_number(seed):
    for name in ("gradients", "moments", "dynamics"):
        with pytest.raises(ValueError, match="seed="):
            CALLS[name](rare_success(0.1), SGT(), seed=seed)


def test_rates_may_be_an_array_and_must_be_numbers():
    world = specialists(contexts_each=1)
    array = dynamics.run(world, SGT(), steps=2, lr=np.array([1.0, 2.0]), **SIZES)
    assert array.equals(dynamics.run(world, SGT(), steps=2, lr=[1.0, 2.0], **SIZES))
    with pytest.raises(ValueError, match="lr="):
        dynamics.run(world, SGT(), steps=2, lr="a", **SIZES)


def test_large_residuals_have_infinite_cost_or_are_refused_never_nan():
    world = rare_success(0.1)
    heavy = exact.moments(world, PRP(), own=4, peers=4, residual=Residual(sigma=20.0))
    assert np.isfinite(heavy.mean).all()
    assert np.isinf(heavy.covariance_trace).all()
    for residual in (Residual(sigma=60.0), Residual(mu=800.0)):
        with pytest.raises(ValueError, match="overflows under this residual; give"):
            exact.moments(world, PRP(), own=4, peers=4, residual=residual)
        capped = exact.moments(world, PRP(cap=5.0), own=4, peers=4, residual=residual)
        assert np.isfinite(capped.covariance_trace).all()
        plane = tradeoff.plane(world, {"PRP": PRP(cap=5.0)}, own=4, peers=4, residual=residual)
        assert plane["stability_cost"].notna().all()


def test_groups_that_would_take_hours_are_refused():
    with pytest.raises(ValueError, match=f"at most 1000000 ways and {MAX_ROLLOUTS} rollouts"):
        exact.moments(rare_success(0.1), GRPO(), own=20_000, peers=0)


def test_a_rule_is_called_after_its_class_unless_it_says_otherwise():
    @dataclass(frozen=True)
    class Nothing(Probe):
        def credit(self, group: Group, rng=None, /) -> Credit:
            return GRPO().credit(group)

    assert Nothing.kind == "nothing"
    assert sampling.gradients(rare_success(0.1), Nothing(), n=3, **SIZES).shape == (3, 1, 8)


@pytest.mark.parametrize("needs", ["success", frozenset({"sucess"}), None])
def test_what_a_rule_needs_must_exist(needs):
    with pytest.raises(TypeError, match=r"needs is .*expected a frozenset of names out of"):
        type("Wrong", (Probe,), {"needs": needs})


def test_a_rule_that_draws_without_outcomes_is_told_to_give_them():
    @dataclass(frozen=True)
    class Coin(Probe):
        kind: ClassVar[str] = "coin"

        def credit(self, group: Group, rng=None, /) -> Credit:
            return GRPO().credit(group) if rng.random() < 0.5 else GRPO(eps=1.0).credit(group)

    with pytest.raises(ValueError, match="Coin draws random numbers in credit"):
        exact.moments(rare_success(0.1), Coin(), **SIZES)


@pytest.mark.parametrize("order", [[0.5], [True], [2], []])
def test_policies_are_chosen_by_whole_numbers(order):
    with pytest.raises(ValueError, match="got policies"):
        rare_success(0.1).with_policies(order)


def test_a_verifier_cannot_be_made_to_err_twice():
    with pytest.raises(ValueError, match="errs already"):
        rare_success(0.1).noisy(false_positive=0.1).noisy(false_negative=0.1)


def test_logits_that_overflow_are_named():
    with pytest.raises(ValueError, match="logits of policy 0 overflow"):
        World.linear([np.full((1, 2, 1), 1e200)], [[1e200]], [[0.0, 1.0]])


def test_settings_that_differ_only_beyond_six_digits_are_refused():
    with pytest.raises(ValueError, match="hold a value twice"):
        tradeoff.settings(weights=[0.1, 0.10000001])
    assert len(tradeoff.settings(weights=[0.1, 0.10001])) == 14
    with pytest.raises(ValueError, match="weights=0.1 is not allowed"):
        tradeoff.settings(weights=0.1)


def test_a_bound_on_the_bias_changes_the_recommendation():
    world = rare_success(0.05)
    free = tradeoff.recommend(world, max_stability_cost=0.1)
    assert free.figures["bias_cosine"] < 0.9
    straight = tradeoff.recommend(world, max_stability_cost=0.1, min_cosine=0.95)
    assert straight.figures["bias_cosine"] >= 0.95
    with pytest.raises(ValueError, match="min_cosine=2"):
        tradeoff.recommend(world, 0.1, min_cosine=2)


def test_a_choice_that_is_a_worse_estimate_than_not_sharing_says_so():
    only = {"PRP, no ratio": PRP(ratio="none")}
    found = tradeoff.recommend(rare_success(0.05), 0.1, only)
    assert found.figures["error"] > found.figures["error_same"]
    assert "Its error is above GRPO's" in found.reason
