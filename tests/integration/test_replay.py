"""Replay: a finished run's policies stand in as peers by the records that they left."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mrl.cli import main
from mrl.config import parse
from mrl.errors import InputError, RunError
from mrl.replay import resolve
from mrl.tasks import load_task
from mrl.train import train

KEEP = ["rollout", "group_stats", "success"]


def rounds(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["event"] == "round"]


@pytest.fixture
def pair(settings: Callable[..., dict[str, Any]], one_thread: None) -> dict[str, Any]:
    """Settings of two policies that share by PRP on aligned blocks and keep all they publish."""
    return settings(
        2,
        name="pair",
        rounds=3,
        probe={"kind": "prp", "ratio": "block", "cap": 2.0},
        exchange={"store": "sqlite", "keep": KEEP},
    )


def alone(pair: dict[str, Any], stored: Path, **sections: Any) -> dict[str, Any]:
    """The same run with its first policy only; the second one is replayed."""
    return (
        pair
        | {
            "name": "alone",
            "policies": pair["policies"][:1],
            "exchange": {"replay": str(stored), "replay_policies": ["b"]},
        }
        | sections
    )


PROBES = {
    "prp": {"kind": "prp", "cap": 2.0},
    "prp-block": {"kind": "prp", "ratio": "block", "cap": 2.0},
    "xgrpo": {"kind": "xgrpo"},
    "sgt": {"kind": "sgt"},
    "grpo": {"kind": "grpo"},
}


def test_a_replayed_peer_teaches_what_the_peer_itself_taught_to_the_last_bit(pair):
    stored = train(parse(pair))
    replayed = train(parse(alone(pair, stored)))
    together = [row for row in rounds(stored) if row["policy"] == "a"]
    # The peer is not there to measure its residual, and nobody asks for what is published here.
    own = {key for key in together[0] if key.startswith(("canonical", "residual"))}
    apart = rounds(replayed)
    assert [{k: row[k] for k in row if k not in own} for row in together] == apart
    assert [row["records_in"] for row in apart] == [{"rollout": 24}] * 3
    weights = "checkpoints/round-000003/a/model.safetensors"
    assert (stored / weights).read_bytes() == (replayed / weights).read_bytes()


@pytest.mark.parametrize(
    ("probe", "store"), [*((probe, "memory") for probe in PROBES), ("sgt", "sqlite")]
)
def test_every_rule_takes_the_records_it_needs_and_resumes_to_the_last_bit(pair, probe, store):
    stored = train(parse(pair))
    before = (stored / "exchange.sqlite").read_bytes()

    def run(name: str, rounds: int, **settings: Any) -> Path:
        values = alone(pair, stored, name=name, rounds=rounds, probe=PROBES[probe])
        values["exchange"] = values["exchange"] | {"store": store}
        return train(parse(values), **settings)

    unbroken = run("unbroken", 3)
    run("broken", 1)
    broken = run("broken", 3, resume=True)
    for row, again in zip(rounds(unbroken), rounds(broken), strict=True):
        assert row == again
    delivered = [row["records_in"] for row in rounds(unbroken)]
    if probe.startswith("prp"):
        assert delivered == [{"rollout": 24}] * 3
    if probe == "xgrpo":
        assert delivered == [{"group_stats": 4}] * 3
    if probe == "grpo":
        assert delivered == [{}] * 3
    if probe == "sgt":
        assert all(set(kinds) <= {"success"} for kinds in delivered)
        assert any(delivered)
    assert (stored / "exchange.sqlite").read_bytes() == before
    assert sorted(path.name for path in stored.glob("exchange*")) == ["exchange.sqlite"]


def test_a_limit_by_name_holds_for_replayed_peers(pair):
    stored = train(parse(pair))
    values = alone(pair, stored, group={"own": 6, "peers": {"b": 2}})
    assert {row["records_in"]["rollout"] for row in rounds(train(parse(values)))} == {8}


def test_from_the_command_line_in_two_steps(pair, tmp_path: Path, capsys):
    first, second = tmp_path / "pair.yaml", tmp_path / "alone.yaml"
    first.write_text(yaml.safe_dump(pair), encoding="utf-8")
    stored = Path(pair["output"]) / "pair"
    second.write_text(yaml.safe_dump(alone(pair, stored)), encoding="utf-8")
    for path in (first, second):
        with pytest.raises(SystemExit) as end:
            main(["train", str(path), "--unvalidated"])
        assert end.value.code == 0
    written = yaml.safe_load((stored.with_name("alone") / "config.yaml").read_text())
    assert written["exchange"]["replay_policies"] == ["b"]
    assert {row["policy"] for row in rounds(stored.with_name("alone"))} == {"a"}


def test_all_policies_of_the_stored_run_stand_in_unless_some_are_named(pair, settings):
    stored = train(parse(pair))
    values = alone(pair, stored)
    values["policies"] = [values["policies"][0] | {"name": "new"}]
    values["exchange"] = {"replay": str(stored)}
    config = resolve(parse(values))
    assert config.peers_of("new") == {"a": 6, "b": 6}
    assert {row["records_in"]["rollout"] for row in rounds(train(config))} == {48}


def test_a_name_that_both_runs_have_is_refused(pair):
    stored = train(parse(pair))
    values = alone(pair, stored)
    values["exchange"] = {"replay": str(stored)}
    with pytest.raises(InputError, match=r"exchange.replay has policies \['a'\], and so has this"):
        resolve(parse(values))


@pytest.mark.parametrize(
    ("stored_as", "message"),
    [
        ({"exchange": {"store": "memory"}}, "kept no records"),
        ({"exchange": {"store": "sqlite", "keep": ["rollout"]}}, r"needs \['success'\] of 'b'"),
        ({"group": {"own": 4, "peers": 4}}, "which has group.own=4; expected at most 4"),
    ],
)
def test_a_run_that_did_not_store_what_is_needed_is_refused(pair, stored_as, message):
    stored = train(parse(pair | stored_as))
    with pytest.raises(InputError, match=message):
        train(parse(alone(pair, stored, probe={"kind": "sgt"})))


def test_prompts_without_stored_records_are_refused_with_their_share(pair):
    stored = train(parse(pair))
    with pytest.raises(InputError, match=r"records for 75% of the prompts .* 4 rounds"):
        train(parse(alone(pair, stored, rounds=4)))
    # Other prompts in every round, some of them by chance the same.
    with pytest.raises(InputError, match=r"records for \d+% of the prompts"):
        train(parse(alone(pair, stored, seed=7)))


def test_a_run_may_look_back_for_prompts_that_come_again(pair):
    """Each round has all prompts, so any stored round within the staleness has them."""
    prompts = len(load_task(parse(pair).task, parse(pair).seed).train)
    pair = pair | {"prompts": prompts, "rounds": 2}
    stored = train(parse(pair))
    values = alone(pair, stored, rounds=3)
    values["exchange"] = values["exchange"] | {"max_staleness": 1}
    found = rounds(train(parse(values)))
    assert [row["records_in"] for row in found] == [{"rollout": 6 * prompts}] * 3


def test_a_run_that_kept_its_last_round_only_is_refused(pair):
    stored = train(parse(pair | {"exchange": {"store": "sqlite"}}))
    with pytest.raises(InputError, match=r"records for 33% .*a run keeps all its rounds with exch"):
        train(parse(alone(pair, stored)))


def test_a_resume_with_another_stored_file_is_refused(pair):
    stored = train(parse(pair))
    values = alone(pair, stored, rounds=1)
    train(parse(values))
    (stored / "exchange.sqlite").unlink()
    (stored / "config.yaml").unlink()
    train(parse(pair))
    with pytest.raises(RunError, match="another file than"):
        train(parse(values | {"rounds": 2}), resume=True)
