"""The stability-support plane, its table in the theory, and its figures."""

from functools import partial

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from bandit import Residual, World, dynamics, exact, plots, sampling, tradeoff
from bandit.probes import GRPO, PRP, SGT, XGRPO, Probe
from bandit.tradeoff.accuracy import context_accuracy, population_accuracy
from bandit.worlds import random_world, rare_success, specialists

RULES: dict[str, Probe] = {
    "GRPO": GRPO(),
    "XGRPO": XGRPO(),
    "PRP": PRP(),
    "PRP, no ratio": PRP(ratio="none"),
    "SGT": SGT(),
}
# docs/theory.md, section 4: support gain and stability cost in the order of RULES
TABLE = {
    0.05: ["0 3.4e-2", "1.7e-2 5.0e-2", "4.0e-2 2.9e-2", "1.1e-1 3.2e-2", "2.4e-2 3.3e-2"],
    1e-3: ["0 9.8e-4", "5.5e-4 3.5e-2", "1.3e-3 2.3e-2", "1.7e-1 2.9e-2", "4.2e-2 4.0e-3"],
    1e-6: ["0 9.8e-7", "5.5e-7 3.4e-2", "1.3e-6 2.3e-2", "1.7e-1 2.9e-2", "4.2e-2 3.2e-3"],
}


@pytest.mark.parametrize("p", TABLE)
def test_table_of_the_theory_to_two_digits(p):
    frame = tradeoff.plane(rare_success(p), RULES, own=8, peers=8).set_index("label")
    for label, cell in zip(RULES, TABLE[p], strict=True):
        for name, digits in zip(("support_gain", "stability_cost"), cell.split(), strict=True):
            got = frame.loc[label, name]
            assert float(f"{got:.1e}") == float(digits), (label, name, got)


def test_controls_are_what_they_say():
    world = rare_success(0.05)
    frame = tradeoff.plane(world, {"SGT": SGT()}, own=4, peers=8, controls=True)
    assert frame["label"].tolist() == ["SGT", *tradeoff.CONTROLS]
    cost = frame.set_index("label")["stability_cost"]
    more = exact.moments(world, GRPO(), own=12, peers=8)
    again = exact.moments(world, GRPO(), own=4, peers=8, redraws=2)
    assert cost["GRPO, G+M own"] == more.covariance_trace[0]
    assert cost["GRPO, dynamic sampling"] == again.covariance_trace[0]
    assert cost["NLL, no gate"] > cost["SGT"]
    with pytest.raises(ValueError, match="NLL, no gate"):
        tradeoff.plane(world, {"NLL, no gate": SGT()}, own=4, peers=8, controls=True)
    with pytest.raises(ValueError, match="probes is empty"):
        tradeoff.plane(world, {}, own=4, peers=8)


def test_relative_cost_is_one_for_grpo_and_diverges_where_it_is_dead():
    world = World.tabular(
        [[[0.2, 0.8], [0.0, 1.0]], [[0.5, 0.5], [0.5, 0.5]]], [[1.0, 0.0], [1.0, 0.0]]
    )
    frame = tradeoff.plane(world, {"a": GRPO(scale="none"), "b": SGT()}, own=4, peers=4)
    relative = frame.set_index(["label", "context"])["relative_cost"]
    assert relative["a", 0] == 1.0
    assert np.isnan(relative["a", 1])
    assert np.isposinf(relative["b", 1])


def test_chi2_and_ess_belong_to_rules_with_a_ratio():
    world = World.tabular([[[0.5, 0.5, 0.0]], [[0.25, 0.75, 0.0]]], [[1.0, 0.0, 0.0]])
    frame = tradeoff.plane(world, RULES, own=4, peers=6).set_index("label")
    chi2 = 0.25 / 0.25 + 0.25 / 0.75 - 1
    assert frame.loc["PRP", "chi2"] == pytest.approx(chi2)
    assert frame.loc["PRP", "ess"] == pytest.approx(6 / (1 + chi2))
    assert frame.loc["PRP, no ratio", "ess"] == pytest.approx(6)
    assert frame.loc[["GRPO", "XGRPO", "SGT", "PRP, no ratio"], "chi2"].isna().all()
    assert frame.loc[["GRPO", "XGRPO", "SGT"], "ess"].isna().all()
    lost = tradeoff.plane(
        world, {"PRP": PRP()}, own=4, peers=6, residual=Residual(drop=0.5, gate=0.2)
    )
    assert lost["ess"][0] == pytest.approx(6 * 0.5 * 0.8 / (1 + chi2))


def test_chi2_is_infinite_where_no_peer_plays_an_arm_of_the_receiver():
    world = World.tabular([[[0.5, 0.5]], [[0.0, 1.0]]], [[1.0, 0.0]])
    frame = tradeoff.plane(world, {"PRP": PRP()}, own=2, peers=2)
    assert np.isposinf(frame["chi2"][0])
    assert tradeoff.plane(world, {"PRP": PRP()}, own=2, peers=0)["chi2"].isna().all()


def test_open_flow_counts_rare_success_arms_only():
    moments = exact.moments(rare_success(0.05), SGT(), own=8, peers=8)
    rescue = moments.mean_without_success[0]
    np.testing.assert_allclose(moments.open_flow(0.01), rescue[1])
    np.testing.assert_allclose(moments.open_flow(1.0), rescue[0] + rescue[1])


def test_population_figures_follow_from_the_contexts():
    world = random_world(np.random.default_rng(2), policies=2, contexts=3, arms=5)
    row = tradeoff.aggregate(tradeoff.plane(world, {"SGT": SGT()}, own=4, peers=4)).iloc[0]
    moments = exact.moments(world, SGT(), own=4, peers=4)
    assert row["stability_cost"] == pytest.approx(world.weights @ moments.covariance_trace)
    assert row["support_gain"] == pytest.approx(world.weights @ moments.support_gain)
    assert row["population_cost"] == pytest.approx(moments.population_covariance_trace)
    mean = moments.population_mean.ravel()
    true = (world.weights[:, None] * moments.true_gradient).ravel()
    cosine = mean @ true / np.linalg.norm(mean) / np.linalg.norm(true)
    assert row["bias_cosine"] == pytest.approx(cosine)
    assert row["relative_cost"] == pytest.approx(row["stability_cost"] / row["reference_cost"])


def test_a_simulated_plane_has_the_errors_of_its_figures_and_the_same_columns_else():
    world = random_world(np.random.default_rng(5), contexts=3, arms=4)
    rules = {"SGT": SGT(), "PRP": PRP(cap=2.0)}
    sizes = {"own": 4, "peers": 4, "controls": True}
    exactly = tradeoff.plane(world, rules, **sizes)
    draw = partial(sampling.moments, n=4000, seed=1)
    drawn = tradeoff.plane(world, rules, moments=draw, **sizes)
    errors = ["stability_cost_se", "support_gain_se"]
    assert set(drawn) - set(exactly) == set(errors)
    assert (drawn["ess"].fillna(-1) == exactly["ess"].fillna(-1)).all()
    for name in ("stability_cost", "support_gain"):
        assert ((drawn[name] - exactly[name]).abs() <= 5 * drawn[f"{name}_se"]).all()
    total = tradeoff.aggregate(drawn).set_index("label")["stability_cost_se"]
    for label, part in drawn.groupby("label"):
        weight = part["weight"] / part["weight"].sum()
        by_hand = sum((weight * part["stability_cost_se"]) ** 2) ** 0.5
        assert total[label] == pytest.approx(by_hand, rel=1e-12)


def test_error_is_that_of_one_context_and_of_the_whole_population():
    world = random_world(np.random.default_rng(2), policies=2, contexts=3, arms=5)
    frame = tradeoff.plane(world, {"SGT": SGT(), "GRPO": GRPO()}, own=4, peers=4)
    rows = tradeoff.aggregate(frame).set_index("label")
    for label, probe in (("SGT", SGT()), ("GRPO", GRPO())):
        moments = exact.moments(world, probe, own=4, peers=4)
        mean = moments.population_mean.ravel()
        true = (world.weights[:, None] * moments.true_gradient).ravel()
        second = mean @ mean + moments.population_covariance_trace
        expected = 1 - (mean @ true) ** 2 / (true @ true) / second
        assert rows.loc[label, "error"] == pytest.approx(expected)
        assert population_accuracy(moments) == pytest.approx(1 - expected)
    # GRPO has no bias within a context: its error there is the noise's share
    grpo = frame[frame["label"] == "GRPO"]
    noise = grpo["stability_cost"] / (grpo["stability_cost"] + grpo["mean_norm"] ** 2)
    np.testing.assert_allclose(grpo["error"], noise)


def test_error_is_one_for_an_estimate_that_is_always_zero_and_undefined_without_a_direction():
    probs = [[[0.2, 0.8], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]]
    world = World.tabular(probs, [[1.0, 0.0], [1.0, 0.0]])
    frame = tradeoff.plane(world, {"GRPO": GRPO()}, own=1, peers=0)
    assert frame["error"][0] == 1.0
    assert np.isnan(frame["error"][1])
    assert tradeoff.aggregate(frame)["error"].item() == 1.0


def test_accuracy_is_not_lost_to_cancellation_where_successes_are_rare():
    moments = exact.moments(rare_success(1e-12), GRPO(), own=8, peers=0)
    assert 0 < context_accuracy(moments)[0] < 1e-10
    assert population_accuracy(moments) == pytest.approx(context_accuracy(moments)[0])


def test_hopeless_contexts_are_left_out_of_the_gain_but_not_of_the_cost():
    probs = [[[0.2, 0.8], [0.0, 1.0]], [[0.5, 0.5], [0.5, 0.5]]]
    world = World.tabular(probs, [[1.0, 0.0], [1.0, 0.0]])
    frame = tradeoff.plane(world, {"SGT": SGT()}, own=4, peers=4)
    row = tradeoff.aggregate(frame).iloc[0]
    assert row["support_gain"] == frame["support_gain"][0]
    assert row["stability_cost"] == pytest.approx(frame["stability_cost"].mean())


def test_sweep_has_a_row_for_each_value_and_label():
    worlds = {p: rare_success(p) for p in (0.05, 1e-3)}
    frame = tradeoff.sweep(worlds, RULES, parameter="p", own=4, peers=4)
    assert frame["p"].tolist() == [0.05] * 5 + [1e-3] * 5
    sgt = frame[frame["label"] == "SGT"].set_index("p")["support_gain"]
    assert sgt[1e-3] > sgt[0.05]


def test_plane_figure_names_every_label_and_leaves_the_theme_alone():
    before = dict(mpl.rcParams)
    frame = tradeoff.plane(rare_success(1e-3), RULES, own=4, peers=4, controls=True)
    figure = plots.plane(frame, title="rare")
    axes = figure.axes[0]
    assert {text.get_text() for text in axes.texts} == set(frame["label"])
    assert axes.get_xscale() == "log"
    assert axes.get_title() == "rare"
    points = axes.collections[0].get_offsets()
    np.testing.assert_allclose(points, frame[["stability_cost", "support_gain"]])
    assert len({path.vertices.tobytes() for path in axes.collections[0].get_paths()}) == len(frame)
    assert dict(mpl.rcParams) == before


def test_plane_figure_says_what_it_cannot_show():
    frame = pd.DataFrame(
        {"label": ["a", "b"], "stability_cost": [0.0, 1.0], "support_gain": [0.0, 1.0]}
    )
    assert "a" in plots.plane(frame).get_supxlabel()
    with pytest.raises(ValueError, match="no row"):
        plots.plane(frame.iloc[:1])
    with pytest.raises(ValueError, match="lacks columns"):
        plots.plane(frame.drop(columns="support_gain"))


def test_curves_have_a_line_for_each_thing_told_apart():
    world = specialists(contexts_each=1)
    settings = {"steps": 3, "own": 4, "peers": 4, "replicas": 3}
    runs = {"GRPO": GRPO(), "SGT": SGT()}
    frame = pd.concat(
        [dynamics.run(world, probe, **settings).assign(rule=name) for name, probe in runs.items()]
    )
    by_rule = plots.curves(frame, by="rule")
    assert [axes.get_title() for axes in by_rule.axes] == ["policy 0", "policy 1"]
    by_policy = plots.curves(frame[frame["rule"] == "SGT"], y="overlap")
    (axes,) = by_policy.axes
    assert axes.get_ylabel() == "overlap"
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["0", "1"]
    with pytest.raises(ValueError, match="lacks columns"):
        plots.curves(frame, y="nothing")
