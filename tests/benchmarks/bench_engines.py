"""Both engines on one model, in one run: tokens a second, and the gap after weight updates.

    .venv-vllm/bin/python tests/benchmarks/bench_engines.py [--model smollm2] [--threads 2]

`make test-vllm` makes that environment. Two policies start from the same weights and answer the
same prompts in turns, one sampled with transformers, one with vLLM; medians over repeats. Then the
vLLM policy takes gradient steps; after each, its engine takes over the new weights and is held
against the trainer on its own responses to all prompts.
"""

import argparse
import time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from mrl.batch import Assignment, Row
from mrl.config import RunConfig, parse
from mrl.policy import Policy, build_policies, engines
from mrl.rollout import Rollout
from mrl.tasks import Item
from mrl.update import update

QUESTIONS = [f"What is {a} + {b}? Think step by step." for a, b in ((17, 25), (8, 5), (91, 4))] + [
    "Name three rivers of Europe.",
    "Write one sentence about the sea.",
    "Which is larger, 0.7 or 0.65, and why?",
    "Spell 'lantern' backwards.",
    "List the prime numbers below 30.",
]


def settings(model: str, tokens: int, lr: float, temperature: float) -> RunConfig:
    """A policy an engine, with the same weights."""
    one = {
        "model": {"kind": "pretrained", "path": model, "dtype": "bfloat16"},
        "optimizer": {"lr": lr},
    }
    vllm = {"kind": "vllm", "eager": True, "kv_cache_gib": 0.5, "max_model_len": 512}
    return parse(
        {
            "probe": {"kind": "grpo"},
            "task": {"kind": "jsonl", "path": "unused"},
            "policies": [
                {"name": "transformers", **one},
                {"name": "vllm", "engine": vllm, **one},
            ],
            "sampling": {"max_tokens": tokens, "temperature": temperature},
            "device": "cpu",
        }
    )


def speed(policies: list[Policy], items: list[Item], samples: int, repeats: int) -> Table:
    """Tokens a second of each policy's engine, in turns."""
    rates: dict[str, list[float]] = {policy.name: [] for policy in policies}
    for repeat in range(repeats + 1):
        for policy in policies:
            begin = time.perf_counter()
            groups = policy.generate(items, samples, repeat)
            seconds = time.perf_counter() - begin
            if repeat:  # the first warms up
                rates[policy.name].append(tokens_of(groups) / seconds)
    table = Table("engine", "tokens/s", "x transformers", title=f"{len(items)} x {samples}")
    medians = {name: float(np.median(rate)) for name, rate in rates.items()}
    for name, rate in medians.items():
        table.add_row(name, f"{rate:.0f}", f"{rate / medians['transformers']:.2f}")
    return table


def tokens_of(groups: list[list[Rollout]]) -> int:
    """Sampled tokens."""
    return sum(len(one.ids) for group in groups for one in group)


def gaps(policy: Policy, items: list[Item], samples: int, updates: int) -> Table:
    """What the check after each update found, and the same on all prompts."""
    table = Table(
        "updates", "sync, s", "gap of the check", "gap", "largest", "ratio, mean", "tokens"
    )
    for done in range(updates + 1):
        groups = policy.generate(items, samples, done)
        ones = [(item, one) for item, g in zip(items, groups, strict=True) for one in g]
        rows = [Row(i, policy.render(item), one.ids, 1.0) for i, (item, one) in enumerate(ones)]
        engine = np.concatenate([one.logprobs for _, one in ones])
        difference = np.concatenate(policy.score(rows)) - engine
        begin = time.perf_counter()
        found: Any = policy.sync()
        table.add_row(
            str(done),
            f"{time.perf_counter() - begin:.2f}",
            f"{found['engine_gap']:.4f}",
            f"{np.abs(difference).mean():.4f}",
            f"{np.abs(difference).max():.3f}",
            f"{np.exp(difference).mean():.4f}",
            str(len(difference)),
        )
        # Longer responses are better: any rule that moves the weights will do.
        lengths = np.array([len(one.ids) for _, one in ones], dtype=np.float64)
        better = (lengths - lengths.mean()) / (lengths.std() + 1e-6)
        weighted = [
            Row(0, row.prompt, row.response, float(weight) / len(rows))
            for row, weight in zip(rows, better, strict=True)
        ]
        update(policy, Assignment(weighted, 1))
        policy.sync()
    return table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=int, default=len(QUESTIONS))
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    items = [Item.of(question, "") for question in QUESTIONS[: arguments.prompts]]
    run = settings(arguments.model, arguments.tokens, arguments.lr, arguments.temperature)
    policies = build_policies(run)
    console = Console(width=120)
    with engines(policies):
        console.print(speed(policies, items, arguments.samples, arguments.repeats))
        console.print(gaps(policies[1], items, arguments.samples, arguments.updates))


if __name__ == "__main__":
    main()
