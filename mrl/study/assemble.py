"""From finished cells to tidy tables.

The tables depend on the cells' rows alone, never on the order or the place in which they were
computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from bandit import tradeoff
from mrl.study.grid import Cell

# Rows that share these lie on one plane: what differs is rule and group sizes.
PLACE = ("world", "receiver", "mu", "sigma", "drop", "gate")
SIZES = ("own", "peers")


@dataclass(frozen=True, eq=False)
class Results:
    """The tables of a study.

    Attributes
    ----------
    plane : DataFrame
        One row for each cell, label and context.
    population : DataFrame
        The same over the weighted contexts; ``on_frontier`` marks the settings that no other one
        of the same world, receiver, residual and method beats, whatever its rule and sizes.
    dynamics : DataFrame or None
        One row for each cell, step, replica and policy, if learning curves were asked for.
    recommendations : DataFrame or None
        One row for each world, receiver, residual and sizes, if a bound on the cost was given.
    """

    plane: pd.DataFrame
    population: pd.DataFrame
    dynamics: pd.DataFrame | None
    recommendations: pd.DataFrame | None

    def tables(self) -> dict[str, pd.DataFrame | None]:
        """Every table by the name of its file."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def assemble(cells: Sequence[Cell], rows: Mapping[str, pd.DataFrame], /) -> Results:
    """Put the rows of all cells together.

    Parameters
    ----------
    cells : sequence of Cell
        The grid, in the order of the tables.
    rows : {key: DataFrame}
        What each cell computed.
    """
    learning = [cell for cell in cells if cell.task == "dynamics"]
    advised = [cell for cell in cells if cell.task == "recommendation"]
    placed = [cell for cell in cells if cell not in learning and cell not in advised]
    plane = _joined(placed, rows)
    return Results(
        plane,
        _population(placed, plane, rows),
        _joined(learning, rows).drop(columns="receiver") if learning else None,
        _joined(advised, rows).drop(columns=["label", "kind"]) if advised else None,
    )


def _joined(cells: Sequence[Cell], rows: Mapping[str, pd.DataFrame], /) -> pd.DataFrame:
    """Rows of all cells under their coordinates."""
    frame = pd.concat([rows[cell.key] for cell in cells], ignore_index=True)
    repeats = [len(rows[cell.key]) for cell in cells]
    where = pd.DataFrame([cell.coordinates() for cell in cells])
    where = where[sorted(where.columns, key=lambda name: _order(str(name)))].apply(_typed)
    where = where.loc[np.repeat(where.index, repeats)].reset_index(drop=True)
    if "label" in frame:
        controls = [cell.rule is None for cell in cells]
        where["label"] = where["label"].where(~np.repeat(controls, repeats), frame["label"])
        frame = frame.drop(columns="label")
    return pd.concat([where, frame], axis=1)


def _order(column: str, /) -> int:
    """Fixed coordinates in the order in which a reader asks; swept ones beside what they vary."""
    fixed = ("world", "world_", "label", "kind", "rule_", *SIZES, *PLACE[2:], "receiver")
    prefix = column[: column.find("_") + 1]
    return fixed.index(column if column in fixed else prefix)


def _typed(column: pd.Series, /) -> pd.Series:
    """Numbers where all values are numbers, text otherwise, so that a column has one type."""
    known = column[column.notna()]
    if known.map(lambda value: isinstance(value, int | float)).all():
        return pd.to_numeric(column)
    return column.map(lambda value: value if value is None or value != value else str(value))


def _population(
    cells: Sequence[Cell], plane: pd.DataFrame, rows: Mapping[str, pd.DataFrame], /
) -> pd.DataFrame:
    """Weighted figures of each cell and label, by `bandit.tradeoff.aggregate`."""
    figures = list(dict.fromkeys(name for cell in cells for name in rows[cell.key]))
    coordinates = [name for name in plane if name not in figures or name == "label"]
    cell_of = np.repeat(np.arange(len(cells)), [len(rows[cell.key]) for cell in cells])
    # one group for each cell and label, whatever the labels are
    group = pd.MultiIndex.from_arrays([cell_of, plane["label"]]).factorize()[0]
    keep = [name for name in figures if name not in ("label", "method")]
    total = tradeoff.aggregate(plane[keep].assign(label=group)).set_index("label")
    first = plane.groupby(group, sort=False)[[*coordinates, "method"]].first()
    frame = pd.concat([first, total], axis=1).reset_index(drop=True)
    kept = np.zeros(len(frame), dtype=np.bool_)
    for _, part in frame.groupby([*PLACE, "method"], sort=False):
        kept[part.index] = tradeoff.non_dominated(part["stability_cost"], part["support_gain"])
    return frame.assign(on_frontier=kept)
