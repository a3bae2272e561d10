"""The exchange that a configuration asks for, and what a policy received through it."""

from collections import Counter
from pathlib import Path
from typing import Any

from mrl.config import RunConfig
from mrl.distributed import count
from mrl.errors import InputError
from mrl.exchange.admission import Admission
from mrl.exchange.exchange import Exchange
from mrl.exchange.memory import MemoryExchange
from mrl.exchange.replay import ReplayExchange
from mrl.exchange.store import SQLiteExchange
from mrl.replay import stored_codecs
from mrl.tasks import Task


def open_exchange(config: RunConfig, task: Task, folder: Path, /) -> Exchange:
    """In memory, or durable in ``exchange.sqlite`` of the run's folder; with a stored run's peers.

    Parameters
    ----------
    config : RunConfig
        As `mrl.replay.resolve` leaves it.
    task : Task
        Records on other prompts than those it trains on are refused.
    folder : Path
        The run's folder.

    Raises
    ------
    InputError
        If several processes that play one run would write one file.
    """
    section = config.exchange
    if section.store == "sqlite" and count() > 1:
        raise InputError(
            f"exchange.store=sqlite in {count()} processes of one run, each of which has the "
            "whole exchange; expected exchange.store=memory, or one process"
        )
    admission = Admission(
        policies=frozenset(policy.name for policy in config.policies).union(config.replayed),
        prompts=frozenset(item.prompt_id for item in task.train),
        quota=section.quota,
        # After round r all versions before r - max_staleness are dropped: this is r + 1.
        ahead=section.max_staleness + 1,
    )
    inner: Exchange
    if section.store == "memory":
        inner = MemoryExchange(admission)
    else:
        # A resumed run asks again for the stale versions that the checkpoint had.
        keep = section.max_staleness > 0 or bool(section.keep)
        inner = SQLiteExchange(folder / "exchange.sqlite", admission, keep_history=keep)
    if section.replay is None:
        return inner
    stored = Path(section.replay) / "exchange.sqlite"
    return ReplayExchange(inner, stored, config.replayed, stored_codecs(section))


def received(exchange: Exchange, policy: str, round: int, /) -> dict[str, Any]:
    """Records and bytes, by type, that `policy` was delivered in a round; and what was refused.

    Returns
    -------
    dict
        ``records_in`` and ``bytes_in`` by kind; ``refused``, by reason, of all senders since the
        run began.
    """
    records: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for row in exchange.traffic(round):
        if row.receiver == policy:
            records[row.kind] += row.records
            size[row.kind] += row.bytes
    refused: Counter[str] = Counter()
    for reasons in exchange.refused().values():
        refused.update(reasons)
    found = {"records_in": records, "bytes_in": size, "refused": refused}
    return {name: dict(sorted(counts.items())) for name, counts in found.items()}
