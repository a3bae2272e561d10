"""A study from its file to tables, figures and a page; what is finished is not computed again."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from joblib import Parallel, delayed, parallel_config
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mrl.config import StudyConfig, dump
from mrl.gate.certificate import write_text
from mrl.study.assemble import Results, assemble
from mrl.study.cells import compute
from mrl.study.grid import Cell, cells_of
from mrl.study.page import write_page
from mrl.study.parts import Parts, write_table
from mrl.study.pictures import write_pictures


def sweep(
    study: StudyConfig,
    output: Path,
    /,
    *,
    n_jobs: int = 1,
    prune: bool = False,
    console: Console | None = None,
) -> Results:
    """Compute a study, or what is missing of it, and write tables, figures and a page.

    Parameters
    ----------
    study : StudyConfig
        The grid and its analysis.
    output : Path
        Folder; gets ``plane.parquet`` and ``population.parquet``, where asked for
        ``dynamics.parquet`` and ``recommendations.parquet``, ``figures/``, ``index.html``,
        ``study.yaml`` (all settings) and ``parts/``, one file for each finished cell. Parts of
        equal settings are used again. One study at a time writes to a folder.
    n_jobs : int
        Processes; no result depends on it.
    prune : bool
        Remove parts of other settings at the end; default: keep them.
    console : rich.console.Console, optional
        Where progress and messages are printed; default: nowhere.

    Returns
    -------
    Results
        The tables.

    Raises
    ------
    InputError
        If the theory refuses a cell's settings, `output` cannot be written, or another study
        writes to it.
    """
    console = console or Console(quiet=True)
    parts = Parts.open(output / "parts")
    with parts.lock():
        cells = cells_of(study)
        rows = _compute(cells, parts, n_jobs, console)
        results = assemble(cells, rows)
        _write(study, results, output, n_jobs)
        _tidy(parts, cells, prune, console)
    return results


def _compute(
    cells: Sequence[Cell], parts: Parts, n_jobs: int, console: Console, /
) -> dict[str, pd.DataFrame]:
    """Rows of every cell; each is stored as soon as it is known."""
    unique = {cell.key: cell for cell in cells}
    rows = {key: found for key in unique if (found := parts.read(key)) is not None}
    missing = [cell for key, cell in unique.items() if key not in rows]
    if rows:
        console.print(f"{len(rows)} of {len(unique)} cells are there from before")
    columns = (TextColumn("study"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        line = progress.add_task("", total=len(unique), completed=len(rows))
        for _ in _finished(missing, parts, n_jobs):
            progress.advance(line)
    # as stored, so that a resumed study and one in a single piece see the same
    for cell in missing:
        stored = parts.read(cell.key)
        if stored is None:
            raise RuntimeError(f"{parts.path(cell.key)} cannot be read back after it was written")
        rows[cell.key] = stored
    return rows


def _finished(cells: Sequence[Cell], parts: Parts, n_jobs: int, /) -> Iterator[None]:
    """Compute and store cells; yields once for each."""
    if n_jobs == 1 or len(cells) < 2:
        for cell in cells:
            _one(cell, parts)
            yield
        return
    with parallel_config("loky", n_jobs=n_jobs, inner_max_num_threads=1):
        jobs = (delayed(_one)(cell, parts) for cell in cells)
        yield from Parallel(return_as="generator_unordered")(jobs)


def _one(cell: Cell, parts: Parts, /) -> None:
    parts.write(cell.key, compute(cell))


def _write(study: StudyConfig, results: Results, output: Path, n_jobs: int, /) -> None:
    for name, table in results.tables().items():
        path = output / f"{name}.parquet"
        if table is None:
            path.unlink(missing_ok=True)
        else:
            write_table(path, table)
    write_text(output / "study.yaml", dump(study))
    pictures = write_pictures(study, results, output / "figures", n_jobs=n_jobs)
    write_page(study, results, pictures, output / "index.html")


def _tidy(parts: Parts, cells: Sequence[Cell], prune: bool, console: Console, /) -> None:
    others = parts.others(cell.key for cell in cells)
    for path in [*parts.unfinished(), *(others if prune else [])]:
        path.unlink(missing_ok=True)
    if others:
        count = f"{len(others)} {'part' if len(others) == 1 else 'parts'} of other settings"
        console.print(
            f"removed {count} from {parts.folder}"
            if prune
            else f"kept {count} in {parts.folder}; --prune removes them",
            soft_wrap=True,
        )
