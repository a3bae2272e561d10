"""The vLLM engine: the contract of all engines, and what it must refuse or notice."""

from typing import Any

import pytest
import torch
from engine_contract import MODEL, EngineContract

import mrl.rollout.vllm as under_test
from mrl.config import VllmEngineConfig
from mrl.errors import InputError, RunError
from mrl.tasks import Item

CONFIG = VllmEngineConfig(kind="vllm", eager=True, kv_cache_gib=0.05)
ITEMS = [Item.of("01=", "1"), Item.of("1+1+1=", "1")]


class TestVllmEngine(EngineContract):
    config = CONFIG
    tolerance = 1e-4


@pytest.fixture
def serve_policy(make_policy: Any) -> Any:
    opened = []

    def make(**settings: Any) -> Any:
        engine = CONFIG.model_copy(update=settings.pop("engine", {}))
        policy = make_policy(**({"dtype": "float32"} | MODEL | settings), engine=engine)
        opened.append(policy)
        return policy

    yield make
    for policy in opened:
        policy.close()


def change_weights(policy: Any) -> None:
    with torch.no_grad():
        for parameter in policy.parameters:
            parameter.mul_(1.5)


def test_weights_that_did_not_arrive_are_noticed(serve_policy, monkeypatch):
    policy = serve_policy()
    policy.generate(ITEMS, 2, 0)
    change_weights(policy)
    monkeypatch.setattr(under_test, "weights_of", lambda *_: iter(()))
    with pytest.raises(RunError, match=r"differ from the trainer's by .* max_logprob_gap=0.1"):
        policy.sync()
    with pytest.raises(RunError, match="closed"):
        policy.generate(ITEMS, 2, 0)
