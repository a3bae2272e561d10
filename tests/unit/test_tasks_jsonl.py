import json
from pathlib import Path
from typing import Any

import pytest

from mrl.config import JsonlTask
from mrl.errors import InputError
from mrl.tasks import Item, Task, load_task


def write(path: Path, *rows: Any) -> str:
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def sums(n: int) -> list[dict[str, Any]]:
    return [{"question": f"{i}+1=", "answer": i + 1, "skill": f"s{i % 3}"} for i in range(n)]


def load(path: str, seed: int = 0, **settings: Any) -> Task:
    return load_task(JsonlTask(kind="jsonl", path=path, **settings), seed)


def refusal(path: str, **settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(path, **settings)
    return str(caught.value)


@pytest.fixture
def train(tmp_path: Path) -> str:
    return write(tmp_path / "train.jsonl", *sums(50))


def test_items_carry_question_answer_and_tag(train: str) -> None:
    task = load(train, tag="skill")
    assert task.train[0].question in {row["question"] for row in sums(50)}
    assert {item.tag for item in task.train} == {"s0", "s1", "s2"}
    assert all(eval(item.question[:-1]) == int(item.answer) for item in task.train)  # noqa: S307
    assert task.train[0].messages == [{"role": "user", "content": task.train[0].question}]
    assert {item.tag for item in load(train).train} == {None}


def test_prompt_ids_are_stable_and_tell_items_apart(train: str) -> None:
    # printf '["2+2=", "4"]' | sha256sum | cut -c1-16
    assert Item.of("2+2=", "4").prompt_id == "e7afa3010cd86480"
    assert Item.of("2+2=", "4", "sum").prompt_id == Item.of("2+2=", "4").prompt_id
    # A separator would let these two meet.
    assert Item.of("a", "b,c").prompt_id != Item.of("a,b", "c").prompt_id
    task = load(train)
    assert len({item.prompt_id for item in task.train + task.heldout}) == 50


def test_split_takes_the_share_and_no_item_twice(train: str) -> None:
    task = load(train, eval_share=0.3)
    assert len(task.heldout) == 15
    assert len(task.train) == 35
    assert not set(task.train) & set(task.heldout)
    assert task.notes == ()


def test_split_is_fixed_by_the_seed_whatever_the_order_of_lines(train: str, tmp_path: Path) -> None:
    again = write(tmp_path / "reversed.jsonl", *reversed(sums(50)))
    assert load(train, 1).heldout == load(train, 1).heldout == load(again, 1).heldout
    assert load(train, 1).heldout != load(train, 2).heldout
    assert set(load(train, 1).heldout) != set(load(train, 2).heldout)


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_split_leaves_an_item_on_both_sides(tmp_path: Path, share: float) -> None:
    task = load(write(tmp_path / "two.jsonl", *sums(2)), eval_share=share)
    assert len(task.train) == len(task.heldout) == 1


def test_heldout_order_mixes_a_sorted_file(tmp_path: Path, train: str) -> None:
    rows = [{"question": f"{t}{i}", "answer": "x", "skill": t} for t in "ab" for i in range(40)]
    task = load(train, eval_path=write(tmp_path / "eval.jsonl", *rows), tag="skill")
    assert len(task.heldout) == 80
    assert {item.tag for item in task.heldout[:20]} == {"a", "b"}


def test_numbers_stay_as_written(tmp_path: Path) -> None:
    lines = [
        '{"question": "a", "answer": 0.10}',
        '{"question": "b", "answer": 1e3}',
        f'{{"question": "c", "answer": {"9" * 5000}}}',
    ]
    task = load(write(tmp_path / "n.jsonl", *lines))
    answers = {item.question: item.answer for item in task.train + task.heldout}
    assert answers == {"a": "0.10", "b": "1e3", "c": "9" * 5000}


def test_blank_lines_and_a_byte_order_mark_are_no_items(tmp_path: Path) -> None:
    path = tmp_path / "bom.jsonl"
    rows = [json.dumps(row) for row in sums(3)]
    path.write_bytes(b"\xef\xbb\xbf" + ("\r\n\r\n".join(rows) + "\n\n").encode())
    task = load(str(path))
    assert len(task.train) + len(task.heldout) == 3


def test_repeated_items_are_left_out_and_counted(tmp_path: Path) -> None:
    task = load(write(tmp_path / "twice.jsonl", *sums(5), *sums(2)))
    assert len(task.train) + len(task.heldout) == 5
    assert task.notes == (f"2 repeated item(s) in {tmp_path / 'twice.jsonl'} left out",)


def test_a_training_item_is_never_held_out(tmp_path: Path, train: str) -> None:
    held = write(tmp_path / "eval.jsonl", *sums(53)[48:])
    task = load(train, eval_path=held)
    assert {item.question for item in task.heldout} == {"50+1=", "51+1=", "52+1="}
    assert len(task.train) == 50
    (note,) = task.notes
    assert note.startswith(f"2 held-out item(s) in {held} left out")


def test_verify_scores_by_the_verifier_of_the_settings(tmp_path: Path) -> None:
    path = write(tmp_path / "v.jsonl", *sums(4))
    plain, number = load(path), load(path, verifier="numeric")
    item = plain.train[0]
    wordy = f"it is {item.answer}".encode()
    assert (plain.verifier_id, number.verifier_id) == ("exact", "numeric")
    assert (plain.verify(item, wordy, True), number.verify(item, wordy, True)) == (0.0, 1.0)
    assert plain.verify(item, item.answer.encode(), True) == 1.0


def test_a_missing_file_is_named(tmp_path: Path, train: str) -> None:
    missing = str(tmp_path / "none.jsonl")
    assert f"cannot read {missing}" in refusal(missing)
    assert f"cannot read {missing}" in refusal(train, eval_path=missing)
    assert f"cannot read {tmp_path}" in refusal(str(tmp_path))


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: str) -> None:
    path = write(tmp_path / "empty.jsonl", content)
    assert f"{path}: got an empty file" in refusal(path)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"question": "q", "answer": ', ["got", "expected a JSON object"]),
        ("[1, 2]", ["got ['1', '2']", "expected a JSON object"]),
        ('{"question": "q", "answer": NaN}', ["NaN is not JSON"]),
        ("[" * 100_000, ["expected a JSON object"]),
        ('{"question": "q"}', ["'answer' is missing", "['question']"]),
        ('{"answer": "a"}', ["'question' is missing"]),
        ('{"question": "q", "answer": null}', ["'answer'", "got None", "a text or a number"]),
        ('{"question": "q", "answer": true}', ["'answer'", "got True", "a text or a number"]),
        ('{"question": "q", "answer": ["a"]}', ["'answer'", "got ['a']"]),
        ('{"question": 3, "answer": "a"}', ["'question'", "got 3", "expected a text"]),
        ('{"question": " ", "answer": "a"}', ["'question'", "empty text"]),
        ('{"question": "q", "answer": ""}', ["'answer'", "empty text"]),
        ('{"question": "q\\ud800", "answer": "a"}', ["'question'", "surrogate"]),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, parts: list[str]) -> None:
    path = write(tmp_path / "wrong.jsonl", *sums(2), line)
    message = refusal(path)
    assert message.startswith(f"{path}, line 3")
    assert len(message) < 500
    for part in parts:
        assert part in message


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"question": "q", "answer": "a"}\n{"question": "\xe9", "answer": "a"}\n')
    message = refusal(str(path))
    assert message.startswith(f"{path}, line 2")
    assert "\\xe9" in message
    assert "UTF-8" in message


def test_a_missing_tag_is_refused(train: str) -> None:
    assert "line 1: key 'level' is missing" in refusal(train, tag="level")


def test_other_keys_are_found_by_their_names(tmp_path: Path) -> None:
    path = write(tmp_path / "keys.jsonl", {"q": "a", "a": "1"}, {"q": "b", "a": "2"})
    task = load(path, question="q", answer="a")
    assert {item.question for item in task.train + task.heldout} == {"a", "b"}


def test_one_question_with_two_answers_is_refused(tmp_path: Path, train: str) -> None:
    path = write(tmp_path / "two.jsonl", *sums(2), {"question": "0+1=", "answer": "2"})
    message = refusal(path)
    assert message.startswith(f"{path}, line 3, key 'answer': got '2'")
    assert f"'1' in {path}, line 1" in message
    across = write(tmp_path / "eval.jsonl", {"question": "0+1=", "answer": "2"})
    assert f"{across}, line 1" in refusal(train, eval_path=across)


def test_an_answer_that_is_no_number_is_refused_by_the_numeric_verifier(tmp_path: Path) -> None:
    for answer in ("four", "4 apples", "1 2", "1/0", "1e9999", "#### 4"):
        path = write(tmp_path / "text.jsonl", *sums(2), {"question": "q", "answer": answer})
        message = refusal(path, verifier="numeric")
        assert message.startswith(f"{path}, line 3, key 'answer': got {answer!r}")
        assert "'exact'" in message
        load(path)


def test_no_heldout_item_is_refused(tmp_path: Path, train: str) -> None:
    assert "got 1 item" in refusal(write(tmp_path / "one.jsonl", *sums(1)))
    same = write(tmp_path / "same.jsonl", *sums(3))
    message = refusal(train, eval_path=same)
    assert "no held-out item is left" in message
    assert "3" in message
    # The very file that is trained on: its rows stand at the same places.
    assert "no held-out item is left" in refusal(train, eval_path=train)
