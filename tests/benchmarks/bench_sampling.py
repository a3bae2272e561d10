"""What a sharing rule costs beyond drawing its rollouts.

Run it with ``python tests/benchmarks/bench_sampling.py``.
Prints, for each rule, the time of `sampling.gradients` divided by the time that bare
``Generator.choice(p=...)`` takes for the rollouts that the rule uses (GRPO: the own ones), from the
same policies; and, for scale, by the time of a plain loop over groups and rollouts. All are
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


def bare_draw(world: World, probe: Probe, n: int, size: int) -> None:
    """The rollouts of `n` estimates of every context, and nothing else."""
    rng = np.random.default_rng(0)
    for probs in world.probs if probe.needs else world.probs[:1]:
        for context in probs:
            rng.choice(world.n_arms, size=(n, size), p=context)


def plain_loop(world: World, n: int, size: int) -> np.ndarray:
    """GRPO as one would first write it: every group and every rollout by itself."""
    rng = np.random.default_rng(0)
    gradients = np.zeros((n, world.n_contexts, world.n_arms))
    for i in range(n):
        for x, pi in enumerate(world.probs[0]):
            arms = rng.choice(world.n_arms, size=size, p=pi)
            rewards = world.rewards[x, arms]
            if rewards.max() == rewards.min():
                continue
            for arm, reward in zip(arms, rewards, strict=True):
                score = -pi.copy()
                score[arm] += 1.0
                gradients[i, x] += (
                    (reward - rewards.mean()) / (rewards.std(ddof=1) + 1e-6) * score / size
                )
    return gradients


def seconds(call: Callable[[], object]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    """Measure and print one line a rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=100_000, help="estimates of each context")
    parser.add_argument("--contexts", type=int, default=1)
    parser.add_argument("--arms", type=int, default=64)
    parser.add_argument("--group", type=int, default=8, help="own rollouts, and of the peer")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    world = random_world(np.random.default_rng(1), contexts=args.contexts, arms=args.arms)
    size, few = args.group, max(1, args.n // 100)
    loop = seconds(lambda: plain_loop(world, few, size)) * args.n / few
    print(f"plain loop over rollouts, GRPO, from {few} estimates: {loop:.1f} s for {args.n}")
    for name, probe in RULES.items():
        rules, bares = [], []
        for _ in range(args.repeats):
            rules.append(
                seconds(lambda: sampling.gradients(world, probe, own=size, peers=size, n=args.n))  # noqa: B023
            )
            bares.append(seconds(lambda: bare_draw(world, probe, args.n, size)))  # noqa: B023
        rule, bare = min(rules), min(bares)
        print(
            f"{name:14} {rule:7.3f} s   bare draw {bare:7.3f} s   ratio {rule / bare:5.2f}   "
            f"plain loop / this {loop / rule:6.0f}"
        )


if __name__ == "__main__":
    main()
