"""What sharing costs a round: each probe against GRPO, interleaved in one run.

    python tests/benchmarks/bench_round.py [--rounds 40] [--hidden 96] [--layers 2] [--residual 64]

Every probe plays the same rounds from the same weights with the same seeds. The verifier is a hash
of the response that accepts about one in eight, so that groups are alive, dead and rescued. Shown
are medians over rounds, relative to GRPO: the whole round; all but the gradient step, which is what
exchange, credit, retokenisation and bookkeeping add to; and the gradient step per trained token.
`--residual` is `exchange.residual_sample`: rollouts whose residual PRP's sources measure, which
costs a scoring pass of those that are not canonical (of random models, nearly all).
"""

import argparse
import copy
import time
import zlib
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from bandit.probes import GRPO, PRP, SGT, XGRPO
from mrl.config import RunConfig, parse
from mrl.exchange import MemoryExchange
from mrl.policy import Policy, build_policies
from mrl.runtime.local import LocalTeam
from mrl.tasks import Item, Task
from mrl.train import play

ROOT = Path(__file__).resolve().parents[2]
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
            "device": "cpu",
            "exchange": {"residual_sample": residual},
        }
    )


def verify(item: Item, response: bytes, finished: bool) -> float:
    """Accept one response in eight, by its text and prompt."""
    return float(zlib.crc32(item.prompt_id.encode() + response) % 8 == 0)


def measure(config: RunConfig, policies: list[Policy], rounds: int) -> dict[str, dict[str, float]]:
    """Medians over rounds of seconds and tokens, by probe."""
    items = [Item.of(f"{i} + {i % 7} =", "0") for i in range(24)]
    task = Task(tuple(items), tuple(items), "hash", verify)
    start = [copy.deepcopy(policy.model.state_dict()) for policy in policies]
    seen: dict[str, list[dict[str, float]]] = {label: [] for label in PROBES}
    for round in range(rounds + 1):
        for label, probe in PROBES.items():
            for policy, weights in zip(policies, start, strict=True):
                policy.model.load_state_dict(weights)
                policy.probe = probe
            peers = 8 if probe.needs else 0
            run = config.model_copy(
                update={"probe": probe, "group": config.group.model_copy(update={"peers": peers})}
            )
            begin = time.perf_counter()
            with LocalTeam(run, policies) as team, MemoryExchange() as exchange:
                team.join(task, exchange)
                turns = play(round, items, team, run)
            total = time.perf_counter() - begin
            rows = [turn.row for turn in turns]
            spent = {
                name: sum(turn.seconds[name] for turn in turns)
                for name in ("generate", "verify", "publish", "collect", "credit", "update")
            }
            tokens = sum(row["trained_tokens_own"] + row["trained_tokens_peer"] for row in rows)
            if round:  # the first warms up
                seen[label].append({**spent, "round": total, "tokens": tokens})
    return {
        label: {key: float(np.median([one[key] for one in found])) for key in found[0]}
        for label, found in seen.items()
    }


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
    base = found["GRPO"]
    table = Table(title=f"hidden {arguments.hidden}, {arguments.layers} layers, one thread")
    for head in (
        "probe",
        "round, ms",
        "x GRPO",
        "without gradient step, x GRPO",
        "share of exchange, credit",
        "trained tokens",
        "gradient step per token, x GRPO",
        "round at GRPO's tokens, x GRPO",
    ):
        table.add_column(head, justify="right")
    for label, one in found.items():
        rest, rest_base = one["round"] - one["update"], base["round"] - base["update"]
        sharing = one["publish"] + one["collect"] + one["credit"]
        per_token = one["update"] / one["tokens"]
        per_token_base = base["update"] / base["tokens"]
        table.add_row(
            label,
            f"{1e3 * one['round']:.0f}",
            f"{one['round'] / base['round']:.3f}",
            f"{rest / rest_base:.3f}",
            f"{sharing / one['round']:.3f}",
            f"{one['tokens']:.0f}",
            f"{per_token / per_token_base:.3f}",
            f"{(rest + per_token * base['tokens']) / base['round']:.3f}",
        )
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
