"""How near to the best, and how fast, plans are made; the scheduler at thousands of workers.

    python tests/benchmarks/bench_allocation.py [--instances 2000] [--clusters 3000]

First random problems of one to three policies against a search through all placements. Then the
packing that serves many policies, on problems that the exact search still solves. Then planning
times and bounds up to 100 policies on 10,000 devices. Then random clusters with failure storms:
all rounds end, or this stops with an error. Last, rounds of 100 policies on 10,000 devices.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from mrl.allocation import Faults, Workload, plan, simulate
from mrl.allocation.bound import least_phases
from mrl.allocation.plan import packed
from mrl.allocation.tables import Tables
from mrl.errors import InputError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from small_clusters import best_round, problem


def near_the_best(instances: int) -> Table:
    """Rounds of plans over the shortest of all placements."""
    ratios, infeasible, wrong = [], 0, 0
    for seed in range(instances):
        rng = np.random.default_rng(seed)
        policies = int(rng.integers(1, 4))
        kinds = int(rng.integers(1, 3)) if policies < 3 else 1
        devices, memory = int(rng.integers(1, 6)), float(rng.choice([12, 30, 100]))
        inventory, demands = problem(rng, policies, devices, kinds, memory)
        best = best_round(inventory, demands)
        try:
            found = plan(inventory, demands)
        except InputError:
            infeasible += 1
            wrong += bool(np.isfinite(best))
        else:
            ratios.append(found.round_seconds / best)
    return quantiles(
        f"{len(ratios)} plans against all placements; {infeasible} infeasible, {wrong} of them "
        "wrongly said to be",
        ratios,
    )


def packing(instances: int) -> Table:
    """Rounds by packing over those of the exact search."""
    ratios, missed = [], 0
    for seed in range(instances):
        rng = np.random.default_rng(seed)
        policies, devices = int(rng.integers(2, 6)), int(rng.integers(2, 17))
        inventory, demands = problem(rng, policies, devices, int(rng.integers(1, 3)), 100.0)
        try:
            best = plan(inventory, demands)
        except InputError:
            continue
        tables = Tables.of(inventory, demands)
        found = packed(tables, least_phases(tables))
        if found is None:
            missed += 1
        else:
            ratios.append(sum(found.limits[:2]) / best.round_seconds)
    return quantiles(f"{len(ratios)} packings against the exact search; {missed} missed", ratios)


def quantiles(title: str, ratios: list[float]) -> Table:
    """Mean and quantiles of ratios."""
    levels = (0.5, 0.9, 0.99, 1.0)
    table = Table("mean", *[f"{level:.0%}" for level in levels], "above 1.05", title=title)
    table.add_row(
        f"{np.mean(ratios):.4f}",
        *[f"{value:.4f}" for value in np.quantile(ratios, levels)],
        f"{np.mean(np.array(ratios) > 1.05):.2%}",
    )
    return table


def speed() -> Table:
    """Planning times, and how far rounds are above what no placement undercuts."""
    table = Table(
        "policies",
        "devices",
        "kinds",
        "rollouts x",
        "plan, CPU s",
        "round over bound",
        "devices work",
    )
    for policies, devices, kinds, rows in (
        (2, 8, 1, 1),
        (3, 16, 1, 1),
        (5, 64, 2, 1),
        (10, 16, 1, 1),
        (20, 64, 2, 1),
        (100, 64, 1, 1),
        (100, 1000, 1, 1),
        (100, 10000, 1, 1),
        (100, 10000, 1, 64),
        (100, 5000, 2, 64),
    ):
        rng = np.random.default_rng(0)
        inventory, demands = problem(rng, policies, devices, kinds, 400.0, rows)
        start = time.process_time()
        found = plan(inventory, demands)
        seconds = time.process_time() - start
        table.add_row(
            str(policies),
            str(devices * kinds),
            str(kinds),
            str(rows),
            f"{seconds:.2f}",
            f"{found.round_seconds / found.bound:.3f}",
            f"{found.utilisation:.0%}",
        )
    return table


def storms(clusters: int) -> Table:
    """Random clusters with failures, storms and returns; waiting and work by patience."""
    table = Table(
        "patience", "clusters", "rounds done", "devices work", "work lost", "longest wait, rounds"
    )
    for patience in (0, 1, 4, 16):
        outcomes, waits = [], []
        for seed in range(clusters // 4):
            rng = np.random.default_rng(seed)
            nodes = {f"n{i}": {"x": int(rng.integers(1, 9))} for i in range(rng.integers(1, 9))}
            total = sum(node["x"] for node in nodes.values())
            work = [
                Workload(
                    f"p{i}",
                    {"x": total if i == 0 else int(rng.integers(1, total + 1))},
                    {"x": int(rng.integers(1, total + 1))},
                    *rng.uniform(1, 20, 2),
                )
                for i in range(rng.integers(1, 9))
            ]
            faults = Faults(between=200, repair=10, storms=50, storm_share=0.7, until=500)
            outcome = simulate(work, nodes, rng, rounds=10, faults=faults, patience=patience)
            if outcome.rounds != 10:
                raise SystemExit(f"seed {seed}: {outcome.rounds} of 10 rounds; {outcome.parked}")
            outcomes.append(outcome)
            waits.append(outcome.longest_wait / (outcome.seconds / 10))
        table.add_row(
            str(patience),
            str(len(outcomes)),
            str(Counter(one.rounds for one in outcomes)[10] * 10),
            f"{np.mean([one.utilisation for one in outcomes]):.1%}",
            f"{np.mean([one.lost for one in outcomes]):.1%}",
            f"{np.mean(waits):.2f}",
        )
    return table


def thousands() -> Table:
    """Rounds of 100 policies on 10,000 devices with failures."""
    rng = np.random.default_rng(0)
    nodes = {f"n{i}": {"x": 8} for i in range(1250)}
    work = [
        Workload(f"p{i}", {"x": int(n)}, {"x": int(n)}, *rng.uniform(10, 30, 2))
        for i, n in enumerate([10000, *rng.integers(1, 1000, 99)])
    ]
    faults = Faults(between=1e5, repair=60, storms=300, storm_share=0.05, until=1000)
    start = time.process_time()
    outcome = simulate(work, nodes, rng, rounds=10, faults=faults)
    seconds = time.process_time() - start
    table = Table("rounds", "events", "events a CPU second", "devices work", "work lost")
    table.add_row(
        str(outcome.rounds),
        str(len(outcome.log)),
        f"{len(outcome.log) / seconds:.0f}",
        f"{outcome.utilisation:.1%}",
        f"{outcome.lost:.1%}",
    )
    return table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=2000)
    parser.add_argument("--clusters", type=int, default=3000)
    arguments = parser.parse_args()
    console = Console(width=110)
    console.print(speed())
    console.print(near_the_best(arguments.instances))
    console.print(packing(arguments.instances // 4))
    console.print(thousands())
    console.print(storms(arguments.clusters))


if __name__ == "__main__":
    main()
