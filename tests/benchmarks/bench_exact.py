"""How long exact moments take in a large world, and with many peers.

Run it with ``python tests/benchmarks/bench_exact.py``.
Prints processor times (one thread, best of several repeats) of `exact.moments` without a full
covariance: for the four rules in one world with one peer, beside the time that one pass over the
probabilities takes (their logarithm); and for SGT as the number of peers grows.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from bandit import World, exact
from bandit.probes import GRPO, PRP, SGT, XGRPO
from bandit.worlds import random_world


def best(call: Callable[[], object], repeats: int) -> float:
    """Least processor time of some calls."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", type=int, default=1000)
    parser.add_argument("--arms", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    world = random_world(rng, contexts=args.contexts, arms=args.arms)
    one_pass = best(lambda: np.log(world.probs[0]), args.repeats)
    print(f"{args.contexts} contexts x {args.arms} arms, G = M = 8; one pass {one_pass:.4f} s")
    for probe in (GRPO(), XGRPO(), PRP(), SGT()):
        fresh = World.tabular(world.probs, world.rewards, world.weights)
        taken = best(lambda: exact.moments(fresh, probe, own=8, peers=8), args.repeats)  # noqa: B023
        print(f"{probe.kind:6} {taken:6.3f} s   passes {taken / one_pass:6.1f}")
    first = None
    for peers in (1, 2, 4, 8, 16):
        small = random_world(rng, policies=peers + 1, contexts=4, arms=16)
        taken = best(lambda: exact.moments(small, SGT(), own=8, peers=8), args.repeats)  # noqa: B023
        first = first or taken
        print(f"sgt, {peers:2} peers of 8: {taken:7.4f} s, {taken / first:7.1f} times one peer")


if __name__ == "__main__":
    main()
