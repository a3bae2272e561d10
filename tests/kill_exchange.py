"""Kill a process that uses a durable exchange, at random moments, and look what it left.

    python tests/kill_exchange.py [--kills 1000] [--seed 0]

A child process plays rounds on one SQLite file and tells its parent, over a pipe, what each call
returned: that is what was acknowledged. The parent kills it (SIGKILL) after a random time, holds
the file against what it was told, and starts the next child: one half of them go on in the round
as it stands, as when one process of several is lost, the others resume from the last checkpoint.

Held after each kill: what was acknowledged is in the file; no record was delivered twice to a
receiver in a round; when a round ends, each receiver has had every record, but for those of a
collect that a kill cut off before it returned, which a resume delivers again.
"""

import argparse
import math
import os
import random
import select
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from mrl.exchange import RolloutRecord, SQLiteExchange

POLICIES, PROMPTS, GROUP, STALENESS = ("a", "b", "c"), ("p", "q", "r"), 4, 1
LONGEST_LIFE = 0.15  # seconds from the fork to the kill
Key = tuple[str, int, str, int]


def publishes(policy: str, round: int) -> bool:
    """Policy c rests every other round, so that others read its last version."""
    return policy != "c" or round % 2 == 0


def records(policy: str, round: int, prompt: str) -> list[RolloutRecord]:
    """The group of a policy on a prompt, the same in every life."""
    text = f"{policy} {round} {prompt} ".encode() * 40
    return [
        RolloutRecord(prompt, policy, round, index, text, [1], [-0.5], True, 1.0, "eos", "f")
        for index in range(GROUP)
    ]


def expected(receiver: str, round: int) -> set[Key]:
    """All that a receiver is due in a round."""
    newest = {
        peer: round if publishes(peer, round) else round - 1
        for peer in POLICIES
        if peer != receiver
    }
    return {
        (peer, version, prompt, index)
        for peer, version in newest.items()
        for prompt in PROMPTS
        for index in range(GROUP)
    }


def key(record: Any) -> Key:
    return record.policy_id, record.version, record.prompt_id, record.index


def live(path: Path, out: int, round: int, snapshot: bytes | None, resume: bool) -> None:
    """Play rounds until killed; says what it is about to do, and what came of it."""

    def say(*message: Any) -> None:
        os.write(out, msgpack.packb(message))

    say("in", "open")
    exchange = SQLiteExchange(path, keep_history=True)
    if resume:
        say("in", "resume")
        if snapshot is not None:
            exchange.restore(snapshot)
        exchange.rollback(round)
    while True:
        for policy in POLICIES:
            for prompt in PROMPTS if publishes(policy, round) else ():
                group = records(policy, round, prompt)
                say("in", "publish")
                exchange.publish(group)
                say("published", [key(record) for record in group])
            say("in", "close_round")
            exchange.close_round(policy, round)
        for receiver in POLICIES:
            for prompts in (PROMPTS[:1], PROMPTS):
                say("in", "collect")
                got = exchange.collect(receiver, prompts, {"rollout"}, None, STALENESS, round=round)
                say("delivered", receiver, round, [key(record) for record in got])
        say("in", "drop_before")
        exchange.drop_before(max(0, round - STALENESS))
        say("in", "snapshot")
        round += 1
        say("checkpoint", round, exchange.snapshot())


class Ledger:
    """What the parent was told, and what it finds in the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.round, self.snapshot = 0, None
        self.published: set[Key] = set()
        self.delivered: dict[tuple[str, int], set[Key]] = {}
        self.cut_off: dict[tuple[str, int], set[Key]] = {}
        self.counts: Counter[str] = Counter()
        self.inside = "open"

    def hear(self, message: list[Any]) -> None:
        kind, *values = message
        self.inside = values[0] if kind == "in" else f"after {kind}"
        if message == ["in", "resume"]:  # whether it came to the rollback or not
            self.published = {one for one in self.published if one[1] < self.round}
            for known in (self.delivered, self.cut_off):
                for place in [place for place in known if place[1] >= self.round]:
                    del known[place]
        elif kind == "published":
            self.published |= {tuple(one) for one in values[0]}
        elif kind == "delivered":
            receiver, round, got = values
            got = [tuple(one) for one in got]
            before = self.delivered.setdefault((receiver, round), set())
            assert len(got) == len(set(got)), f"twice in one answer: {got}"
            assert not before & set(got), f"delivered again: {sorted(before & set(got))}"
            before |= set(got)
            self.counts["deliveries"] += len(got)
        elif kind == "checkpoint":
            self.end_round(*values)

    def end_round(self, round: int, snapshot: bytes) -> None:
        for receiver in POLICIES:
            place = receiver, round - 1
            had, lost = self.delivered[place], self.cut_off.get(place, set())
            assert had | lost == expected(*place), f"{place}: {had | lost} is not what was due"
            assert not had & lost, f"{place}: {had & lost} were delivered again"
            self.counts["rounds of a receiver" + (", cut off and not resumed" if lost else "")] += 1
        self.round, self.snapshot = round, snapshot
        self.counts["rounds"] += 1

    def look(self, first: int) -> None:
        """Hold the file's versions from `first` on against what was acknowledged."""
        uri = f"{self.path.absolute().as_uri()}?mode=ro"
        database = sqlite3.connect(uri, uri=True)
        names = "policy_id, version, prompt_id, position"
        stored = database.execute(
            f"SELECT {names}, encoded FROM record WHERE version >= ?",  # noqa: S608
            [first],
        )
        content = {tuple(row[:4]): row[4] for row in stored}
        marked: dict[tuple[str, int], set[Key]] = {}
        for row in database.execute(
            f"SELECT receiver, round, {names} FROM delivery "  # noqa: S608
            "JOIN record ON record.id = record_id WHERE round >= ?",
            [max(first, self.round)],
        ):
            marked.setdefault(row[:2], set()).add(tuple(row[2:]))
        (sound,) = database.execute("PRAGMA quick_check").fetchone()
        database.close()
        assert sound == "ok", sound
        lost = {one for one in self.published if one[1] >= first} - set(content)
        assert not lost, f"acknowledged and lost: {sorted(lost)}"
        for one, encoded in content.items():
            policy, version, prompt, index = one
            assert encoded == records(policy, version, prompt)[index].encode(), f"changed: {one}"
        for place, known in self.delivered.items():
            if place[1] >= max(first, self.round):
                gone = known - marked.get(place, set())
                assert not gone, f"{place}: acknowledged deliveries are forgotten: {sorted(gone)}"
        for place, known in marked.items():
            self.cut_off[place] = known - self.delivered.get(place, set())


def messages(reader: int, unpacker: msgpack.Unpacker, end: float) -> Iterator[list[Any]]:
    """What a child says until a time, or until it is no more."""
    while (left := end - time.monotonic()) > 0:
        if select.select([reader], [], [], min(left, 60))[0]:
            data = os.read(reader, 1 << 16)
            if not data:
                return
            unpacker.feed(data)
            yield from unpacker


def one_life(ledger: Ledger, rng: random.Random) -> None:
    """Start a child, kill it, and hear what it had to say."""
    reader, writer = os.pipe()
    first = ledger.round  # rounds before were checked when they ended
    resume = rng.random() < 0.5
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            live(ledger.path, writer, ledger.round, ledger.snapshot, resume)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    os.close(writer)
    ledger.inside, unpacker = "start", msgpack.Unpacker()
    try:
        for message in messages(reader, unpacker, time.monotonic() + rng.random() * LONGEST_LIFE):
            ledger.hear(message)
        os.kill(child, signal.SIGKILL)
        for message in messages(reader, unpacker, math.inf):
            ledger.hear(message)
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(reader)
    assert os.WIFSIGNALED(status), "the child ended by itself; its error is above"
    ledger.counts[f"killed in {ledger.inside}"] += 1
    if ledger.path.exists() and ledger.inside not in ("start", "open"):
        ledger.look(first)


def run(kills: int, seed: int, folder: Path) -> Counter[str]:
    """Kill so many children in turn; returns what happened, raises AssertionError if that is bad.

    Parameters
    ----------
    kills : int
    seed : int
        Of the moments; what a child has done by then depends on the machine.
    folder : Path
        For the file.
    """
    rng, ledger = random.Random(seed), Ledger(folder / "exchange.sqlite")  # noqa: S311
    for _ in range(kills):
        one_life(ledger, rng)
    if ledger.path.exists():
        ledger.look(0)
    return ledger.counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = run(options.kills, options.seed, Path(folder))
    for name, count in sorted(counts.items()):
        print(f"{count:8d} {name}")


if __name__ == "__main__":
    main()
