"""The paper's figures: computed, drawn, saved with their numbers."""

import importlib
import math
import pkgutil
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

import paper_figures
from bandit import tradeoff
from bandit.probes import GRPO
from bandit.tradeoff import CONTROLS
from bandit.worlds import rare_success
from paper_figures import break_even, plane
from paper_figures.__main__ import FIGURES, main
from paper_figures.saving import save

KINDS = ("pdf", "svg", "png", "csv", "txt")
REDUCED = plane.Sweep(
    success=(0.1, 0.01), own=3, peers=3, settings=tradeoff.settings(weights=(0.1, 0.3))
)
SMALL_MAP = break_even.Sweep(success=(0.01, 0.2), peer_success=(0.02, 0.5), own=3, peers=3, most=12)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return plane.compute(REDUCED)


@pytest.fixture(scope="module")
def small_map() -> pd.DataFrame:
    return break_even.compute(SMALL_MAP)


def test_the_published_sweep_is_the_table_of_the_theory():
    sweep = plane.Sweep(success=(1e-3,), settings={"GRPO": GRPO()})
    frame = plane.compute(sweep)
    rows = frame[frame["role"] == "rule"].set_index("label")
    published = {  # docs/theory.md, section 4
        "GRPO": (0.0, 9.8e-4),
        "XGRPO": (5.5e-4, 3.5e-2),
        "PRP": (1.3e-3, 2.3e-2),
        "PRP, no ratio": (1.7e-1, 2.9e-2),
        "SGT": (4.2e-2, 4.0e-3),
    }
    for label, (gain, cost) in published.items():
        assert rows.loc[label, "support_gain"] == pytest.approx(gain, rel=0.03), label
        assert rows.loc[label, "stability_cost"] == pytest.approx(cost, rel=0.03), label


def test_every_rule_and_control_has_a_point_at_every_p(frame):
    points = frame[frame["role"] != "frontier"]
    expected = {(p, label) for p in REDUCED.success for label in (*REDUCED.rules, *CONTROLS)}
    assert set(zip(points["p"], points["label"], strict=True)) == expected
    assert len(points) == len(expected)
    assert set(points.loc[points["role"] == "control", "label"]) == set(CONTROLS)


def test_points_are_drawn_at_their_figures(frame):
    figure = plane.plot(frame)
    drawn = {
        (p, points.get_label(), *map(float, points.get_offsets()[0]))
        for p, axes in zip(REDUCED.success, figure.axes, strict=True)
        for points in axes.collections
    }
    columns = ["p", "label", "stability_cost", "support_gain"]
    points = frame.loc[frame["role"] != "frontier", columns]
    assert drawn == set(points.itertuples(index=False, name=None))


def test_the_stairs_of_each_panel_are_the_frontier_of_all_settings(frame):
    for p, axes in zip(REDUCED.success, plane.plot(frame).axes, strict=True):
        every = tradeoff.frontier(rare_success(p), REDUCED.settings, own=3, peers=3)
        best = every[every["on_frontier"]].sort_values("stability_cost")
        stairs = next(line for line in axes.lines if line.get_drawstyle() == "steps-post")
        np.testing.assert_array_equal(stairs.get_xdata(), best["stability_cost"])
        np.testing.assert_array_equal(stairs.get_ydata(), best["support_gain"])
        assert (np.diff(stairs.get_ydata()) >= 0).all()


def test_the_caption_names_the_rules_that_no_setting_beats(frame):
    beaten = frame.assign(
        stability_cost=frame["stability_cost"].where(frame["role"] != "rule", 1e9)
    )
    assert "none at p = 0.01" in plane.caption(beaten)
    assert "none at" not in plane.caption(frame)


def test_cells_of_the_map_hold_the_frames_numbers(small_map):
    figure = break_even.plot(small_map)
    panels = iter(figure.axes)
    for column in break_even.ROWS:
        for label in SMALL_MAP.rules:
            axes = next(panels)
            cells = small_map[small_map["label"] == label].sort_values(["q", "p"])
            written = sorted(axes.texts, key=lambda text: text.get_position()[::-1])
            for text, value in zip(written, cells[column], strict=True):
                if value == math.inf:
                    assert text.get_text() == f">{SMALL_MAP.most}"
                else:
                    assert float(text.get_text()) == pytest.approx(value, abs=0.05, rel=0.05)
            bold = [text.get_fontweight() == "bold" for text in written]
            assert bold == (cells[column] > SMALL_MAP.peers).tolist()
    corner = figure.axes[-len(SMALL_MAP.rules)]
    assert [t.get_text() for t in corner.get_xticklabels()] == ["0.01", "0.2"]
    assert [t.get_text() for t in corner.get_yticklabels()] == ["0.02", "0.5"]


def test_the_line_encloses_the_cells_above_m(small_map):
    inside = small_map.assign(extra_for_error=0.0, extra_for_gain=0.0)
    at = (inside["p"] == 0.01) & (inside["q"] == 0.5)
    inside.loc[at, "extra_for_error"] = 4.0
    first, *_, last = break_even.plot(inside).axes
    (line,) = [c for c in first.collections if isinstance(c, LineCollection)]
    edges = {frozenset(map(tuple, segment.tolist())) for segment in line.get_segments()}
    corners = [(0, 1), (1, 1), (1, 2), (0, 2)]
    assert edges == {frozenset(pair) for pair in pairwise([*corners, corners[0]])}
    (line,) = [c for c in last.collections if isinstance(c, LineCollection)]
    assert line.get_segments() == []


def test_the_maps_caption_counts_the_cells_above_m(small_map):
    above = (small_map["label"] == "SGT") & (small_map["extra_for_error"] > SMALL_MAP.peers)
    text = break_even.caption(small_map)
    assert f"SGT {above.sum()}" in text.split("for the gain in")[0]
    nothing = break_even.caption(small_map.assign(extra_for_error=0.0))
    assert "SGT 0" in nothing.split("for the gain in")[0]
    assert f"Of {len(SMALL_MAP.success) * len(SMALL_MAP.peer_success)} regimes" in text


def test_the_maps_world_is_the_theorys_at_q_one_half():
    for name in ("probs", "rewards"):
        np.testing.assert_allclose(
            getattr(break_even.world(1e-3, 0.5), name), getattr(rare_success(1e-3), name)
        )


def test_the_caption_states_the_frames_own_numbers(frame):
    doubled = frame.assign(support_gain=2 * frame["support_gain"])
    rare = frame["p"].min()
    row = frame[(frame["p"] == rare) & (frame["label"] == "SGT") & (frame["role"] == "rule")]
    gain = row["support_gain"].item()
    assert f"SGT {gain:.2g} (cost" in plane.caption(frame)
    assert f"SGT {2 * gain:.2g} (cost" in plane.caption(doubled)


def test_a_figure_asked_for_by_name_is_written_with_its_numbers(
    tmp_path, monkeypatch, frame, capsys
):
    monkeypatch.setattr(plane, "compute", lambda: frame)
    main(["plane", "-o", str(tmp_path)])
    assert capsys.readouterr().out.strip() == str(tmp_path / "plane.png")
    assert {path.name for path in tmp_path.iterdir()} == {f"plane.{kind}" for kind in KINDS}
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "plane.csv"), frame)
    assert (tmp_path / "plane.txt").read_text() == plane.caption(frame) + "\n"


def test_equal_figures_are_equal_files(tmp_path, frame):
    for folder in ("once", "again"):
        figure = Figure(figsize=(1, 1))
        figure.subplots().plot(frame["stability_cost"], frame["support_gain"], "o")
        save("dots", figure, frame, "Dots.", folder=tmp_path / folder)
    for kind in KINDS:
        once, again = (tmp_path / folder / f"dots.{kind}" for folder in ("once", "again"))
        assert once.read_bytes() == again.read_bytes(), kind


def test_an_unknown_figure_is_refused_with_the_names_there_are(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["plain"])
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert "plain" in message
    assert all(name in message for name in FIGURES)


def test_every_figure_module_is_registered():
    names = {module.name for module in pkgutil.iter_modules(paper_figures.__path__)}
    assert names - {"__main__", "saving"} == set(FIGURES)
    for name, module in FIGURES.items():
        assert module is importlib.import_module(f"paper_figures.{name}")


def test_no_gain_is_hidden_off_the_axes(frame):
    gains = frame["support_gain"]
    for axes in plane.plot(frame).axes:
        low, high = axes.get_ylim()
        assert low <= gains.min()
        assert gains.max() <= high
        assert math.isfinite(high)
