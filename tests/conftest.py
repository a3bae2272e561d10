"""Tiny real models and tokenizers for the trainer's tests; imports torch only where used."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings

from bandit.probes import GRPO
from mrl.config import (
    EngineConfig,
    HFEngineConfig,
    InitModel,
    ObjectiveConfig,
    OptimizerConfig,
    PolicyConfig,
    SamplingConfig,
    parse,
)

# How long an example takes says nothing about what is tested, and much about what else runs.
hypothesis_settings.register_profile("mutual-rl", deadline=None)
hypothesis_settings.load_profile("mutual-rl")

ALPHABET = "01+="
# A vocabulary of its own: pairs of digits are one token.
BPE_TEXTS = [f"{i:04b}+{j:04b}=" for i in range(16) for j in range(16)]
# Weights far from uniform, so that nothing holds by symmetry.
MODEL = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """Sums in one order, whatever machine the tests run on."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def characters() -> Any:
    """One token a character of ``01+=``."""
    from mrl.tokens.recipes import character_tokenizer

    return character_tokenizer(ALPHABET)


@pytest.fixture(scope="session")
def pairs() -> Any:
    """BPE over the same characters that merges some pairs of digits."""
    from mrl.tokens.recipes import bpe_tokenizer

    return bpe_tokenizer(BPE_TEXTS, 9)


@pytest.fixture
def make_policy(one_thread: None, characters: Any) -> Callable[..., Any]:
    """Build a policy with random weights: float64 and character tokens unless told otherwise."""
    from mrl.models import load_model
    from mrl.policy import Policy

    def make(
        name: str = "a",
        /,
        *,
        tokenizer: Any = characters,
        probe: Any = None,
        dtype: str = "float64",
        seed: int = 0,
        sampling: dict[str, Any] | None = None,
        objective: dict[str, Any] | None = None,
        optimizer: dict[str, Any] | None = None,
        engine: EngineConfig | None = None,
        **params: Any,
    ) -> Policy:
        section = InitModel(kind="init", params=MODEL | params, dtype=dtype)
        config = PolicyConfig.model_construct(name=name, model=section)
        return Policy(
            name=name,
            model=load_model(config, tokenizer, seed=seed),
            tokenizer=tokenizer,
            probe=probe or GRPO(),
            sampling=SamplingConfig(**({"max_tokens": 4} | (sampling or {}))),
            objective=ObjectiveConfig(**(objective or {})),
            optimizer=OptimizerConfig(**({"lr": 0.01} | (optimizer or {}))),
            engine=engine or HFEngineConfig(),
        )

    return make


@pytest.fixture
def parity_task(tmp_path: Path) -> Path:
    """A jsonl task: the parity of four binary digits; random policies solve it now and then."""
    path = tmp_path / "parity.jsonl"
    rows = [{"question": f"{i:04b}=", "answer": str(i.bit_count() % 2)} for i in range(16)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def settings(tmp_path: Path, parity_task: Path) -> Callable[..., dict[str, Any]]:
    """Settings of a tiny run, as YAML would hold them; keywords replace top-level sections."""
    text = tmp_path / "texts.txt"
    text.write_text("\n".join(BPE_TEXTS), encoding="utf-8")
    tokenizers = [
        {"kind": "characters", "alphabet": ALPHABET},
        {"kind": "bpe", "path": str(text), "vocab_size": 9},
        {"kind": "characters", "alphabet": ALPHABET[::-1] + "-"},
    ]

    def make(policies: int = 2, /, **sections: Any) -> dict[str, Any]:
        model = {"kind": "init", "params": MODEL}
        return {
            "name": "tiny",
            "output": str(tmp_path / "runs"),
            "seed": 1,
            "rounds": 2,
            "prompts": 4,
            "device": "cpu",
            "probe": {"kind": "grpo"},
            "group": {"own": 6, "peers": 6},
            "task": {"kind": "jsonl", "path": str(parity_task), "verifier": "numeric"},
            "policies": [
                {
                    "name": "abc"[i],
                    "model": model,
                    "tokenizer": tokenizers[i],
                    "optimizer": {"lr": 0.01},
                }
                for i in range(policies)
            ],
            "sampling": {"max_tokens": 3},
            "evaluation": {"items": 2, "samples": 2, "ks": [1, 2]},
            "checkpoint": {"every": 1},
        } | sections

    return make


@pytest.fixture
def configure(settings: Callable[..., dict[str, Any]], one_thread: None) -> Callable[..., Any]:
    """The same settings, checked."""

    def make(policies: int = 2, /, **sections: Any) -> Any:
        return parse(settings(policies, **sections))

    return make
