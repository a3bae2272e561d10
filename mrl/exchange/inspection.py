"""The command ``mrl exchange inspect``: who sent what to whom in a run, and what was refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from mrl.config import load
from mrl.errors import InputError
from mrl.exchange.memory import MemoryExchange
from mrl.exchange.plots import sharing
from mrl.exchange.replay import stored_traffic, unwrapped
from mrl.exchange.request import ExchangeError
from mrl.exchange.traffic import PUBLISHED, Refusals, TrafficRow

MOST_ROWS = 60  # of a table on the screen; the files have all
NOBODY = "(all: published)"
UNKNOWN = "(unknown)"


@dataclass(frozen=True)
class Inspection:
    """What went through a run's exchange.

    Attributes
    ----------
    traffic : DataFrame
        Columns ``round, source, receiver, kind, records, bytes``; the receiver is empty for what
        was published.
    refused : DataFrame
        Columns ``sender, reason, records``; the sender is empty where it is not known.
    about : str
        Where the counts come from.
    """

    traffic: pd.DataFrame
    refused: pd.DataFrame
    about: str

    @classmethod
    def of(cls, rows: Sequence[TrafficRow], refused: Refusals, about: str, /) -> "Inspection":
        """Make frames of an exchange's own counts."""
        counts = [
            (sender, reason, n)
            for sender, reasons in refused.items()
            for reason, n in reasons.items()
        ]
        return cls(
            pd.DataFrame(rows, columns=list(TrafficRow._fields)),
            pd.DataFrame(counts, columns=["sender", "reason", "records"]),
            about,
        )


def inspection_of(folder: Path, /) -> Inspection:
    """Read what went through a run's exchange, durable or in memory.

    Parameters
    ----------
    folder : Path
        A run's folder. Of an exchange in memory the newest checkpoint holds the counts.

    Raises
    ------
    InputError
        If there is no run, or it kept no counts yet, or they cannot be read.
    """
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder} holds no run; expected the folder of a run, with config.yaml")
    file = folder / "exchange.sqlite"
    try:
        if file.is_file():
            return Inspection.of(*stored_traffic(file), str(file))
        snapshots = sorted(folder.glob("checkpoints/round-*/exchange.bin"))
        if not snapshots:
            raise InputError(
                f"{folder} has neither exchange.sqlite nor a checkpoint (exchange.store is "
                f"{load(folder / 'config.yaml').exchange.store!r}); wait for its first checkpoint"
            )
        with MemoryExchange() as exchange:
            exchange.restore(unwrapped(snapshots[-1].read_bytes()))
            return Inspection.of(exchange.traffic(), exchange.refused(), str(snapshots[-1]))
    except ExchangeError as error:
        raise InputError(str(error)) from None


def inspect_run(folder: Path, output: Path, /, *, console: Console) -> Inspection:
    """Say who sent what to whom: two tables, two CSV files and a picture.

    Parameters
    ----------
    folder : Path
        A run's folder.
    output : Path
        Folder for ``traffic.csv``, ``refused.csv`` and ``sharing.png``, the picture only where
        something was delivered.
    console : Console

    Raises
    ------
    InputError
        If the run has no counts, or `output` cannot be written.
    """
    found = inspection_of(folder)
    console.print(f"counts of {found.about}", markup=False, highlight=False, soft_wrap=True)
    console.print(traffic_table(found.traffic))
    console.print(refused_table(found.refused) if len(found.refused) else "nothing was refused")
    delivered = found.traffic[found.traffic["receiver"] != PUBLISHED]
    try:
        output.mkdir(parents=True, exist_ok=True)
        found.traffic.to_csv(output / "traffic.csv", index=False)
        found.refused.to_csv(output / "refused.csv", index=False)
        if len(delivered):
            sharing(delivered).savefig(output / "sharing.png", dpi=160)
    except OSError as error:
        raise InputError(
            f"cannot write to {output}: {error.strerror}; choose another folder with -o"
        ) from None
    console.print(f"tables by round and picture written to {output}", soft_wrap=True)
    return found


def traffic_table(traffic: pd.DataFrame, /) -> Table:
    """Records and bytes by source, receiver and kind, over all rounds."""
    table = Table("source", "receiver", "kind", "rounds", "records", "bytes", "bytes a round")
    groups = traffic.groupby(["source", "receiver", "kind"])
    sums = groups.agg(
        rounds=("round", "nunique"), records=("records", "sum"), bytes=("bytes", "sum")
    )
    for source, receiver, kind, rounds, records, size in _first_rows(sums.reset_index()):
        to = receiver or NOBODY
        share = f"{size / rounds:,.0f}"
        table.add_row(source, to, kind, f"{rounds:,}", f"{records:,}", f"{size:,}", share)
    if len(sums) > MOST_ROWS:
        table.caption = f"and {len(sums) - MOST_ROWS} more rows"
    return table


def refused_table(refused: pd.DataFrame, /) -> Table:
    """Records refused by sender and reason."""
    table = Table("sender", "refused for", "records")
    for sender, reason, records in _first_rows(refused):
        table.add_row(sender or UNKNOWN, reason, f"{records:,}")
    return table


def _first_rows(frame: pd.DataFrame, /) -> list[list[Any]]:
    return frame.head(MOST_ROWS).to_numpy(dtype=object).tolist()
