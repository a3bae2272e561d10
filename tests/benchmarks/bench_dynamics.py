"""How long learning curves take, and how much of that is drawing.

Run it with ``python tests/benchmarks/bench_dynamics.py``.
Prints, for each rule, the processor time of `dynamics.run` and the share that drawing the same
rollouts alone takes (every policy's, from policies that stay where they start), measured in this
run.
"""

import argparse
import time

import numpy as np

from bandit import World, dynamics
from bandit.probes import GRPO, PRP, SGT, XGRPO
from bandit.rollouts import draw_each
from bandit.worlds import random_world


def draw(world: World, steps: int, replicas: int, size: int) -> None:
    """All rollouts of a run, and nothing else."""
    rng = np.random.default_rng(0)
    probs = np.repeat(world.probs[:, None], replicas, axis=1)
    for _ in range(steps):
        for policy in probs:
            draw_each(policy, size, rng)


def main() -> None:
    """Measure and print one line a rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--policies", type=int, default=3)
    parser.add_argument("--contexts", type=int, default=8)
    parser.add_argument("--arms", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    args = parser.parse_args()
    world = random_world(
        np.random.default_rng(0),
        policies=args.policies,
        contexts=args.contexts,
        arms=args.arms,
    )
    start = time.process_time()
    draw(world, args.steps, args.replicas, args.group)
    drawing = time.process_time() - start
    print(f"drawing alone: {drawing:.2f} s")
    for probe in (GRPO(), XGRPO(), PRP(cap=10.0), SGT()):
        start = time.process_time()
        dynamics.run(
            world,
            probe,
            steps=args.steps,
            replicas=args.replicas,
            own=args.group,
            peers=args.group,
        )
        taken = time.process_time() - start
        print(f"{probe.kind:6} {taken:6.2f} s   share of drawing {drawing / taken:5.2f}")


if __name__ == "__main__":
    main()
