"""What a sharing rule costs beyond drawing its rollouts.

Run it with ``python tests/benchmarks/bench_sampling.py``.
Prints, for each rule, the time of `sampling.gradients` divided by the time that bare
``Generator.choice(p=...)`` takes for the same number of rollouts from the same policies. Both are
measured in this run, alternating, in processor time (one thread), best of several repeats.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from bandit import World, sampling
from bandit.probes import GRPO, PRP, SGT, XGRPO, Probe
from bandit.worlds import random_world

RULES: dict[str, Probe] = {
    "grpo": GRPO(),
    "xgrpo": XGRPO(),
    "prp": PRP(),
    "prp, no ratio": PRP(ratio="none"),
    "sgt": SGT(),
}


def bare_draw(world: World, n: int, own: int, peers: int) -> None:
    """The rollouts of `n` estimates of every context, and nothing else."""
    rng = np.random.default_rng(0)
    for policy, probs in enumerate(world.probs):
        for context in probs:
            rng.choice(world.n_arms, size=(n, own if policy == 0 else peers), p=context)


def seconds(call: Callable[[], object]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    """Measure and print one line a rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20_000, help="estimates of each context")
    parser.add_argument("--contexts", type=int, default=4)
    parser.add_argument("--arms", type=int, default=8)
    parser.add_argument("--group", type=int, default=8, help="own rollouts, and of the peer")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    world = random_world(np.random.default_rng(1), contexts=args.contexts, arms=args.arms)
    size = args.group

    def run(probe: Probe) -> Callable[[], object]:
        return lambda: sampling.gradients(world, probe, own=size, peers=size, n=args.n)

    for name, probe in RULES.items():
        pairs = [
            (seconds(run(probe)), seconds(lambda: bare_draw(world, args.n, size, size)))
            for _ in range(args.repeats)
        ]
        rule, bare = (min(times) for times in zip(*pairs, strict=True))
        print(f"{name:14} {rule:7.3f} s   bare draw {bare:7.3f} s   ratio {rule / bare:5.2f}")


if __name__ == "__main__":
    main()
