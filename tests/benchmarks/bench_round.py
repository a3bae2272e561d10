"""What sharing costs a round: each probe against GRPO, interleaved in one run.

    python tests/benchmarks/bench_round.py [--rounds 40] [--hidden 96] [--layers 2] [--residual 64]

Every probe plays the same rounds from the same weights with the same seeds, so that all generate
the same tokens. The verifier is a hash of the response that accepts about one in eight, so that
groups are alive, dead and rescued. `--residual` is `exchange.residual_sample`: rollouts whose
residual PRP's sources measure, which costs a scoring pass of those that are not canonical.

Rules differ in the tokens that they train on, which is what they are for, so the last column is
what a round would cost at GRPO's tokens: all but the gradient step as it is (exchange, credit,
retokenisation and bookkeeping with it), and for each policy its gradient step a trained token times
the tokens that GRPO trains it on. By policy, since a token of a wider vocabulary costs more and a
rule may hand most tokens to one policy. Not the plain quotient of time and tokens generated and
trained: a trained token costs more than a generated one, and their proportions differ.

What is counted:

- tokens of rows that have a weight in the loss; prompts and padding are what they cost. A response
  that occurs twice counts twice and is computed once, which random policies hardly ever have.
- micro-batches of one size: on a CPU a token costs more in a larger one (7 to 28% more at 6,700
  padded tokens than at 2,500 here), and a round of real size fills many of them whatever the rule.
- CPU seconds of the process: with one thread and nothing to wait for they are the round's own time,
  whatever else the machine does. Shown are medians over rounds, ratios within each round.
"""

import argparse
import copy
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bandit.probes import GRPO, PRP, SGT, XGRPO, Probe
from mrl.config import RunConfig, parse
from mrl.exchange import MemoryExchange
from mrl.policy import Policy, build_policies
from mrl.runtime.local import LocalTeam
from mrl.tasks import Item, Task
from mrl.train import play

ROOT = Path(__file__).resolve().parents[2]
MICRO_BATCH = 2048
PROBES = {
    "GRPO": GRPO(),
    "XGRPO": XGRPO(),
    "SGT": SGT(),
    "PRP, sequence": PRP(cap=10),
    "PRP, no ratio": PRP(ratio="none"),
}


def settings(hidden: int, layers: int, residual: int) -> RunConfig:
    """A pair with two tokenizers, random weights and the demo's group sizes."""
    params = {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 64,
    }
    model = {"kind": "init", "params": params}
    bpe = {
        "kind": "bpe",
        "path": str(ROOT / "mrl/configs/arithmetic.txt"),
        "vocab_size": 300,
        "byte_level": True,
    }
    characters = {"kind": "characters", "alphabet": " 0123456789+-=abcdefghijklmnopqrstuvwxyz;"}
    return parse(
        {
            "probe": {"kind": "grpo"},
            "task": {"kind": "jsonl", "path": "unused"},
            "policies": [
                {"name": "chars", "model": model, "tokenizer": characters},
                {"name": "bytes", "model": model, "tokenizer": bpe},
            ],
            "sampling": {"max_tokens": 12},
            "objective": {"batch_tokens": MICRO_BATCH},
            "device": "cpu",
            "exchange": {"residual_sample": residual},
        }
    )


def verify(item: Item, response: bytes, finished: bool) -> float:
    """Accept one response in eight, by its text and prompt."""
    return float(zlib.crc32(item.prompt_id.encode() + response) % 8 == 0)


@dataclass(frozen=True)
class Round:
    """CPU seconds of one round: the whole, each phase over the policies, and the gradient steps."""

    total: float
    phases: dict[str, float]
    updates: NDArray[np.float64]
    trained: NDArray[np.int64]

    @property
    def rest(self) -> float:
        """All but the gradient steps."""
        return self.total - float(self.updates.sum())

    @property
    def sharing(self) -> float:
        """Exchange, credit and retokenisation."""
        return sum(self.phases[name] for name in ("publish", "residual", "collect", "credit"))

    def updates_at(self, other: "Round", /) -> float:
        """What the gradient steps would take for the tokens of another round."""
        return float((self.updates / self.trained * other.trained).sum())


def one_round(
    number: int, probe: Probe, policies: list[Policy], task: Task, config: RunConfig
) -> Round:
    """Play one round by `probe`."""
    for policy in policies:
        policy.probe = probe
    group = config.group.model_copy(update={"peers": config.group.own if probe.needs else 0})
    run = config.model_copy(update={"probe": probe, "group": group})
    begin = time.process_time()
    with (
        mock.patch.object(time, "perf_counter", time.process_time),  # which times the phases
        LocalTeam(run, policies) as team,
        MemoryExchange() as exchange,
    ):
        team.join(task, exchange)
        turns = play(number, task.train, team, run)
    total = time.process_time() - begin
    rows, spent = [turn.row for turn in turns], [turn.seconds for turn in turns]
    return Round(
        total=total,
        phases={name: sum(one[name] for one in spent) for name in list(spent[0])},
        updates=np.array([one["update"] for one in spent]),
        trained=np.array([row["trained_tokens_own"] + row["trained_tokens_peer"] for row in rows]),
    )


def measure(config: RunConfig, policies: list[Policy], rounds: int) -> dict[str, list[Round]]:
    """Rounds of each probe, in turns."""
    items = tuple(Item.of(f"{i} + {i % 7} =", "0") for i in range(24))
    task = Task(items, items, "hash", verify)
    start = [copy.deepcopy(policy.model.state_dict()) for policy in policies]
    found: dict[str, list[Round]] = {label: [] for label in PROBES}
    for number in range(rounds + 1):
        for label, probe in PROBES.items():
            for policy, weights in zip(policies, start, strict=True):
                policy.model.load_state_dict(weights)
            found[label].append(one_round(number, probe, policies, task, config))
    return {label: played[1:] for label, played in found.items()}  # the first warms up


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--residual", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = settings(arguments.hidden, arguments.layers, arguments.residual)
    found = measure(config, build_policies(config), arguments.rounds)
    title = f"hidden {arguments.hidden}, {arguments.layers} layers, one thread, "
    table = Table(title=title + f"{arguments.rounds} rounds, residual of {arguments.residual}")
    columns: dict[str, Callable[[Round, Round], float]] = {
        "round, ms": lambda one, base: 1e3 * one.total,
        "x GRPO": lambda one, base: one.total / base.total,
        "exchange, credit, share": lambda one, base: one.sharing / one.total,
        "trained tokens": lambda one, base: one.trained.sum(),
        "without gradient step, x GRPO": lambda one, base: one.rest / base.rest,
        "gradient step per token, x GRPO": lambda one, base: (
            one.updates_at(base) / base.updates.sum()
        ),
        "round at GRPO's tokens, x GRPO": lambda one, base: (
            (one.rest + one.updates_at(base)) / base.total
        ),
    }
    for head in ("probe", *columns):
        table.add_column(head, justify="right")
    for label, played in found.items():
        pairs = list(zip(played, found["GRPO"], strict=True))
        figures = [float(np.median([f(*pair) for pair in pairs])) for f in columns.values()]
        table.add_row(label, *(f"{x:.0f}" if x > 10 else f"{x:.3f}" for x in figures))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
