"""Each inventory of allocation.json that cannot be right: one message that says why."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mrl.cli import main

FILE = json.loads(Path(__file__).with_name("allocation.json").read_text())
RUN = {
    "name": "pair",
    "probe": {"kind": "prp"},
    "prompts": 64,
    "group": {"own": 8, "peers": 8},
    "task": {"kind": "jsonl", "path": "unused"},
    "sampling": {"max_tokens": 1024},
    "objective": {"batch_tokens": 4096},
    "policies": [
        {"name": name, "model": {"kind": "pretrained", "path": f"hub/{name}", "dtype": "bfloat16"}}
        for name in "ab"
    ],
}


@pytest.fixture
def allocate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run ``mrl allocate`` on the pair and an inventory; its exit code and what it said."""

    def run(inventory: dict[str, Any], *arguments: Any) -> tuple[int, str]:
        files = {"run.yaml": RUN, "cluster.yaml": inventory}
        for name, content in files.items():
            (tmp_path / name).write_text(yaml.safe_dump(content), encoding="utf-8")
        cluster = ["--inventory", str(tmp_path / "cluster.yaml")]
        with pytest.raises(SystemExit) as stopped:
            main(["allocate", str(tmp_path / "run.yaml"), *cluster, *map(str, arguments)])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return int(stopped.value.code or 0), said.out + said.err

    return run


def changed(change: dict[str, Any]) -> dict[str, Any]:
    inventory = json.loads(json.dumps(FILE["inventory"]))
    for path, value in change.items():
        *parents, last = path.split(".")
        node = inventory
        for part in parents:
            node = node[int(part) if isinstance(node, list) else part]
        node[last] = value
    return inventory


@pytest.mark.parametrize("case", FILE["cases"], ids=lambda case: case["id"])
def test_an_inventory_that_cannot_be_right_is_refused(case, allocate):
    code, said = allocate(changed(case["change"]))
    assert code == 2
    for part in case["says"]:
        assert part in said


def test_the_plan_is_printed_and_drawn(allocate, tmp_path):
    code, said = allocate(FILE["inventory"], "-o", tmp_path / "plan")
    assert code == 0
    assert "a round: " in said
    assert "no placement is faster than" in said
    assert "GiB" in said
    assert "|g" in said
    assert (tmp_path / "plan" / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_cannot_be_written_is_said(allocate, tmp_path):
    (tmp_path / "file").write_text("")
    code, said = allocate(FILE["inventory"], "-o", tmp_path / "file" / "plan")
    assert code == 2
    assert "cannot write to" in said


def test_more_devices_shorten_the_round(allocate):
    rounds = []
    for devices in (2, 4, 8):
        _, said = allocate(changed({"nodes.0.devices": devices}))
        rounds.append(float(said.split("a round: ")[1].split(" s")[0]))
    assert rounds[0] > 1.7 * rounds[1] > 1.7**2 * rounds[2]
