"""What every figure of the paper keeps to, whatever it shows."""

import dataclasses
import inspect
import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

import paper_figures
from paper_figures import (
    RULES,
    baseline,
    break_even,
    learning,
    length,
    noisy,
    overlap,
    plane,
    rescue,
    residual,
    support_gain,
    truncation,
    variance_chi2,
)
from paper_figures.__main__ import FIGURES, gallery, main
from paper_figures.saving import FORMATS, save

PARTS = {"mu": (-1.0, 0.0, 1.0), "sigma": (0.0, 1.0), "drop": (0.0, 0.5, 1.0), "gate": (0.0, 1.0)}
REDUCED = {
    "baseline": baseline.Sweep(peer_success=(0.0, 0.2, 0.5, 1.0), own=3, peers=4),
    "break_even": break_even.Sweep((0.01, 0.2), (0.02, 0.5), own=4, peers=4, most=16),
    "learning": learning.Sweep(worlds=1, replicas=5, contexts=4, steps=10),
    "length": length.Sweep(lengths=(1, 4)),
    "noisy": noisy.Sweep(false_positive=(0.0, 0.05, 0.2), steps=10, replicas=5),
    "overlap": overlap.Sweep(steps=20, replicas=5),
    "plane": plane.Sweep((0.1, 0.01, 0.001), own=3, peers=3, settings=RULES),
    "rescue": rescue.Sweep(success=tuple(np.geomspace(1e-3, 0.9, 9)), own=(2, 4), peers=4),
    "residual": residual.Sweep(values=PARTS, own=3, peers=3),
    "support_gain": support_gain.Sweep(tuple(np.geomspace(1e-6, 0.3, 9)), arms=50, own=4, peers=4),
    "truncation": truncation.Sweep(tuple(np.geomspace(0.1, 300.0, 9)), (1, 256), own=4, peers=4),
    "variance_chi2": variance_chi2.Sweep(tilts=(0.0, 2.0, 4.0), own=4, peers=4),
}
SVG = "{http://www.w3.org/2000/svg}"

every_figure = pytest.mark.parametrize("name", sorted(REDUCED))


@cache
def frame_of(name: str) -> pd.DataFrame:
    return FIGURES[name].compute(REDUCED[name])


@cache
def figure_of(name: str) -> Figure:
    figure = FIGURES[name].plot(frame_of(name))
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # what is laid out stays so, and is saved faster
    return figure


def shown(texts: list[Text]) -> list:
    """Extents of the texts that are seen, in pixels."""
    seen = [text for text in texts if text.get_visible() and text.get_text().strip()]
    return [Text.get_window_extent(text) for text in seen]


def inside(axes, axis) -> list[Text]:
    """Tick labels within the limits of an axis; matplotlib keeps some that it does not draw."""
    low, high = sorted(axis.get_view_interval())
    margin = 1e-9 * (high - low)
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    labels = [(tick.get_loc(), tick.label1) for tick in ticks if tick.label1.get_visible()]
    return [label for at, label in labels if low - margin <= at <= high + margin]


def colliding(boxes: list) -> Iterator[tuple]:
    # a box is as high as its font, a pixel of which is air
    shrunk = [box.padded(-1.0) for box in boxes]
    return (pair for pair in itertools.combinations(shrunk, 2) if pair[0].overlaps(pair[1]))


def test_every_figure_has_a_reduced_sweep_here():
    assert set(REDUCED) == set(FIGURES)


@every_figure
def test_a_figure_is_a_sweep_a_frame_a_picture_and_a_caption(name):
    module = FIGURES[name]
    assert type(module.SWEEP) is module.Sweep
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(module.SWEEP, dataclasses.fields(module.Sweep)[0].name, None)
    assert inspect.signature(module.compute).parameters["sweep"].default is module.SWEEP
    assert module.__doc__.rstrip().splitlines()[-1].startswith("Source: docs/theory.md, section")


@every_figure
def test_frames_are_tidy(name):
    frame = frame_of(name)
    assert frame.columns.is_unique
    assert all(isinstance(column, str) for column in frame.columns)
    assert list(frame.index) == list(range(len(frame)))
    assert not frame.duplicated().any()


@every_figure
def test_a_sweep_gives_the_same_frame_again(name):
    pd.testing.assert_frame_equal(FIGURES[name].compute(REDUCED[name]), frame_of(name))


@every_figure
def test_a_caption_is_made_of_numbers_of_the_frame(name):
    frame = frame_of(name)
    text = FIGURES[name].caption(frame)
    assert not re.search(r"\b(nan|None|inf)\b", text)
    assert text.endswith(".")
    assert len(text) < 1600
    figures = frame.select_dtypes("float").columns
    moved = frame.assign(**{column: 1.37 * frame[column] for column in figures})
    assert FIGURES[name].caption(moved) != text


@every_figure
def test_a_figure_leaves_data_and_theme_alone(name):
    frame, before = frame_of(name), dict(mpl.rcParams)
    kept = frame.copy(deep=True)
    FIGURES[name].plot(frame)
    FIGURES[name].caption(frame)
    assert dict(mpl.rcParams) == before
    pd.testing.assert_frame_equal(frame, kept)


@every_figure
def test_tick_labels_do_not_collide(name):
    for axes in figure_of(name).axes:
        for axis in (axes.xaxis, axes.yaxis):
            assert not list(colliding(shown(inside(axes, axis))))


@every_figure
def test_titles_and_axis_labels_keep_apart_and_on_the_page(name):
    figure = figure_of(name)
    page = figure.bbox.padded(1.0)
    texts = [t for axes in figure.axes for t in (axes.title, axes.xaxis.label, axes.yaxis.label)]
    texts += [text for legend in figure.legends for text in legend.get_texts()]
    boxes = shown(texts)
    assert boxes
    assert not list(colliding(boxes))
    for box in boxes:
        assert page.x0 <= box.x0
        assert box.x1 <= page.x1
        assert page.y0 <= box.y0
        assert box.y1 <= page.y1


@every_figure
def test_text_can_be_read_at_the_width_of_a_page(name):
    figure = figure_of(name)
    width, page = figure.get_size_inches()[0], 6.9
    texts = [text for text in figure.findobj(Text) if text.get_text().strip()]
    assert min(text.get_fontsize() for text in texts) * min(1.0, page / width) >= 6.0


@every_figure
def test_named_lines_can_be_told_apart_in_grey(name):
    for axes in figure_of(name).axes:
        lines, _ = axes.get_legend_handles_labels()
        plain = [getattr(line, "lines", [line])[0] for line in lines]
        plain = [line for line in plain if isinstance(line, mpl.lines.Line2D)]
        seen = {
            (line.get_marker(), str(line._dash_pattern), line.get_linewidth()) for line in plain
        }
        assert len(seen) == len(plain)


@every_figure
def test_vector_files_hold_shapes_and_text_that_can_be_searched(name, tmp_path, monkeypatch):
    for other in ("png", "pdf"):
        monkeypatch.delitem(FORMATS, other)
    save(name, figure_of(name), frame_of(name), "Caption.", folder=tmp_path)
    root = ET.parse(tmp_path / f"{name}.svg").getroot()  # noqa: S314  (written just now)
    assert not list(root.iter(f"{SVG}image"))
    written = {"".join(node.itertext()).strip() for node in root.iter(f"{SVG}text")}
    labels = [axes.title.get_text() for axes in figure_of(name).axes]
    labels += [t.get_text() for legend in figure_of(name).legends for t in legend.get_texts()]
    assert {label for label in labels if label and "$" not in label} <= written


@every_figure
def test_the_saved_table_is_the_frame(name, tmp_path):
    figure = Figure(figsize=(1, 1))
    save(name, figure, frame_of(name), "Caption.", folder=tmp_path)
    back = pd.read_csv(tmp_path / f"{name}.csv", keep_default_na=True)
    frame = frame_of(name)
    assert list(back.columns) == list(frame.columns)
    for column in frame.select_dtypes("number"):
        np.testing.assert_allclose(back[column], frame[column], rtol=1e-12)


def test_making_figures_tells_the_time_that_each_took(monkeypatch, tmp_path, capsys):
    frame = frame_of("rescue")
    monkeypatch.setattr(rescue, "compute", lambda: frame)
    monkeypatch.setattr(rescue, "plot", lambda frame: Figure(figsize=(1, 1)))
    clock = SimpleNamespace(perf_counter=iter([10.0, 12.5]).__next__)
    monkeypatch.setattr("paper_figures.__main__.time", clock)
    main(["rescue", "-o", str(tmp_path)])
    told = capsys.readouterr()
    assert told.out == f"{tmp_path / 'rescue.png'}\n"
    assert told.err == "rescue: 2.5 s\n"


def test_vector_formats_are_written_beside_the_picture(tmp_path):
    figure = Figure(figsize=(1, 1))
    figure.text(0.1, 0.5, "words")
    save("words", figure, pd.DataFrame({"a": [1]}), "Caption.", folder=tmp_path)
    assert (tmp_path / "words.pdf").read_bytes().startswith(b"%PDF")
    assert ">words<" in (tmp_path / "words.svg").read_text(encoding="utf-8")
    assert b"/FontFile2" in (tmp_path / "words.pdf").read_bytes()  # text stays text


def test_the_gallery_shows_every_figure_with_its_caption(monkeypatch, tmp_path):
    monkeypatch.setattr("paper_figures.__main__.FIGURES", {"plane": plane})
    (tmp_path / "docs" / "images").mkdir(parents=True)
    (tmp_path / "plane.png").write_bytes(b"a picture")
    (tmp_path / "plane.txt").write_text("What it shows.\n")
    gallery(tmp_path, tmp_path / "docs")
    page = (tmp_path / "docs" / "figures.md").read_text()
    assert "What it shows." in page
    assert "(images/plane.png)" in page
    assert (tmp_path / "docs" / "images" / "plane.png").read_bytes() == b"a picture"


@pytest.mark.parametrize("name", FIGURES)
def test_the_shipped_gallery_has_every_figure(name):
    docs = Path(paper_figures.__file__).resolve().parents[1] / "docs"
    assert f"(images/{name}.png)" in (docs / "figures.md").read_text()
    assert (docs / "images" / f"{name}.png").stat().st_size > 0
