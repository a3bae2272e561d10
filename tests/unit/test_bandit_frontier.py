"""The grid of settings, its frontier, and the setting that is recommended."""

import math

import numpy as np
import pandas as pd
import pytest

from bandit import Residual, World, exact, tradeoff
from bandit.probes import GRPO, PRP, SGT, XGRPO
from bandit.tradeoff.breakeven import more_own_gain
from bandit.worlds import random_world, rare_success, specialists

RULES = {"GRPO": GRPO(), "XGRPO": XGRPO(), "PRP": PRP(cap=2.0), "SGT": SGT(weight=0.2)}
MATCHED = World.tabular([[[0.3, 0.3, 0.4]], [[0.3, 0.3, 0.4]]], [[1.0, 0.0, 0.0]])


def test_equal_points_stand_together_and_beaten_ones_fall():
    cost = [1.0, 1.0, 1.0, 2.0, 3.0, 0.5]
    gain = [5.0, 5.0, 4.0, 5.0, 6.0, -1.0]
    kept = tradeoff.non_dominated(cost, gain)
    assert kept.tolist() == [True, True, False, False, True, True]


@pytest.mark.parametrize("point", [(math.nan, 9.0), (0.0, math.nan), (math.inf, 9.0)])
def test_a_point_without_figures_is_never_on_the_frontier_and_beats_none(point):
    kept = tradeoff.non_dominated([1.0, point[0]], [1.0, point[1]])
    assert kept.tolist() == [True, False]


def test_default_grid_holds_every_rule_once_with_the_conventions_asked_for():
    grid = tradeoff.settings(scale="none", ddof=0, eps=0.5)
    assert {probe.kind for probe in grid.values()} == {"grpo", "xgrpo", "prp", "sgt"}
    assert len(set(grid.values())) == len(grid)
    assert {(p.scale, p.ddof, p.eps) for p in grid.values()} == {("none", 0, 0.5)}
    assert PRP(cap=math.inf) in tradeoff.settings().values()
    assert PRP(ratio="none") in tradeoff.settings().values()
    assert PRP(ratio="none") not in tradeoff.settings(unweighted=False).values()


def test_frontier_has_the_settings_beside_the_populations_figures():
    world = specialists()
    frame = tradeoff.frontier(world, RULES, own=4, peers=4).set_index("label")
    expected = tradeoff.aggregate(tradeoff.plane(world, RULES, own=4, peers=4)).set_index("label")
    pd.testing.assert_frame_equal(frame[expected.columns], expected)
    assert frame.loc["SGT", "weight"] == 0.2
    assert frame.loc["PRP", ["ratio", "cap"]].tolist() == ["sequence", 2.0]
    assert frame["kind"].to_dict() == {label: probe.kind for label, probe in RULES.items()}
    assert frame["peers"].to_dict() == {"GRPO": 0, "XGRPO": 4, "PRP": 4, "SGT": 4}
    assert frame.loc["GRPO", ["weight", "ratio", "cap", "peer_share"]].isna().all()


def test_sweeping_group_sizes_places_each_rule_at_every_pair_and_grpo_once_a_size():
    frame = tradeoff.frontier(rare_success(0.01), RULES, own=(2, 4), peers=(3, {1: 5}))
    assert frame["label"].is_unique
    pairs = frame.groupby("kind")[["own", "peers"]].apply(lambda part: set(map(tuple, part.values)))
    assert pairs["sgt"] == pairs["prp"] == pairs["xgrpo"] == {(2, 3), (2, 5), (4, 3), (4, 5)}
    assert pairs["grpo"] == {(2, 0), (4, 0)}
    moments = exact.moments(rare_success(0.01), SGT(weight=0.2), own=4, peers=5)
    row = frame.set_index("label").loc["SGT, G=4, M=5"]
    assert row["stability_cost"] == pytest.approx(moments.covariance_trace[0])


def test_peers_counts_the_rollouts_of_all_peers():
    world = random_world(np.random.default_rng(0), policies=3)
    frame = tradeoff.frontier(world, {"SGT": SGT()}, receiver=1, own=2, peers=3)
    assert frame["peers"].tolist() == [6]


def test_frontier_passes_the_residual_on():
    frame = tradeoff.frontier(
        rare_success(0.01), {"SGT": SGT()}, own=2, peers=2, residual=Residual(drop=1.0)
    )
    assert frame["support_gain"].item() == 0.0


@pytest.mark.parametrize("empty", [{"own": ()}, {"peers": ()}])
def test_frontier_of_nothing_is_refused(empty):
    with pytest.raises(ValueError, match="at least one of each"):
        tradeoff.frontier(MATCHED, RULES, **empty)
    with pytest.raises(ValueError, match="at least one of each"):
        tradeoff.frontier(MATCHED, {})


def test_recommendation_is_the_largest_gain_within_the_bound():
    world = rare_success(1e-2)
    frame = tradeoff.frontier(world)
    for bound in (0.012, 0.03, 0.1):
        found = tradeoff.recommend(world, bound)
        within = frame[frame["stability_cost"] <= bound]
        best = within.loc[within["support_gain"].idxmax()]
        assert found.label == best["label"]
        assert found.figures["support_gain"] == best["support_gain"]
        assert found.figures["stability_cost"] <= bound
        assert (found.own, found.peers) == (8, 8)
        moments = exact.moments(world, found.probe, own=found.own, peers=found.peers)
        assert moments.support_gain[0] == pytest.approx(best["support_gain"])


def test_recommendation_states_its_own_figures_against_both_controls():
    found = tradeoff.recommend(rare_success(1e-2), 0.012)
    same = exact.moments(rare_success(1e-2), GRPO(), own=8, peers=0)
    more = exact.moments(rare_success(1e-2), GRPO(), own=16, peers=0)
    gain = more_own_gain(rare_success(1e-2), own=8, extra=8)[0]
    figures = found.figures
    assert figures["support_gain_same"] == 0.0
    assert figures["support_gain_more"] == pytest.approx(gain)
    assert figures["stability_cost_same"] == pytest.approx(same.covariance_trace[0])
    assert figures["stability_cost_more"] == pytest.approx(more.covariance_trace[0])
    for name in ("support_gain", "stability_cost", "bias_cosine", "error", "support_gain_more"):
        assert f"{figures[name]:.3g}" in found.reason
    assert found.label in str(found)
    html = found._repr_html_()
    assert found.label in html
    assert html.count("<tr") == len(found.considered) + 1


def test_recommendation_is_grpo_where_no_sharing_beats_as_many_own_rollouts():
    rules = {"XGRPO": XGRPO(), "PRP": PRP()}
    found = tradeoff.recommend(MATCHED, 10.0, rules, own=4, peers=4)
    assert found.probe == GRPO()
    assert (found.own, found.peers) == (8, 0)
    assert "No sharing setting beats GRPO" in found.reason
    shared = found.considered[~found.considered["control"]]
    assert (shared["support_gain"] <= found.figures["support_gain"] * (1 + 1e-9)).all()


def test_recommendation_is_grpo_where_only_grpo_fits():
    frame = tradeoff.frontier(rare_success(1e-3), {"XGRPO": XGRPO()})
    found = tradeoff.recommend(
        rare_success(1e-3), frame["stability_cost"].item() / 2, {"XGRPO": XGRPO()}
    )
    assert found.probe == GRPO()
    assert f"costs {frame['stability_cost'].item():.3g}" in found.reason


def test_a_control_over_the_bound_does_not_count():
    world = rare_success(1e-3)
    controls = tradeoff.recommend(world, 1.0, {"SGT": SGT()}).considered
    grpo = controls.loc[controls["control"], "stability_cost"].min()
    cheap = {"SGT": SGT(weight=0.004)}
    cost = tradeoff.frontier(world, cheap)["stability_cost"].item()
    assert cost < grpo
    found = tradeoff.recommend(world, (cost + grpo) / 2, cheap)
    assert found.probe == cheap["SGT"]
    assert found.figures["support_gain"] < found.figures["support_gain_more"]


def test_a_bound_below_everything_is_refused_with_the_smallest_cost():
    smallest = tradeoff.recommend(rare_success(0.01), 1.0).considered["stability_cost"].min()
    with pytest.raises(ValueError, match=f"smallest stability cost is {smallest:.6g}"):
        tradeoff.recommend(rare_success(0.01), smallest / 2)


def test_recommendation_needs_a_receiver_that_can_succeed():
    with pytest.raises(ValueError, match="success probability is 0"):
        tradeoff.recommend(rare_success(0.0), 1.0)


@pytest.mark.parametrize(
    "probes", [{"GRPO": GRPO()}, {"a": SGT(), "b": SGT(ddof=0)}, {"GRPO, G own": SGT()}]
)
def test_recommendation_compares_sharing_rules_of_one_convention(probes):
    with pytest.raises(ValueError, match="sharing rules"):
        tradeoff.recommend(MATCHED, 1.0, probes)


@pytest.mark.parametrize("bound", [-1.0, math.nan, "small"])
def test_a_bound_that_is_no_cost_is_refused(bound):
    with pytest.raises(ValueError, match="max_stability_cost"):
        tradeoff.recommend(MATCHED, bound)
