"""What an audit of two tokenizers reports, on texts small enough to count by hand."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from mrl.tokens import TokenBytes, align, audit, canonicality_residual, plots, summarise_residual
from mrl.tokens.audit import BATCH, compare
from mrl.tokens.recipes import bpe_tokenizer, character_tokenizer


@pytest.fixture(scope="module")
def characters():
    return character_tokenizer("abcd ")


@pytest.fixture(scope="module")
def pairs():
    """<pad> <eos> a b c d ab cd: no space."""
    return bpe_tokenizer(["ab", "ab", "ab", "cd", "cd"], 8)


def test_blocks_are_counted_by_their_tokens_on_either_side(characters, pairs):
    report = audit(characters, pairs, ["abcd", "acab", "a"])
    assert report.texts["tokens_a"].tolist() == [4, 4, 1]
    assert report.texts["tokens_b"].tolist() == [2, 3, 1]
    assert report.texts["one_to_one"].tolist() == [0, 2, 1]
    rows = report.blocks.to_dict("records")
    assert rows == [
        {"tokens_a": 1, "tokens_b": 1, "blocks": 3, "bytes": 3, "share": 0.5},
        {"tokens_a": 2, "tokens_b": 1, "blocks": 3, "bytes": 6, "share": 0.5},
    ]
    assert report.one_to_one_share == 0.5


def test_refusals_are_counted_by_side_and_reason(characters, pairs):
    report = audit(characters, pairs, ["ab", "a b", b"\xff", "x"])
    outside, invalid = "outside the vocabulary", "invalid UTF-8"
    counts = {(row.side, row.reason): row.texts for row in report.refused.itertuples()}
    assert counts == {("a", outside): 1, ("a", invalid): 1, ("b", outside): 2, ("b", invalid): 1}
    assert report.refused["share"].sum() == 5 / 4
    # of the two texts that the source itself can write, the receiver refuses one
    assert report.refused_share == 0.5


def test_rollouts_give_the_canonical_share_and_the_refused_share(characters, pairs):
    # sampled by the BPE policy: "ab" as one token; as two, with EOS; <pad> inside
    report = audit(pairs, characters, ["ab"], rollouts=[[6], [2, 3, 1], [2, 0, 3]])
    assert report.rollouts["canonical"].tolist() == [True, False, False]
    assert report.canonical_share == pytest.approx(1 / 3)
    assert report.refused_share == 0.0
    suggested = report.suggested_residual()
    assert (suggested.drop, suggested.gate) == (0.0, pytest.approx(2 / 3))
    # one control token at the end is the turn end, a second one before it is not
    ended = audit(pairs, characters, ["ab"], rollouts=[[6, 1], [6, 0, 1]])
    assert ended.rollouts["canonical"].tolist() == [True, False]
    back = audit(characters, pairs, ["ab"], rollouts=[[2, 6], [2, 3]])  # "a ", "ab"
    assert back.refused_share == 0.5
    assert (back.suggested_residual().drop, back.suggested_residual().gate) == (0.5, 0.0)


def test_a_rollout_that_the_receiver_drops_is_not_gated_out_once_more(characters, pairs):
    # "a " and "ab" with <pad> inside, "d", "ab"; the receiver has no space
    report = audit(characters, pairs, ["ab"], rollouts=[[2, 0, 6], [2, 0, 3], [5], [2, 3]])
    assert (report.refused_share, report.canonical_share) == (0.25, 0.5)
    assert report.gated_share == pytest.approx(1 / 3)
    suggested = report.suggested_residual()
    assert (suggested.drop, suggested.gate) == (0.25, pytest.approx(1 / 3))


def test_measured_residuals_reach_the_ungated_suggestion_with_the_ratios_sign(characters, pairs):
    rollouts = [[6], [2, 3], [4, 5]]
    residual = canonicality_residual([-1.0, -9.0, -4.0], [-1.0, -2.0, -4.5], [True, False, False])
    report = audit(pairs, characters, ["ab"], rollouts, residuals=residual)
    # the ratio divides by the sampled tokens' probability, so its error is -r
    assert report.suggested_residual(gated=False).samples.tolist() == [0.0, 7.0, -0.5]
    values = report.summary.set_index("quantity")["value"]
    assert values["residual_above_5_nats"] == pytest.approx(1 / 3)
    assert values["residual_zero_share"] == pytest.approx(1 / 3)
    assert values["residual_q50%"] == 0.0
    assert values["residual_magnitude_q50%"] == 0.5


def test_a_residual_not_measured_is_left_out(characters, pairs):
    report = audit(pairs, characters, ["ab"], [[6], [2, 3]], residuals=[np.nan, -7.0])
    assert report.residual.count == 1
    assert audit(pairs, characters, ["ab"], [[6]]).residual is None


def test_exchange_records_serve_as_rollouts_of_their_own_tokenizer(characters, pairs):
    record = SimpleNamespace(
        source_ids=np.array([2, 3, 1]), fingerprint=TokenBytes.of(pairs).fingerprint
    )
    assert audit(pairs, characters, [], [record]).canonical_share == 0.0
    with pytest.raises(ValueError, match="expected tokenizer_a's"):
        audit(characters, pairs, [], [record])


def test_nothing_to_audit_gives_empty_frames_and_no_suggestion(characters, pairs):
    report = audit(characters, pairs, [])
    assert len(report.texts) == len(report.blocks) == len(report.rollouts) == 0
    assert np.isnan(report.one_to_one_share)
    assert np.isnan(report.canonical_share)
    assert len(report.refused) == 0
    with pytest.raises(ValueError, match="expected at least one"):
        report.suggested_residual()
    assert audit(characters, pairs, [""]).texts["blocks"].tolist() == [0]


def test_what_does_not_fit_is_an_error(characters, pairs):
    with pytest.raises(ValueError, match=r"residuals have shape \(1,\)"):
        audit(pairs, characters, ["ab"], [[6], [6]], residuals=[0.0])
    with pytest.raises(ValueError, match="pass `residuals`"):
        audit(pairs, characters, ["ab"], [[6]]).suggested_residual(gated=False)
    with pytest.raises(ValueError, match="at least one rollout"):
        summarise_residual([])
    with pytest.raises(ValueError, match="1 values that are not finite"):
        summarise_residual([0.0, np.nan])


def test_canonical_rollouts_have_no_residual_whatever_two_passes_round_to():
    residual = canonicality_residual([-1.0, -3.0], [-1.0 - 1e-7, -2.0], [True, False])
    assert residual.tolist() == [0.0, -1.0]


def test_many_texts_get_the_blocks_that_each_gets_alone(characters, pairs):
    texts = ["".join("abcd "[(i * j) % 5] for j in range(i % 9)) for i in range(2 * BATCH + 3)]
    told: list[int] = []
    report = audit(characters, pairs, texts, progress=told.append)
    assert told == [BATCH, 2 * BATCH, 2 * BATCH + 3]
    assert report.texts["text"].tolist() == list(range(len(texts)))
    a, b = TokenBytes.of(characters), TokenBytes.of(pairs)
    for i in (0, 8, BATCH - 1, BATCH, 2 * BATCH + 2):
        (row,) = report.texts.iloc[[i]].to_dict("records")
        refused = " " in texts[i]
        assert pd.notna(row["refused_b"]) == refused
        if not refused:
            ids = [t.encode(texts[i], add_special_tokens=False) for t in (characters, pairs)]
            alone = align(a.lengths(ids[0]), b.lengths(ids[1]))
            assert (row["blocks"], row["one_to_one"]) == (len(alone), alone.one_to_one.sum())


def test_kinds_of_text_are_told_apart(characters, pairs):
    report = audit(characters, pairs, ["ab", "ac", "a b", "a"], kinds=["x", "y", "x", "y"])
    rows = report.by_kind.set_index("kind")
    assert rows["texts"].to_dict() == {"x": 2, "y": 2}
    assert rows["bytes"].to_dict() == {"x": 5, "y": 3}
    assert rows["one_to_one_share"].to_dict() == {"x": 0.0, "y": 1.0}
    assert rows["refused_share"].to_dict() == {"x": 0.5, "y": 0.0}
    nothing = audit(characters, pairs, [" "]).by_kind
    assert np.isnan(nothing["one_to_one_share"]).all()
    with pytest.raises(ValueError, match="kinds has 1 entries"):
        audit(characters, pairs, ["a", "b"], kinds=["x"])


def test_what_a_record_says_of_itself_counts(characters, pairs):
    # with a declared tag a response is canonical although it is not so as one text
    record = SimpleNamespace(source_ids=np.array([2, 3]), text=b"a b", canonical=True)
    report = audit(pairs, characters, [], [record, [2, 3]])
    assert report.rollouts["canonical"].tolist() == [True, False]
    assert report.rollouts["bytes"].tolist() == [3, 2]


def test_every_pair_is_compared_both_ways(characters, pairs):
    frame = compare({"c": characters, "p": pairs}, ["ab", "a b"])
    found = frame.set_index(["source", "receiver"])
    assert found["refused_share"].to_dict() == {("c", "p"): 0.5, ("p", "c"): 0.0}
    assert found["one_to_one_share"].nunique() == 1
    assert compare({"c": characters}, ["ab"]).empty


def said(figure) -> set[str]:
    return {text.get_text() for axes in figure.axes for text in (*axes.texts, axes.xaxis.label)}


def test_the_picture_holds_the_figures(characters, pairs):
    report = audit(characters, pairs, ["abcd", "acab", "a b"])
    figure = plots.audit(report, source="one", receiver="two")
    assert len(figure.axes) == 2
    # of five blocks two are 1:1; one text of three is refused
    assert {"40.0", "33.3", "40", "60", "tokens of two"} <= said(figure)
    measured = audit(pairs, characters, ["ab"], [[6], [2, 3]], residuals=[0.0, -7.0])
    third = plots.audit(measured).axes[2]
    heights = [bar.get_height() for bar in third.patches]
    assert heights == pytest.approx([3.5, 5.25, 6.3, 6.93])
    given = plots.audit(report, residual={0.5: 1.0, 0.9: 2.0}).axes[2]
    assert [bar.get_height() for bar in given.patches] == [1.0, 2.0]
    assert "50.0% of 2 rollouts canonical" in plots.audit(measured).get_suptitle()
    with pytest.raises(ValueError, match="no text to draw"):
        plots.audit(audit(characters, pairs, []))


def test_the_map_of_families_has_a_panel_for_each_kind(characters, pairs):
    tokenizers = {"c": characters, "p": pairs}
    frame = compare(tokenizers, ["ab", "ac", "a"], kinds=["x", "y", "z"])
    figure = plots.families(frame)
    assert sum(axes.get_visible() for axes in figure.axes) == 3
    assert [sorted(text.get_text() for text in axes.texts) for axes in figure.axes[:3]] == [
        ["0", "0"],
        ["100", "100"],
        ["100", "100"],
    ]
    with pytest.raises(ValueError, match="at least two tokenizers"):
        plots.families(compare({"c": characters}, ["ab"]))
