"""Time of a training step against TRL's GRPOTrainer, and of two policies against one.

    python tests/benchmarks/bench_trl.py [--steps 30] [--hidden 96] [--layers 3]

One model, one thread, steps of the two trainers in turns: a callback of TRL's runs a round of this
trainer after each of its steps. Prompts, group size, longest response, learning rate and AdamW are
the same, loss `dapo` without divergence, rewards a hash of the text. A step is everything between
two optimizer steps: generation, rewards, loss, update. Shown are medians and the ratio of medians,
of the process's CPU seconds: with one thread and nothing to wait for they are the step's own time,
whatever else the machine does.
"""

import argparse
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from mrl.config import RunConfig, parse
from mrl.exchange import MemoryExchange
from mrl.policy import Policy, build_policies
from mrl.runtime.local import LocalTeam
from mrl.tasks import Item, Task
from mrl.train import play

ALPHABET = "".join(map(chr, range(33, 127))) + "".join(map(chr, range(0xC0, 0xC0 + 32)))
LEARNING_RATE = 1e-5


def settings(arguments: argparse.Namespace) -> RunConfig:
    """Two policies of one architecture that learn alone."""
    params = {
        "hidden_size": arguments.hidden,
        "intermediate_size": 2 * arguments.hidden,
        "num_hidden_layers": arguments.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 64,
    }
    policy = {
        "model": {"kind": "init", "params": params},
        "tokenizer": {"kind": "characters", "alphabet": ALPHABET},
        "optimizer": {"lr": LEARNING_RATE},
    }
    return parse(
        {
            "probe": {"kind": "grpo", "eps": 1e-4},
            "task": {"kind": "jsonl", "path": "unused"},
            "policies": [{"name": name, **policy} for name in ("first", "second")],
            "group": {"own": arguments.generations, "peers": 0},
            "sampling": {"max_tokens": arguments.tokens},
            "device": "cpu",
        }
    )


def reward(prompt: str, response: bytes) -> float:
    """Accept one response in four, by its text and prompt."""
    return float(zlib.crc32(prompt.encode() + response) % 4 == 0)


class Ours:
    """Rounds of this trainer."""

    def __init__(self, config: RunConfig, policies: list[Policy], prompts: list[str]) -> None:
        self.config, self.policies = config, policies
        self.items = [Item.of(prompt, "0") for prompt in prompts]
        self.task = Task(tuple(self.items), (), "hash", self._verify)
        self.round = 0

    @staticmethod
    def _verify(item: Item, response: bytes, finished: bool) -> float:
        return reward(item.question, response)

    def step(self, n: int) -> float:
        """Seconds of a round of the first `n` policies."""
        policies = self.policies[:n]
        self.round += 1
        begin = time.process_time()
        with LocalTeam(self.config, policies) as team, MemoryExchange() as exchange:
            team.join(self.task, exchange)
            play(self.round, self.items, team, self.config)
        return time.process_time() - begin


class InTurns(TrainerCallback):
    """Times TRL's steps, and plays a round of ours after each."""

    def __init__(self, ours: Ours) -> None:
        self.ours = ours
        self.theirs: list[float] = []
        self.one: list[float] = []
        self.two: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock of a step of TRL's."""
        self.begin = time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Stop it, and take our turns, two policies first every other time."""
        self.theirs.append(time.process_time() - self.begin)
        turns = [(self.one, 1), (self.two, 2)]
        for found, policies in turns if len(self.theirs) % 2 else turns[::-1]:
            found.append(self.ours.step(policies))


def trl_trainer(
    policy: Policy, prompts: list[str], arguments: argparse.Namespace, folder: str
) -> GRPOTrainer:
    """TRL's trainer on a copy of the policy's model."""
    path = str(Path(folder) / "model")
    policy.model.save_pretrained(path)
    policy.tokenizer.save_pretrained(path)

    def check(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return [reward(one, text.encode()) for one, text in zip(prompts, completions, strict=True)]

    return GRPOTrainer(
        model=path,
        processing_class=policy.tokenizer,
        reward_funcs=check,
        # Each step draws all prompts, in another order.
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        args=GRPOConfig(
            output_dir=str(Path(folder) / "trl"),
            use_cpu=True,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
            per_device_train_batch_size=len(prompts) * arguments.generations,
            num_generations=arguments.generations,
            max_completion_length=arguments.tokens,
            max_steps=arguments.steps + 2,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            gradient_checkpointing=False,
        ),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = settings(arguments)
    policies = build_policies(config)
    rng = np.random.default_rng(0)
    prompts = ["".join(rng.choice(list(ALPHABET), 12)) for _ in range(arguments.prompts)]
    turns = InTurns(Ours(config, policies, prompts))
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl_trainer(policies[0], prompts, arguments, folder)
        trainer.add_callback(turns)
        trainer.train()
    # The first steps warm up.
    theirs, one, two = (float(np.median(x[2:])) for x in (turns.theirs, turns.one, turns.two))
    table = Table(
        title=f"hidden {arguments.hidden}, {arguments.layers} layers, one thread: "
        f"{arguments.prompts} prompts x {arguments.generations} x {arguments.tokens} tokens, "
        f"{arguments.steps} steps"
    )
    for head in ("step", "ms", "x TRL", "x one policy"):
        table.add_column(head, justify="right")
    table.add_row("TRL", f"{1e3 * theirs:.0f}", "1", "")
    table.add_row("one policy", f"{1e3 * one:.0f}", f"{one / theirs:.2f}", "1")
    table.add_row("two policies", f"{1e3 * two:.0f}", f"{two / theirs:.2f}", f"{two / one:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
