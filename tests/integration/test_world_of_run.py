"""From a tiny run to its world, the plane of that world, and the report's section on it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mrl.cli import main
from mrl.config import parse
from mrl.errors import InputError
from mrl.report import write_report
from mrl.run_world import RunWorld
from mrl.study import world_of_run
from mrl.train import train


@pytest.fixture
def folder(settings: Callable[..., dict[str, Any]], one_thread: None) -> Path:
    """A finished run of a character and a BPE policy; answers of at most 3 tokens."""
    values = settings(2, probe={"kind": "sgt"}, checkpoint={"every": 1, "keep": 1})
    return train(parse(values))


def command(*arguments: object) -> Any:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return end.value.code


def test_probabilities_are_those_with_which_the_policies_sample(folder: Path):
    found = world_of_run(folder, prompts=3, samples=400)
    assert found.policies == ("a", "b")
    assert found.round == 2
    assert found.counts_NXK.sum(-1).tolist() == [[400] * 3] * 2
    np.testing.assert_allclose(found.probs_NXK.sum(-1), 1.0, rtol=1e-12)
    assert found.excess < 1e-5
    # A canonical tokenisation is one sequence, whose probability is known to the last digit.
    mean = 400 * found.canonical_NXK[..., :-1]
    z = (found.canonical_counts_NXK[..., :-1] - mean) / np.sqrt(mean * (1 - mean / 400) + 1)
    assert np.abs(z).max() < 5
    # Of the others those that a policy sampled itself are known: a part of the whole.
    assert (found.probs_NXK > 0)[found.counts_NXK > 0].all()
    assert (found.canonical_NXK <= found.probs_NXK * (1 + 1e-9)).all()


def test_a_cut_response_belongs_to_the_policy_whose_limit_cut_it(folder: Path):
    """Three characters fill the limit; the same text in two BPE tokens could have gone on."""
    found = world_of_run(folder, prompts=2, samples=200)
    cut = [
        (x, k)
        for x, texts in enumerate(found.texts)
        for k, text in enumerate(texts)
        if text.endswith("...")
    ]
    assert cut
    longer = [(x, k) for x, k in cut if len(found.texts[x][k].removesuffix("...")) > 3]
    assert longer
    assert not any(found.probs_NXK[0, x, k] for x, k in longer)
    by_chars = [(x, k) for x, k in cut if not found.counts_NXK[1, x, k]]
    assert any(
        found.representable_NXK[1, x, k] and not found.probs_NXK[1, x, k] for x, k in by_chars
    )


def test_rewards_are_the_verifiers_and_the_rest_fails(folder: Path):
    found = world_of_run(folder, prompts=3, samples=50)
    assert set(np.unique(found.rewards_XK)) == {0.0, 1.0}
    assert not found.rewards_XK[:, -1].any()
    for x, question in enumerate(found.questions):
        answer = str(question.count("1") % 2)
        assert found.rewards_XK[x, found.texts[x].index(answer)] == 1.0


def test_the_gate_is_open_where_a_policy_sampled_nothing_but_canonical_tokens(folder: Path):
    found = world_of_run(folder, prompts=3, samples=200)
    for source in (0, 1):
        gate = found.residual(1 - source).gate[source][:, :-1]
        counts = found.counts_NXK[source, :, :-1]
        usual = found.canonical_counts_NXK[source, :, :-1]
        assert (gate[(counts > 0) & (counts == usual)] == 0).all()
        assert (gate[counts > usual] > 0).all()
        assert (counts > usual).any()
        assert ((gate >= 0) & (gate <= 1)).all()


def test_the_world_is_a_function_of_the_run_and_is_kept(folder: Path):
    first = world_of_run(folder, prompts=2, samples=20)
    path = folder / "world-000002.npz"
    content, written = path.read_bytes(), path.stat().st_mtime_ns
    assert world_of_run(folder, prompts=2, samples=20).texts == first.texts
    assert path.stat().st_mtime_ns == written
    assert world_of_run(folder, prompts=2, samples=21).samples == 21
    path.unlink()
    world_of_run(folder, prompts=2, samples=20)
    assert path.read_bytes() == content


def test_weights_may_be_those_of_the_start_but_not_of_a_round_that_was_not_kept(folder: Path):
    start = world_of_run(folder, prompts=2, samples=20, round=0)
    end = world_of_run(folder, prompts=2, samples=20)
    assert (start.round, end.round) == (0, 2)
    assert start.prompt_ids == end.prompt_ids
    assert not np.array_equal(start.probs_NXK[0, :, -1], end.probs_NXK[0, :, -1])
    with pytest.raises(InputError, match=r"no checkpoint of round 1; it keeps \[2\], and 0"):
        world_of_run(folder, prompts=2, samples=20, round=1)
    with pytest.raises(InputError, match="holds no run"):
        world_of_run(folder / "none")


def test_the_command_draws_the_plane_of_each_policy_and_the_report_takes_it_up(
    folder: Path, tmp_path: Path
):
    asked = ("--prompts", 4, "--samples", 60)
    page = write_report([folder], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "mrl study --world-from RUN --round 0" in page
    assert command("study", "--world-from", folder, *asked, "-o", tmp_path / "study") == 0
    population = pd.read_parquet(tmp_path / "study" / "population.parquet")
    assert set(population["receiver"]) == {0, 1}
    assert "SGT (this run)" in set(population["label"])
    assert {"GRPO", "XGRPO", "PRP, cap 10", "PRP, no ratio"} < set(population["label"])
    assert (population["gate"] > 0).all()
    advice = pd.read_parquet(tmp_path / "study" / "recommendations.parquet")
    assert len(advice) == 2
    assert len(list((tmp_path / "study" / "figures").glob("*.png"))) == 2
    page = write_report([folder], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Only one world was measured, after 2 rounds" in page
    assert (
        command("study", "--world-from", folder, "own=4", "max_figures=0", "--round", 0, *asked)
        == 0
    )
    assert (folder / "study-000000" / "index.html").is_file()
    assert set(pd.read_parquet(folder / "study-000000" / "population.parquet")["own"]) == {4}
    page = write_report([folder], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "from 0 to 2 rounds" in page
    assert "Rank correlation" in page


def test_without_a_file_and_a_run_there_is_nothing_to_study(tmp_path: Path, capsys):
    assert command("study") == 2
    assert "--world-from RUN" in capsys.readouterr().err
    assert command("study", "--world-from", tmp_path) == 2
    assert "holds no run" in capsys.readouterr().err


def test_a_stored_world_is_read_by_numpy_alone(folder: Path):
    world_of_run(folder, prompts=2, samples=20)
    with np.load(folder / "world-000002.npz") as stored:
        assert stored["probs_NXK"].shape[:2] == (2, 2)
        assert json.loads(stored["meta"].tobytes())["policies"] == ["a", "b"]
    assert RunWorld.load(folder / "world-000002.npz").world.n_policies == 2
