"""Figures from frames: looks that can be told apart, ticks that can be read, points in place."""

import itertools

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from bandit import plots
from bandit.plots import MAX_LABELS, NAMED, looks

RANGES = [
    (0.031, 0.034),
    (0.02, 0.05),
    (2.1, 10.9),
    (0.0102, 0.18),
    (1e-3, 9e-2),
    (0.5, 700.0),
    (1e-6, 1.0),
    (1e-9, 1e6),
    (3.0, 3.1),
]


def many(n: int) -> pd.DataFrame:
    """`n` settings of five kinds on a grid of costs and gains, none alike."""
    rng = np.random.default_rng(0)
    cost, gain = np.sort(rng.uniform(0.01, 1.0, n)), rng.uniform(0.0, 1.0, n)
    frame = pd.DataFrame({"stability_cost": cost, "support_gain": gain})
    frame["label"] = [f"setting {i}" for i in range(n)]
    frame["kind"] = [f"kind {i % 5}" for i in range(n)]
    frame["on_frontier"] = frame["support_gain"] > frame["support_gain"].cummax().shift(
        fill_value=-1
    )
    return frame


def line_style(look) -> tuple:
    return look.marker, look.dash


def test_no_two_labels_look_the_same():
    given = list(looks(range(MAX_LABELS)).values())
    for pair in (lambda k: (k.colour, k.marker), lambda k: (k.colour, k.dash), line_style):
        assert len({pair(look) for look in given}) == MAX_LABELS


def test_the_first_labels_differ_in_every_way():
    given = list(looks(range(8)).values())
    for part in ("colour", "marker", "dash"):
        assert len({getattr(look, part) for look in given}) == 8
    greys = sorted(float(np.dot(to_rgb(look.colour), [0.299, 0.587, 0.114])) for look in given)
    assert greys[0] < 0.05  # black is among them
    assert greys[-1] < 0.75  # none vanishes on white


def test_a_label_keeps_its_look_when_others_follow():
    few = looks("abc")
    more = looks("abcdefghijklmnop")
    assert all(few[label] == more[label] for label in few)


def test_too_many_labels_are_refused_with_the_way_out():
    with pytest.raises(ValueError, match=f"{MAX_LABELS + 1} labels.*at most {MAX_LABELS}.*group"):
        looks(range(MAX_LABELS + 1))
    with pytest.raises(ValueError, match="each label once"):
        looks("aba")


def test_a_plane_tells_more_than_eight_labels_apart():
    frame = many(MAX_LABELS)
    axes = plots.plane(frame).axes[0]
    (points,) = axes.collections
    seen = zip(points.get_facecolors(), points.get_paths(), strict=True)
    looks_seen = {(tuple(colour), path.vertices.tobytes()) for colour, path in seen}
    assert len(looks_seen) == MAX_LABELS
    assert {text.get_text() for text in axes.texts} == set(frame["label"])


@pytest.mark.parametrize("count", [3, 12])
def test_names_of_points_do_not_overlap(count):
    figure = plots.plane(many(count))
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text, renderer) for text in figure.axes[0].texts]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_log_ticks_are_few_readable_and_apart(low, high):
    with mpl.rc_context(rc=plots.STYLE):
        figure = Figure(figsize=(2.2, 2.0), layout="constrained")
        axes = figure.subplots()
        axes.loglog([low, high], [low, high])
        for axis in (axes.xaxis, axes.yaxis):
            plots.log_ticks(axis)
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw_without_rendering()
        for axis in (axes.xaxis, axes.yaxis):
            shown = [label for label in axis.get_ticklabels(which="both") if label.get_text()]
            bounds = sorted(axis.get_view_interval())
            at = [label for label in shown if bounds[0] <= place(label, axis) <= bounds[1]]
            assert 2 <= len(at) <= 7
            boxes = [label.get_window_extent(renderer) for label in at]
            assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def place(label, axis) -> float:
    return label.get_position()[0 if axis.axis_name == "x" else 1]


def test_stairs_of_the_frontier_join_its_settings_in_order_of_cost():
    frame = many(40)
    axes = plots.frontier(frame.sample(frac=1.0, random_state=1)).axes[0]
    best = frame[frame["on_frontier"]].sort_values("stability_cost")
    stairs = next(line for line in axes.lines if line.get_drawstyle() == "steps-post")
    np.testing.assert_array_equal(stairs.get_xdata(), best["stability_cost"])
    np.testing.assert_array_equal(stairs.get_ydata(), best["support_gain"])


def test_every_setting_is_on_the_frontiers_plane_and_a_few_are_named():
    frame = many(60)
    figure = plots.frontier(frame)
    (axes,) = figure.axes
    points = [line for line in axes.lines if line.get_linestyle() == "None"]
    drawn = {xy for line in points for xy in zip(*line.get_data(), strict=True)}
    columns = ["stability_cost", "support_gain"]
    assert drawn == set(frame[columns].itertuples(index=False, name=None))
    best = frame[frame["on_frontier"]].sort_values("stability_cost")["label"].tolist()
    named = [text.get_text() for text in axes.texts]
    assert set(named) <= set(best)
    assert {best[0], best[-1]} <= set(named)
    assert len(named) <= NAMED
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(
        frame["kind"].unique()
    )


def test_a_frontier_is_drawn_by_the_column_asked_for():
    frame = many(6).drop(columns="kind")
    by_label = plots.frontier(frame, title="six")
    assert len(by_label.legends[0].get_texts()) == 6
    assert by_label.axes[0].get_title() == "six"
    frame["group"] = size = np.where(frame["stability_cost"] > 0.5, "dear", "cheap")
    legend = plots.frontier(frame, by="group").legends[0]
    assert {text.get_text() for text in legend.get_texts()} == set(size)
    with pytest.raises(ValueError, match="on_frontier"):
        plots.frontier(frame.drop(columns="on_frontier"))
    with pytest.raises(ValueError, match="no row"):
        plots.frontier(frame.assign(stability_cost=0.0))


def test_a_frontier_says_what_has_no_place_on_it():
    frame = many(10)
    frame.loc[frame["kind"] == "kind 2", "support_gain"] = np.nan
    assert plots.frontier(frame).get_supxlabel() == "not on the plane: kind 2"


def runs(values: np.ndarray) -> pd.DataFrame:
    """Frame of one policy and rule from values (steps, replicas)."""
    steps, replicas = np.indices(values.shape)
    columns = {"step": steps, "replica": replicas, "value": values}
    return pd.DataFrame({k: v.ravel() for k, v in columns.items()}).assign(policy=0, rule="a")


def test_lines_are_means_over_runs_within_their_band():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5, 30)).cumsum(0)
    (axes,) = plots.curves(runs(values)).axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), values.mean(1))
    edges = axes.collections[0].get_paths()[0].vertices
    for step, mean in enumerate(values.mean(1)):
        low, high = np.sort(edges[edges[:, 0] == step][:, 1])[[0, -1]]
        assert low < mean < high
        error = values[step].std(ddof=1) / np.sqrt(30)
        assert high - low == pytest.approx(2 * 1.96 * error, rel=0.25)


def test_runs_that_do_not_differ_have_no_band_and_unknown_values_leave_gaps():
    values = np.tile(np.arange(4.0)[:, None], 6)
    values[0] = np.nan
    (axes,) = plots.curves(runs(values)).axes
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [1, 2, 3])
    edges = axes.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(edges[:, 1], edges[:, 0])


def test_figures_leave_the_theme_alone():
    before = dict(mpl.rcParams)
    plots.frontier(many(5))
    plots.curves(runs(np.ones((2, 2))))
    assert dict(mpl.rcParams) == before
