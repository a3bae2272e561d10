"""What a source measures of its own rollouts: the residual of tokens that are not canonical."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mrl.batch import Row
from mrl.exchange import Record
from mrl.publish import records_of, residual_of
from mrl.rollout import Rollout
from mrl.rollout.groups import Groups
from mrl.tasks import Item, Task
from mrl.train import train

ITEM = Item.of("01=", "1")
TASK = Task((ITEM,), (ITEM,), "any", lambda item, response, finished: 1.0)


@pytest.fixture
def source(make_policy: Any, pairs: Any) -> Any:
    """Spells pairs of digits with one token, or with two that are not canonical."""
    return make_policy("a", tokenizer=pairs)


def rollout(policy: Any, *parts: str, logp: float = -1.0, finished: bool = True) -> Rollout:
    ids = [token for part in parts for token in policy.encode([part.encode()])[0]]
    ids = [*ids, *([policy.eos_id] if finished else [])]
    text = "".join(parts).encode()
    return Rollout(tuple(ids), np.full(len(ids), logp), finished, text)


def records(policy: Any, rollouts: Sequence[Rollout], kind: str = "rollout") -> list[Record]:
    groups = Groups([list(rollouts)], np.ones((1, len(rollouts))), len(rollouts))
    return records_of(policy, groups, [ITEM], frozenset({kind}), TASK, 0)


def score(policy: Any, response: Sequence[int]) -> float:
    return policy.score([Row(0, policy.render(ITEM), tuple(response), 0.0)])[0].sum()


@pytest.mark.parametrize("finished", [True, False])
def test_the_residual_is_sampled_less_canonical_log_prob_with_the_end_token(source, finished):
    one = rollout(source, "0", "1", finished=finished)
    figures = residual_of(source, records(source, [one]), [ITEM], 64)
    canonical = [*source.encode([b"01"])[0], *([source.eos_id] if finished else [])]
    assert len(canonical) == len(one.ids) - 1
    expected = abs(one.logprobs.sum() - score(source, canonical))
    assert figures["residual_q50"] == pytest.approx(expected, rel=1e-12)
    assert figures["residual_above_5_nats"] == float(expected > 5)
    assert figures["canonical_share"] == 0.0


def test_canonical_rollouts_cost_no_forward_pass(source):
    calls = []
    handle = source.model.register_forward_pre_hook(lambda *_: calls.append(1))
    sent = records(source, [rollout(source, "01"), rollout(source, "1")])
    figures = residual_of(source, sent, [ITEM], 64)
    assert not calls
    assert figures["residual_q99"] == figures["residual_above_5_nats"] == 0.0
    assert (figures["canonical_share"], figures["residual_rollouts"]) == (1.0, 2)
    residual_of(source, [*sent, *records(source, [rollout(source, "0", "1")])], [ITEM], 64)
    handle.remove()
    assert len(calls) == 1


def test_the_sample_bounds_what_is_scored_and_is_spread_over_the_round(source):
    rows: list[int] = []
    handle = source.model.register_forward_pre_hook(
        lambda _, __, inputs: rows.append(len(inputs["input_ids"])), with_kwargs=True
    )
    apart = [rollout(source, "0", "1"), rollout(source, "0", "1", "1")] * 10
    figures = residual_of(source, records(source, apart), [ITEM], 4)
    assert figures["residual_rollouts"] == 4
    assert sum(rows) == 2  # different responses are scored once
    half = [rollout(source, "01")] * 10 + [rollout(source, "0", "1")] * 10
    figures = residual_of(source, records(source, half), [ITEM], 4)
    handle.remove()
    assert figures["residual_q75"] > 0
    assert figures["canonical_share"] == 0.5


def test_nothing_is_measured_where_nothing_is_asked_for(source):
    assert residual_of(source, records(source, [rollout(source, "01")], "success"), [ITEM], 8) == {}
    none = residual_of(source, records(source, [rollout(source, "0", "1")]), [ITEM], 0)
    assert none == {"canonical_share": 0.0, "residual_rollouts": 0, "residual_unreachable": 0}


def test_rollouts_without_all_log_probs_have_no_residual(source):
    one = rollout(source, "0", "1")
    one.logprobs[0] = np.nan
    figures = residual_of(source, records(source, [one, rollout(source, "1")]), [ITEM], 8)
    assert figures["residual_rollouts"] == 1


def test_canonical_tokens_outside_the_nucleus_are_counted_apart(make_policy, pairs):
    source = make_policy("a", tokenizer=pairs, sampling={"top_p": 0.01})  # one token alone
    figures = residual_of(
        source, records(source, [rollout(source, "0", "1"), rollout(source, "01")]), [ITEM], 8
    )
    assert figures["residual_unreachable"] == 1
    assert figures["residual_above_5_nats"] == 0.5
    assert figures["residual_q99"] == 0.0


def test_a_round_reports_gate_residual_and_refusals(configure):
    rows: list[dict[str, Any]] = []
    config = configure(2, probe={"kind": "prp"}, rounds=1)
    train(config, progress=lambda done, found: rows.extend(found))
    for row in rows:
        assert 0 <= row["gated_share"] <= 1
        assert row["noncanonical_share"] == row["gated_share"]
        assert row["unrepresentable"] == sum(row["unrepresentable_by_reason"].values())
        assert row["residual_rollouts"] == 24
        assert row["residual_q50"] <= row["residual_q99"]
        assert row["unreachable_tokens"] == 0
        assert row["ess_low"] == (row["ess"] < 0.1)
    # what one gates out is what the other sampled in tokens that are not canonical
    shares = {row["policy"]: row["canonical_share"] for row in rows}
    assert 0 < shares["a"] != shares["b"] > 0
    gates = {row["policy"]: row["gated_share"] for row in rows}
    assert gates == pytest.approx({"a": 1 - shares["b"], "b": 1 - shares["a"]})


def test_refusals_are_counted_by_reason(settings, one_thread):
    from mrl.config import parse

    values = settings(2, probe={"kind": "prp"}, rounds=1)
    values["policies"][0]["tokenizer"] = {"kind": "characters", "alphabet": "01+="}
    values["policies"][1]["tokenizer"] = {"kind": "characters", "alphabet": "01+=x"}
    rows: list[dict[str, Any]] = []
    train(parse(values), progress=lambda done, found: rows.extend(found))
    found = {row["policy"]: row["unrepresentable_by_reason"] for row in rows}
    assert found["a"]["outside the vocabulary"] > 0
    assert found["b"] == {}
