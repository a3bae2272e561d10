import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mrl.config import EvaluationConfig
from mrl.estimates import bootstrap_interval, pass_at_k
from mrl.evaluate import KEPT_ITEMS, Evaluation, evaluate
from mrl.rollout import Rollout
from mrl.tasks import Item, Task
from mrl.tasks.verifiers import exact


def rollout(text: bytes) -> Rollout:
    return Rollout(tuple(text), np.zeros(len(text)), True, text)


@dataclass
class Scripted:
    """A policy that answers each item's question with the bytes written for it."""

    name: str
    script: dict[str, list[bytes]]

    def generate(self, items: Sequence[Item], n: int, seed: int, /) -> list[list[Rollout]]:
        return [[rollout(text) for text in self.script[item.question][:n]] for item in items]


@dataclass
class Guessing:
    """A policy that is right with probability `p`."""

    name: str
    p: float

    def generate(self, items: Sequence[Item], n: int, seed: int, /) -> list[list[Rollout]]:
        right = np.random.default_rng(seed).random((len(items), n)) < self.p
        return [
            [rollout(item.answer.encode() if hit else b"?") for hit in row]
            for item, row in zip(items, right, strict=True)
        ]


def unless_marked(item: Item, response: bytes, finished: bool, /) -> float | None:
    """The exact verifier, which gives up on responses with a bang."""
    return None if b"!" in response else exact(item, response, finished)


def task_of(*tags: str | None) -> Task:
    items = tuple(Item.of(str(i), "a", tag) for i, tag in enumerate(tags))
    return Task((), items, "exact", unless_marked)


def settings(samples: int = 4, ks: tuple[int, ...] = (1, 2), items: int = 200) -> EvaluationConfig:
    return EvaluationConfig(samples=samples, ks=ks, items=items)


def script(*groups: str) -> dict[str, list[bytes]]:
    """Each group is a word of one-letter responses; "a" is right, "!" is not verified."""
    return {str(i): [letter.encode() for letter in group] for i, group in enumerate(groups)}


def rows_of(found: Evaluation, policy: str, tag: str | None = None) -> dict[str, Any]:
    (row,) = [
        row
        for row in found.rows
        if (row["event"], row["policy"], row.get("tag")) == ("evaluation", policy, tag)
    ]
    return row


def test_rows_of_two_policies_by_hand() -> None:
    one = Scripted("one", script("aaaa", "bbbb", "abbb", "bbbb"))
    two = Scripted("two", script("bbbb", "abbb", "aabb", "bbbb"))
    found = evaluate([one, two], task_of(*[None] * 4), settings(), round=7, seed=0)
    first = rows_of(found, "one")
    assert (first["round"], first["items"], first["samples"]) == (7, 4, 4)
    assert first["pass@1"] == (1 + 0 + 1 / 4 + 0) / 4
    assert first["pass@2"] == (1 + 0 + 1 / 2 + 0) / 4
    assert first["reward"] == 5 / 16
    # Only "two" solves item 1; nobody solves item 3.
    assert (first["rescue_items"], first["rescue_share"]) == (1, 0.25)
    assert rows_of(found, "two")["rescue_items"] == 1
    assert found.rows[-1] == {
        "event": "overlap",
        "round": 7,
        "policy": "one",
        "peer": "two",
        "jaccard": 1 / 3,
    }
    assert len(found.rows) == 3


def test_intervals_are_the_bootstrap_over_items() -> None:
    policy = Scripted("one", script("aabb", "bbbb", "abbb", "aaaa", "bbbb"))
    row = rows_of(evaluate([policy], task_of(*[None] * 5), settings(), round=0, seed=3), "one")
    for k in (1, 2):
        low, high = row[f"pass@{k}_low"], row[f"pass@{k}_high"]
        values = pass_at_k([2, 0, 1, 4, 0], 4, k)
        assert values.min() <= low < row[f"pass@{k}"] < high <= values.max()
        # Another seed of 2000 resamples moves the bounds a little, not more.
        assert (low, high) == pytest.approx(bootstrap_interval(values, 99), abs=0.1)


def test_tags_split_the_items() -> None:
    policy = Guessing("p", 0.5)
    peer = Guessing("q", 0.2)
    tags = ["x", "y", None, "x", "y", "y"] * 5
    found = evaluate([policy, peer], task_of(*tags), settings(), round=0, seed=0)
    whole, x, y = (rows_of(found, "p", tag) for tag in (None, "x", "y"))
    assert (whole["items"], x["items"], y["items"]) == (30, 10, 15)
    alone = [
        rows_of(evaluate([policy, peer], task_of(*[None] * 30), settings(), round=0, seed=0), "p")
    ]
    assert alone == [whole]
    untagged = whole["rescue_items"] - x["rescue_items"] - y["rescue_items"]
    assert 0 <= untagged <= 5


def test_unverified_samples_are_counted_and_left_out() -> None:
    one = Scripted("one", script("!a!b", "!!!!", "!!!a"))
    two = Scripted("two", script("bbbb", "abbb", "bbbb"))
    found = evaluate([one, two], task_of(*[None] * 3), settings(), round=0, seed=0)
    row = rows_of(found, "one")
    assert row["unverified"] == 9
    assert set(row["unverified_said"]) == set(row["unverified_by_reason"])
    assert row["pass@1"] == (1 / 2 + 1) / 2
    # Two verified samples are there for the first item only.
    assert row["pass@2"] == 1.0
    assert row["reward"] == 2 / 3
    # Whether "one" fails on the item that "two" solves is not known.
    assert row["rescue_items"] == 0
    assert [sample["rewards"] for sample in found.samples[:2]] == [
        [None, 1.0, None, 0.0],
        [None] * 4,
    ]


def test_figures_that_do_not_exist_are_null() -> None:
    silent = Scripted("silent", script("!!", "!!"))
    wrong = Scripted("wrong", script("bb", "bb"))
    found = evaluate([silent, wrong], task_of(None, None), settings(2), round=0, seed=0)
    row = rows_of(found, "silent")
    for key in ("pass@1", "pass@1_low", "pass@1_high", "pass@2", "reward"):
        assert row[key] is None
    assert found.rows[-1]["jaccard"] is None
    assert rows_of(found, "wrong")["pass@1"] == 0.0


def test_rows_are_plain_json_and_repeat_bit_for_bit() -> None:
    def run(seed: int) -> Evaluation:
        policies = [Guessing("p", 0.5), Guessing("q", 0.1)]
        return evaluate(policies, task_of(*["x", "y"] * 10), settings(), round=2, seed=seed)

    first = run(1)
    content = [first.rows, first.samples]
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert run(1) == first
    assert run(2).samples != first.samples


def test_policies_sample_by_streams_of_their_own() -> None:
    task = task_of(*[None] * 20)
    pair = evaluate([Guessing("p", 0.5), Guessing("q", 0.5)], task, settings(), round=0, seed=0)
    alone = evaluate([Guessing("q", 0.5)], task, settings(), round=0, seed=0)
    mine, its = pair.samples[:20], pair.samples[20:]
    assert its == alone.samples
    assert [row["rewards"] for row in mine] != [row["rewards"] for row in its]


def test_samples_keep_the_first_items_and_lose_no_byte() -> None:
    texts = script(*["ab"] * (KEPT_ITEMS + 1)) | {"0": ["é".encode(), b"\xff\xfe"]}
    task = task_of("x", *[None] * KEPT_ITEMS)
    found = evaluate([Scripted("one", texts)], task, settings(2), round=1, seed=0)
    assert len(found.samples) == KEPT_ITEMS
    assert found.samples[0] == {
        "round": 1,
        "policy": "one",
        "prompt_id": Item.of("0", "a").prompt_id,
        "question": "0",
        "answer": "a",
        "tag": "x",
        "responses": ["é", "\\xff\\xfe"],
        "rewards": [0.0, 0.0],
    }


def test_only_the_first_items_of_the_split_are_used() -> None:
    policy = Scripted("one", script("ab", "bb"))
    found = evaluate([policy], task_of(*[None] * 9), settings(2, items=2), round=0, seed=0)
    assert rows_of(found, "one")["items"] == 2


def test_pass_at_1_is_always_there() -> None:
    found = evaluate([Guessing("p", 1.0)], task_of(None), settings(4, (3,)), round=0, seed=0)
    row = rows_of(found, "p")
    assert [key for key in row if key.startswith("pass") and "_" not in key] == ["pass@1", "pass@3"]
    assert row["pass@1"] == row["pass@3"] == 1.0


def test_an_engine_that_returns_another_number_is_named() -> None:
    policy = Scripted("short", script("ab", "b"))
    with pytest.raises(ValueError, match=r"'short' returned groups of \[2, 1\].* expected 2"):
        evaluate([policy], task_of(None, None), settings(2), round=0, seed=0)


def test_nothing_to_evaluate_and_shared_names_are_refused() -> None:
    with pytest.raises(ValueError, match="0 held-out items"):
        evaluate([Guessing("p", 0.5)], task_of(), settings(), round=0, seed=0)
    with pytest.raises(ValueError, match="different names"):
        evaluate([Guessing("p", 0.5)] * 2, task_of(None), settings(), round=0, seed=0)


@pytest.mark.parametrize(
    ("successes", "samples", "k", "message"),
    [
        ([1], 4, 0, "k=0"),
        ([1], [4], 5, "k=5"),
        ([5], 4, 1, r"successes=\[5\]"),
        ([-1], 4, 1, r"successes=\[-1\]"),
        ([0.5], 4, 1, "successes has dtype float64"),
    ],
)
def test_pass_at_k_refuses_what_cannot_be(
    successes: Any, samples: Any, k: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pass_at_k(successes, samples, k)


@pytest.mark.parametrize(
    ("values", "level", "resamples"),
    [([], 0.9, 10), ([np.nan], 0.9, 10), ([[1.0]], 0.9, 10), ([1.0], 1.0, 10), ([1.0], 0.9, 0)],
)
def test_bootstrap_interval_refuses_what_cannot_be(
    values: Any, level: float, resamples: int
) -> None:
    with pytest.raises(ValueError, match="expected"):
        bootstrap_interval(values, 0, level, resamples)
