"""The reference of the divergence is not in a checkpoint: a resumed run makes it again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mrl.train import train


@pytest.mark.parametrize("updates", [1, 2])
def test_four_rounds_with_divergence_are_two_and_two_more(
    configure: Callable[..., Any], tmp_path: Path, updates: int
):
    from safetensors.torch import load_file

    objective = {"kl": 0.2, "updates": updates, "engine_correction": 2.0, "skip_nonfinite": 1}
    whole = configure(2, objective=objective, rounds=4, output=str(tmp_path / "whole"))
    train(whole)
    parts = {"objective": objective, "output": str(tmp_path / "parts")}
    train(configure(2, rounds=2, **parts))
    train(configure(2, rounds=4, **parts), resume=True)
    folders = [tmp_path / name / "tiny" for name in ("whole", "parts")]
    metrics, resumed = ((folder / "metrics.jsonl").read_bytes() for folder in folders)
    assert metrics == resumed
    rounds = [row for row in map(json.loads, metrics.splitlines()) if row["event"] == "round"]
    assert [row["kl"] > 1e-6 for row in rounds if row["policy"] == "a"][1:] == [True] * 3
    for name in ("a", "b"):
        mine, other = (
            load_file(folder / "checkpoints" / "round-000004" / name / "model.safetensors")
            for folder in folders
        )
        assert all(tensor.equal(other[key]) for key, tensor in mine.items())
