"""A real language model next to a small one: the shipped configuration, cut to a few minutes."""

import json

import pytest
import real_tokenizers

from mrl.config import load
from mrl.report import write_report
from mrl.train import train

SMALLER = (
    "rounds=2",
    "prompts=2",
    "evaluation.items=1",
    "evaluation.samples=1",
    "evaluation.ks=[1]",
)


@pytest.mark.slow
def test_the_shipped_pair_trains_exchanges_and_reports(tmp_path, monkeypatch, one_thread):
    real_tokenizers.model("smollm2")
    monkeypatch.chdir(real_tokenizers.ROOT)  # where converted models are kept
    folder = train(load("smollm2-pair", [*SMALLER, f"output={tmp_path}"]), unvalidated=True)
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rounds = [row for row in map(json.loads, lines) if row["event"] == "round"]
    assert [row["policy"] for row in rounds] == ["smollm2", "chars"] * 2
    real, small = (
        [row for row in rounds if row["policy"] == name] for name in ("smollm2", "chars")
    )
    assert sum(row["success_share"] for row in real) > 0
    assert sum(row["success_share"] for row in small) == 0
    # the small one has only what it was given
    rescued = sum(row["rescued_prompts"] for row in small)
    assert rescued > 0
    assert sum(row["records_in"].get("success", 0) for row in small) >= rescued
    assert sum(row["trained_tokens_peer"] for row in small) > 0
    assert sum(row["trained_tokens_peer"] for row in real) == 0
    assert max(row["grad_norm"] for row in small) > 0
    page = write_report([folder], folder / "report.html").read_text(encoding="utf-8")
    assert "smollm2" in page
