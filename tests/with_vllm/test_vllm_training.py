"""Whole runs with a policy that vLLM samples for, beside one that samples for itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_contract import MODEL

from mrl.batch import Row
from mrl.config import VllmEngineConfig, parse
from mrl.tasks import Item
from mrl.train import train

ENGINE = {"kind": "vllm", "eager": True, "kv_cache_gib": 0.05}
ITEMS = [Item.of(f"{i:04b}=", "1") for i in range(8)]


@pytest.fixture
def run(settings: Any, one_thread: None) -> Any:
    """A run of a vLLM policy and a transformers policy with another tokenizer."""

    def make(name: str, rounds: int, /, **arguments: Any) -> Path:
        raw = settings(2, name=name, rounds=rounds, probe={"kind": "prp", "cap": 2.0})
        for policy in raw["policies"]:
            policy["model"] = {"kind": "init", "params": MODEL}
        raw["policies"][0]["engine"] = ENGINE
        return train(parse(raw), **arguments)

    return make


def rows(folder: Path, policy: str) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        row for row in map(json.loads, lines) if row["event"] == "round" and row["policy"] == policy
    ]


def test_a_vllm_and_a_transformers_policy_train_together_and_resume_exactly(run):
    unbroken = run("unbroken", 3)
    mine, other = rows(unbroken, "a"), rows(unbroken, "b")
    assert [row["round"] for row in mine] == [row["round"] for row in other] == [0, 1, 2]
    assert max(row["engine_gap"] for row in mine) < 1e-4
    assert not any("engine_gap" in row for row in other)
    for row in (*mine, *other):
        assert row["records_in"]["rollout"] == 24
        assert np.isfinite(row["grad_norm"])
    assert all(any(row["trained_tokens_peer"] for row in one) for one in (mine, other))
    assert all(any(row["grad_norm"] for row in one) for one in (mine, other))
    run("broken", 1)
    broken = run("broken", 3, resume=True)
    for stream in ("metrics", "samples"):
        name = f"{stream}.jsonl"
        assert (broken / name).read_bytes() == (unbroken / name).read_bytes()


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_without_an_update_in_between_the_ratio_is_one(make_policy, top_p):
    policy = make_policy(
        dtype="float32",
        engine=VllmEngineConfig(**ENGINE),
        sampling={"max_tokens": 12, "temperature": 0.8, "top_p": top_p},
        **MODEL,
    )
    groups = policy.generate(ITEMS, 8, 0)
    pairs = [(item, one) for item, group in zip(ITEMS, groups, strict=True) for one in group]
    scored = policy.score([Row(0, policy.render(item), one.ids, 1.0) for item, one in pairs])
    for (_, one), again in zip(pairs, scored, strict=True):
        np.testing.assert_allclose(np.exp(again - one.logprobs), 1.0, rtol=0, atol=1e-4)
    policy.close()
