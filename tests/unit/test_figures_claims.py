"""What the paper's figures claim, held against the numbers they are drawn from."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from bandit import World, dynamics, exact
from bandit.policies import squared_scores
from bandit.probes import GRPO, PRP, SGT, XGRPO
from bandit.worlds import shared_representation
from paper_figures import (
    RULES,
    baseline,
    learning,
    noisy,
    overlap,
    rescue,
    residual,
    support_gain,
    truncation,
    variance_chi2,
)


@pytest.fixture(scope="module")
def gains() -> pd.DataFrame:
    success = tuple(np.geomspace(1e-6, 0.3, 9))
    return support_gain.compute(support_gain.Sweep(success, arms=100, own=4, peers=4))


@pytest.fixture(scope="module")
def moments() -> pd.DataFrame:
    return variance_chi2.compute(variance_chi2.Sweep(tilts=(0.0, 1.0, 3.0, 5.0), own=4, peers=4))


@pytest.fixture(scope="module")
def caps() -> pd.DataFrame:
    grid = tuple(np.geomspace(0.05, 500.0, 25))
    return truncation.compute(truncation.Sweep(grid, (1, 16, 256), own=4, peers=4))


@pytest.fixture(scope="module")
def rescues() -> pd.DataFrame:
    return rescue.compute(rescue.Sweep(tuple(np.geomspace(1e-3, 0.9, 12)), (2, 4, 8), peers=4))


@pytest.fixture(scope="module")
def residuals() -> pd.DataFrame:
    grid = tuple(np.linspace(0.0, 1.0, 4))
    values = {"mu": (-1.0, 0.0, 1.0), "sigma": grid, "drop": grid, "gate": grid}
    return residual.compute(residual.Sweep(values, own=4, peers=4))


def part(frame: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    for column, value in wanted.items():
        frame = frame[frame[column] == value]
    return frame


def drawn(figure, panel: int) -> dict[str, set]:
    """Points of the named lines of a panel."""
    lines, names = figure.axes[panel].get_legend_handles_labels()
    return {
        name: {tuple(map(float, xy)) for xy in line.get_xydata()}
        for name, line in zip(names, lines, strict=True)
    }


def points(frame: pd.DataFrame, x: str, y: str) -> set:
    return {tuple(map(float, xy)) for xy in frame[[x, y]].to_numpy()}


# support gain


@pytest.mark.parametrize(
    ("label", "slope"), [("XGRPO", 1.0), ("PRP", 1.0), ("PRP, no ratio", 0.0), ("SGT", 0.0)]
)
def test_gains_vanish_like_p_or_not_at_all(gains, label, slope):
    fitted = part(support_gain.slopes(gains), world=support_gain.SHARED, label=label)["slope"]
    assert fitted.item() == pytest.approx(slope, abs=0.01)


def test_grpo_gains_nothing_anywhere_and_has_no_slope(gains):
    assert (part(gains, label="GRPO")["support_gain"] == 0).all()
    assert part(support_gain.slopes(gains), label="GRPO")["slope"].isna().all()


def test_slopes_are_those_of_power_laws():
    p = np.geomspace(1e-4, 1.0, 5)
    frame = pd.DataFrame({"p": p, "support_gain": 3 * p**0.7})
    frame = frame.assign(world="w", label="a", fitted=[True, True, True, True, False])
    frame.loc[4, "support_gain"] = 1e6  # not among those fitted
    assert support_gain.slopes(frame)["slope"].item() == pytest.approx(0.7)
    frame.loc[2, "support_gain"] = -1.0
    assert np.isnan(support_gain.slopes(frame)["slope"].item())


def test_disjoint_successes_leave_little_gain_and_all_the_flow(gains):
    """theory, section 4: U weighs arms by pi/p, and may hide an arm that is opened."""
    rare = gains[(gains["p"] == gains["p"].min()) & (gains["label"] == "SGT")].set_index("world")
    shared, disjoint = rare.loc[support_gain.SHARED], rare.loc[support_gain.DISJOINT]
    assert disjoint["support_gain"] < 0.05 * shared["support_gain"]
    assert disjoint["open_flow"] == pytest.approx(shared["open_flow"], rel=0.1)


def test_negative_gains_are_drawn_hollow_and_zeros_in_the_strip(gains):
    assert (gains["support_gain"] < 0).any()
    figure = support_gain.plot(gains)
    for column, world in enumerate((support_gain.SHARED, support_gain.DISJOINT)):
        upper, strip = figure.axes[column], figure.axes[2 + column]
        hollow, solid = set(), set()
        for line in upper.lines:
            if line.get_linestyle() == "None":
                white = line.get_markerfacecolor() == "white"
                (hollow if white else solid).update(map(tuple, line.get_xydata()))
        rows = part(gains, world=world)
        below, above = rows[rows["support_gain"] < 0], rows[rows["support_gain"] > 0]
        assert hollow == points(below.assign(size=-below["support_gain"]), "p", "size")
        assert solid == points(above, "p", "support_gain")
        zeros = {tuple(xy) for line in strip.lines for xy in line.get_xydata()}
        assert zeros == points(rows[rows["support_gain"] == 0], "p", "support_gain")


def test_the_gains_caption_states_the_slopes_it_fitted(gains):
    steeper = gains.assign(support_gain=gains["support_gain"] * gains["p"] ** 0.5)
    assert "XGRPO 1.00, PRP 1.00" in support_gain.caption(gains)
    assert "XGRPO 1.50, PRP 1.50" in support_gain.caption(steeper)
    positive = gains[gains["world"] == support_gain.SHARED]
    both = pd.concat([positive, positive.assign(world=support_gain.DISJOINT)])
    assert "negative" in support_gain.caption(gains)
    assert "negative" not in support_gain.caption(both)


# second moments


def test_peers_second_moment_is_one_plus_chi2_where_outcomes_are_as_likely(moments):
    same = moments[(moments["q"] == moments["p"]) & (moments["label"] == "PRP")]
    assert same["chi2"].max() > 10
    np.testing.assert_allclose(same["peer_moment"], 1 + same["chi2"], rtol=1e-9)
    np.testing.assert_allclose(same["ess"] * (1 + same["chi2"]), 4, rtol=1e-9)


def test_only_the_uncapped_ratio_pays_without_bound(moments):
    same = moments[moments["q"] == moments["p"]].sort_values("chi2")
    costs = {label: rows["stability_cost"].to_numpy() for label, rows in same.groupby("label")}
    assert (np.diff(costs["PRP"]) > 0).all()
    assert costs["PRP"][-1] > 5 * costs["PRP"][0]
    assert costs["PRP, cap 4"].max() < 2 * costs["PRP"][0]
    np.testing.assert_allclose(costs["GRPO"], costs["GRPO"][0], rtol=1e-12)


def test_tilts_leave_success_probabilities_and_ratios_within_outcomes_alike():
    world = variance_chi2.tilted_pair(0.3, 0.6, 2.0)
    np.testing.assert_allclose(world.success_probability[:, 0], [0.3, 0.6])
    ratios = world.probs[1, 0] / world.probs[0, 0]
    for outcome in (world.success[0], ~world.success[0]):
        relative = np.unique((ratios[outcome] / ratios[outcome].max()).round(12))
        assert len(relative) == 4
        assert relative[0] == pytest.approx(np.exp(-2.0))


def test_moments_are_drawn_at_their_figures(moments):
    figure = variance_chi2.plot(moments)
    shifted = moments.assign(x=1 + moments["chi2"])
    lines = drawn(figure, 0)
    for q in (0.25, 0.75, 0.05):
        assert lines[f"q = {q:g}"] == points(part(shifted, q=q, label="PRP"), "x", "peer_moment")
    assert all(x == y for x, y in lines[r"$1+\chi^2$"])
    for label, seen in drawn(figure, 1).items():
        assert seen == points(part(shifted, q=0.25, label=label), "x", "stability_cost")


# truncation


def test_a_cap_trades_variance_for_bias(caps):
    one = part(caps, batch=1).sort_values("cap")
    assert (np.diff(one["bias"]) <= 1e-12).all()
    assert one["bias"].iloc[0] > 0.05
    assert one["bias"].iloc[-1] == pytest.approx(0.0, abs=1e-20)
    assert one["variance"].iloc[-1] > 5 * one["variance"].min()


def test_bias_stays_within_the_bound_of_fact_7(caps):
    """Centred rewards; |A| <= 1, so the cap loses at most M/(G+M) E_pi[(1 - cap/w)+ |s|]."""
    sweep = truncation.SWEEP
    world = variance_chi2.tilted_pair(sweep.success, sweep.peer_success, sweep.tilt)
    probs, peer = world.probs[:, 0]
    size = np.sqrt(squared_scores(probs))
    for cap in (0.3, 3.0, 30.0):
        lost = np.maximum(1 - cap * peer / probs, 0.0)
        bound = 0.5 * (probs * lost * size).sum()
        sides = [
            exact.moments(world, PRP(scale="none", cap=c), own=4, peers=4).mean[0]
            for c in (cap, np.inf)
        ]
        assert 0 < np.linalg.norm(sides[0] - sides[1]) <= bound


def test_the_more_is_averaged_the_looser_the_best_cap(caps):
    best = caps[caps["best"]].groupby("batch")["cap"].first()
    assert (np.diff(best) > 0).all()
    free = caps[caps["cap"] == caps["cap"].max()].set_index("batch")["error"]
    least = caps[caps["best"]].groupby("batch")["error"].first()
    assert (np.diff(least / free) > 0).all()


def test_caps_are_drawn_at_their_errors(caps):
    figure = truncation.plot(caps)
    names = {1: "1 group", 16: "16 groups", 256: "256 groups"}
    for batch, name in names.items():
        assert drawn(figure, 1)[name] == points(part(caps, batch=batch), "cap", "error")
    rings = [line for line in figure.axes[1].lines if line.get_linestyle() == "None"]
    ringed = {tuple(xy) for line in rings for xy in line.get_xydata()}
    assert ringed == points(caps[caps["best"]], "cap", "error")


# baseline


@pytest.fixture(scope="module")
def baselines() -> pd.DataFrame:
    grid = tuple(np.linspace(0.0, 1.0, 6))
    return baseline.compute(baseline.Sweep(peer_success=grid, own=4, peers=64))


def test_cost_is_a_parabola_in_the_peers_success_around_the_best_baseline(baselines):
    curvature, minimum, misfit = baseline.parabola(baselines)
    assert curvature > 0
    assert misfit < 1e-12
    # a mean of M rollouts is noisy: its least cost is off by 1/M
    assert minimum == pytest.approx(baselines["b_opt"].iloc[0], abs=1 / 64)


def test_the_best_constant_baseline_is_where_the_variance_is_least():
    probs = np.array([0.6, 0.1, 0.2, 0.1])
    world = World.tabular([[probs]], [[1.0, 1.0, 0.0, 0.0]])
    rewards, scores = world.rewards[0], np.eye(4) - probs

    def spread(b: float) -> float:
        terms = (rewards - b)[:, None] * scores
        return float(probs @ np.square(terms).sum(-1) - np.square(probs @ terms).sum())

    best = baseline.best_baseline(world)
    assert best != pytest.approx(0.7, abs=0.05)  # not the mean reward
    assert spread(best) < min(spread(best - 0.01), spread(best + 0.01), spread(0.7))


def test_better_peers_make_a_shared_baseline_noisier_than_grpo(baselines):
    for scale, column in (("none", "stability_cost"), ("std", "noise")):
        rows = part(baselines, scale=scale, q=1.0).set_index("label")[column]
        assert rows["XGRPO, share 1"] > rows["XGRPO, share 0.25"] > rows["GRPO"]
        alone = part(baselines, scale=scale, label="GRPO")[column]
        np.testing.assert_allclose(alone, alone.iloc[0], rtol=1e-9)


def test_the_baselines_caption_says_where_pooling_gets_worse(baselines):
    assert "above GRPO's from q = " in baseline.caption(baselines)
    calm = baselines.assign(noise=baselines["noise"].where(baselines["label"] == "GRPO", 0.0))
    assert "nowhere above GRPO's" in baseline.caption(calm)


def test_baselines_are_drawn_at_their_figures(baselines):
    figure = baseline.plot(baselines)
    for panel, (scale, column) in enumerate((("none", "stability_cost"), ("std", "noise"))):
        for label, seen in drawn(figure, panel).items():
            assert seen == points(part(baselines, scale=scale, label=label), "q", column)


# rescue


def test_a_rescue_fades_as_the_receiver_learns_and_sooner_in_larger_groups(rescues):
    table = rescues.pivot(index="p", columns="own", values="rescue_probability")
    assert (table.diff().dropna() < 0).all(axis=None)
    assert (table.diff(axis=1).dropna(axis=1) < 0).all(axis=None)
    assert rescues["flow"].max() <= 0.1
    assert table.iloc[-1].max() < 0.02


def test_what_a_rescue_costs_is_its_squared_step(rescues):
    """Section 2: E|g|^2 rises by lambda^2 rho E|s|^2, with |s|^2 at most 2."""
    ratio = rescues["extra_moment"] / (0.01 * rescues["rescue_probability"])
    assert (ratio > 0).all()
    assert (ratio <= 2).all()
    for _, rows in rescues.groupby("own"):
        assert (np.diff(rows.sort_values("p")["extra_moment"]) < 0).all()


def test_the_rescues_caption_tells_of_negative_gains_only_if_there_are_any(rescues):
    assert (rescues["support_gain"] < 0).any()
    assert "U is negative" in rescue.caption(rescues)
    assert "negative" not in rescue.caption(rescues[rescues["support_gain"] >= 0])


def test_the_rescues_caption_says_exactly_where_half_of_it_is_left():
    sweep = rescue.Sweep((0.01, 0.5), (4, 8, 16), peers=4)
    words = rescue.caption(rescue.compute(sweep))
    assert "p = 0.159 (G = 4), p = 0.083 (G = 8), p = 0.042 (G = 16)" in words
    for own in sweep.own:
        none, half = rescue.compute(rescue.Sweep((0.0, 1 - 0.5 ** (1 / own)), (own,), peers=4))[
            "rescue_probability"
        ]
        assert half == pytest.approx(none / 2, rel=1e-12)


def test_rescues_are_drawn_at_their_figures(rescues):
    figure = rescue.plot(rescues)
    for panel, column in enumerate(("flow", "support_gain", "extra_moment")):
        for own in (2, 4, 8):
            seen = drawn(figure, panel)[f"G = {own}"]
            assert seen == points(part(rescues, own=own), "p", column)


# residual


def test_a_common_error_of_the_ratio_bends_no_direction(residuals):
    weighted = residuals[
        (residuals["label"] == "PRP") & residuals["parameter"].isin(["mu", "sigma"])
    ]
    np.testing.assert_allclose(weighted["bias_cosine"], 1.0, atol=1e-12)


def test_errors_and_losses_of_peers_rollouts_cost_effective_samples(residuals):
    for parameter in ("sigma", "drop", "gate"):
        ess = part(residuals, label="PRP", parameter=parameter).sort_values("value")["ess"]
        assert (np.diff(ess) < 0).all()
    wide = part(residuals, label="PRP", parameter="sigma").set_index("value")["ess"]
    assert wide[1.0] == pytest.approx(wide[0.0] * np.exp(-1.0))  # E w^2 grows by e^(sigma^2)
    gated = part(residuals, label="PRP", parameter="gate").set_index("value")["ess"]
    assert gated[1.0] == 0


def test_rules_without_a_ratio_feel_nothing_of_its_error(residuals):
    error = residuals[residuals["parameter"].isin(["mu", "sigma", "gate"])]
    numb = error[error["label"].isin(["SGT", "XGRPO", "PRP, no ratio"])]
    assert (numb["shift"] == 0).all()
    assert (numb["relative_cost"] == 1).all()
    lost = part(residuals, parameter="drop", value=1.0).set_index("label")["shift"]
    assert lost["XGRPO"] == 0
    assert lost["SGT"] > 0.1


def test_residuals_are_drawn_at_their_figures(residuals):
    figure = residual.plot(residuals)
    panels = iter(range(12))
    for column in residual.ROWS:
        for parameter in residual.AXES:
            for label, seen in drawn(figure, next(panels)).items():
                rows = part(residuals, parameter=parameter, label=label)
                known = rows.dropna(subset=[column])
                assert {xy for xy in seen if not np.isnan(xy[1])} == points(known, "value", column)


# learning


@pytest.fixture(scope="module")
def curves() -> pd.DataFrame:
    rules = {label: learning.SWEEP.rules[label] for label in ("GRPO", "PRP", "PRP, cap 2", "SGT")}
    return learning.compute(dataclasses.replace(learning.SWEEP, worlds=2, steps=25, rules=rules))


def test_ratio_weights_collapse_and_a_cap_prevents_it(curves):
    share = {label: learning.outcome(curves, "collapsed", label) for label in ("PRP", "PRP, cap 2")}
    mean, low, high = share["PRP"]
    assert 0.05 < low < mean < high
    assert share["PRP, cap 2"][2] < low
    assert "PRP collapses most often" in learning.caption(curves)
    calm = curves.assign(collapsed=False)
    assert "No run of any rule collapses" in learning.caption(calm)


def test_sgt_learns_the_peers_skill_and_keeps_most_of_its_own(curves):
    learned = {label: learning.outcome(curves, "rescue_value", label) for label in ("GRPO", "SGT")}
    assert learned["SGT"][1] > learned["GRPO"][2] + 0.2
    own = {label: learning.outcome(curves, "own_value", label) for label in ("PRP", "SGT")}
    assert own["SGT"][1] > own["PRP"][2]


def test_own_and_rescued_value_make_up_the_value():
    world = shared_representation(features=learning.SWEEP.features)
    start = dynamics.run(world, GRPO(), steps=0, own=2, peers=2)
    frame = learning.compute(learning.Sweep(1, 1, steps=0, rules={"GRPO": GRPO()}))
    np.testing.assert_array_equal(frame["value"], start["value"])
    p = world.success_probability
    np.testing.assert_allclose(frame["own_value"], [p[0, :3].mean(), p[1, 3:].mean()])
    np.testing.assert_allclose(frame["rescue_value"], [p[0, 3:].mean(), p[1, :3].mean()])


def test_runs_of_all_worlds_count_as_replicas(curves):
    assert curves["replica"].nunique() == 24
    sizes = curves.groupby(["label", "step", "policy"])["replica"].nunique()
    assert (sizes == 24).all()


# overlap


@pytest.fixture(scope="module")
def skills() -> pd.DataFrame:
    rules = {label: RULES[label] for label in ("GRPO", "PRP, no ratio", "SGT")}
    return overlap.compute(overlap.Sweep(steps=60, replicas=6, rules=rules))


def test_sharing_outcomes_makes_skills_alike_and_answers_few(skills):
    last = skills[skills["step"] == 60].groupby("label")[["overlap", "value", "entropy"]].mean()
    assert (skills.loc[skills["step"] == 0, "overlap"] == 0).all()
    for label in ("PRP, no ratio", "SGT"):
        assert last.loc[label, "overlap"] > 0.9 > 0.5 > last.loc["GRPO", "overlap"]
        assert last.loc[label, "entropy"] < 0.5 * last.loc["GRPO", "entropy"]
        assert last.loc[label, "value"] > last.loc["GRPO", "value"]


def test_curves_of_skills_are_means_over_policies_and_runs(skills):
    figure = overlap.plot(skills)
    for panel, column in enumerate(("value", "overlap", "entropy")):
        for label, seen in drawn(figure, panel).items():
            means = part(skills, label=label).groupby("step")[column].mean()
            assert dict(seen) == pytest.approx(means.to_dict())


# noisy


@pytest.fixture(scope="module")
def verdicts() -> pd.DataFrame:
    rules = {label: noisy.SWEEP.rules[label] for label in ("GRPO", "SGT")}
    return noisy.compute(noisy.Sweep((0.0, 0.03, 0.4), steps=40, replicas=6, rules=rules))


def test_wrong_verdicts_make_rescues_wrong_and_rare(verdicts):
    rows = part(verdicts, part="rescue")
    for _, family in rows.groupby("q"):
        family = family.sort_values("false_positive")
        assert family["true_share"].iloc[0] == 1
        for column in ("true_share", "flow", "support_gain"):
            assert (np.diff(family[column]) < 0).all()
    for rate, same in rows[rows["false_positive"] > 0].groupby("false_positive"):
        q = same["q"]  # a success that is called one is true with probability q / (q + (1-q) f)
        np.testing.assert_allclose(same["true_share"], q / (q + (1 - q) * rate))
    most = part(rows, q=0.02, false_positive=0.4)
    assert most["true_share"].item() < 0.1


def test_sgts_flow_is_the_true_share_of_its_rescues(verdicts):
    """lambda rho (mu+ - pi) on true successes; p is small enough for nothing else to matter."""
    rows = part(verdicts, part="rescue")
    expected = 0.1 * rows["rescue_probability"] * (rows["true_share"] - rows["p"])
    np.testing.assert_allclose(rows["flow"], expected, rtol=0.02)


def test_sgt_loses_its_lead_when_wrong_answers_close_the_gate(verdicts):
    rows = part(verdicts, part="learning")
    ends = {label: noisy.final_values(rows, label) for label in ("GRPO", "SGT")}
    assert ends["SGT"].loc[0.0, "low"] > ends["GRPO"].loc[0.0, "high"] + 0.1
    assert ends["SGT"].loc[0.4, "low"] < ends["GRPO"].loc[0.4, "high"] + 0.02


def test_the_learning_world_has_two_skills_and_some_that_nobody_has():
    world = noisy.two_skills_and_neither(weak=0.01, hard=0.05)
    np.testing.assert_allclose(
        world.success_probability,
        [[0.8] * 2 + [0.01] * 2 + [0.05] * 2, [0.01] * 2 + [0.8] * 2 + [0.05] * 2],
    )
    wrong = world.probs[:, 4:].argmax(-1)
    assert (wrong[0] != wrong[1]).all()
    assert not world.success[4:][np.arange(2), wrong[0]].any()


def test_the_published_settings_are_the_default_ones():
    expected = [GRPO(), XGRPO(), PRP(), PRP(ratio="none"), SGT(weight=0.1)]
    assert list(RULES.values()) == expected
    with pytest.raises(TypeError):
        RULES["GRPO"] = SGT()
