"""The figures of a study: planes, frontiers, swept worlds, learning curves."""

import base64
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from joblib import Parallel, delayed, parallel_config
from matplotlib.figure import Figure

from bandit import plots
from bandit.looks import MAX_LABELS
from mrl.config import StudyConfig
from mrl.report import figures
from mrl.study.assemble import PLACE, SIZES, Results

# Only files of these names are ever removed.
OURS = re.compile(r"\d{3}-[A-Za-z0-9_.-]+\.(png|svg)")
FORMATS: dict[str, dict[str, Any]] = {"svg": {"metadata": {"Date": None}}, "png": {"dpi": 160}}
# From this factor between the largest and the smallest value on an axis is logarithmic.
WIDE = 20.0


@dataclass(frozen=True)
class Picture:
    """A figure that has been drawn.

    Attributes
    ----------
    source : str
        The image as a ``data:`` address.
    caption : str
        What it shows.
    """

    source: str
    caption: str


@dataclass(frozen=True)
class Plan:
    """A figure to be drawn."""

    name: str
    caption: str
    draw: Callable[[], Figure]


def write_pictures(
    study: StudyConfig, results: Results, folder: Path, /, *, n_jobs: int = 1
) -> list[Picture]:
    """Draw up to ``study.max_figures`` figures as PNG and SVG; old ones are removed.

    Returns
    -------
    list of Picture
        For the page, in order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        delayed(_write)(plan, folder / f"{i:03d}-{_slug(plan.name)}")
        for i, plan in enumerate(_chosen(plans(study, results), study.max_figures))
    ]
    with parallel_config("loky", n_jobs=n_jobs, inner_max_num_threads=1):
        drawn = Parallel()(jobs) if n_jobs != 1 else [one(*args) for one, args, _ in jobs]
    written = {f"{stem}.{kind}" for stem, _ in drawn for kind in FORMATS}
    for path in folder.iterdir():
        if OURS.fullmatch(path.name) and path.name not in written:
            path.unlink()
    return [picture for _, picture in drawn]


def plans(study: StudyConfig, results: Results, /) -> list[Plan]:
    """Every figure that the tables ask for."""
    return [
        *_swept(study, results.population),
        *_frontiers(results.population),
        *_planes(results.population),
        *_learning(results.dynamics),
    ]


def _chosen(every: list[Plan], most: int, /) -> list[Plan]:
    """Choose at most `most` figures, the first of every kind before the second of any."""
    place: dict[str, int] = {}
    turns = []
    for i, plan in enumerate(every):
        kind = plan.name.split()[0]
        place[kind] = place.get(kind, -1) + 1
        turns.append((place[kind], i))
    return [every[i] for i in sorted(i for _, i in sorted(turns)[:most])]


def _write(plan: Plan, path: Path, /) -> tuple[str, Picture]:
    """Draw and save a figure; equal figures are equal files."""
    figure = plan.draw()
    with mpl.rc_context({"svg.hashsalt": "mrl", "svg.fonttype": "none"}):
        for kind, settings in FORMATS.items():
            figure.savefig(f"{path}.{kind}", **settings)
    image = base64.b64encode(Path(f"{path}.svg").read_bytes()).decode("ascii")
    return path.name, Picture(f"data:image/svg+xml;base64,{image}", plan.caption)


def drawable(rows: pd.DataFrame, /) -> bool:
    """Tell whether some row has a place on the plane."""
    return bool((rows["support_gain"].notna() & (rows["stability_cost"] > 0)).any())


def place_name(
    world: str, row: pd.Series, columns: tuple[str, ...], several: pd.DataFrame, /
) -> str:
    """Name the place of a row: its world, and what else differs in the study.

    What follows from what is named already is left out: a measured residual from its receiver.
    """
    words = {"own": "G", "peers": "M"}
    parts, named = [world], ["world"]
    for name in columns:
        differs = name != "world" and several.groupby(named)[name].nunique().max() > 1
        if name in SIZES or differs:
            parts.append(f"{words.get(name, name)} = {row[name]:g}")
            named.append(name)
    return ", ".join(parts)


def _planes(population: pd.DataFrame, /) -> Iterator[Plan]:
    """One plane for each world, receiver, residual and sizes."""
    by = (*PLACE, *SIZES)
    for _, rows in population.groupby([*by, "method"], sort=False):
        if not drawable(rows) or rows["label"].nunique() > MAX_LABELS:
            continue
        where = place_name(rows["world"].iloc[0], rows.iloc[0], by, population)
        method = rows["method"].iloc[0]
        yield Plan(
            f"plane {where} {method}",
            f"Stability cost and support gain ({method}): {where}.",
            partial(plots.plane, rows, title=where),
        )


def _frontiers(population: pd.DataFrame, /) -> Iterator[Plan]:
    """All settings of a place, where they are more than those of one plane."""
    for _, rows in population.groupby([*PLACE, "method"], sort=False):
        one_plane = len(rows[list(SIZES)].drop_duplicates()) == 1
        if not drawable(rows) or (one_plane and rows["label"].nunique() <= MAX_LABELS):
            continue
        where = place_name(rows["world"].iloc[0], rows.iloc[0], PLACE, population)
        method = rows["method"].iloc[0]
        yield Plan(
            f"frontier {where} {method}",
            f"All rules and sizes ({method}): {where}. Joined: no other setting costs less and "
            "gains more.",
            partial(plots.frontier, _with_sizes(rows), title=where),
        )


def _with_sizes(rows: pd.DataFrame, /) -> pd.DataFrame:
    """Labels with the group sizes, which differ on a frontier."""
    sizes = ", G=" + rows["own"].astype(str) + ", M=" + rows["peers"].astype(str)
    return rows.assign(label=rows["label"] + sizes)


def _swept(study: StudyConfig, population: pd.DataFrame, /) -> Iterator[Plan]:
    """Cost and gain against the parameter of a world, where one number of it is swept."""
    others = (*PLACE[1:], *SIZES)
    for label, section in study.worlds.items():
        variants = section.variants()
        names = sorted({name for variant in variants for name in variant.swept})
        column = f"world_{names[0]}" if len(names) == 1 else ""
        if len(variants) < 3 or not _numeric(population, column):
            continue
        mine = population[population["world"].isin([v.name(label) for v in variants])]
        for _, rows in mine.groupby([*others, "method"], sort=False):
            where = place_name(label, rows.iloc[0], others, population)
            yield Plan(
                f"sweep {names[0]} {where}",
                f"Stability cost and support gain against {names[0]}: {where}.",
                partial(_against, rows, column, names[0]),
            )


def _numeric(frame: pd.DataFrame, column: str, /) -> bool:
    return column in frame and pd.api.types.is_numeric_dtype(frame[column])


def _against(rows: pd.DataFrame, column: str, name: str, /) -> Figure:
    """One panel for the cost and one for the gain."""
    facets = {"support_gain": "support gain", "stability_cost": "stability cost"}
    frame = pd.concat(
        [
            rows.assign(facet=title, series=rows["label"], x=rows[column], value=rows[figure])
            for figure, title in facets.items()
        ]
    ).assign(low=float("nan"), high=float("nan"))
    figure = figures.curves(frame, ylabel="", xlabel=name)
    values = rows[column]
    if values.min() > 0 and values.max() / values.min() >= WIDE:
        for axes in figure.axes:
            axes.set_xscale("log")
    return figure


def _learning(curves: pd.DataFrame | None, /) -> Iterator[Plan]:
    """Values of all rules in a world, and values where a policy failed at the start."""
    if curves is None:
        return
    measures: dict[str, Any] = {
        "value": "Expected reward",
        "rescue_value": "Expected reward where a policy fails at the start and another does not",
    }
    by = ("world", *SIZES, *PLACE[2:])
    for _, rows in curves.groupby(list(by), sort=False):
        where = place_name(rows["world"].iloc[0], rows.iloc[0], by, curves)
        for y, title in measures.items():
            if rows[y].notna().any() and rows["label"].nunique() <= MAX_LABELS:
                yield Plan(
                    f"learning {y} {where}",
                    f"{title}, mean over replicas with 95% intervals: {where}.",
                    partial(plots.curves, rows, y=y, by="label", title=where),
                )


def _slug(name: str, /) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-")[:80]
