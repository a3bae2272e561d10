"""The demo's tokenizers: small, whole, deterministic, and different from each other."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from transformers import AutoTokenizer

from mrl.tokens import TokenBytes, is_canonical, is_canonical_batch, retokenize
from mrl.tokens.recipes import bpe_tokenizer, character_tokenizer

ALPHABET = "abcdefghijrt= "
TRIPLES = ["".join(letters) for letters in itertools.permutations("abcdefghij", 3)]
TASK_TEXT = [text for s in TRIPLES for text in (f"t {s}=", s[1:] + s[0], f"r {s}=", s[::-1])]


@pytest.fixture(scope="module")
def bpe():
    return bpe_tokenizer(TASK_TEXT, 160)


def test_a_character_tokenizer_has_one_entry_a_character_and_two_more():
    tokenizer = character_tokenizer(ALPHABET)
    assert len(tokenizer) == 16
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    ids = tokenizer("t abc=").input_ids
    assert [TokenBytes.of(tokenizer).bytes_of([i]).decode() for i in ids] == list("t abc=")


def test_a_bpe_tokenizer_has_the_size_asked_for(bpe):
    assert len(bpe) == bpe.vocab_size == 160
    assert (bpe.pad_token_id, bpe.eos_token_id) == (0, 1)


def test_letters_of_a_response_merge_and_the_equals_sign_does_not(bpe):
    table = TokenBytes.of(bpe)
    counts = [len(retokenize(s.encode(), bpe)) for s in TRIPLES]
    assert max(counts) == 2
    assert min(counts) == 1
    assert [table.bytes_of([i]) for i in bpe("t abc=").input_ids][-1] == b"="
    with_equals = [piece for piece in table.pieces if piece and b"=" in piece]
    assert with_equals == [b"="]


def test_sampled_tokens_need_not_be_canonical(bpe):
    letters = [retokenize(char.encode(), bpe)[0] for char in "bca"]
    assert TokenBytes.of(bpe).bytes_of([*letters, 1]) == b"bca"
    assert not is_canonical([*letters, 1], bpe)
    assert is_canonical([*retokenize(b"bca", bpe), 1], bpe)
    rng = np.random.default_rng(0)
    share = is_canonical_batch([rng.integers(2, 160, size=3) for _ in range(300)], bpe).mean()
    assert 0 < share < 1


def test_character_tokens_are_always_canonical():
    tokenizer = character_tokenizer(ALPHABET)
    rng = np.random.default_rng(0)
    assert is_canonical_batch([rng.integers(2, 16, size=5) for _ in range(50)], tokenizer).all()


@pytest.mark.parametrize("kind", ["characters", "plain", "bytes"])
def test_a_saved_tokenizer_loads_as_it_was(kind, tmp_path):
    tokenizer = {
        "characters": lambda: character_tokenizer(ALPHABET),
        "plain": lambda: bpe_tokenizer(TASK_TEXT, 160),
        "bytes": lambda: bpe_tokenizer(TASK_TEXT, 400, byte_level=True),
    }[kind]()
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert TokenBytes.of(loaded).fingerprint == TokenBytes.of(tokenizer).fingerprint
    assert (loaded.pad_token_id, loaded.eos_token_id) == (0, 1)
    assert len(loaded) == len(tokenizer)
    ids = loaded("t abc= ", add_special_tokens=True).input_ids
    assert loaded.decode(ids) == "t abc= "


@pytest.mark.parametrize("tokenizer", ["characters", "bpe"])
def test_encoding_outside_the_alphabet_is_an_error_not_an_edit(tokenizer, bpe):
    chosen = character_tokenizer(ALPHABET) if tokenizer == "characters" else bpe
    with pytest.raises(Exception, match=r"(?i)unk"):
        chosen("abz")


def test_training_is_the_same_in_every_process(bpe):
    code = (
        "import itertools\n"
        "from mrl.tokens import TokenBytes\n"
        "from mrl.tokens.recipes import bpe_tokenizer\n"
        "triples = [''.join(s) for s in itertools.permutations('abcdefghij', 3)]\n"
        "texts = [t for s in triples for t in (f't {s}=', s[1:] + s[0], f'r {s}=', s[::-1])]\n"
        "print(TokenBytes.of(bpe_tokenizer(texts, 160)).fingerprint)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == TokenBytes.of(bpe).fingerprint


def test_training_text_may_be_a_generator():
    twin = bpe_tokenizer((text for text in ["abab", "ab"]), 6)
    assert TokenBytes.of(twin).pieces == (b"", b"", b"a", b"b", b"ab", b"abab")


def test_settings_that_cannot_be_met_are_an_error():
    with pytest.raises(ValueError, match=r"alphabet='aab' repeats \['a'\]"):
        character_tokenizer("aab")
    with pytest.raises(ValueError, match="at least one character"):
        character_tokenizer("")
    with pytest.raises(ValueError, match="vocab_size=100 does not fit the text"):
        bpe_tokenizer(["abab"], 100)
    with pytest.raises(ValueError, match="vocab_size=3 does not fit the text"):
        bpe_tokenizer(["abab"], 3)
