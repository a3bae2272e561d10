"""Several processes play the run that one plays: same gradient, same metrics, one folder."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from comparison import assert_same

ROOT = Path(__file__).parents[2]
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

pytestmark = pytest.mark.slow


@pytest.fixture
def sections(settings, tmp_path: Path) -> dict[str, Any]:
    """A pair in float64 whose rollouts and rows fill several batches."""
    values = settings(2, probe={"kind": "prp", "cap": 2.0}, rounds=3)
    values["sampling"] |= {"batch": 12}
    values["objective"] = {"batch_tokens": 64, "updates": 2}
    for policy in values["policies"]:
        policy["model"] = policy["model"] | {"dtype": "float64"}
    return values


def write(path: Path, values: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return str(path)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )


def test_two_processes_give_the_gradient_of_one(sections, tmp_path: Path):
    # One update: the gradient of the last is looked at, and groups that are not all dead.
    sections |= {"objective": {"batch_tokens": 64}, "group": {"own": 12, "peers": 12}, "prompts": 8}
    path = write(tmp_path / "config.yaml", sections)
    worker = str(ROOT / "tests" / "parallel_worker.py")
    for name, launcher in (("one", [sys.executable]), ("two", LAUNCH)):
        (tmp_path / name).mkdir()
        done = run(*launcher, worker, path, str(tmp_path / name))
        assert done.returncode == 0, done.stderr
    (alone,) = (json.loads(p.read_text()) for p in (tmp_path / "one").iterdir())
    both = [json.loads((tmp_path / "two" / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert alone["count"] == 1
    for rank, found in enumerate(both):
        assert (found["rank"], found["count"]) == (rank, 2)
        assert found["each"] == [[0, "a", 0], [1, "b", 1], [2, "c", 0]]
        assert found["once"] == 10
        assert (found["error"], found["one_error"]) == ("job 0", "job 1")  # in both processes
        assert_same(found["rows"], alone["rows"])
        for mine, other in zip(found["gradients"], alone["gradients"], strict=True):
            largest = np.abs(other).max()
            assert largest > 1e-4
            np.testing.assert_allclose(mine, other, rtol=0, atol=1e-9 * largest)


def test_a_launched_run_has_the_metrics_of_one_process_and_can_be_resumed_by_one(
    sections, tmp_path: Path
):
    path = write(tmp_path / "config.yaml", sections)
    train = ("-m", "mrl", "train", path, "--unvalidated")
    for name, launcher in (("one", [sys.executable]), ("two", LAUNCH)):
        done = run(*launcher, *train, f"name={name}")
        assert done.returncode == 0, done.stderr
    done = run(sys.executable, *train, "name=two", "rounds=4", "--resume")
    assert done.returncode == 0, done.stderr
    folders = [tmp_path / "runs" / name for name in ("one", "two")]
    one, two = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in folders
    )
    # 3 rows of evaluation before the first round, 2 a round, and 3 rows of evaluation at the end.
    assert (len(one), len(two)) == (12, 14)
    assert_same(two[:9], one[:9])
    assert sorted(p.name for p in (folders[1] / "checkpoints").iterdir()) == [
        "round-000003",
        "round-000004",
    ]


def test_a_killed_process_ends_the_run_and_the_last_checkpoint_continues(sections, tmp_path: Path):
    path = write(tmp_path / "config.yaml", sections | {"rounds": 500, "name": "killed"})
    train = ("-m", "mrl", "train", path, "--unvalidated")
    launcher = subprocess.Popen(
        [*LAUNCH, *train],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    folder = tmp_path / "runs" / "killed"
    try:
        deadline = time.monotonic() + 120
        while not (folder / "checkpoints" / "round-000002").exists():
            assert launcher.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        assert launcher.wait(timeout=60) != 0
    finally:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()
    from mrl.reload import load_policies

    done = load_policies(folder)[2]
    assert done >= 2
    finished = run(sys.executable, *train, f"rounds={done + 1}", "--resume")
    # The broken run may have got further than its last checkpoint that is whole.
    assert finished.returncode == 0, finished.stderr
