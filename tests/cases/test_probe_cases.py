"""Credit of small groups against the reference values."""

import json
from pathlib import Path

import numpy as np
import pytest

from bandit.probes import GRPO, PRP, SGT, XGRPO, Group, Probe, UngatedNLL

CASES = {
    case["id"]: case
    for case in json.loads((Path(__file__).parent / "probes.json").read_text())["cases"]
}


def statistics(peer: dict) -> list[list[float]]:
    return [[peer[key] for key in ("n", "mean", "M2", "min", "max")]]


@pytest.mark.parametrize("name", ["constant-group", "one-sample"])
def test_group_without_variance_has_advantage_exactly_zero(name):
    case = CASES[name]
    advantage = GRPO().credit(Group(case["rewards"])).own_advantage
    assert advantage.tolist() == case["advantage"]


def test_each_group_is_scaled_by_itself():
    case = CASES["two-groups"]
    probe = GRPO(scale=case["scale"], ddof=case["ddof"], eps=case["eps"])
    advantage = probe.credit(Group(case["rewards"])).own_advantage
    np.testing.assert_allclose(advantage, case["advantage"], rtol=1e-12)


def test_xgrpo_needs_statistics_only():
    case = CASES["xgrpo-from-statistics"]
    probe = XGRPO(scale=case["scale"], ddof=case["ddof"], eps=case["eps"])
    credit = probe.credit(Group(case["own"], peer_stats=statistics(case["peer"])))
    np.testing.assert_allclose(credit.own_advantage, case["advantage"], rtol=1e-12)


def test_constant_statistics_are_dead_by_min_and_max():
    case = CASES["statistics-constant"]
    credit = XGRPO().credit(Group(case["own"], peer_stats=statistics(case["peer"])))
    assert credit.own_advantage.tolist() == case["advantage"]


def test_sgt_is_grpo_when_the_receiver_has_a_success():
    case = CASES["sgt-no-event"]
    group = Group(case["own"], case["peer"])
    assert SGT().credit(group, np.random.default_rng(0)) == GRPO().credit(group)


def test_sgt_puts_its_weight_on_one_peer_success():
    case = CASES["sgt-event"]
    group = Group(case["own"], case["peer"])
    probe = SGT(weight=case["weight"])
    outcomes = [(float(p), c) for p, c in probe.outcomes(group) if p > 0]
    weights = {tuple(c.nll_weight.tolist()): p for p, c in outcomes}
    assert weights == {(0.0, 0.1, 0.0, 0.0): 0.5, (0.0, 0.0, 0.0, 0.1): 0.5}
    drawn = probe.credit(group, np.random.default_rng(0))
    assert tuple(drawn.nll_weight.tolist()) in weights
    assert drawn.own_advantage.tolist() == case["own_advantage"]


@pytest.mark.parametrize(
    "probe", [GRPO(), XGRPO(), PRP(), SGT(), UngatedNLL()], ids=lambda probe: probe.kind
)
def test_group_without_valid_own_rollouts_gives_nothing(probe: Probe):
    case = CASES["all-own-invalid"]
    credit = probe.credit(Group(case["own"], case["peer"]), np.random.default_rng(0))
    for values in (credit.own_advantage, credit.peer_advantage, credit.nll_weight):
        assert not values.any()
