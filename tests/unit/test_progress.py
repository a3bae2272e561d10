"""The progress line says once what needs to be known at once."""

from io import StringIO

from rich.console import Console

from mrl.progress import bar


def test_a_low_effective_sample_size_is_said_once_for_each_policy(configure):
    out = StringIO()
    console = Console(file=out, width=1000)
    with bar(configure(2), console) as advance:
        for round in range(3):
            rows = [
                {"policy": "a", "round": round, "reward_mean": 0.5, "ess": 0.04, "ess_low": True},
                {"policy": "b", "round": round, "reward_mean": 0.5, "ess": 0.6, "ess_low": False},
                {"policy": "c", "round": round, "reward_mean": 0.5},
            ]
            advance(round + 1, rows)
    warnings = [line for line in out.getvalue().splitlines() if "warning" in line]
    assert len(warnings) == 1
    assert "policy 'a', round 0" in warnings[0]
    assert "4.0%" in warnings[0]


def test_responses_without_any_verdict_are_said_and_have_no_reward(configure):
    out = StringIO()
    with bar(configure(2), Console(file=out, width=1000, force_terminal=False)) as advance:
        for round in range(2):
            row = {
                "round": round,
                "unverified_by_reason": {"exception": 8},
                "unverified_said": {"exception": "KeyError: 'a'"},
            }
            advance(
                round + 1,
                [{**row, "policy": "a", "reward_mean": None}, {"policy": "b", "reward_mean": 0.5}],
            )
    warnings = [line for line in out.getvalue().splitlines() if "warning" in line]
    assert len(warnings) == 1
    assert "policy 'a', round 0: none of its responses has a verdict (8 exception" in warnings[0]
    assert "the first: KeyError: 'a')" in warnings[0]
    assert "a -  b 0.50" in out.getvalue()
