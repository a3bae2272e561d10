"""`mrl tokens audit`: what it says, what it writes, and one message where it cannot."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from small_tokenizers import processor

from bandit import Residual
from mrl.cli import main
from mrl.errors import InputError
from mrl.exchange import SQLiteExchange
from mrl.exchange.records import SuccessRecord
from mrl.exchange.replay import stored_records
from mrl.exchange.request import ExchangeError
from mrl.tokens import ContentEncoder, audit
from mrl.tokens.auditing import run_audit
from mrl.tokens.recipes import bpe_tokenizer, character_tokenizer
from mrl.tokens.run_rollouts import run_rollouts
from mrl.tokens.sources import PIECE_BYTES, Texts, encoder_of, pieces, shipped_texts

WRITTEN = {"audit.csv", "blocks.csv", "texts.csv", "audit.png", "audit.svg"}


@pytest.fixture
def mrl(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run ``mrl tokens audit``: its exit code, what it printed, and its message."""

    def run(*arguments: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main(["tokens", "audit", *map(str, arguments)])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert said.err.count("mrl: ") == (stopped.value.code not in (0, None))
        return int(stopped.value.code or 0), said.out, said.err

    return run


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Byte-level BPE without merges as ``tokenizer.json``; with merges as a model's folder."""
    root = tmp_path_factory.mktemp("tokenizers")
    plain = bpe_tokenizer(["ab"], 258, byte_level=True)
    merged = bpe_tokenizer(["abab cd"] * 4, 261, byte_level=True)
    (root / "plain").mkdir()
    plain.backend_tokenizer.save(str(root / "plain" / "tokenizer.json"))
    merged.save_pretrained(root / "merged")
    return root / "plain", root / "merged"


@pytest.fixture
def trained(settings: Callable[..., dict[str, Any]], one_thread: None) -> Callable[..., Path]:
    """Train a tiny run of two policies, ``a`` (characters) and ``b`` (pairs of them)."""

    def make(**sections: Any) -> Path:
        from mrl.config import parse
        from mrl.train import train

        sharing = {"probe": {"kind": "prp", "cap": 2.0}, "exchange": {"store": "sqlite"}}
        return train(parse(settings(2, **(sharing | sections))), unvalidated=True)

    return make


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def figures(output: Path) -> dict[tuple[str, str], float]:
    frame = pd.read_csv(output / "audit.csv")
    return {(row.quantity, row.kind): row.value for row in frame.itertuples()}


def test_a_text_is_audited_and_the_files_hold_what_is_printed(mrl, folders, tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes(b"abab cd\n" * 3)
    code, said, _ = mrl(*folders, "--text", text, "-o", tmp_path / "out")
    assert code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == WRITTEN
    report = audit(encoder_of(str(folders[0])), encoder_of(str(folders[1])), [text.read_bytes()])
    found = figures(tmp_path / "out")
    assert found["one_to_one_share", "all"] == pytest.approx(report.one_to_one_share)
    assert 0 < report.one_to_one_share < 1
    assert f"{report.one_to_one_share:.2%}" in said
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "out" / "blocks.csv"), report.blocks)
    assert "plain" in (tmp_path / "out" / "audit.svg").read_text(encoding="utf-8")


def test_the_suggestion_is_python_and_yaml_of_the_same_residual(mrl, folders, tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes(b"a" * PIECE_BYTES + b"\n" + b"\xff\n" + b"c" * PIECE_BYTES + b"\n")
    character_tokenizer("ab\n").save_pretrained(tmp_path / "characters")
    receiver = tmp_path / "characters"
    _, said, _ = mrl(folders[0], receiver, "--text", text, "-o", tmp_path / "out")
    line, section = said.partition("suggested")[2].splitlines()[1:3]
    python = eval(line, {"Residual": Residual})  # noqa: S307
    values = {name: getattr(python, name) for name in ("mu", "sigma", "drop", "gate")}
    assert yaml.safe_load(section)["residual"] == values
    assert values == {"mu": 0.0, "sigma": 0.0, "drop": 0.5, "gate": 0.0}
    assert "invalid UTF-8" in said
    assert "outside the vocabulary" in said


def test_without_a_text_the_shipped_ones_are_audited_by_kind(mrl, folders, tmp_path):
    code, said, _ = mrl(*folders, "-o", tmp_path)
    assert code == 0
    assert "shipped texts" in said
    shares = {kind for quantity, kind in figures(tmp_path) if quantity == "one_to_one_share"}
    assert shares == {"all", "English", "code", "Chinese", "digits"}


def test_a_runs_rollouts_are_audited_and_its_exchange_stays_as_it_was(mrl, trained, tmp_path):
    run = trained()
    before = contents(run)
    code, said, _ = mrl("b", "a", "--rollouts", run, "-o", tmp_path / "out")
    assert code == 0
    assert contents(run) == before
    found, rollouts = figures(tmp_path / "out"), pd.read_csv(tmp_path / "out" / "rollouts.csv")
    assert found["rollouts", "all"] == len(rollouts) == 4 * 6  # prompts of the last round, group
    assert found["canonical_share", "all"] == rollouts["canonical"].mean()
    assert 0 < found["canonical_share", "all"] < 1
    kept = rollouts[rollouts["refused_b"].isna()]
    assert f"gate={1 - kept['canonical'].mean():.4g}" in said
    metrics = pd.read_json(run / "metrics.jsonl", lines=True)
    last = metrics[(metrics["policy"] == "b") & (metrics["round"] == 1)].iloc[0]
    assert found["residual_q90", "all"] == pytest.approx(last["residual_q90"])
    assert found["canonical_share", "all"] == pytest.approx(last["canonical_share"])


def test_an_exchange_in_use_is_read_with_its_newest_records(tmp_path):
    path = tmp_path / "exchange.sqlite"
    records = [SuccessRecord("p", "a", 0, i, b"x", "verifier", True) for i in range(3)]
    with SQLiteExchange(path) as exchange:
        exchange.publish(records)
        assert stored_records(path, "success") == records
        assert stored_records(path, "rollout") == []
    assert stored_records(path, "success") == records
    with pytest.raises(ExchangeError, match="expected an exchange.sqlite"):
        stored_records(tmp_path / "none.sqlite", "success")


def test_a_runs_policy_is_found_by_its_tokenizer(trained, tmp_path, pairs):
    run = trained()
    pairs.save_pretrained(tmp_path / "pairs")
    encoder = encoder_of(str(tmp_path / "pairs"))
    assert run_rollouts(run, "elsewhere", encoder).policy == "b"


def test_what_cannot_be_audited_is_one_message(mrl, trained, folders, tmp_path):
    a, b = folders
    text, out = tmp_path / "text.txt", ("-o", tmp_path / "out")
    text.write_text("ab")
    code, _, message = mrl(a, b, "--text", text, "--rollouts", tmp_path, *out)
    assert (code, "expected one of them" in message) == (2, True)
    code, _, message = mrl(a, b, "--text", tmp_path / "none.txt", *out)
    assert (code, "cannot read" in message) == (2, True)
    code, _, message = mrl(a, b, "--rollouts", tmp_path, *out)
    assert (code, "holds no run" in message) == (2, True)
    code, _, message = mrl(tmp_path / "nowhere", b, *out)
    assert (code, "no tokenizer could be loaded" in message) == (2, True)
    code, _, message = mrl(a, b, "--text", text, "-o", text)
    assert (code, "cannot write to" in message) == (2, True)
    for name, expected in {"x.json": "cannot read", "x.gguf": "GGUF", "x.bin": "expected"}.items():
        (tmp_path / name).write_text("{}")
        code, _, message = mrl(tmp_path / name, b, *out)
        assert (code, expected in message) == (2, True)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"exchange": {"store": "memory"}}, "exchange.store=sqlite"),
        ({"probe": {"kind": "sgt"}}, "no rollout records"),
    ],
)
def test_a_run_without_usable_rollouts_says_why(trained, tmp_path, sections, message):
    run = trained(**sections)
    with pytest.raises(InputError, match=message):
        run_audit("a", "b", run=run, output=tmp_path / "out")


def test_a_tokenizer_of_another_run_is_refused(trained, folders, tmp_path):
    run = trained()
    with pytest.raises(InputError, match="of no policy with the tokenizer"):
        run_rollouts(run, str(folders[0]), encoder_of(str(folders[0])))
    with sqlite3.connect(run / "exchange.sqlite") as database:
        database.execute("UPDATE record SET encoded = x'00' WHERE kind = 'rollout'")
    with pytest.raises(InputError, match="damaged record"):
        run_rollouts(run, "a", encoder_of(str(folders[0])))


def test_a_sentencepiece_model_is_read_from_its_file(tmp_path):
    model = processor()
    (tmp_path / "tokenizer.model").write_bytes(model.serialized_model_proto())
    (tmp_path / "other.model").write_bytes(b"YWI= 0\n")  # ranks, as tiktoken keeps them
    encoder = encoder_of(str(tmp_path / "tokenizer.model"))
    assert encoder.table.fingerprint == ContentEncoder.of(model).table.fingerprint
    with pytest.raises(InputError, match="cannot read"):
        encoder_of(str(tmp_path / "other.model"))


def test_pieces_join_to_the_text_and_end_with_lines():
    text = b"".join(b"%d line\r\n" % i for i in range(900)) + b"x" * (3 * PIECE_BYTES) + b"\nend"
    cut = list(pieces(text))
    assert b"".join(cut) == text
    assert all(piece.endswith(b"\n") for piece in cut[:-1])
    assert sum(len(piece) > PIECE_BYTES for piece in cut) == 1  # the long line alone
    assert not list(pieces(b""))


def test_the_head_of_texts_holds_some_of_each_kind():
    texts = Texts.of([("a", b"1\n"), ("b", b"2\n"), ("a", b"3\n")], "three")
    assert texts.head(1).texts == (b"1\n", b"2\n")
    assert texts.head(None) == texts
    assert set(shipped_texts().kinds) == {"English", "code", "Chinese", "digits"}
