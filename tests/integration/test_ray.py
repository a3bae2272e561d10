"""Runs on a local Ray cluster of three nodes: the same as in one process, whatever is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from comparison import assert_same

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
ROUNDS = 60
# Of models that are planned for; those that are trained are tiny.
SIZE = {"parameters": 1e9, "layers": 8, "hidden_size": 512, "kv_size": 512, "vocab_size": 512}

pytestmark = pytest.mark.slow


class Nodes:
    """A head without cores, two nodes of two cores, and more on demand; see tests/ray_nodes.py."""

    def __init__(self) -> None:
        self.expected = b""
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "ray_nodes.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self._answer()
        self.workers = [self.add(), self.add()]

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _order(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def add(self) -> str:
        return self._order("add 2")

    def remove(self, node: str) -> None:
        assert self._order(f"remove {node}") == "removed"

    def close(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    cluster = Nodes()
    yield cluster
    cluster.close()


@pytest.fixture
def config(settings: Callable[..., dict[str, Any]], tmp_path: Path) -> Path:
    """Two policies that share successes; checkpoints every third round."""
    values = settings(
        2,
        probe={"kind": "sgt"},
        rounds=ROUNDS,
        evaluation={"every": 20, "items": 2, "samples": 2, "ks": [1, 2]},
        checkpoint={"every": 3},
    )
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


@pytest.fixture
def inventory(tmp_path: Path) -> Callable[..., list[str]]:
    """Write an inventory, and the options that name it."""

    def write(*nodes: dict[str, Any], policies: str = "ab", **kinds: dict[str, float]) -> list[str]:
        values = {
            "kind": "inventory",
            "kinds": kinds,
            "nodes": list(nodes),
            "policies": {name: {"size": SIZE} for name in policies},
        }
        path = tmp_path / "cluster.yaml"
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        return ["--inventory", str(path)]

    return write


def train(config: Path, name: str, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mrl", "train", str(config), "--unvalidated", f"name={name}", *more],
        cwd=config.parent,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], code: int = 0, timeout: float = 420) -> str:
    try:
        said, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(process.communicate()[0]) from None
    assert process.returncode == code, said
    return said


def metrics(config: Path, name: str) -> bytes:
    return (config.parent / "runs" / name / "metrics.jsonl").read_bytes()


def rounds(config: Path, name: str) -> int:
    try:
        return metrics(config, name).count(b'"event": "round"') // 2
    except FileNotFoundError:
        return 0


def played_on(config: Path, after: int) -> bool:
    return rounds(config, "ray") > after


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str], timeout: float = 300):
    deadline = time.monotonic() + timeout
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(process.communicate()[0])
        time.sleep(0.02)


def processes(kind: str) -> list[psutil.Process]:
    """Ray's processes that hold an actor of a class."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"]
        if line and line[0].startswith(f"ray::{kind}"):
            found.append(process)
    return found


@pytest.fixture
def local(nodes: Nodes, config: Path) -> bytes:
    """The metrics of the run in one process; played once."""
    if not nodes.expected:
        finish(train(config, "local"))
        nodes.expected = metrics(config, "local")
    return nodes.expected


def test_a_run_on_a_cluster_and_one_in_this_process_have_the_same_metrics(nodes, config, local):
    finish(train(config, "ray", "--runtime", "ray", "--address", nodes.address))
    assert metrics(config, "ray") == local


@pytest.mark.parametrize("kind", ["Seat", "Sampler", "ExchangeHolder"])
def test_a_killed_process_costs_no_record_and_changes_no_figure(
    nodes, config, local, inventory, kind
):
    # Policies are sampled where they cannot be trained.
    apart = inventory(
        {"name": "one", "kind": "trains", "devices": 1},
        {"name": "two", "kind": "samples", "devices": 2},
        trains={"memory_gib": 60, "tflops": 10, "bandwidth_gbs": 10},
        samples={"memory_gib": 8, "tflops": 10, "bandwidth_gbs": 1000},
    )
    more = apart if kind == "Sampler" else []
    run = train(config, "ray", "--runtime", "ray", "--address", nodes.address, *more)
    wait_for(partial(played_on, config, 4), run)
    (victim, *_) = processes(kind)
    victim.send_signal(signal.SIGKILL)
    said = finish(run)
    assert metrics(config, "ray") == local
    status = json.loads((config.parent / "runs" / "ray" / "run.json").read_text())
    assert any("started again after" in note for note in status["notes"]), said


def test_a_process_that_hangs_is_given_up_and_replaced(nodes, config, local):
    run = train(
        config, "ray", "--runtime", "ray", "--address", nodes.address, "--worker-timeout", "20"
    )
    wait_for(partial(played_on, config, 4), run)
    processes("Seat")[0].suspend()
    assert "no answer within 20 s" in finish(run)
    assert metrics(config, "ray") == local


def test_a_lost_node_is_replaced_by_another(nodes, config, local):
    spare = nodes.add()
    run = train(config, "ray", "--runtime", "ray", "--address", nodes.address)
    wait_for(partial(played_on, config, 4), run)
    nodes.remove(nodes.workers[0])
    nodes.workers[0] = spare
    finish(run)
    assert metrics(config, "ray") == local


def test_without_enough_machines_a_run_ends_with_the_cause_and_can_be_continued(
    nodes, config, local, inventory
):
    # Each has room for one policy.
    machines = inventory(
        {"name": "node", "kind": "small", "devices": 1, "count": 2},
        small={"memory_gib": 24, "tflops": 10, "bandwidth_gbs": 10},
    )
    run = train(config, "ray", "--runtime", "ray", "--address", nodes.address, *machines)
    wait_for(partial(played_on, config, 4), run)
    first, second = nodes.workers
    nodes.remove(second)
    start = time.monotonic()
    said = finish(run, 2)
    assert time.monotonic() - start < 30
    assert "GiB" in said
    assert "['node-1'] of the inventory are not in the cluster" in said
    nodes.workers[1] = nodes.add()
    finish(train(config, "ray", "--resume"))
    assert metrics(config, "ray") == local


def test_a_killed_driver_leaves_a_run_that_goes_on(nodes, config, local):
    more = ["--runtime", "ray", "--address", nodes.address]
    run = train(config, "ray", *more)
    wait_for(partial(played_on, config, 4), run)
    run.kill()
    run.communicate()
    finish(train(config, "ray", *more, "--resume"))
    assert metrics(config, "ray") == local


def test_a_policy_of_two_processes_takes_the_steps_of_one(nodes, settings, inventory, tmp_path):
    values = settings(1, rounds=4, group={"own": 12}, sampling={"max_tokens": 3, "batch": 12})
    values["objective"] = {"batch_tokens": 64, "updates": 2}
    values["policies"][0]["model"] |= {"dtype": "float64"}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    machines = inventory(
        {"name": "node", "kind": "half", "devices": 2},
        policies="a",
        half={"memory_gib": 60, "tflops": 10, "bandwidth_gbs": 1000},
    )
    more = ["--runtime", "ray", "--address", nodes.address, *machines]
    finish(train(config, "local"))
    run = train(config, "ray", *more)
    wait_for(lambda: len(processes("Seat")) == 2, run)
    finish(run)
    found = [json.loads(line) for line in metrics(config, "ray").splitlines()]
    assert_same(found, [json.loads(line) for line in metrics(config, "local").splitlines()])
    # What two processes wrote, one goes on with.
    finish(train(config, "ray", "rounds=5", "--resume"))


def test_a_late_peer_is_gone_on_without_and_named(nodes, config):
    more = ["--runtime", "ray", "--address", nodes.address, "exchange.barrier_timeout=1"]
    run = train(config, "ray", *more, "exchange.max_staleness=1")
    wait_for(partial(played_on, config, 4), run)
    absent: set[str] = set()
    while not absent and run.poll() is None:  # it may have been asleep in the other half of a round
        late, _ = processes("Seat")
        late.suspend()
        time.sleep(3)
        late.resume()
        wait_for(partial(played_on, config, rounds(config, "ray") + 1), run)
        rows = [json.loads(line) for line in metrics(config, "ray").splitlines()]
        absent = {name for row in rows for name in row.get("absent_peers", [])}
    assert "started again" not in finish(run)
    assert rounds(config, "ray") == ROUNDS
    assert len(absent) == 1
