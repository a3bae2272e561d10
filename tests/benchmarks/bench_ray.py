"""What a Ray cluster on this machine costs a round of the demo, against one process.

    python tests/benchmarks/bench_ray.py [--rounds 40] [--probe sgt] [--pairs 3]

Both run `mrl train` on the demo's pair of models, with random weights, from the shell, on the same
cores, in turns; shown are medians of the rounds' times, the first few left out. One process takes
all cores for each operation, the cluster's two take one each. Pin both to one core with `taskset
-c 0` to see what messages cost where nothing can work at the same time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mrl.config import dump
from mrl.demo.plan import pair_config
from mrl.demo.skills import write_task

WARM = 5  # rounds left out


def times(config: Path, name: str, rounds: int, *more: str) -> list[float]:
    """Seconds between the ends of rounds, as the metrics file grows."""
    metrics = config.parent / "runs" / name / "metrics.jsonl"
    command = [sys.executable, "-m", "mrl", "train", str(config), "--unvalidated", f"name={name}"]
    ends: list[float] = []
    run = subprocess.Popen(
        [*command, f"rounds={rounds}", *more],
        cwd=config.parent,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    while run.poll() is None:
        done = metrics.read_bytes().count(b'"event": "round"') // 2 if metrics.exists() else 0
        ends += [time.perf_counter()] * (done - len(ends))
        time.sleep(0.002)
    if run.returncode:
        raise SystemExit(f"{name} ended with exit code {run.returncode}")
    return [b - a for a, b in zip(ends[WARM:], ends[WARM + 1 :], strict=False)]


def phases(config: Path, name: str) -> float:
    """Median seconds of the phases of a round, summed over the policies."""
    rows = (config.parent / "runs" / name / "timing.jsonl").read_text().splitlines()
    spent: dict[int, float] = {}
    for row in map(json.loads, rows):
        if row["policy"] is not None:
            spent[row["round"]] = spent.get(row["round"], 0) + sum(row["phases"].values())
    return statistics.median(list(spent.values())[WARM:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--probe", default="sgt")
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    table = Table(title=f"{arguments.rounds} rounds of the demo's pair, {arguments.probe}")
    for head in ("pair", "one process, ms", "Ray, ms", "ratio", "phases of both, ms", "Ray's, ms"):
        table.add_column(head, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        run = pair_config(
            write_task(home),
            None,
            output="runs",
            probe={"kind": arguments.probe},
            evaluation={"every": 0, "items": 8, "samples": 1, "ks": [1]},
        )
        config = home / "config.yaml"
        config.write_text(dump(run), encoding="utf-8")
        for pair in range(arguments.pairs):
            found, spent = {}, {}
            for name, more in ((f"one{pair}", []), (f"ray{pair}", ["--runtime", "ray"])):
                found[name] = statistics.median(times(config, name, arguments.rounds, *more))
                spent[name] = phases(config, name)
            (one, ray), (mine, its) = found.values(), spent.values()
            figures = (one * 1e3, ray * 1e3, ray / one, mine * 1e3, its * 1e3)
            table.add_row(str(pair), *(f"{figure:.2f}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
