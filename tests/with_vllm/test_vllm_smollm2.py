"""The vLLM engine with a real model, in bfloat16, beside the trainer that updates it."""

import numpy as np
import pytest

from mrl.batch import Assignment, Row
from mrl.config import parse
from mrl.policy import build_policies, engines
from mrl.tasks import Item
from mrl.update import update

ITEMS = [Item.of("What is 17 + 25?", "42"), Item.of("Name three rivers of Europe.", "")]


@pytest.mark.slow
def test_after_an_update_engine_and_trainer_give_nearly_the_same_logprobs():
    engine = {"kind": "vllm", "eager": True, "kv_cache_gib": 0.5, "max_model_len": 256}
    config = parse(
        {
            "probe": {"kind": "grpo"},
            "task": {"kind": "jsonl", "path": "unused"},
            "policies": [
                {
                    "name": "smollm2",
                    "model": {"kind": "pretrained", "path": "smollm2", "dtype": "bfloat16"},
                    "engine": engine,
                    "optimizer": {"lr": 1e-4},
                }
            ],
            "sampling": {"max_tokens": 8},
            "device": "cpu",
        }
    )
    policies = build_policies(config)
    (policy,) = policies
    with engines(policies):
        before = policy.generate(ITEMS, 4, 0)
        rows = [
            Row(i, policy.render(item), one.ids, weight)
            for i, (item, group) in enumerate(zip(ITEMS, before, strict=True))
            for one, weight in zip(group, (1.0, -1.0, 1.0, -1.0), strict=True)
        ]
        old = np.concatenate(policy.score(rows))
        update(policy, Assignment(rows, len(ITEMS)))
        assert policy.sync()["engine_gap"] < 0.1
        new = np.concatenate(policy.score(rows))
        assert np.abs(new - old).mean() > 0.2  # old weights in the engine would be noticed
        after = policy.generate(ITEMS, 4, 1)
        pairs = [(item, one) for item, group in zip(ITEMS, after, strict=True) for one in group]
        scored = policy.score([Row(0, policy.render(item), one.ids, 1.0) for item, one in pairs])
        engine_side = np.concatenate([one.logprobs for _, one in pairs])
        assert np.abs(np.concatenate(scored) - engine_side).mean() < 0.1
