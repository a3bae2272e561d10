import itertools
import json

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from mrl.demo import picture
from mrl.demo.plan import APART, FULL, GRPO, MIXED, POLICIES, QUICK, SGT, Plan
from mrl.demo.results import summarise, table
from mrl.demo.skills import HELD_OUT, LETTERS, write_task


def results(gaps: dict[int, float]) -> pd.DataFrame:
    """Made-up results in which SGT differs from GRPO by a gap on the peer's skill, by seed."""
    rows = []
    for seed, gap in gaps.items():
        for mode, policy, skill in itertools.product(("grpo", "sgt"), POLICIES, ("own", "peer")):
            start = 0.9 if skill == "own" else 0.1
            value = start + 0.01 * seed + (gap if (mode, skill) == ("sgt", "peer") else 0.0)
            rows.append(
                {
                    "regime": "apart",
                    "mode": mode,
                    "seed": seed,
                    "policy": policy,
                    "skill": skill,
                    "start": start,
                    "value": value,
                    "low": value - 0.02,
                    "high": value + 0.02,
                }
            )
    return pd.DataFrame(rows)


def row_of(summary: pd.DataFrame, mode: str, skill: str) -> pd.Series:
    chosen = summary[(summary["mode"] == mode) & (summary["skill"] == skill)]
    return chosen[chosen["policy"] == "bpe"].iloc[0]


def test_a_difference_is_paired_by_seed_and_has_a_student_interval():
    summary = summarise(results({0: 0.5, 1: 0.6, 2: 0.7}))
    row = row_of(summary, "sgt", "peer")
    # Mean 0.6; deviation 0.1, so the half-width is t(0.975, 2) * 0.1 / sqrt(3).
    assert row["difference"] == pytest.approx(0.6)
    assert row["difference_half"] == pytest.approx(4.302652730 * 0.1 / np.sqrt(3))
    assert row["verdict"] == "up"


def test_an_interval_that_holds_zero_is_a_tie():
    summary = summarise(results({0: -0.3, 1: 0.2, 2: 0.4}))
    assert row_of(summary, "sgt", "peer")["verdict"] == "tie"
    assert row_of(summary, "sgt", "own")["verdict"] == "tie"


def test_one_seed_gives_the_interval_over_items_and_no_verdict():
    row = row_of(summarise(results({0: 0.5})), "sgt", "peer")
    assert row["half"] == pytest.approx(0.02)
    assert np.isnan(row["difference_half"])
    assert row["verdict"] == ""


@pytest.fixture
def prediction() -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "regime": "apart",
                "mode": mode,
                "policy": policy,
                "relative_cost": 1.5,
                "support_gain": gain,
            }
            for (mode, gain), policy in itertools.product((("grpo", 0.0), ("sgt", 0.05)), POLICIES)
        ]
    )


def test_the_table_sets_measured_beside_predicted(prediction):
    plan = Plan("test", (GRPO, SGT), (APART,), (0, 1, 2))
    gate = {("apart", "grpo"): "-", ("apart", "sgt"): "passed"}
    summary = summarise(results({0: 0.5, 1: 0.6, 2: 0.7}))
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table(summary, prediction, gate, plan, APART, "bpe"))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= 80
    (line,) = (line for line in lines if "SGT" in line)
    assert line.split()[:4] == ["SGT,", "weight", "0.1", "passed"]
    assert "↑" in line
    assert line.split()[-2:] == ["1.50", "0.05"]
    assert "…" not in capture.get()


def test_the_picture_has_a_point_a_rule_and_panel(prediction):
    summary = summarise(results({0: 0.5, 1: 0.6, 2: 0.7}))
    figure = picture.planes(summary, prediction, (GRPO, SGT), (APART,))
    left, right = figure.axes
    assert len([line for line in left.lines if line.get_marker() not in ("None", None)]) == 2
    assert len(right.containers) == 2


def test_the_task_has_every_word_once_and_right_answers(tmp_path):
    files = write_task(tmp_path)
    parts = {
        path: [json.loads(line) for line in path.read_text().splitlines()]
        for path in (files.train, files.heldout)
    }
    words = {path: {row["question"][2:-1] for row in rows} for path, rows in parts.items()}
    assert len(words[files.heldout]) == HELD_OUT
    assert not words[files.train] & words[files.heldout]
    assert len(words[files.train] | words[files.heldout]) == len(LETTERS) ** 3
    by_question = {row["question"]: row["answer"] for row in parts[files.train]}
    word = min(words[files.train])
    assert by_question[f"t {word}="] == word[1:] + word[:1]
    assert by_question[f"r {word}="] == "".join(reversed(word))


def test_plans_hold_the_baseline_and_what_they_promise():
    assert GRPO in QUICK.modes
    assert SGT in QUICK.modes
    assert {mode.key for mode in QUICK.modes} < {mode.key for mode in FULL.modes}
    assert len(FULL.seeds) >= 3
    assert FULL.regimes == (APART, MIXED)
