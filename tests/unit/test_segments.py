"""Typed segments: think tags and tool marks keep their bytes, their tokens and their meaning."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from bandit.probes import PRP, SGT
from mrl.credit import assign
from mrl.errors import InputError
from mrl.exchange import Record, RolloutRecord, Segment, SuccessRecord, decode
from mrl.publish import records_of
from mrl.rollout import Rollout
from mrl.rollout.groups import Groups
from mrl.tasks import Item, Task
from mrl.tokens import ContentEncoder, Unrepresentable, align, is_canonical, retokenize
from mrl.tokens.recipes import bpe_tokenizer
from mrl.tokens.segments import SegmentEncoder, StructuralTokens
from mrl.update import update

TEXTS = ["think thinking thank", "so 12+12=24 and <thin>", "call the tool", "naïve"]
ITEM = Item.of("q", "1")
TASK = Task((ITEM,), (ITEM,), "any", lambda item, response, finished: float(b"1" in response))
THINK = {"think_open": "<think>", "think_close": "</think>"}


def tokenizer(size: int, plain: Sequence[str] = (), special: Sequence[str] = ()) -> Any:
    made = bpe_tokenizer(TEXTS, size, byte_level=True)
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    made.add_special_tokens(
        {"additional_special_tokens": [AddedToken(text, special=True) for text in special]}
    )
    return made


THINKER = tokenizer(270, plain=["<think>", "</think>"], special=["<tool_call>", "<role>"])
OTHER = tokenizer(280, special=["[THINK]", "[/THINK]"])
PLAIN = tokenizer(275)


def codec(made: Any, declared: Any = "auto") -> SegmentEncoder:
    return SegmentEncoder(ContentEncoder.of(made), StructuralTokens.of(made, declared))


A, B, C = codec(THINKER), codec(OTHER), codec(PLAIN)


def typed(encoder: SegmentEncoder, *parts: str) -> np.ndarray:
    """Ids of alternating texts and kinds of structural tokens."""
    ids: list[int] = []
    for part in parts:
        if part in encoder.structure.ids:
            ids.append(encoder.structure.ids[part])
        else:
            ids += retokenize(part.encode(), encoder.content).tolist()
    return np.array(ids)


def test_the_common_marks_are_read_from_the_added_tokens():
    vocabulary = THINKER.get_vocab()
    assert A.structure.ids == {
        "think_open": vocabulary["<think>"],
        "think_close": vocabulary["</think>"],
        "tool_call_open": vocabulary["<tool_call>"],
    }
    assert B.structure.spellings == {"think_open": b"[THINK]", "think_close": b"[/THINK]"}
    assert C.structure.ids == {}
    assert StructuralTokens.of(THINKER, {}).ids == {}


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"think_open": "<nothing>"}, "'<nothing>', which is no token"),
        ({"end": "<eos>"}, "end-of-sequence"),
        ({"a": "<think>", "b": "<think>"}, r"also that of \['b'\]"),
        ("always", "segments='always'"),
    ],
)
def test_what_cannot_be_declared_is_an_error(declared, message):
    with pytest.raises(InputError, match=message):
        StructuralTokens.of(THINKER, declared)
    with pytest.raises(InputError, match=f"policy 'small': .*{message}"):
        SegmentEncoder.of("small", THINKER, declared)


def test_think_tags_and_tool_marks_keep_their_bytes_though_one_is_special():
    ids = typed(A, "think_open", "so 12+12", "think_close", "call ", "tool_call_open", "24")
    text, segments = A.spell(ids)
    assert text == b"<think>so 12+12</think>call <tool_call>24"
    assert [one.kind for one in segments] == ["think_open", "think_close", "tool_call_open"]
    assert [text[one.start : one.stop] for one in segments] == [
        b"<think>",
        b"</think>",
        b"<tool_call>",
    ]
    np.testing.assert_array_equal(A.encode_batch([text], [segments])[0], ids)
    assert A.lengths(ids).sum() == len(text)


parts = st.lists(
    st.one_of(st.text(min_size=1, max_size=6), st.sampled_from([*A.structure.ids])), max_size=8
)


@given(parts)
def test_what_is_spelled_is_encoded_to_the_same_typed_text(drawn):
    text, segments = A.spell(typed(A, *drawn))
    (ids,) = A.encode_batch([text], [segments])
    assert A.spell(ids) == (text, segments)
    assert A.canonical_batch([ids]).tolist() == [True]
    assert A.lengths(ids).sum() == len(text)


@given(parts)
def test_typed_texts_keep_their_bytes_in_any_vocabulary(drawn):
    text, segments = A.spell(typed(A, *drawn))
    for other in (B, C):
        accepted = other.accept(text, segments, A.structure)
        (ids,) = other.encode_batch([text], [accepted])
        lengths = other.lengths(ids, accepted)
        assert lengths.sum() == len(text)
        blocks = align(lengths, A.lengths(typed(A, *drawn)))
        assert blocks.size.sum() == len(text)
        if other is C:
            assert other.spell(ids) == (text, ())


def test_each_text_segment_decides_by_itself_whether_a_response_is_canonical():
    ids = typed(A, "think_open", "so 12", "think_close", "24")
    assert A.canonical_batch([ids]).tolist() == [True]
    undeclared = codec(THINKER, {})
    assert undeclared.canonical_batch([ids]).tolist() == [False]
    letters = np.concatenate([retokenize(b"t", A.content), retokenize(b"hink", A.content)])
    assert not np.array_equal(letters, retokenize(b"think", A.content))
    apart = np.concatenate([typed(A, "think_open"), letters, typed(A, "think_close", "24")])
    assert A.canonical_batch([apart, ids, []]).tolist() == [False, True, True]
    role = THINKER.get_vocab()["<role>"]  # a control token that is not declared
    assert A.canonical_batch([[*ids, role], [role, *ids]]).tolist() == [False, False]


def test_a_control_token_ends_a_response_only_where_it_did_end():
    text, (eos, role) = typed(A, "so 12"), (THINKER.eos_token_id, THINKER.get_vocab()["<role>"])
    for end in (eos, role):
        assert is_canonical([*text, end], THINKER)  # taken as the turn end
        # ids without their turn end: what is still there stands inside the response
        assert A.canonical_batch([text, [*text, end]]).tolist() == [True, False]
    assert not is_canonical([*text, role, eos], THINKER)


def test_no_merge_crosses_a_structural_token():
    # "think" is one token, but not across the tag
    ids = typed(A, "thi", "think_open", "nk")
    text, segments = A.spell(ids)
    np.testing.assert_array_equal(A.encode_batch([text], [segments])[0], ids)


def test_a_text_that_spells_a_tag_is_no_segment():
    ids = typed(A, "<think>")
    assert A.structure.ids["think_open"] not in ids
    assert A.spell(ids) == (b"<think>", ())
    assert A.canonical_batch([ids]).tolist() == [True]


def test_a_receiver_uses_its_own_token_of_the_kind_or_plain_text():
    text, segments = A.spell(typed(A, "think_open", "so 12", "think_close", "24"))
    mine = B.encode_batch([text], [B.accept(text, segments, A.structure)])[0]
    np.testing.assert_array_equal(mine, typed(B, "think_open", "so 12", "think_close", "24"))
    assert C.accept(text, segments, A.structure) == ()
    np.testing.assert_array_equal(C.encode_batch([text], [()])[0], retokenize(text, C.content))


def test_a_peer_cannot_pass_other_text_off_as_structure():
    text = b"naive 24"
    lie = (Segment("think_open", 0, 5),)
    assert A.accept(text, lie, B.structure) == ()
    assert A.accept(b"[THINK]24", (Segment("think_open", 0, 7),)) == ()  # of an unknown peer
    assert A.accept(b"[THINK]24", (Segment("think_open", 0, 7),), B.structure) != ()
    assert A.accept(b"<think>24", (Segment("think_open", 0, 7),)) != ()
    assert A.accept(b"<think>24", (Segment("role", 0, 7),)) == ()


def test_a_refused_text_segment_refuses_the_response():
    text = b"<think>\xff</think>1"
    (found, kept) = A.encode_batch(
        [text, b"<think>1"],
        [
            (Segment("think_open", 0, 7), Segment("think_close", 8, 16)),
            (Segment("think_open", 0, 7),),
        ],
    )
    assert isinstance(found, Unrepresentable)
    assert found.reason == "invalid UTF-8"
    np.testing.assert_array_equal(kept, typed(A, "think_open", "1"))


def test_both_sides_align_on_structural_tokens_of_different_spelling():
    ids = typed(A, "think_open", "so 12", "think_close", "24")
    text, segments = A.spell(ids)
    accepted = B.accept(text, segments, A.structure)
    (mine,) = B.encode_batch([text], [accepted])
    blocks = align(B.lengths(mine, accepted), A.lengths(ids))
    first, close = 0, int(np.flatnonzero(blocks.size == len(b"</think>"))[0])
    for block in (first, close):
        assert (np.diff(blocks.a)[block], np.diff(blocks.b)[block]) == (1, 1)


# --- in the trainer


@pytest.fixture
def make(make_policy: Callable[..., Any]) -> Callable[..., Any]:
    def build(name: str, made: Any, **settings: Any) -> Any:
        return make_policy(name, tokenizer=made, **settings)

    return build


def rollout(policy: Any, *parts: str, finished: bool = True) -> Rollout:
    content = typed(policy.codec, *parts)
    ids = (*content.tolist(), *([policy.eos_id] if finished else []))
    return Rollout(ids, np.full(len(ids), -0.5), finished, *policy.codec.spell(content))


def rows_of(receiver: Any, peer: Any, *theirs: Rollout, kinds: str = "rollout") -> Any:
    own = Groups([[rollout(receiver, "0"), rollout(receiver, "2")]], np.array([[0.0, 0.0]]), 2)
    rewards = np.array([[1.0] + [0.0] * (len(theirs) - 1)])
    records = records_of(
        peer, Groups([list(theirs)], rewards, len(theirs)), [ITEM], frozenset({kinds}), TASK, 0
    )
    records = [decode(one.encode()) for one in records]
    found = assign(
        receiver,
        own,
        records,
        [ITEM],
        peers={peer.name: len(theirs)},
        task=TASK,
        reverify=True,
        codecs={one.name: one.codec for one in (receiver, peer)},
        rng=np.random.default_rng(0),
    )
    return records, found, found.rows[2:]


@pytest.mark.parametrize("ratio", ["sequence", "block", "length_normalised"])
def test_a_thinking_peers_rollouts_pass_the_gate_and_become_own_tokens(make, ratio):
    peer, me = make("peer", THINKER), make("me", OTHER, probe=PRP(ratio=ratio))
    whole = rollout(peer, "think_open", "so 12", "think_close", "1")
    cut = rollout(peer, "think_open", "so 12+", finished=False)
    records, found, (first, second) = rows_of(me, peer, whole, cut)
    assert [one.canonical for one in records] == [True, True]
    assert [one.text for one in records] == [b"<think>so 12</think>1", b"<think>so 12+"]
    expected = typed(me.codec, "think_open", "so 12", "think_close", "1")
    assert first.response == (*expected.tolist(), me.eos_id)
    # truncated: no end token
    assert second.response == tuple(typed(me.codec, "think_open", "so 12+").tolist())
    assert not second.finished
    for row, one in ((first, whole), (second, cut)):
        assert row.source.logprobs.sum() == pytest.approx(one.logprobs.sum(), rel=1e-12)
        assert row.source.block_of_token.shape == (len(row.response),)
    assert found.counts["gated_share"] == 0.0
    assert np.isfinite(update(me, found)["loss"])


def test_a_response_cut_off_behind_a_control_token_is_not_canonical(make):
    peer = make("peer", THINKER)
    whole, cut = rollout(peer, "so 12"), rollout(peer, "so 12", finished=False)
    role = THINKER.get_vocab()["<role>"]
    behind = replace(cut, ids=(*cut.ids, role), logprobs=np.full(len(cut.ids) + 1, -0.5))
    assert peer.canonical([whole, cut, behind]) == [True, True, False]


def test_a_success_carries_its_segments(make):
    peer, me = make("peer", THINKER), make("me", OTHER, probe=SGT())
    one = rollout(peer, "think_open", "so", "think_close", "1")
    records, _, (row,) = rows_of(me, peer, one, kinds="success")
    assert isinstance(records[0], SuccessRecord)
    assert [mark.kind for mark in records[0].segments] == ["think_open", "think_close"]
    expected = typed(me.codec, "think_open", "so", "think_close", "1")
    assert row.response == (*expected.tolist(), me.eos_id)


def test_a_receiver_without_the_kind_reads_the_tags_as_text(make):
    peer, me = make("peer", THINKER), make("me", PLAIN, probe=PRP())
    _, _, (row, _) = rows_of(me, peer, rollout(peer, "think_open", "1"), rollout(peer, "2"))
    assert row.response == (*retokenize(b"<think>1", me.content).tolist(), me.eos_id)


def test_what_a_policy_declares_replaces_what_its_tokenizer_shows(make):
    silent = replace(make("silent", THINKER), segments={})
    assert silent.codec.structure.ids == {}
    ids = typed(make("peer", THINKER).codec, "think_open", "1")
    sampled = Rollout(tuple(ids.tolist()), np.full(len(ids), -0.5), False, *silent.codec.spell(ids))
    assert not silent.canonical([sampled])[0]


def test_a_false_claim_of_segments_does_not_enter_a_block_ratio(make):
    peer, me = make("peer", THINKER), make("me", OTHER, probe=PRP(ratio="block"))
    own = Groups([[rollout(me, "0"), rollout(me, "2")]], np.array([[0.0, 0.0]]), 2)
    groups = Groups([[rollout(peer, "think_open", "1")]], np.array([[1.0]]), 1)
    (honest,) = records_of(peer, groups, [ITEM], frozenset({"rollout"}), TASK, 0)
    assert isinstance(honest, RolloutRecord)
    lying: list[Record] = [replace(honest, segments=())]
    found = assign(
        me,
        own,
        lying,
        [ITEM],
        peers={"peer": 1},
        task=TASK,
        reverify=True,
        codecs={"peer": peer.codec},
        rng=np.random.default_rng(0),
    )
    assert found.counts["reverify_refused"] == 1
    assert not found.rows[2:]


# --- chat templates

MARKS = "{% for m in messages %}<role>{{ m['role'] }}: {{ m['content'] }}{% endfor %}"


def test_each_policy_renders_with_its_own_template_and_a_response_is_content_only(make):
    mine, theirs = tokenizer(280), tokenizer(270, special=["<role>"])
    mine.chat_template = "Q {{ messages[0]['content'] }}{% if add_generation_prompt %} A{% endif %}"
    theirs.chat_template = MARKS + "{% if add_generation_prompt %}<role>assistant{% endif %}"
    peer, me = make("peer", theirs), make("me", mine, probe=PRP())
    # the rendered prompts differ; the peer's role marks are its own control tokens
    role = theirs.get_vocab()["<role>"]
    assert peer.render(ITEM).count(role) == 2
    assert me.text(me.render(ITEM), False) == b"Q q A"
    _, _, (row, other) = rows_of(
        me, peer, rollout(peer, "1 think"), rollout(peer, "<role>assistant")
    )
    assert row.prompt == other.prompt == me.render(ITEM)
    assert me.text(row.response, True) == b"1 think"
    assert me.text(other.response, True) == b"<role>assistant"
    # the other way round a text that spells the receiver's mark stays content
    _, _, (row, _) = rows_of(
        replace(peer, probe=PRP()), me, rollout(me, "1<role>"), rollout(me, "2")
    )
    assert role not in row.response
    assert peer.text(row.response, True) == b"1<role>"


def test_the_plain_template_is_used_where_it_is_asked_for(make):
    chatty = tokenizer(270)
    chatty.chat_template = MARKS
    auto = make("a", chatty)
    assert auto.text(auto.render(ITEM), False) == b"<role>user: q"
    plain = replace(auto, template="plain")
    assert plain.text(plain.render(ITEM), False) == b"q"
