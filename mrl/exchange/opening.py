"""The exchange that a configuration asks for, and what a policy received through it."""

from pathlib import Path
from typing import Any

from mrl.config import ExchangeConfig
from mrl.distributed import count
from mrl.errors import InputError
from mrl.exchange.exchange import Exchange
from mrl.exchange.memory import MemoryExchange
from mrl.exchange.replay import ReplayExchange
from mrl.exchange.store import SQLiteExchange
from mrl.replay import stored_codecs


def open_exchange(config: ExchangeConfig, folder: Path, /) -> Exchange:
    """In memory, or durable in ``exchange.sqlite`` of the run's folder; with a stored run's peers.

    Parameters
    ----------
    config : ExchangeConfig
        As `mrl.replay.resolve` leaves it.
    folder : Path
        The run's folder.

    Raises
    ------
    InputError
        If several processes that play one run would write one file.
    """
    if config.store == "sqlite" and count() > 1:
        raise InputError(
            f"exchange.store=sqlite in {count()} processes of one run, each of which has the "
            "whole exchange; expected exchange.store=memory, or one process"
        )
    inner: Exchange
    if config.store == "memory":
        inner = MemoryExchange()
    else:
        # A resumed run asks again for the stale versions that the checkpoint had.
        keep = config.max_staleness > 0 or bool(config.keep)
        inner = SQLiteExchange(folder / "exchange.sqlite", keep_history=keep)
    if config.replay is None:
        return inner
    stored = Path(config.replay) / "exchange.sqlite"
    return ReplayExchange(inner, stored, config.replay_policies or (), stored_codecs(config))


def received(exchange: Exchange, policy: str, round: int, /) -> dict[str, Any]:
    """Records and bytes, by type, that `policy` was delivered in a round."""
    rows = [
        row
        for row in exchange.traffic(round)
        if row.direction == "delivered" and row.policy_id == policy
    ]
    return {
        "records_in": {row.kind: row.records for row in rows},
        "bytes_in": {row.kind: row.bytes for row in rows},
    }
