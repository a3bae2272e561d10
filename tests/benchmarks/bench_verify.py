"""What it costs to verify in worker processes.

Run it with ``python tests/benchmarks/bench_verify.py``.
Prints, for a cheap scorer (reasoning-gym's chain_sum) and a dear one (math-verify), verdicts a
second in this process and with one and two workers, the ratio of the times, the microseconds that
a verdict costs beyond the scoring itself, and the first call, in which the workers start; then what
a verdict costs that runs out of time. Wall time, alternating, best of several repeats; all
responses differ, so none is remembered. On a busy machine the ratios say more than the rates.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from mrl.config import ReasoningGymTask, VerificationConfig
from mrl.tasks import Item, Task, load_task
from mrl.tasks.mathematics import MathVerifier
from mrl.tasks.patterns import BOXED, Extracted, regex
from mrl.tasks.verdicts import Job
from mrl.tasks.workers import Workers


def chain_sum() -> Task:
    """Sums, scored by reasoning-gym."""
    config = ReasoningGymTask(kind="reasoning_gym", name="chain_sum", size=64, eval_size=8)
    return replace(load_task(config, 0), runner=None)


def fractions() -> Task:
    """Fractions in a box, compared by math-verify."""
    items = tuple(Item.of(f"half of {i}?", rf"\frac{{{i}}}{{2}}") for i in range(64))
    return Task(items, items, "math", Extracted(MathVerifier(), BOXED))


def answers(task: Task, n: int) -> Iterator[list[Job]]:
    """Lists of `n` responses, right and wrong, none of them twice."""
    number = 0
    while True:
        jobs = []
        for _ in range(n):
            item, number = task.train[number % len(task.train)], number + 1
            text = item.answer if number % 2 else str(number)
            if task.verifier_id == "math":
                text = rf"After {number} steps we find \boxed{{{text}}}."
            else:
                text = f"{text}{number % 3 or ''}"
            # Space that tells equal answers apart.
            mark = f"{number:b}".translate({48: " ", 49: "\t"})
            jobs.append((item, f"{text}\n{mark}".encode(), True))
        yield jobs


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(task: Task, n: int, repeats: int) -> None:
    """One line for a task."""
    bounds = VerificationConfig()
    places = {
        0: task,
        **{
            count: replace(task, runner=Workers(task.verify, bounds, count, task.verifier_id))
            for count in (1, 2)
        },
    }
    drawn = answers(task, n)
    starts = {count: seconds(lambda t=t: t.verdicts(next(drawn))) for count, t in places.items()}
    best = dict.fromkeys(places, float("inf"))
    for _ in range(repeats):
        for count, place in places.items():
            jobs = next(drawn)
            best[count] = min(best[count], seconds(lambda p=place, j=jobs: p.verdicts(j)))
    for count, place in places.items():
        beyond = (best[count] - best[0] / max(count, 1)) / n * 1e6
        print(
            f"{task.verifier_id:24} {count or 'no'} worker(s): {n / best[count]:8.0f} verdicts/s, "
            f"time x{best[count] / best[0]:.2f}, {beyond:+.0f} us a verdict, "
            f"first call {starts[count]:.1f} s"
        )
        place.close()


def late(timeout: float) -> None:
    """A verdict that never ends, and the next one, which meets a new worker."""
    item = Item.of("q", r"(a+)+\Z")
    bounds = VerificationConfig(timeout=timeout)
    with Task((item,), (item,), "regex", regex, runner=Workers(regex, bounds, 1, "regex")) as task:
        task.verdicts([(item, b"a", True)])
        spent = seconds(lambda: task.verdicts([(item, b"a" * 60 + b"b", True)]))
        again = seconds(lambda: task.verdicts([(item, b"b", True)]))
    print(f"time limit {timeout} s: lost after {spent:.2f} s, the next after {again:.2f} s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1024, help="responses at once")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    for task in (chain_sum(), fractions()):
        measure(task, args.n, args.repeats)
    late(1.0)


if __name__ == "__main__":
    main()
