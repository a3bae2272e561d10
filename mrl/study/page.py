"""The page of a study: its tables and figures in one HTML file that loads nothing."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from bandit import World
from bandit.probes import probe_from_config
from mrl.config import StudyConfig
from mrl.config.study import Point
from mrl.gate.certificate import write_text
from mrl.report import text
from mrl.report.cohorts import describe
from mrl.runs import versions
from mrl.study.assemble import PLACE, SIZES, Results
from mrl.study.pictures import Picture, place_name, plans

# Rows of the population table shown at most; the parquet files hold all.
MAX_ROWS = 600
COLUMNS = {
    "stability_cost": "stability cost",
    "relative_cost": "relative to GRPO",
    "support_gain": "support gain",
    "bias_cosine": "cosine to g*",
    "ess": "ESS of peers",
    "rescue_probability": "rescue probability",
}


@dataclass(frozen=True)
class Block:
    """The settings of one place on the page."""

    title: str
    rows: tuple[Mapping[Any, Any], ...]


def write_page(
    study: StudyConfig, results: Results, pictures: Sequence[Picture], output: Path, /
) -> None:
    """Write the page; equal studies give equal files.

    Raises
    ------
    RunError
        If it cannot be written.
    """
    environment = Environment(
        loader=PackageLoader("mrl.study", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (text.number, text.visible):
        environment.filters[function.__name__] = function
    population = results.population
    shown = population.iloc[:MAX_ROWS]
    page = environment.get_template("page.html.j2").render(
        study=study,
        worlds=[_world(point) for point in study.world_points()],
        rules=[(label, describe(probe)) for label, probe in study.probes.items()],
        pictures=pictures,
        figures_left_out=max(0, len(plans(study, results)) - study.max_figures),
        columns=COLUMNS,
        blocks=list(_blocks(shown, population)),
        rows_left_out=len(population) - len(shown),
        sampled=bool((population["method"] == "sampled").any()),
        recommendations=list(_recommendations(results.recommendations, population)),
        learning=list(_learning(results.dynamics)),
        settings=text.flatten(study.model_dump()),
        version=versions()["mutual-rl"],
    )
    write_text(output, page)


def _world(point: Point[World], /) -> dict[str, Any]:
    world = point.value
    success = world.success_probability @ world.weights
    return {
        "label": point.label,
        "policies": world.n_policies,
        "contexts": world.n_contexts,
        "arms": world.n_arms,
        "success": success.tolist(),
    }


def _blocks(shown: pd.DataFrame, population: pd.DataFrame, /) -> Iterator[Block]:
    """Rows by place, in the order of the table."""
    for _, rows in shown.groupby([*PLACE, "method"], sort=False):
        first = rows.iloc[0]
        where = place_name(first["world"], first, PLACE, population)
        yield Block(f"{where} · {first['method']}", tuple(rows.to_dict("records")))


def _recommendations(
    table: pd.DataFrame | None, population: pd.DataFrame, /
) -> Iterator[dict[str, Any]]:
    if table is None:
        return
    for _, row in table.iterrows():
        known = isinstance(row["probe"], str)
        probe = probe_from_config(json.loads(row["probe"])) if known else None
        yield {
            "place": place_name(row["world"], row, (*PLACE, *SIZES), population),
            "rule": row["rule"] if known else "none",
            "setting": "" if probe is None else describe(probe),
            "sizes": f"G = {row['use_own']}, M = {row['use_peers']}" if known else "",
            "reason": row["reason"],
        }


def _learning(curves: pd.DataFrame | None, /) -> Iterator[dict[str, Any]]:
    """Where each rule ends, for each world and policy: means over replicas."""
    if curves is None:
        return
    by = ["world", *SIZES, *PLACE[2:], "label", "policy"]
    last = curves[curves["step"] == curves["step"].max()]
    start = curves[curves["step"] == 0].groupby(by, sort=False)["value"].mean()
    columns = ["value", "rescue_value", "collapsed", "entropy", "overlap"]
    ends = last.groupby(by, sort=False)[columns].mean()
    for (key, end), first in zip(ends.iterrows(), start, strict=True):
        place = dict(zip(by, key, strict=True))
        where = place_name(place["world"], pd.Series(place), tuple(by[:-2]), curves)
        yield {"place": where, **place, "start": first, **end.to_dict()}
