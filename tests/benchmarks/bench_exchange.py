"""What the exchange costs: records a second, and the latency of a collect with history behind it.

    python tests/benchmarks/bench_exchange.py [--records 20000] [--repeats 3] [--folder DIR]

One-kilobyte rollout records are published in batches of 1,000 and collected by one receiver as
records, and by another as bytes, which is what a transport takes. Beside
each figure stands the bare cost of the same bytes in the same run: msgpack packing and unpacking
for the exchange in memory, and inserting and selecting the encoded records with the same settings
of SQLite for the file. Shown are wall time, and processor time, which other work on the machine
disturbs less; each the best of the repeats.
"""

import argparse
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import msgpack
import numpy as np
from rich.console import Console
from rich.table import Table

from mrl.exchange import Exchange, MemoryExchange, RolloutRecord, SQLiteExchange, decode
from mrl.exchange.batches import decode_all

BATCH, GROUP = 1000, 8
HISTORY = (0, 1_000, 10_000, 100_000)
PROMPTS = 32  # of a collect whose latency is measured: 256 records
Seconds = tuple[float, float]


def rollout(prompt: str, index: int, version: int, rng: np.random.Generator) -> RolloutRecord:
    """A record of about one kilobyte: 64 tokens and their text."""
    ids = rng.integers(0, 150_000, 64)
    logprobs = -rng.exponential(size=64)
    text = rng.bytes(160)
    return RolloutRecord(prompt, "peer", version, index, text, ids, logprobs, True, 1.0, "eos", "f")


def batched(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Cut a sequence into parts of one size; the last may be shorter."""
    return [items[i : i + size] for i in range(0, len(items), size)]


def timed(work: Callable[[], Any]) -> Seconds:
    """Wall and processor seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def best(repeats: int, make: Callable[[], dict[str, Seconds]]) -> dict[str, Seconds]:
    """The least wall and processor time of each step."""
    runs = [make() for _ in range(repeats)]
    return {
        name: (min(run[name][0] for run in runs), min(run[name][1] for run in runs))
        for name in runs[0]
    }


def exchanged(exchange: Exchange, records: list[RolloutRecord], *, encoded: bool) -> Iterator[Any]:
    """Publish everything, collect it, and collect it as bytes for another; timed apart."""
    prompts = list(dict.fromkeys(record.prompt_id for record in records))
    batches: list[Any] = batched(records, BATCH)
    if encoded:
        batches = [[record.encode() for record in batch] for batch in batches]
    publish = exchange.publish_encoded if encoded else exchange.publish
    with exchange:
        yield timed(lambda: [publish(batch) for batch in batches])
        for receiver, collect in (("one", exchange.collect), ("two", exchange.collect_encoded)):
            got: list[Any] = []
            yield timed(partial(collected, collect, receiver, prompts, got))
            assert len(got) == len(records)  # noqa: S101


def collected(
    collect: Callable[..., list[Any]], receiver: str, prompts: list[str], got: list[Any]
) -> None:
    """Collect what there is on some prompts, the groups of a batch at a time."""
    for part in batched(prompts, BATCH // GROUP):
        got.extend(collect(receiver, part, {"rollout"}, round=0))


def bare_msgpack(records: list[RolloutRecord]) -> dict[str, Seconds]:
    """Pack and unpack the fields of the records, and nothing else."""
    fields = [[record.KIND, *record._wire()] for record in records]
    packed: list[bytes] = []
    return {
        "publish": timed(lambda: packed.extend(map(msgpack.packb, fields))),
        "collect": timed(lambda: [msgpack.unpackb(data) for data in packed]),
    }


def bare_sqlite(encoded: list[bytes], path: Path) -> dict[str, Seconds]:
    """Insert and select the encoded records, durable, by an integer key."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE record (id INTEGER PRIMARY KEY, encoded BLOB)")

        def insert() -> None:
            for batch in batched(encoded, BATCH):
                database.execute("BEGIN IMMEDIATE")
                rows = ((data,) for data in batch)
                database.executemany("INSERT INTO record (encoded) VALUES (?)", rows)
                database.execute("COMMIT")

        def select() -> None:
            for first in range(1, len(encoded), BATCH):
                span = [first, first + BATCH - 1]
                query = "SELECT encoded FROM record WHERE id BETWEEN ? AND ?"
                database.execute(query, span).fetchall()

        return {"publish": timed(insert), "collect": timed(select)}


def throughput(records: list[RolloutRecord], repeats: int, folder: Path) -> Table:
    """Records a second of both exchanges, beside what bare msgpack and SQLite do."""
    numbers, encoded = count(), [record.encode() for record in records]

    def path() -> Path:
        return folder / f"{next(numbers)}.sqlite"

    def steps(make: Callable[[], Exchange], as_bytes: bool) -> Callable[[], dict[str, Seconds]]:
        names = ("publish", "collect", "collect bytes")
        return lambda: dict(zip(names, exchanged(make(), records, encoded=as_bytes), strict=True))

    packing = best(repeats, lambda: bare_msgpack(records))
    inserting = best(repeats, lambda: bare_sqlite(encoded, path()))
    batches = batched(encoded, BATCH)
    decoding = best(
        repeats,
        lambda: {
            "one by one": timed(lambda: list(map(decode, encoded))),
            f"{BATCH:,} at a time": timed(lambda: list(map(decode_all, batches))),
        },
    )
    table = Table("", "records/s, wall", "records/s, processor", "cost, bare = 1 (processor)")

    def row(name: str, found: Seconds, bare: Seconds | None) -> None:
        speeds = [f"{len(records) / seconds:,.0f}" for seconds in found]
        table.add_row(name, *speeds, "1" if bare is None else f"{found[1] / bare[1]:.1f}")

    for name in ("publish", "collect"):
        row(f"bare msgpack: {'pack' if name == 'publish' else 'unpack'}", packing[name], None)
    for name, found in decoding.items():
        row(f"decode and check, {name}", found, packing["collect"])
    for title, as_bytes in (("records", False), ("bytes", True)):
        found = best(repeats, steps(MemoryExchange, as_bytes))
        row(f"memory: publish {title}", found["publish"], packing["publish"])
        row("memory: collect", found["collect"], packing["collect"])
        row(f"memory: publish {title}, collect", total(found), total(packing))
    row("memory: collect bytes", found["collect bytes"], packing["collect"])
    for name in ("publish", "collect"):
        row(f"bare SQLite: {'insert' if name == 'publish' else 'select'}", inserting[name], None)
    for title, as_bytes in (("records", False), ("bytes", True)):
        found = best(repeats, steps(lambda: SQLiteExchange(path()), as_bytes))
        row(f"file: publish {title}", found["publish"], inserting["publish"])
        row("file: collect", found["collect"], inserting["collect"])
    row("file: collect bytes", found["collect bytes"], inserting["collect"])
    return table


def total(found: dict[str, Seconds]) -> Seconds:
    """Publishing and collecting together."""
    wall, cpu = zip(found["publish"], found["collect"], strict=True)
    return sum(wall), sum(cpu)


def latency(exchange: Exchange, repeats: int, rng: np.random.Generator) -> Iterator[float]:
    """Median seconds of a collect with more and more rounds on the same prompts behind it."""
    prompts, round, each = [f"prompt {i}" for i in range(PROMPTS)], 0, PROMPTS * GROUP
    with exchange:
        for size in HISTORY:
            while round * each < size + each:  # the last round is the one that is asked for
                exchange.publish(
                    rollout(prompt, index, round, rng)
                    for prompt in prompts
                    for index in range(GROUP)
                )
                round += 1

            def ask(round: int, number: int) -> float:
                start = time.process_time()
                got = exchange.collect(str(number), prompts, {"rollout"}, round=round)
                assert len(got) == each  # noqa: S101
                exchange.traffic(round)
                return time.process_time() - start

            yield median(ask(round - 1, number) for number in range(10 * repeats))


def histories(repeats: int, folder: Path) -> Table:
    """Latency of one collect by the length of the history that the exchange holds."""
    table = Table("records before", "memory, ms", "ratio", "file, ms", "ratio")
    memory = list(latency(MemoryExchange(), repeats, np.random.default_rng(0)))
    kept = SQLiteExchange(folder / "history.sqlite", keep_history=True)
    file = list(latency(kept, repeats, np.random.default_rng(0)))
    for size, inside, outside in zip(HISTORY, memory, file, strict=True):
        table.add_row(
            f"{size:,}",
            f"{1000 * inside:.2f}",
            f"{inside / memory[0]:.2f}",
            f"{1000 * outside:.2f}",
            f"{outside / file[0]:.2f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    options = parser.parse_args()
    rng, console = np.random.default_rng(0), Console()
    records = [rollout(f"prompt {i // GROUP}", i % GROUP, 0, rng) for i in range(options.records)]
    size = sum(len(record.encode()) for record in records) / len(records)
    console.print(f"{len(records):,} records of {size:,.0f} bytes, the best of {options.repeats}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        console.print(throughput(records, options.repeats, Path(folder)))
        console.print(f"a collect of {PROMPTS * GROUP} records and its traffic, processor time")
        console.print(histories(options.repeats, Path(folder)))


if __name__ == "__main__":
    main()
