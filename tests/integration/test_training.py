"""Whole tiny runs: every sharing rule, resume to the last bit, tasks and policies that differ."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from mrl.train import train

ROOT = Path(__file__).parents[2]
PROBES: dict[str, dict[str, Any]] = {
    "grpo": {"kind": "grpo"},
    "xgrpo": {"kind": "xgrpo"},
    "prp": {"kind": "prp", "cap": 2.0},
    "prp-block": {"kind": "prp", "ratio": "block", "cap": 2.0},
    "sgt": {"kind": "sgt"},
    "nll": {"kind": "nll"},
}
NEEDS = {
    "grpo": set(),
    "xgrpo": {"group_stats"},
    "prp": {"rollout"},
    "prp-block": {"rollout"},
    "sgt": {"success"},
    "nll": {"success"},
}


def rows(folder: Path, stream: str = "metrics", event: str | None = "round") -> list[Any]:
    lines = (folder / f"{stream}.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if event is None or row["event"] == event]


def weights(folder: Path, done: int) -> Mapping[str, Any]:
    """Every stored tensor of a checkpoint, by policy and name."""
    from safetensors.torch import load_file

    home = folder / "checkpoints" / f"round-{done:06d}"
    return {
        f"{file.parent.name}/{name}": tensor
        for file in sorted(home.glob("*/*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def assert_same_run(left: Path, right: Path, done: int) -> None:
    """Bit for bit: metrics, samples and weights."""
    for stream in ("metrics", "samples"):
        name = f"{stream}.jsonl"
        assert (left / name).read_bytes() == (right / name).read_bytes()
    mine, other = weights(left, done), weights(right, done)
    assert mine.keys() == other.keys()
    assert mine
    for name, tensor in mine.items():
        assert tensor.equal(other[name]), name


@pytest.mark.parametrize("policies", [2, 3])
@pytest.mark.parametrize("probe", PROBES)
def test_every_sharing_rule_trains_policies_of_different_tokenizers(
    configure: Callable[..., Any], probe: str, policies: int
):
    config = configure(policies, probe=PROBES[probe])
    seen: list[int] = []
    folder = train(config, progress=lambda done, _: seen.append(done))
    assert seen == [1, 2]
    found = rows(folder)
    names = ["a", "b", "c"][:policies]
    assert [(row["round"], row["policy"]) for row in found] == [
        (round, name) for round in range(2) for name in names
    ]
    for row in found:
        assert set(row["records_in"]) <= NEEDS[probe]
        assert row["generated"] == 24
        assert np.isfinite(row["grad_norm"])
    delivered = sum(sum(row["records_in"].values()) for row in found)
    assert (delivered > 0) == bool(NEEDS[probe])
    if probe == "xgrpo":  # 4 prompts, one row of statistics for each peer
        assert {row["records_in"]["group_stats"] for row in found} == {4 * (policies - 1)}
    if probe.startswith("prp"):
        assert {row["records_in"]["rollout"] for row in found} == {24 * (policies - 1)}
        assert all(row["ess"] > 0 for row in found if "ess" in row)
        assert any("ess" in row for row in found)
    trained = sum(row["trained_tokens_peer"] for row in found)
    assert (trained > 0) == (probe not in ("grpo", "xgrpo"))
    first, last = weights(folder, 1), weights(folder, 2)
    assert {name.split("/")[0] for name in last} == set(names)
    assert any(not tensor.equal(first[name]) for name, tensor in last.items())
    status = json.loads((folder / "run.json").read_text())
    assert (status["status"], status["rounds_done"]) == ("finished", 2)
    evaluations = rows(folder, event="evaluation")
    assert {row["round"] for row in evaluations} == {0, 2}


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("staleness", [0, 1])
def test_four_rounds_are_two_and_two_more(configure, tmp_path: Path, store: str, staleness: int):
    sections = {
        "probe": PROBES["prp"],
        "exchange": {"store": store, "max_staleness": staleness},
        "evaluation": {"items": 2, "samples": 2, "ks": [1], "every": 3},
    }

    def run(name: str, rounds: int, **settings: Any) -> Path:
        return train(configure(2, name=name, rounds=rounds, **sections), **settings)

    unbroken = run("unbroken", 4)
    run("broken", 2)
    broken = run("broken", 4, resume=True)
    assert_same_run(unbroken, broken, 4)


def differing(policies: list[dict[str, Any]], feature: str) -> list[dict[str, Any]]:
    """Two policies, one or both with settings of their own."""
    first, second = (dict(policy) for policy in policies)
    if feature == "adapters":
        first |= {"lora": {"rank": 2, "dropout": 0.3}, "activation_checkpointing": True}
    elif feature == "schedules":
        first["optimizer"] = {"lr": 0.02, "schedule": "cosine", "decay_rounds": 5}
        second["optimizer"] = {
            "lr": 0.02,
            "schedule": "linear",
            "warmup_rounds": 1,
            "decay_rounds": 4,
        }
    else:
        first |= {"group": {"own": 4, "redraws": 1}, "sampling": {"temperature": 0.7, "batch": 8}}
        second |= {"group": {"peers": {"a": 3}}, "objective": {"updates": 2}}
    return [first, second]


@pytest.mark.parametrize("feature", ["adapters", "schedules", "groups"])
def test_four_rounds_are_two_and_two_more_whatever_the_policies_have(settings, configure, feature):
    policies = differing(settings(2)["policies"], feature)

    def run(name: str, rounds: int, **more: Any) -> Path:
        config = configure(2, name=name, rounds=rounds, policies=policies, probe=PROBES["prp"])
        return train(config, **more)

    unbroken = run("unbroken", 4)
    run("broken", 2)
    broken = run("broken", 4, resume=True)
    assert_same_run(unbroken, broken, 4)


def test_own_group_sizes_are_those_that_are_drawn_and_seen(settings, configure):
    policies = differing(settings(2)["policies"], "groups")
    found = {
        row["policy"]: row
        for row in rows(train(configure(2, policies=policies, probe=PROBES["prp"], rounds=1)))
    }
    assert found["a"]["generated"] >= 4 * 4
    assert found["b"]["generated"] == 4 * 6
    # 4 prompts: a sees all 6 rollouts of b, b the 3 of 4 that it asks for.
    assert found["a"]["records_in"] == {"rollout": 24}
    assert found["b"]["records_in"] == {"rollout": 12}


# peft 0.21 asks transformers by a name that transformers 5.24 deprecates.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_checkpoints_of_adapters_hold_these_alone_and_load_through_peft(settings, configure):
    import torch
    from peft import PeftModel

    from mrl.models import load_model
    from mrl.reload import load_policies
    from mrl.seeds import derive

    policies = differing(settings(2)["policies"], "adapters")
    config = configure(2, policies=policies, rounds=1)
    folder = train(config)
    names = {name for name in weights(folder, 1) if name.startswith("a/")}
    assert names
    assert all("lora_" in name for name in names)

    (policy, _), section = load_policies(folder)[1], config.policy("a")
    base = load_model(
        section.model_copy(update={"lora": None, "activation_checkpointing": False}),
        policy.tokenizer,
        seed=derive(config.seed, "init", "a"),
    )
    loaded = PeftModel.from_pretrained(base, folder / "checkpoints" / "round-000001" / "a").eval()
    ids = torch.tensor([[3, 4, 5]])
    with torch.inference_mode():
        assert loaded(ids).logits.equal(policy.model.eval()(ids).logits)
        with policy.model.disable_adapter():
            assert not loaded(ids).logits.equal(policy.model(ids).logits)


def test_the_best_checkpoint_stays_beside_the_newest(configure):
    from mrl.checkpoint import best_of
    from mrl.reload import load_policies

    config = configure(
        2,
        rounds=6,
        checkpoint={"every": 3, "keep": 1, "best": "reward"},
        evaluation={"items": 3, "samples": 4, "ks": [1], "every": 1},
    )
    folder = train(config)
    scores: dict[int, float] = {}
    for row in rows(folder, event="evaluation"):
        if row["round"] > 0:  # before the first round there is nothing to keep
            scores[row["round"]] = scores.get(row["round"], 0.0) + row["reward"] / 2
    best = max(scores, key=lambda done: (round(scores[done], 9), -done))
    kept = {path.name for path in (folder / "checkpoints").iterdir()}
    assert kept == {f"round-{best:06d}", "round-000006"}
    path, score = best_of(folder / "checkpoints")
    assert (path.name, score) == (f"round-{best:06d}", pytest.approx(scores[best]))
    assert load_policies(folder, best=True)[2] == best
    assert load_policies(folder)[2] == 6


def test_a_trial_that_ends_before_its_first_evaluation_has_no_best_checkpoint(configure):
    from mrl.errors import InputError
    from mrl.reload import load_policies

    config = configure(
        1,
        rounds=2,
        checkpoint={"best": "reward"},
        evaluation={"items": 3, "samples": 4, "ks": [1], "every": 3},
    )
    folder = train(config)
    assert load_policies(folder)[2] == 2
    with pytest.raises(InputError, match=r"no checkpoint with an evaluation of its own"):
        load_policies(folder, best=True)


def test_a_schedule_that_ends_with_the_run_forbids_a_longer_run(settings, configure):
    from mrl.errors import InputError

    policies = settings(1)["policies"]
    policies[0]["optimizer"] = {"schedule": "cosine"}
    train(configure(1, policies=policies, rounds=1))
    with pytest.raises(InputError, match="decay_rounds"):
        train(configure(1, policies=policies, rounds=2), resume=True)


def test_other_versions_at_resume_are_noted(configure):
    folder = train(configure(1, rounds=1))
    status = json.loads((folder / "run.json").read_text())
    status["versions"]["torch"] = "1.0"
    (folder / "run.json").write_text(json.dumps(status))
    train(configure(1, rounds=2), resume=True)
    (note,) = json.loads((folder / "run.json").read_text())["notes"]
    assert "resumed after 1 rounds" in note
    assert "torch 1.0 -> " in note


def test_resuming_a_finished_run_changes_nothing(configure):
    config = configure(2, probe=PROBES["sgt"])
    folder = train(config)
    before = {p.name: p.read_bytes() for p in folder.glob("*.jsonl") if p.name != "timing.jsonl"}
    train(config, resume=True)
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_a_killed_run_resumes_to_the_same_end(settings, configure, tmp_path: Path):
    sections = {
        "rounds": 200,
        "probe": PROBES["prp"],
        "exchange": {"store": "sqlite", "max_staleness": 1},
        "checkpoint": {"every": 2},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings(2, name="killed", **sections)), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "mrl", "train", str(path), "--unvalidated"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    metrics = tmp_path / "runs" / "killed" / "metrics.jsonl"
    try:
        deadline = time.monotonic() + 60
        # Evaluation rows come first: 3 for two policies and their overlap; then 2 rows a round.
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < 3 + 2 * 3:
            assert process.poll() is None, process.stderr.read().decode()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    status = json.loads((metrics.parent / "run.json").read_text())
    assert status["status"] == "running"
    done = max(row["round"] for row in rows(metrics.parent) if row) + 2
    resumed = train(configure(2, name="killed", **sections | {"rounds": done}), resume=True)
    unbroken = train(configure(2, name="unbroken", **sections | {"rounds": done}))
    assert_same_run(resumed, unbroken, done)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("every", [2, 4], ids=["after-a-checkpoint", "before-any"])
def test_rounds_after_the_last_checkpoint_are_played_again(configure, store: str, every: int):
    sections = {
        "rounds": 4,
        "checkpoint": {"every": every},
        "exchange": {"store": store},
        "probe": PROBES["prp"],
    }

    class Killed(BaseException):
        pass

    def stop(done: int, _: Any) -> None:
        if done == 3:
            raise Killed

    config = configure(2, **sections)
    with pytest.raises(Killed):
        train(config, progress=stop)
    assert len(rows(config.folder)) == 6
    resumed = train(config, resume=True)
    assert_same_run(resumed, train(configure(2, name="unbroken", **sections)), 4)


def test_a_run_is_a_function_of_its_seed(configure):
    first, same, other = (
        train(configure(2, name=name, seed=seed, probe=PROBES["sgt"]))
        for name, seed in (("first", 1), ("same", 1), ("other", 2))
    )
    assert_same_run(first, same, 2)
    assert (first / "metrics.jsonl").read_bytes() != (other / "metrics.jsonl").read_bytes()


def test_peers_dict_opens_only_the_peers_it_names(configure):
    config = configure(3, probe=PROBES["prp"], group={"own": 6, "peers": {"a": 2, "b": 0}})
    found = {row["policy"]: row["records_in"] for row in rows(train(config)) if row["round"] == 0}
    assert found == {"a": {}, "b": {"rollout": 8}, "c": {"rollout": 8}}


def test_policies_may_differ_in_rule_objective_and_rate(settings):
    from mrl.config import parse

    values = settings(3)
    values["policies"][0] |= {"probe": {"kind": "sgt"}}
    values["policies"][1] |= {
        "probe": {"kind": "prp", "ratio": "block"},
        "objective": {"aggregation": "sum", "updates": 2, "mask_truncated": True},
        "optimizer": {"kind": "sgd", "lr": 0.5, "warmup_rounds": 1},
    }
    found = rows(train(parse(values)))
    kinds = {row["policy"]: set(row["records_in"]) for row in found}
    assert kinds["a"] <= {"success"}
    assert kinds["b"] == {"rollout"}
    assert kinds["c"] == set()
    rates = {(row["policy"], row["round"]): row["lr"] for row in found}
    assert rates["a", 0] == rates["c", 1] == 0.01
    assert (rates["b", 0], rates["b", 1]) == (0.25, 0.5)


def test_more_updates_a_round_make_the_clip_work(configure):
    objective = {"updates": 4, "clip_high": 0.01, "clip_low": 0.01}
    config = configure(2, objective=objective, group={"own": 12}, rounds=4)
    assert any(row["clip_share"] for row in rows(train(config)))


def test_dead_groups_are_drawn_again_and_counted(configure):
    once = rows(train(configure(2, name="once")))
    again = rows(train(configure(2, name="again", group={"own": 6, "redraws": 3})))
    assert {row["generated"] for row in once} == {24}
    for first, row in zip(once[:2], again[:2], strict=True):  # the same weights and first draw
        assert row["generated"] > 24 or first["dead_share"] == 0
        assert row["dead_share"] <= first["dead_share"]
    assert max(row["generated"] for row in again) <= 4 * 24


def test_each_epoch_is_a_fresh_order_of_all_prompts(configure):
    from mrl.schedule import prompts_of
    from mrl.tasks import load_task

    config = configure(1)
    items = load_task(config.task, config.seed).train  # 13 of 16: one is left out of an epoch
    epochs = [
        [
            item.prompt_id
            for round in range(3 * e, 3 * e + 3)
            for item in prompts_of(items, 4, 1, round)
        ]
        for e in range(3)
    ]
    assert [len(set(epoch)) for epoch in epochs] == [12, 12, 12]
    assert epochs[0] != epochs[1] != epochs[2]


def test_reasoning_gym_tasks_train(configure):
    task = {
        "kind": "reasoning_gym",
        "name": "chain_sum",
        "params": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
        "size": 40,
        "eval_size": 10,
    }
    policies = [
        {
            "name": name,
            "model": {
                "kind": "init",
                "params": {
                    "hidden_size": 16,
                    "intermediate_size": 32,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                    "max_position_embeddings": 512,
                },
            },
            "tokenizer": {"kind": "characters", "alphabet": alphabet},
            "optimizer": {"lr": 0.01},
        }
        for name, alphabet in (
            ("a", "".join(map(chr, range(32, 127))) + "\n"),
            ("b", "\n" + "".join(map(chr, range(126, 31, -1)))),
        )
    ]
    folder = train(configure(2, task=task, policies=policies, probe=PROBES["sgt"]))
    assert len(rows(folder)) == 4
    assert all(0 <= row["reward_mean"] <= 1 for row in rows(folder))


def test_old_checkpoints_go_and_the_newest_stay(configure):
    folder = train(configure(1, rounds=4, checkpoint={"every": 1, "keep": 2}))
    kept = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert kept == ["round-000003", "round-000004"]


def test_checkpoints_load_as_plain_models(configure):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = train(configure(2))
    home = folder / "checkpoints" / "round-000002" / "b"
    tokenizer = AutoTokenizer.from_pretrained(home)
    model = AutoModelForCausalLM.from_pretrained(home)
    assert len(tokenizer("0101=")["input_ids"]) < 5
    assert model.config.eos_token_id == tokenizer.eos_token_id


def test_finished_runs_are_evaluated_from_their_checkpoint(configure):
    from mrl.reload import evaluate_run, load_policies

    folder = train(configure(2))
    _, policies, done = load_policies(folder)
    assert done == 2
    assert [policy.name for policy in policies] == ["a", "b"]
    found = evaluate_run(folder, samples=2, items=2).rows
    last = [row for row in rows(folder, event="evaluation") if row["round"] == 2]
    again = [row for row in found if row["event"] == "evaluation"]
    assert [row["reward"] for row in again] == [row["reward"] for row in last]
