"""What a policy asks for: sizes from where its model is, estimates, and measured times."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mrl.allocation import plan
from mrl.allocation.allocating import table
from mrl.allocation.costs import demands_of, inventory_of, measured
from mrl.allocation.placement import demanded_memory
from mrl.allocation.sizes import size_of
from mrl.cli import main
from mrl.config import InventoryConfig, RunConfig, dump, load, load_inventory, parse
from mrl.errors import InputError

GIB = 2**30
SIZE = {"parameters": 1e9, "layers": 16, "hidden_size": 2048, "kv_size": 512, "vocab_size": 32000}


def cluster(**changes: Any) -> InventoryConfig:
    kinds = {
        "slow": {"memory_gib": 40, "tflops": 100, "bandwidth_gbs": 1000, "efficiency": 0.5},
        "fast": {"memory_gib": 80, "tflops": 400, "bandwidth_gbs": 4000, "efficiency": 0.5},
    }
    nodes = [{"name": kind, "kind": kind, "devices": 4} for kind in kinds]
    policies = {name: {"size": SIZE} for name in "ab"}
    return InventoryConfig.model_validate(
        {"kind": "inventory", "kinds": kinds, "nodes": nodes, "policies": policies} | changes
    )


def run(**changes: Any) -> RunConfig:
    model = {"kind": "pretrained", "path": "hub/model", "dtype": "bfloat16"}
    return parse(
        {
            "name": "pair",
            "prompts": 16,
            "probe": {"kind": "grpo"},
            "group": {"own": 8, "peers": 8},
            "task": {"kind": "jsonl", "path": "unused"},
            "sampling": {"max_tokens": 768, "batch": 512},
            "policies": [{"name": name, "model": model} for name in "ab"],
        }
        | changes
    )


def test_usable_memory_and_machines_alike():
    config = cluster(
        nodes=[{"name": k, "kind": k, "devices": 2, "count": 3} for k in ("slow", "fast")]
    )
    found = inventory_of(config)
    assert [kind.memory for kind in found.kinds] == pytest.approx([36 * GIB, 72 * GIB])
    assert [node.name for node in found.nodes][:3] == ["slow-0", "slow-1", "slow-2"]
    assert found.count("fast") == 6


def test_training_takes_six_operations_a_parameter_and_token():
    (one, _) = demands_of(run(), cluster())
    # 128 rollouts of 1,024 tokens at 50 TFLOPS, 16 at a time; weights of 2 GB are read three times
    compute = 128 * 1024 * 6e9 / 50e12
    weights = 8 * 3 * 2e9 / 500e9
    optimizer = 2 * 6e9 / 500e9
    assert one.training.seconds("slow", 1) == pytest.approx(compute + weights + optimizer)
    assert one.training.seconds("fast", 1) == pytest.approx((compute + weights + optimizer) / 4)


def test_generation_reads_all_weights_for_each_token_however_many_devices():
    (one, _) = demands_of(run(), cluster())
    reads = 768 * 2e9 / 500e9
    alone, on_all = (one.generation.seconds("slow", n) for n in (1, 128))
    cache = 768 * (2 * 16 * 512 * 2) * (256 + 384) / 500e9
    assert on_all == pytest.approx(reads + 1024 * 2e9 / 50e12 + cache)
    assert alone == pytest.approx(reads + 128 * (on_all - reads))


def test_a_rule_that_trains_on_peers_rollouts_pays_for_them():
    alone, sharing, rescues = (
        demands_of(run(probe={"kind": kind}), cluster())[0] for kind in ("grpo", "prp", "sgt")
    )
    assert (alone.training.rows, sharing.training.rows, rescues.training.rows) == (128, 256, 128)
    assert alone.generation == sharing.generation


def test_memory_of_full_training_adapters_and_an_engine_of_its_own():
    def state(own: Any = None, **told: Any) -> float:
        values = run().model_dump()
        values["policies"] = [values["policies"][0] | (own or {})]
        inventory = cluster(policies={"a": {"size": SIZE, **told}})
        (one,) = demands_of(parse(values), inventory)
        return demanded_memory([one], ["a"], ["a"], 1)[0]

    # weights, gradients and two moments of 2 bytes
    assert state() == pytest.approx(8e9)
    assert state(trainable=0.01) == pytest.approx(2.06e9)
    # adapters: 2 rank / hidden_size of the parameters
    assert state({"lora": {"rank": 10}}) == pytest.approx(2e9 + 6e9 * 20 / 2048)
    assert state({"engine": {"kind": "vllm"}}) == pytest.approx(10e9)
    assert state(optimizer_bytes=12) == pytest.approx(16e9)


def test_adapters_save_a_third_of_the_operations_at_most():
    full, adapters = (
        demands_of(run(), cluster(policies={n: {"size": SIZE, "trainable": f} for n in "ab"}))[0]
        for f in (1.0, 1e-9)
    )
    rows = [one.training.costs["slow"].row for one in (full, adapters)]
    assert rows[1] / rows[0] == pytest.approx(2 / 3)


def test_a_model_folder_is_read_without_torch(tmp_path, make_policy):
    policy = make_policy()
    policy.model.save_pretrained(tmp_path)
    config = run(policies=[{"name": "a", "model": {"kind": "pretrained", "path": str(tmp_path)}}])
    size = size_of(config.policies[0], None, {})
    assert size.parameters == sum(weights.numel() for weights in policy.model.parameters())
    assert (size.layers, size.hidden_size, size.kv_size) == (1, 16, 16)
    assert size.vocab_size == policy.model.config.vocab_size


def test_random_weights_are_sized_as_they_will_be_built(configure):
    from mrl.policy import build_policies

    config = configure(2)
    for section, policy in zip(config.policies, build_policies(config), strict=True):
        size = size_of(section, None, {})
        assert size.parameters == sum(weights.numel() for weights in policy.model.parameters())
        assert size.vocab_size == policy.model.config.vocab_size


def test_a_folder_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    config = run(policies=[{"name": "a", "model": {"kind": "pretrained", "path": str(tmp_path)}}])
    with pytest.raises(InputError, match="cannot be read"):
        size_of(config.policies[0], None, {})


@pytest.fixture
def timed(tmp_path: Path) -> Path:
    """A run with half the prompts, timed on a slow device: warm-up, then 3 s and 8 s."""
    folder = tmp_path / "timed"
    folder.mkdir()
    (folder / "config.yaml").write_text(dump(run(prompts=8)))
    rows = [
        {"round": i, "policy": name, "phases": {"generate": 3.0 + 90 * (i == 0), "update": 8.0}}
        for i in range(4)
        for name in "ab"
    ]
    rows.append({"round": 3, "policy": None, "phases": {"checkpoint": 1.0}})
    (folder / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_measured_times_replace_estimates_on_every_kind(timed):
    estimates, half = demands_of(run(), cluster()), demands_of(run(prompts=8), cluster())
    found = measured(estimates, timed, cluster(), "slow")
    again = measured(half, timed, cluster(), "slow")
    assert again[0].generation.seconds("slow", 1) == pytest.approx(3)
    assert again[0].training.seconds("slow", 1) == pytest.approx(8)
    for kind in ("slow", "fast"):
        for new, old in zip(found, estimates, strict=True):
            factor = 3 / half[0].generation.seconds("slow", 1)
            expected = factor * old.generation.seconds(kind, 3)
            assert new.generation.seconds(kind, 3) == pytest.approx(expected)
            assert new.generation.state == old.generation.state


def test_times_that_are_not_there_are_refused(timed):
    estimates = demands_of(run(), cluster())
    with pytest.raises(InputError, match="it has \\['fast', 'slow'\\]"):
        measured(estimates, timed, cluster(), "cpu")
    (timed / "timing.jsonl").write_text('{"policy": "a", "phases": {"generate": 1, "update": 1}}\n')
    with pytest.raises(InputError, match="no times of policy 'b'"):
        measured(estimates, timed, cluster(), "slow")
    (timed / "timing.jsonl").write_text("{")
    with pytest.raises(InputError, match="not the timing of a run"):
        measured(estimates, timed, cluster(), "slow")
    (timed / "timing.jsonl").unlink()
    with pytest.raises(InputError, match="cannot read"):
        measured(estimates, timed, cluster(), "slow")


@pytest.mark.parametrize("cluster_name", ["cluster-8gpu", "cluster-2x8gpu"])
@pytest.mark.parametrize("name", ["math-pair", "gsm8k-pair", "gym-pair"])
def test_the_shipped_set_ups_fit_the_shipped_clusters(name, cluster_name):
    config, inventory = load(name), load_inventory(cluster_name)
    placement = plan(inventory_of(inventory), demands_of(config, inventory))
    assert 1 <= placement.round_seconds / placement.bound < 1.05


def test_a_table_that_goes_to_a_file_is_whole_and_in_one_line_a_policy(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    with pytest.raises(SystemExit) as end:
        main(["allocate", "math-pair", "--inventory", "cluster-8gpu"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "\u2026" not in text
    rows = [line for line in text.splitlines() if line.startswith("\u2502")]
    assert [row.split()[1] for row in rows] == ["qwen", "smollm"]
    assert all("time-shared" in row and "GiB" not in row for row in rows)


def test_a_table_in_a_narrow_terminal_leaves_nothing_out():
    shown = io.StringIO()
    cluster_of_8 = load_inventory("cluster-8gpu")
    placement = plan(inventory_of(cluster_of_8), demands_of(load("math-pair"), cluster_of_8))
    Console(file=shown, width=60).print(table(placement))
    assert "\u2026" not in shown.getvalue()
    column = "".join(
        line.split("\u2502")[2].strip()
        for line in shown.getvalue().splitlines()
        if line.startswith("\u2502")
    )
    assert column == "time-shared" * 2
