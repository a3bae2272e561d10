"""Verdicts in worker processes: what a verifier does wrong costs one verdict and no more."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mrl.config import VerificationConfig
from mrl.errors import RunError
from mrl.tasks import Item, Task, workers
from mrl.tasks.functions import FunctionVerifier
from mrl.tasks.workers import Workers

ITEM = Item.of("question", "right")
# What a function does is what the response says.
MODULE = """
import ctypes, os, random, re, signal, subprocess, sys, time

def obey(question, answer, response, finished):
    what, _, more = response.partition(" ")
    if what == "loop":
        while True: pass
    if what == "sleep": time.sleep(float(more))
    if what == "power": 9 ** 9 ** 9                        # never gives other threads their turn
    if what == "swallow":
        while True:
            try: time.sleep(1)
            except BaseException: pass
    if what == "disarm":
        signal.setitimer(signal.ITIMER_REAL, 0); time.sleep(60)
    if what == "exit": os._exit(3)
    if what == "segfault": ctypes.string_at(0)
    if what == "memory": bytearray(10**11)
    if what == "quit": sys.exit(0)
    if what == "raise": raise KeyError("no such thing")
    if what == "say": return more
    if what == "two": return 2.0
    if what == "none": return None
    if what == "nan": return float("nan")
    if what == "draw": return random.random()
    if what == "count":
        with open(more, "a") as file: file.write("x")
    if what == "modules":
        return float(not {"torch", "transformers", "mrl.config", "bandit"} & set(sys.modules))
    if what == "children":
        child = subprocess.Popen(["sleep", "100"])
        with open(more, "w") as file: file.write(f"{os.getpid()} {child.pid}")
        time.sleep(100)
    print("noise")
    return response == answer
"""
REASONS = {
    "loop": "timeout",
    "sleep 60": "timeout",
    "power": "timeout",
    "swallow": "timeout",
    "disarm": "timeout",
    "exit": "crash",
    "segfault": "crash",
    "memory": "memory",
    "quit": "exception",
    "raise": "exception",
    "say hello": "exception",
    "two": "exception",
    "none": "none",
    "nan": "none",
}


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Task]]:
    """Make tasks whose responses say what the verifier does."""
    (tmp_path / "odd.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[Task] = []

    def make(count: int = 2, /, **settings: Any) -> Task:
        verify = FunctionVerifier("odd:obey")
        bounds = VerificationConfig(**({"timeout": 1.0, "memory": 1024} | settings))
        runner = Workers(verify, bounds, count, "odd:obey")
        made.append(Task((ITEM,), (ITEM,), "odd:obey", verify, runner=runner))
        return made[-1]

    yield make
    for task in made:
        task.close()


def jobs(*responses: str) -> list[tuple[Item, bytes, bool]]:
    return [(ITEM, response.encode(), True) for response in responses]


def rewards(task: Task, *responses: str) -> list[float | None]:
    return [verdict.reward for verdict in task.verdicts(jobs(*responses))]


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody waited for counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_a_verdict_that_fails_costs_itself_alone(pool) -> None:
    good = [word for i in range(20) for word in (f"wrong {i}", "right")]
    asked = [word for pair in zip(good, [*REASONS, *good], strict=False) for word in pair]
    found = pool(3, max_lost=1.0).verdicts(jobs(*asked))
    for response, verdict in zip(asked, found, strict=True):
        if response in REASONS:
            assert (verdict.reward, verdict.reason) == (None, REASONS[response]), response
            assert verdict.detail
        else:
            assert verdict == (float(response == "right"), "", "")


def test_details_say_what_happened(pool) -> None:
    found = pool(1).verdicts(jobs("raise", "say hello", "two", "exit", "segfault"))
    for verdict, words in zip(
        found, ["KeyError: 'no such thing'", "'hello'", "2.0", "status 3", "SIGSEGV"], strict=True
    ):
        assert words in verdict.detail


def test_draws_do_not_depend_on_the_number_of_workers(pool) -> None:
    asked = [f"draw {i}" for i in range(40)]
    alone = rewards(pool(1), *asked)
    assert len(set(alone)) == 40
    assert rewards(pool(2), *reversed(asked)) == alone[::-1]
    here = Task((ITEM,), (ITEM,), "odd:obey", FunctionVerifier("odd:obey"))
    assert rewards(here, *asked) == alone


def test_a_verifier_that_always_fails_stops_the_run(pool, monkeypatch) -> None:
    monkeypatch.setattr(workers, "LOST", 3)
    task = pool(2, timeout=0.2)
    with pytest.raises(RunError) as caught:
        task.verdicts(jobs(*(f"sleep {i}" for i in range(10, 50))))
    for words in ("'odd:obey'", "3 of the 3", "0.2 s", "task.verification.timeout", "--resume"):
        assert words in str(caught.value)
    assert task.runner._workers == []
    # Half of the verdicts may be lost: the others are asked for before it is said.
    lost, good = [f"exit {i}" for i in range(4)], [f"wrong {i}" for i in range(12)]
    assert rewards(task, *lost, *good) == [None] * 4 + [0.0] * 12


def test_equal_responses_are_verified_once_and_remembered(pool, tmp_path) -> None:
    counted = [f"count {tmp_path / name}" for name in "ab"]
    task = pool(2)
    assert rewards(task, *counted * 5) == [0.0] * 10
    assert rewards(task, *counted) == [0.0] * 2
    assert [(tmp_path / name).read_text() for name in "ab"] == ["x", "x"]


def test_threads_get_their_own_verdicts(pool) -> None:
    task = pool(2)
    asked = [[f"wrong {thread} {i}" for i in range(thread)] + ["right"] for thread in range(6)]
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda responses: rewards(task, *responses), asked))
    assert found == [[0.0] * thread + [1.0] for thread in range(6)]


def test_workers_import_neither_torch_nor_the_trainer(pool) -> None:
    assert rewards(pool(1), "modules") == [1.0]


def test_what_a_verdict_started_ends_with_it(pool, tmp_path) -> None:
    path = tmp_path / "pids"
    assert rewards(pool(1), f"children {path}") == [None]
    assert all(wait_until(lambda pid=int(pid): gone(pid)) for pid in path.read_text().split())


def test_an_interrupt_ends_the_workers_and_the_next_call_starts_afresh(pool) -> None:
    task = pool(1, timeout=60.0)
    assert rewards(task, "right") == [1.0]
    (worker,) = task.runner._workers
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        rewards(task, "sleep 50")
    assert time.monotonic() - start < 20
    assert gone(worker.process.pid)
    assert rewards(task, "wrong") == [0.0]


def test_a_worker_that_died_while_idle_costs_no_verdict(pool) -> None:
    task = pool(1)
    assert rewards(task, "right") == [1.0]
    (worker,) = task.runner._workers
    worker.process.kill()
    worker.process.wait()
    assert rewards(task, "wrong", "wrong too") == [0.0, 0.0]


def test_close_ends_the_workers_and_leaves_the_task_usable(pool) -> None:
    with pool(2) as task:
        assert rewards(task, "right", "wrong") == [1.0, 0.0]
        pids = [worker.process.pid for worker in task.runner._workers]
        assert len(pids) == 2
    assert all(map(gone, pids))
    assert rewards(task, "once more") == [0.0]


def test_workers_end_when_their_parent_is_killed(tmp_path) -> None:
    (tmp_path / "odd.py").write_text(MODULE, encoding="utf-8")
    script = f"""
import json, sys
sys.path[:0] = {[str(tmp_path), *sys.path]!r}
from mrl.tasks import Item
from mrl.tasks.functions import FunctionVerifier
from mrl.tasks.workers import Workers
from mrl.config import VerificationConfig
pool = Workers(FunctionVerifier("odd:obey"), VerificationConfig(timeout=2.0), 2, "odd")
ask = lambda *texts: pool.verdicts([(Item.of("q", "a"), text, True) for text in texts])
ask(b"1", b"2")
print(json.dumps([worker.process.pid for worker in pool._workers]), flush=True)
ask(b"power")
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    with parent:
        pids = json.loads(parent.stdout.readline())
        assert len(pids) == 2
        assert not any(map(gone, pids))
        parent.kill()
    # One idles, one computes without ever looking up.
    assert all(wait_until(lambda pid=pid: gone(pid)) for pid in pids)


def test_a_worker_that_cannot_start_is_said_at_once() -> None:
    pool = Workers(FunctionVerifier("nowhere:obey"), VerificationConfig(), 1, "nowhere:obey")
    with pytest.raises(RunError, match="'nowhere:obey' does not start.*No module named 'nowhere'"):
        pool.verdicts(jobs("right"))
    assert pool._workers == []
