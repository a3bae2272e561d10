"""Verifiers that a configuration names: math, regex, functions of the user's, patterns."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mrl.config import JsonlTask, ReasoningGymTask
from mrl.errors import InputError
from mrl.tasks import Item, Task, load_task, process
from mrl.tasks.functions import FunctionVerifier
from mrl.tasks.mathematics import MathVerifier
from mrl.tasks.patterns import Extracted, extract
from mrl.tasks.verdicts import judge
from mrl.tasks.verifiers import exact


def load(tmp_path: Path, answer: str, **settings: Any) -> Task:
    """A jsonl task whose items all have the same answer."""
    path = tmp_path / "task.jsonl"
    lines = [f'{{"question": "q{i}", "answer": {answer}}}\n' for i in range(3)]
    path.write_text("".join(lines), encoding="utf-8")
    return load_task(JsonlTask(kind="jsonl", path=str(path), **settings), 0)


def reward(task: Task, response: str, finished: bool = True) -> float | None:
    (verdict,) = task.verdicts([(task.train[0], response.encode(), finished)])
    return verdict.reward


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"####\s*(.+)", "16 - 3 - 4 = 9\n#### 9,000 ", "9,000"),
        (r"<answer>(.*?)</answer>", "<answer>1</answer> no, <answer> 2 </answer>", "2"),
        (r"[0-9]+", "first 1, then 23", "23"),
        (r"[0-9]+", "none", None),
        (r"a(b)?", "a", None),
        ("boxed", r"so \boxed{1} and then $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        ("boxed", r"\boxed {x \in \{1, 2\}}", r"x \in \{1, 2\}"),
        ("boxed", r"\fbox{3}", "3"),
        ("boxed", r"\boxed{1} \boxed{2", None),
        ("boxed", r"\boxed 5", None),
        ("boxed", "boxed{5}", None),
        ("boxed", "", None),
    ],
)
def test_the_last_match_is_extracted(pattern: str, text: str, found: str | None) -> None:
    assert extract(pattern, text) == found


def test_a_verifier_sees_the_part_that_the_pattern_finds() -> None:
    verify, item = Extracted(exact, r"answer: (\w+)"), Item.of("q", "42")
    assert verify(item, b"the answer: 41, no, answer: 42, I think", True) == 1.0
    assert verify(item, b"answer: 42, no, answer: 41", True) == 0.0
    assert verify(item, b"42", True) == 0.0
    assert verify(item, b"answer: 42", False) == 0.0
    assert verify(item, b"answer: 42 \xff", True) == 0.0


def test_a_regular_expression_that_explodes_is_not_verified(tmp_path: Path) -> None:
    settings = {"verifier": "regex", "verification": {"timeout": 1.0, "workers": 1}}
    with load(tmp_path, r'"(a+)+\\Z"', **settings) as task:
        item = task.train[0]
        found = task.verdicts([(item, text, True) for text in (b"a" * 60 + b"b", b"baa", b"b")])
    assert [(one.reward, one.reason) for one in found] == [(None, "timeout"), (1.0, ""), (0.0, "")]


def test_an_answer_pattern_that_explodes_is_refused_in_time_naming_the_row(tmp_path: Path) -> None:
    settings = {"answer_pattern": r"(a+)+\Z", "verification": {"timeout": 1.0}}
    with load(tmp_path, '"baa"', **settings) as task:
        assert [item.answer for item in task.train] == ["aa"] * 2
    with pytest.raises(InputError) as caught:
        load(tmp_path, f'"{"a" * 60}b"', **settings, invalid="skip")
    for words in ("line 1, key 'answer'", repr(r"(a+)+\Z"), "within 1.0 s", "verification.timeout"):
        assert words in str(caught.value)


def test_an_answer_that_is_no_text_is_still_named_where_a_pattern_looks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 1, key 'answer': got None"):
        load(tmp_path, "null", answer_pattern="a")


def test_patterns_that_explode_run_where_time_is_bounded(tmp_path: Path) -> None:
    assert load(tmp_path, "1").runner is None
    assert load(tmp_path, "1", verifier="numeric").runner is None
    assert load(tmp_path, "1", verifier="regex").runner is not None
    task = load(tmp_path, "1", verifier="numeric", response_pattern="boxed")
    assert task.runner is not None
    assert task.verifier_id == "numeric of boxed"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"verifier": "exat"}, "module:function"),
        ({"verifier": "a b:c"}, "module:function"),
        ({"response_pattern": "("}, "regular expression"),
        ({"answer_pattern": "[a"}, "regular expression"),
        ({"prompt": "Answer this."}, "{question}"),
    ],
)
def test_settings_that_cannot_be_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="Value error") as caught:
        JsonlTask(kind="jsonl", path="x", **settings)
    assert words in str(caught.value)
    assert repr(next(iter(settings.values()))) in str(caught.value)


def test_an_answer_that_is_no_regular_expression_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 1, key 'answer': got '\('; the verifier 'regex'"):
        load(tmp_path, '"("', verifier="regex")


# Functions of the user's

FUNCTIONS = """
import random

number = 3

def same(question, answer, response, finished):
    return finished and response == answer

class graded:
    @staticmethod
    def by_length(question, answer, response, finished):
        return min(len(response) / 10, 1)

def see(question, answer, response, finished):
    assert (question, answer, response, finished) == ("q", "a", "caf\\u00e9\\ufffd", False)
    return None

def words(question, answer, response, finished): return "good"
def beyond(question, answer, response, finished): return -1
def fails(question, answer, response, finished): raise RuntimeError("no model server")
def hangs(question, answer, response, finished):
    while True: pass
def draws(question, answer, response, finished): return random.random()
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the folder that the run is started in."""
    (tmp_path / "my_functions.py").write_text(FUNCTIONS, encoding="utf-8")
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_function_gets_texts_and_returns_a_reward(functions: Path) -> None:
    item = Item.of("q", "a")
    see, same, graded = (
        FunctionVerifier(f"my_functions:{name}") for name in ("see", "same", "graded.by_length")
    )
    assert judge(see, (item, "café".encode() + b"\xff", False)).reason == "none"
    assert [same(item, text, True) for text in (b"a", b"b")] == [1.0, 0.0]
    assert graded(item, b"four!", True) == 0.5


def test_a_function_that_draws_leaves_the_generators_alone(functions: Path) -> None:
    verify, item = FunctionVerifier("my_functions:draws"), Item.of("q", "a")
    random.seed(1)
    before = random.getstate()
    first = verify(item, b"x", True)
    assert random.getstate() == before
    assert verify(item, b"y", True) != first
    assert verify(item, b"x", True) == first


def test_a_function_of_the_configuration_scores_in_a_worker(functions: Path) -> None:
    settings = {"verifier": "my_functions:same", "verification": {"workers": 1}}
    with load(functions, '"yes"', **settings) as task:
        assert task.verifier_id == "my_functions:same"
        assert [reward(task, text) for text in ("yes", "no")] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere:same", "No module named 'nowhere'"),
        ("my_functions:nothing", "no attribute 'nothing'"),
        ("my_functions:number", "is int; expected a function"),
        ("my_functions:words", "returned 'good'"),
        ("my_functions:beyond", "-1.0; expected a number in [0, 1]"),
        ("my_functions:fails", "no model server"),
    ],
)
def test_a_function_without_a_verdict_on_a_right_answer_is_refused(functions, name, words) -> None:
    with pytest.raises(InputError) as caught:
        load(functions, "1", verifier=name, verification={"workers": 0})
    for part in ("task.verifier", repr(name), words, "(question, answer, response, finished)"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"), [("nowhere:same", "'nowhere'"), ("my_functions:hangs", "within 1.0 s")]
)
def test_it_is_refused_in_a_worker_too(functions, name, words) -> None:
    with pytest.raises(InputError, match=words):
        load(functions, "1", verifier=name, verification={"workers": 1, "timeout": 1.0})


def test_a_module_that_hangs_on_import_ends_the_wait(functions, monkeypatch) -> None:
    (functions / "sleepy.py").write_text("import time; time.sleep(600)", encoding="utf-8")
    monkeypatch.setattr(process, "START", 1.0)
    with pytest.raises(InputError, match=r"'sleepy:score'.*does not start.*not within 1 s"):
        load(functions, "1", verifier="sleepy:score", verification={"workers": 1})


# Mathematics


def test_equal_mathematics_is_the_same_answer(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    with load(tmp_path, r'"\\frac{1}{2}"', verifier="math", verification={"workers": 1}) as task:
        assert task.verifier_id == "math"
        for response in (r"so $\boxed{0.5}$", r"\boxed{1/2}", r"\boxed{3} no: \boxed{\dfrac12}"):
            assert reward(task, response) == 1.0
        for response in (r"\boxed{2}", "0.5", r"$\frac{1}{2}$", r"\boxed{}", r"\boxed{0.5"):
            assert reward(task, response) == 0.0
        assert reward(task, r"\boxed{0.5}", finished=False) == 0.0


def test_mathematics_off_the_main_thread_is_verified() -> None:
    pytest.importorskip("math_verify")
    verify, item = MathVerifier(), Item.of("q", "3x+6")
    asked = [(item, text, True) for text in (b"3(x+2)", b"3x")] * 4
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda job: judge(verify, job).reward, asked))
    assert found == [1.0, 0.0] * 4


def test_a_solution_is_no_answer_to_mathematics(tmp_path: Path) -> None:
    solution = r'"Adding, we get $\\boxed{\\frac{1}{2}}$."'
    with pytest.raises(InputError, match="answer_pattern: boxed"):
        load(tmp_path, solution, verifier="math")
    task = load(tmp_path, solution, verifier="math", answer_pattern="boxed")
    assert task.train[0].answer == r"\frac{1}{2}"


# reasoning-gym


def test_a_scorer_of_reasoning_gym_runs_in_a_worker() -> None:
    pytest.importorskip("reasoning_gym")
    # A dataset that cannot be pickled; its scorer is made anew.
    config = ReasoningGymTask(
        kind="reasoning_gym",
        name="string_manipulation",
        size=4,
        eval_size=2,
        prompt="{question} Answer in <answer></answer>.",
        response_pattern="<answer>(.*?)</answer>",
        verification={"workers": 1},
    )
    with load_task(config, 0) as task:
        item = task.train[0]
        assert item.messages[0]["content"].endswith(" Answer in <answer></answer>.")
        assert reward(task, f"It is <answer>{item.answer}</answer>.") == 1.0
        assert reward(task, item.answer) == 0.0
