"""The paper's figures: computed, drawn, saved with their numbers."""

import importlib
import math
import pkgutil

import pandas as pd
import pytest
from matplotlib.figure import Figure

import paper_figures
from bandit.tradeoff import CONTROLS
from paper_figures import plane
from paper_figures.__main__ import FIGURES, main
from paper_figures.saving import save

KINDS = ("pdf", "svg", "png", "csv", "txt")
REDUCED = plane.Sweep(success=(0.1, 0.01), own=3, peers=3)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return plane.compute(REDUCED)


def test_the_published_sweep_is_the_table_of_the_theory():
    rows = plane.compute(plane.Sweep(success=(1e-3,))).set_index("label")
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
    expected = {(p, label) for p in REDUCED.success for label in (*REDUCED.rules, *CONTROLS)}
    assert set(zip(frame["p"], frame["label"], strict=True)) == expected
    assert len(frame) == len(expected)


def test_points_are_drawn_at_their_figures(frame):
    figure = plane.plot(frame)
    drawn = {
        (p, points.get_label(), *map(float, points.get_offsets()[0]))
        for p, axes in zip(REDUCED.success, figure.axes, strict=True)
        for points in axes.collections
    }
    columns = ["p", "label", "stability_cost", "support_gain"]
    assert drawn == set(frame[columns].itertuples(index=False, name=None))


def test_the_caption_states_the_frames_own_numbers(frame):
    doubled = frame.assign(support_gain=2 * frame["support_gain"])
    rare = frame["p"].min()
    row = frame[(frame["p"] == rare) & (frame["label"] == "SGT")]
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
