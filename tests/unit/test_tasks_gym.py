import random
import sys
from typing import Any

import numpy as np
import pytest

from mrl.config import ReasoningGymTask
from mrl.errors import InputError
from mrl.tasks import Task, load_task
from mrl.tasks.gym import GymVerifier
from mrl.tasks.task import Item

pytest.importorskip("reasoning_gym")


def load(
    name: str,
    seed: int = 0,
    size: int = 20,
    eval_size: int = 10,
    verifier: Any = "own",
    **params: Any,
) -> Task:
    config = ReasoningGymTask(
        kind="reasoning_gym",
        name=name,
        size=size,
        eval_size=eval_size,
        params=params,
        verifier=verifier,
    )
    return load_task(config, seed)


def refusal(name: str, **settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(name, **settings)
    return str(caught.value)


def global_states() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), name, keys.tolist(), *rest


def test_items_and_rewards_come_from_the_library() -> None:
    task = load("chain_sum", min_terms=2, max_terms=2)
    assert len(task.train) == 20
    assert len(task.heldout) == 10
    assert task.verifier_id == "reasoning_gym/chain_sum"
    assert {item.tag for item in task.train + task.heldout} == {"chain_sum"}
    assert task.notes == ()
    for item in task.train + task.heldout:
        assert task.verify(item, f" {item.answer}\n".encode(), True) == 1.0
        assert task.verify(item, b"no", True) == 0.0


def test_partial_credit_is_passed_on() -> None:
    task = load("chain_sum")
    item = task.train[0]
    reward = task.verify(item, f"it is {item.answer}".encode(), True)
    assert reward is not None
    assert 0.0 < reward < 1.0


def test_another_verifier_takes_the_answer_in_a_sentence_or_not_at_all() -> None:
    numeric, exact = (load("chain_sum", verifier=kind) for kind in ("numeric", "exact"))
    assert (numeric.verifier_id, exact.verifier_id) == ("numeric", "exact")
    item = numeric.train[0]
    sentence = f"The answer is {item.answer}.".encode()
    assert numeric.verify(item, sentence, True) == 1.0
    assert exact.verify(item, sentence, True) == 0.0
    assert exact.verify(item, item.answer.encode(), True) == 1.0


def test_numbers_are_not_asked_of_answers_that_are_none() -> None:
    message = refusal("spell_backward", verifier="numeric")
    assert "expects numbers, so use 'own' or 'exact'" in message


def test_a_response_that_goes_on_or_is_not_utf8_is_no_answer() -> None:
    task = load("chain_sum")
    item = task.train[0]
    assert task.verify(item, item.answer.encode(), False) == 0.0
    assert task.verify(item, item.answer.encode() + b"\xff", True) == 0.0


# The last two draw from Python's and from numpy's global generator.
@pytest.mark.parametrize("name", ["chain_sum", "list_functions", "pool_matrix"])
def test_items_follow_from_the_seed_and_leave_global_generators_alone(name: str) -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = global_states()
    first = load(name, 3)
    reward = first.verify(first.train[0], first.train[0].answer.encode(), True)
    assert reward == 1.0
    assert global_states() == before
    random.seed(2)
    np.random.seed(2)  # noqa: NPY002
    again = load(name, 3)
    assert (again.train, again.heldout) == (first.train, first.heldout)
    assert load(name, 4).train != first.train


def test_neighbouring_seeds_share_no_run_of_items() -> None:
    # The library seeds item i with seed + i: seeds 0 and 1 taken as they are would share all
    # but one item.
    here, there = ({item.question for item in load("chain_sum", seed).train} for seed in (0, 1))
    assert not here & there


def test_repeated_and_trained_questions_are_left_out_and_counted() -> None:
    # One-digit sums of two: at most 200 questions, so 150 draws and 100 draws must meet.
    settings = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    task = load("chain_sum", size=150, eval_size=100, **settings)
    questions = [item.question for item in task.train + task.heldout]
    assert len(set(questions)) == len(questions)
    assert len({item.prompt_id for item in task.train + task.heldout}) == len(questions)
    assert task.notes == (
        f"{150 - len(task.train)} repeated training item(s) left out",
        f"{100 - len(task.heldout)} held-out item(s) left out: repeated, or also a training item",
    )


def test_a_task_without_a_new_heldout_question_is_refused() -> None:
    message = refusal(
        "chain_sum", size=500, eval_size=1, min_terms=1, max_terms=1, min_digits=1, max_digits=1
    )
    assert "held-out" in message
    assert "smaller size" in message


def test_an_unknown_dataset_is_refused_with_its_neighbours() -> None:
    message = refusal("chain_sums")
    assert "'chain_sums'" in message
    assert "did you mean 'chain_sum'" in message


def test_an_unknown_setting_is_refused_with_its_neighbours() -> None:
    message = refusal("chain_sum", min_termz=2)
    assert message.startswith("task.params.min_termz")
    assert "did you mean 'min_terms'" in message


@pytest.mark.parametrize("key", ["seed", "size"])
def test_settings_that_the_run_fixes_are_refused(key: str) -> None:
    config = ReasoningGymTask(kind="reasoning_gym", name="chain_sum", params={key: 3})
    with pytest.raises(InputError, match=rf"^task\.params\.{key}: got 3"):
        load_task(config, 0)


@pytest.mark.parametrize("value", [0, "two"])
def test_a_value_that_the_library_refuses_is_named(value: Any) -> None:
    message = refusal("chain_sum", min_terms=value)
    assert "chain_sum" in message
    assert repr(value) in message


def test_a_missing_library_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "reasoning_gym"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "path", [])
    message = refusal("chain_sum")
    assert "'reasoning_gym'" in message
    assert "mutual-rl[train]" in message


class OddScorer:
    """A dataset whose scorer does what it is told to."""

    def __init__(self, score: Any) -> None:
        self.score = score

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        return {}

    def score_answer(self, answer: str, entry: dict[str, Any]) -> Any:
        if isinstance(self.score, BaseException):
            raise self.score
        return self.score


@pytest.mark.parametrize(
    ("score", "reward"),
    [
        (ZeroDivisionError(), None),
        (RecursionError(), None),
        (SystemExit(0), None),
        (float("nan"), None),
        (None, None),
        ("good", None),
        (2.0, 1.0),
        (-0.5, 0.0),
        (float("inf"), 1.0),
        (0.25, 0.25),
        (True, 1.0),
    ],
)
def test_scores_are_clipped_and_failures_are_not_verified(score: Any, reward: Any) -> None:
    item = Item.of("q", "a")
    verify = GymVerifier(OddScorer(score), {item.prompt_id: {}})
    assert verify(item, b"a", True) == reward


def test_an_item_of_another_task_is_an_error() -> None:
    with pytest.raises(KeyError):
        load("chain_sum").verify(Item.of("q", "a"), b"a", True)


def test_a_real_scorer_that_fails_is_not_verified() -> None:
    # prime_factorization's scorer converts the response to integers and lets the error out.
    task = load("prime_factorization")
    assert task.verify(task.train[0], b"no idea", True) is None
    assert task.verify(task.train[0], task.train[0].answer.encode(), True) == 1.0
