"""Tasks from the library `datasets`, all of them local, and what they share with jsonl tasks."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from mrl.config import DatasetTask, JsonlTask, TaskConfig
from mrl.errors import InputError
from mrl.tasks import Item, Task, load_task

datasets = pytest.importorskip("datasets")

GSM8K = [
    {"question": f"Natalia has {i} clips and buys 1,000.", "answer": f"{i}+1000\n#### {i + 1000:,}"}
    for i in range(20)
]
MATH = [
    {
        "problem": f"What is half of {i}?",
        "level": f"Level {i % 3}",
        "type": "Algebra",
        "solution": rf"We divide. \boxed{{\frac{{{i}}}{{2}}}}",
    }
    for i in range(20)
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


def load(path: Path, seed: int = 0, **settings: Any) -> Task:
    return load_task(DatasetTask(kind="dataset", path=str(path), **settings), seed)


def refusal(path: Path, **settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(path, **settings)
    return str(caught.value)


def write(kind: str, folder: Path, train: list[dict[str, Any]], test: list[dict[str, Any]]) -> Path:
    """A data set in one of the forms that users have."""
    folder.mkdir()
    parts = {"train": train, "test": test}
    if kind == "saved":
        datasets.DatasetDict(
            {name: datasets.Dataset.from_list(rows) for name, rows in parts.items()}
        ).save_to_disk(folder)
    for name, rows in parts.items():
        if kind == "parquet":
            datasets.Dataset.from_list(rows).to_parquet(folder / f"{name}.parquet")
        elif kind == "jsonl":
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", ["saved", "parquet", "jsonl"])
def test_a_folder_gives_training_and_heldout_items(tmp_path: Path, kind: str) -> None:
    path = write(kind, tmp_path / "data", GSM8K[:15], GSM8K[15:])
    settings = {"answer_pattern": r"####\s*(.+)", "verifier": "numeric"}
    task = load(path, eval_split="test", **settings)
    assert [item.question for item in task.train] == [row["question"] for row in GSM8K[:15]]
    assert {item.answer for item in task.heldout} == {f"{i + 1000:,}" for i in range(15, 20)}
    item = task.train[3]
    (verdict,) = task.verdicts([(item, b"3 and 1,000 make 1003.", True)])
    assert verdict.reward == 1.0
    # Without a split of its own, held-out items follow from the seed alone.
    first, again, other = (load(path, seed, **settings) for seed in (0, 0, 1))
    assert len(first.train) == 12
    assert (first.train, first.heldout) == (again.train, again.heldout)
    assert set(first.heldout) != set(other.heldout)
    assert not set(first.train) & set(first.heldout)


def test_solutions_with_a_boxed_answer_and_other_columns(tmp_path: Path) -> None:
    path = write("parquet", tmp_path / "data", MATH, [])
    settings = {"question": "problem", "answer": "solution", "tag": "level"}
    task = load(
        path / "train.parquet",
        **settings,
        answer_pattern="boxed",
        verifier="math",
        prompt="{question}\nPut your final answer in \\boxed{}.",
        system="You are careful.",
    )
    item = task.train[0]
    assert item.answer == rf"\frac{{{item.question[16:-1]}}}{{2}}"
    assert {one.tag for one in task.train} == {"Level 0", "Level 1", "Level 2"}
    assert item.messages == [
        {"role": "system", "content": "You are careful."},
        {"role": "user", "content": f"{item.question}\nPut your final answer in \\boxed{{}}."},
    ]
    assert "eval_path, eval_split" in refusal(path / "train.parquet", split="train[:1]", **settings)


def test_numbers_are_answers(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}", "answer": i / 2} for i in range(3)]
    task = load(write("saved", tmp_path / "data", rows, rows[:1]), verifier="numeric")
    assert {item.answer for item in task.train + task.heldout} == {"0.0", "0.5", "1.0"}
    rows = [{"question": 1, "answer": "2"}]
    assert "row 0, key 'question': got 1; expected a text" in refusal(
        write("saved", tmp_path / "numbers", rows, rows)
    )


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("saved", {"split": "validation"}, ["no split 'validation'", "['test', 'train']"]),
        ("parquet", {"split": "validation"}, ["split validation", "task.split"]),
        ("parquet", {"name": "main"}, ["name='main'"]),
        ("saved", {"answer": "solution"}, ["row 0: key 'solution' is missing", "'question'"]),
        ("saved", {"answer_pattern": "#### !(.+)"}, ["row 0", "finds no answer", "skip"]),
        ("saved", {"verifier": "numeric"}, ["row 0, key 'answer'", "answer_pattern"]),
    ],
)
def test_what_cannot_be_loaded_is_named(tmp_path, kind, settings, words) -> None:
    path = write(kind, tmp_path / "data", GSM8K, GSM8K[:2])
    message = refusal(path, **settings)
    for part in [str(path), *words]:
        assert part in message


def test_a_data_set_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert f"cannot load {tmp_path / 'none'}, split train" in refusal(tmp_path / "none")


def test_rows_that_are_no_items_can_be_left_out_and_are_counted(tmp_path: Path) -> None:
    rows = [
        *GSM8K[:4],
        {"question": "without", "answer": "no mark"},
        {"question": GSM8K[0]["question"], "answer": "#### 7"},
        {"question": "", "answer": "#### 7"},
    ]
    path = write("saved", tmp_path / "data", rows, GSM8K[4:6])
    settings = {"answer_pattern": "#### (.+)", "eval_split": "test"}
    assert "row 4" in refusal(path, **settings)
    task = load(path, **settings, invalid="skip")
    assert [item.question for item in task.train] == [row["question"] for row in GSM8K[:4]]
    (note,) = task.notes
    assert note.startswith(f"3 row(s) left out; the first: {path}, split train, row 4")


def test_the_prompt_belongs_to_the_item() -> None:
    plain = Item.of("1+1=", "2")
    asked = Item.of("1+1=", "2", template="Compute {question} Use {braces} freely: {{}}")
    assert asked.messages[0]["content"] == "Compute 1+1= Use {braces} freely: {{}}"
    assert (asked.question, asked.answer) == (plain.question, plain.answer)
    # Responses to one are no responses to the other.
    system = Item.of("1+1=", "2", system="Be brief.")
    assert len({plain.prompt_id, asked.prompt_id, system.prompt_id}) == 3
    assert Item.of("1+1=", "2", template="{question}", system=None) == plain


def test_the_fingerprint_tells_items_apart_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "task.jsonl"

    def fingerprint(answer: str = "2", **settings: Any) -> str:
        rows = [{"question": f"{i}+1=", "answer": answer} for i in range(5)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return load_task(JsonlTask(kind="jsonl", path=str(path), **settings), 0).fingerprint

    first = fingerprint()
    assert fingerprint(verification={"workers": 3}) == first
    others = [
        fingerprint("3"),
        fingerprint(prompt="{question}?"),
        fingerprint(system="x"),
        fingerprint(eval_share=0.5),
        fingerprint(verifier="numeric"),
    ]
    assert len({first, *others}) == 6


def test_the_tasks_of_the_documentation_are_right() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "tasks.md"
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    tasks = [TypeAdapter(TaskConfig).validate_python(yaml.safe_load(one)["task"]) for one in blocks]
    assert {task.kind for task in tasks} == {"jsonl", "dataset", "reasoning_gym"}
