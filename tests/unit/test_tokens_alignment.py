"""Alignment by example: zero-width tokens, EOS, truncation, and what is refused."""

import numpy as np
import pytest

from mrl.tokens import align, align_batch, apportion, block_all, block_sum, broadcast


def rows(blocks):
    return blocks.a.tolist(), blocks.b.tolist(), blocks.size.tolist()


def test_blocks_lie_between_common_boundaries():
    # "he|llo| wor|ld" against "hello| w|or|ld"
    assert rows(align([2, 3, 4, 2], [5, 2, 2, 2])) == ([0, 2, 3, 4], [0, 1, 3, 4], [5, 4, 2])


def test_zero_width_tokens_join_the_block_that_ends_where_they_stand():
    assert rows(align([0, 2, 0, 3, 0], [2, 3])) == ([0, 3, 5], [0, 1, 2], [2, 3])


def test_no_text_gives_no_block_and_sum_zero():
    blocks = align([], [])
    assert rows(blocks) == ([0], [0], [])
    assert block_sum([], blocks.a).sum() == 0.0


def test_zero_width_tokens_alone_form_one_block():
    assert rows(align([0, 0], [])) == ([0, 2], [0, 0], [0])


def test_eos_alone_forms_one_zero_byte_block_and_keeps_its_log_prob():
    blocks = align([0], [0], eos=(True, True))
    assert rows(blocks) == ([0, 1], [0, 1], [0])
    assert block_sum([-0.25], blocks.a).tolist() == [-0.25]


def test_zero_width_tokens_before_a_lone_eos_join_its_block():
    assert rows(align([0, 0], [0], eos=(True, True))) == ([0, 2], [0, 1], [0])


def test_the_length_of_a_named_eos_is_not_read():
    # an end token that the tokenizer does not mark special has its spelling as bytes
    assert rows(align([3, 7], [3, 0], eos=(True, True))) == ([0, 1, 2], [0, 1, 2], [3, 0])


def test_an_eos_on_one_side_only_stands_alone():
    blocks = align([3, 0], [3], eos=(True, False))
    assert rows(blocks) == ([0, 1, 2], [0, 1, 1], [3, 0])
    assert block_sum([-1.0], blocks.b).tolist() == [-1.0, 0.0]
    assert block_all([False], blocks.b).tolist() == [False, True]
    with pytest.raises(ValueError, match="without tokens on this side"):
        apportion([-1.0, -0.5], blocks.b)
    assert apportion([-1.0, 0.0], blocks.b).tolist() == [-1.0]


def test_truncation_inside_a_character_drops_and_counts_the_unfinished_block():
    # the source stopped two bytes into a three-byte character
    blocks = align([1, 1, 2], [1, 1], partial="drop")
    assert rows(blocks) == ([0, 1, 2], [0, 1, 2], [1, 1])
    assert blocks.dropped == (1, 0)


def test_partial_drop_drops_nothing_when_totals_agree():
    assert align([1, 2], [3], partial="drop").dropped == (0, 0)


def test_shares_by_bytes_follow_lengths_and_equal_shares_do_not():
    blocks = align([4], [1, 3])
    assert apportion([-4.0], blocks.b, lengths=[1, 3]).tolist() == [-1.0, -3.0]
    assert apportion([-4.0], blocks.b).tolist() == [-2.0, -2.0]


def test_values_may_have_leading_axes():
    blocks = align([1, 1, 2], [2, 2])
    values = np.arange(6.0).reshape(2, 3)
    assert block_sum(values, blocks.a).tolist() == [[1.0, 2.0], [7.0, 5.0]]
    assert broadcast([[1, 2], [3, 4]], blocks.a).tolist() == [[1, 1, 2], [3, 3, 4]]


def test_inputs_are_not_changed():
    lengths = np.array([1, 2, 0])
    lengths.flags.writeable = False
    values = np.ones(3)
    values.flags.writeable = False
    blocks = align(lengths, lengths, eos=(True, True))
    apportion(block_sum(values, blocks.a), blocks.a, lengths=lengths)
    assert lengths.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([1, 2], [4]), {}, r"lengths_a sums to 3 bytes and lengths_b to 4"),
        (([1, 0], [2, 0]), {"eos": (True, True), "partial": "drop"}, "with an EOS"),
        (([-1, 2], [1]), {}, r"lengths_a holds -1"),
        (([1.0], [1]), {}, "whole numbers"),
        (([1], [[1]]), {}, r"lengths_b has shape \(1, 1\)"),
        (([], []), {"eos": (True, False)}, "lengths_a is empty"),
        (([1], [1]), {"partial": "keep"}, "partial='keep'"),
    ],
)
def test_what_cannot_be_aligned_is_an_error_that_says_why(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        align(*arguments, **options)


def test_values_that_do_not_fit_the_blocks_are_an_error():
    blocks = align([1, 1], [2])
    with pytest.raises(ValueError, match="each of 2 tokens"):
        block_sum([1.0], blocks.a)
    with pytest.raises(ValueError, match="each of 1 blocks"):
        broadcast([1.0, 2.0], blocks.a)


def test_a_batch_without_responses_has_no_blocks():
    batch = align_batch([], [], [], [])
    assert len(batch) == 0
    assert batch.sums([], "a").shape == (0,)
    assert batch.owners("b") == []
    assert batch.dropped.shape == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([1, 2], [2], [1, 1], [2]), {}, r"3 bytes and lengths_b to 2 in row 0"),
        (([1, 2, 1], [1, 2], [1, 2, 2], [1, 2]), {}, r"3 bytes and lengths_b to 4 in row 1"),
        (
            ([1, 1, 0], [1, 2], [2, 1, 0], [1, 2]),
            {"eos": ([False, True], True)},
            "lengths_b to 0 in row 0",
        ),
        (([2, 0], [2], [1, 0], [2]), {"eos": (True, True), "partial": "drop"}, "with an EOS"),
        (([1, 2], [1], [3], [1]), {}, "counts_a sums to 1; expected the 2 tokens"),
        (([1, 2], [1, 1], [3], [1]), {}, "2 responses and counts_b 1"),
        (([1], [1, 0], [1], [1, 0]), {"eos": (True, True)}, "counts_a holds 0"),
        (([1], [2, -1], [1], [1, 0]), {}, "counts_a holds -1"),
        (([-1, 2], [2], [1], [1]), {}, "lengths_a holds -1"),
        (([1.0], [1], [1], [1]), {}, "whole numbers"),
        (([1], [1], [1], [1]), {"partial": "keep"}, "partial='keep'"),
    ],
)
def test_a_batch_that_cannot_be_aligned_is_an_error_that_says_why(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        align_batch(*arguments, **options)


def test_batch_sums_take_leading_axes():
    batch = align_batch([1, 1, 2, 1], [3, 1], [2, 2, 1], [2, 1])
    values = np.arange(8.0).reshape(2, 4)
    assert batch.sums(values, "a").tolist() == [[1.0, 2.0, 3.0], [9.0, 6.0, 7.0]]
    assert [owner.tolist() for owner in batch.owners("a")] == [[0, 0, 1], [0]]
