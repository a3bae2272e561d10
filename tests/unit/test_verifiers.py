import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrl.tasks.task import Item
from mrl.tasks.verifiers import (
    MAX_EXPONENT,
    MAX_NUMBER,
    exact,
    last_number,
    numeric,
    read_number,
)

VERIFIERS = {"exact": exact, "numeric": numeric}


def item(answer: str) -> Item:
    return Item.of("question", answer)


@pytest.mark.parametrize("response", ["42", " 42", "42\n", "\t42 \r\n"])
def test_exact_sets_surrounding_space_aside(response: str) -> None:
    assert exact(item("42"), response.encode(), True) == 1.0


@pytest.mark.parametrize("response", ["", "4", "420", "4 2", "42.", "the answer is 42", "４２"])
def test_exact_refuses_every_other_text(response: str) -> None:
    assert exact(item("42"), response.encode(), True) == 0.0


@pytest.mark.parametrize("kind", sorted(VERIFIERS))
def test_a_response_that_goes_on_is_no_answer(kind: str) -> None:
    assert VERIFIERS[kind](item("42"), b"42", True) == 1.0
    assert VERIFIERS[kind](item("42"), b"42", False) == 0.0


@pytest.mark.parametrize("kind", sorted(VERIFIERS))
@pytest.mark.parametrize(
    "response", [b"\xff42", b"42 \xe2\x82", b"\xc0\xb4\xc0\xb2", b"\xed\xa0\x80 42"]
)
def test_bytes_that_are_not_utf8_are_no_answer(kind: str, response: bytes) -> None:
    assert VERIFIERS[kind](item("42"), response, True) == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The answer is 42.", 42),
        ("first 1, then 2", 2),
        ("$1,234,567.50", Fraction("1234567.5")),
        ("1,23", 23),
        ("1,2345", 2345),
        ("-7", -7),
        ("= -7", -7),
        ("\u22127", -7),
        ("+7", 7),
        ("10-7", 7),
        ("x-7", 7),
        ("(x)-7", 7),
        ("答案是-7", -7),
        (".5", Fraction(1, 2)),
        ("-.5", Fraction(-1, 2)),
        ("wait...42", 42),
        ("1.5e3", 1500),
        ("25E-1", Fraction(5, 2)),
        ("1e", 1),
        ("3/4", Fraction(3, 4)),
        ("-3/4", Fraction(-3, 4)),
        ("3/4.5", Fraction(9, 2)),
        ("\\boxed{42}", 42),
        ("**42**", 42),
        ("50%", 50),
        ("42 km2", 42),
        ("007", 7),
    ],
)
def test_the_last_number_is_read_as_documented(text: str, value: Fraction) -> None:
    assert last_number(text) == value


@pytest.mark.parametrize("text", ["", "none", "x2", "-", "1/0", "٣", "²"])
def test_text_without_a_number_has_no_last_number(text: str) -> None:
    assert last_number(text) is None
    assert numeric(item("2"), text.encode(), True) == 0.0


def test_a_number_beyond_the_bounds_equals_nothing_and_costs_nothing() -> None:
    for text in (
        "9" * (MAX_NUMBER + 1),
        "1e999999999",
        f"1e-{MAX_EXPONENT + 1}",
        "1e" + "9" * 9999,
    ):
        assert read_number(text) is None
        # It is the last number all the same: the 5 before it is not the answer.
        assert numeric(item("5"), f"5 {text}".encode(), True) == 0.0


@pytest.mark.parametrize("unit", ["1", "1,111", "1,111,", "-", "1/", ".", "1e", ".1", "a1"])
def test_long_responses_are_read_in_linear_time(unit: str) -> None:
    response = (unit * 200_000).encode()
    start = time.process_time()
    numeric(item("5"), response, True)
    # Linear: below a second. Quadratic: some 10**10 steps, minutes.
    assert time.process_time() - start < 10


@pytest.mark.parametrize("answer", ["1/2", "0.5", ".5", "0.50", "5e-1", "+0.5", "2/4"])
def test_numeric_compares_values_not_spellings(answer: str) -> None:
    for response in ("1/2", "0.5", "so it is 5e-1."):
        assert numeric(item(answer), response.encode(), True) == 1.0


def test_numeric_never_rounds() -> None:
    assert numeric(item("0.3"), b"0.30000000000000004", True) == 0.0
    assert numeric(item("0.3"), b"0.300000000000000000001", True) == 0.0
    assert numeric(item("9007199254740993"), b"9007199254740992", True) == 0.0
    assert numeric(item("1/3"), b"0.3333333333333333", True) == 0.0


@given(st.integers(-(10**30), 10**30), st.text(st.characters(exclude_categories=["Cs", "N"])))
def test_every_integer_is_read_back_in_each_of_its_spellings(number: int, before: str) -> None:
    for spelling in (str(number), f"{number:,}", f"{number}.0", f"{number}e0", f"{number}/1"):
        assert read_number(spelling) == number
        assert numeric(item(str(number)), f"{before} {spelling}\n".encode(), True) == 1.0
        assert numeric(item(str(number + 1)), f"{before} {spelling}\n".encode(), True) == 0.0


@given(st.binary(max_size=200), st.sampled_from(sorted(VERIFIERS)))
def test_every_response_gets_a_binary_reward(response: bytes, kind: str) -> None:
    assert VERIFIERS[kind](item("7"), response, True) in (0.0, 1.0)
