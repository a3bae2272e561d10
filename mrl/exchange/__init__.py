"""SEE, the shared experience exchange: typed records, published and collected by policies.

Needs no deep-learning library. Source: docs/exchange.md.
"""

from mrl.exchange.admission import Admission
from mrl.exchange.exchange import Exchange
from mrl.exchange.fields import Segment
from mrl.exchange.framing import RecordError
from mrl.exchange.memory import MemoryExchange
from mrl.exchange.records import (
    RECORD_TYPES,
    GroupStats,
    Record,
    RecordKey,
    RolloutRecord,
    SuccessRecord,
    decode,
    statistics,
    statistics_batch,
)
from mrl.exchange.request import ExchangeError
from mrl.exchange.store import SQLiteExchange
from mrl.exchange.traffic import TrafficRow

__all__ = [
    "RECORD_TYPES",
    "Admission",
    "Exchange",
    "ExchangeError",
    "GroupStats",
    "MemoryExchange",
    "Record",
    "RecordError",
    "RecordKey",
    "RolloutRecord",
    "SQLiteExchange",
    "Segment",
    "SuccessRecord",
    "TrafficRow",
    "decode",
    "statistics",
    "statistics_batch",
]
