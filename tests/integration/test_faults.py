"""What goes wrong for users, through the command line: one clear message, and nothing lost."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from mrl.cli import main


@pytest.fixture
def mrl(capsys: pytest.CaptureFixture[str], one_thread: None) -> Callable[..., tuple[int, str]]:
    """Run a command; its exit code and what it said on stderr, which is one message or nothing."""

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main(list(arguments))
        message = capsys.readouterr().err
        assert "Traceback" not in message
        assert message.count("mrl: ") == (0 if stopped.value.code == 0 else 1), message
        return int(stopped.value.code or 0), message

    return run


@pytest.fixture
def config(settings: Callable[..., dict[str, Any]], tmp_path: Path) -> Callable[..., str]:
    """Write the configuration of a tiny run; its path."""

    def write(policies: int = 1, /, **sections: Any) -> str:
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(settings(policies, **sections)), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "tiny"


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Writing past `size` bytes of a file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def status(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("probe.kind=grop", ["probe", "'grop'", "did you mean 'grpo'"]),
        ("probe.weight=0.1", ["probe", "'weight'", "grpo"]),
        ("samplng.max_tokens=3", ["samplng", "max_tokens"]),
        ("group.own=1", ["group.own", "greater than or equal to 2", "got 1"]),
        ("sampling.temperature=0", ["sampling.temperature", "greater than 0"]),
        ("policies.0.optimizer.lr=fast", ["policies.0.optimizer.lr", "'fast'"]),
        ("policies.0.tokenizer=null", ["policies.0", "tokenizer", "'a'"]),
        ("policies.0.tokenizer.alphabet=aab", ["'a'", "alphabet", "each once"]),
        ("policies.0.tokenizer={kind: bpe, path: /no/text, vocab_size: 9}", ["/no/text", "'a'"]),
        ("policies.0.tokenizer={kind: pretrained, path: /no/folder}", ["/no/folder", "tokenizer"]),
        ("policies.0.model={kind: pretrained, path: /no/model}", ["/no/model", "'a'"]),
        ("policies.0.model.model_type=lama", ["lama", "'a'"]),
        ("policies.0.model.params.vocab_size=3", ["3 embeddings", "6 tokens"]),
        ("policies.0.template=chat", ["chat template", "'a'"]),
        ("policies.0.tokenizer.alphabet=01+", ["prompt", "'a'", "="]),
        ("task.path=/no/task.jsonl", ["/no/task.jsonl"]),
        ("task.answer=solution", ["solution", "line 1"]),
        ("prompts=100", ["prompts=100", "training items"]),
        ("sampling.max_tokens=60", ["prompt", "5 tokens", "60", "64"]),
        ("group.peers={z: 1}", ["group.peers", "'z'"]),
        ("nonsense", ["nonsense", "section.key=value"]),
    ],
)
def test_wrong_settings_are_named_before_anything_is_written(mrl, config, folder, override, words):
    code, message = mrl("train", config(), override)
    assert code == 2
    for word in words:
        assert word in message
    assert not folder.exists()


def test_bpe_vocabulary_that_the_text_cannot_fill(mrl, config, folder, tmp_path):
    tokenizer = f"{{kind: bpe, path: {tmp_path / 'texts.txt'}, vocab_size: 90000}}"
    code, message = mrl("train", config(), f"policies.0.tokenizer={tokenizer}")
    assert code == 2
    assert "vocab_size=90000" in message
    assert not folder.exists()


@pytest.mark.parametrize("content", [None, "probe: [", "- 1", "\ufffe"])
def test_configuration_that_cannot_be_read(mrl, tmp_path, content):
    path = tmp_path / "broken.yaml"
    if content is not None:
        path.write_text(content, encoding="utf-16" if content == "\ufffe" else "utf-8")
    code, message = mrl("train", str(path))
    assert code == 2
    assert str(path) in message


def test_an_answer_that_is_not_a_number_is_refused(mrl, config, parity_task):
    parity_task.write_text(parity_task.read_text() + '{"question": "1=", "answer": NaN}\n')
    code, message = mrl("train", config())
    assert code == 2
    assert "line 17" in message
    assert "NaN" in message


def test_output_that_cannot_be_written(mrl, config, parity_task):
    # The tests may run as root, for whom every folder is writable: a path below a file is not.
    code, message = mrl("train", config(), f"output={parity_task}/runs")
    assert code == 2
    assert "cannot write" in message
    assert str(parity_task) in message


def test_a_run_is_never_overwritten(mrl, config, folder):
    path = config()
    assert mrl("train", path, "rounds=1")[0] == 0
    before = (folder / "metrics.jsonl").read_bytes()
    code, message = mrl("train", path, "rounds=1")
    assert code == 2
    assert str(folder) in message
    assert "--resume" in message
    assert (folder / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("stream", ["metrics", "samples", "timing"])
def test_resume_refuses_a_stream_that_lost_what_it_held(mrl, config, folder, stream):
    path = config()
    assert mrl("train", path)[0] == 0
    (folder / f"{stream}.jsonl").write_bytes(b"")
    code, message = mrl("train", path, "--resume", "rounds=9")
    assert code == 1
    assert f"{stream}.jsonl has 0 bytes" in message
    assert (folder / f"{stream}.jsonl").read_bytes() == b""


def test_resume_refuses_a_trained_run_whose_checkpoints_are_gone(mrl, config, folder):
    path = config()
    assert mrl("train", path)[0] == 0
    before = (folder / "metrics.jsonl").read_bytes()
    shutil.rmtree(folder / "checkpoints")
    code, message = mrl("train", path, "--resume", "rounds=9")
    assert code == 1
    assert "holds no checkpoint" in message
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_unvalidated_stays_said_when_the_status_is_lost(mrl, config, folder):
    path = config(2, probe={"kind": "sgt"})
    assert mrl("train", path, "--unvalidated")[0] == 0
    (folder / "run.json").write_text("[]")
    code, message = mrl("train", path, "--unvalidated", "--resume")
    assert code == 1
    assert "run.json cannot be read" in message
    (folder / "run.json").unlink()
    assert mrl("train", path, "--unvalidated", "--resume")[0] == 0
    assert status(folder)["unvalidated"] is True


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("device=banana", "'banana' is no device"),
        ("device=meta", "'meta' cannot be trained on here"),
        ("device=privateuseone", "'privateuseone' cannot be trained on here"),
        ("policies.0.model.params.hidden_sise=8", "did you mean 'hidden_size'"),
        ("policies.0.model.params.num_attention_heads=0", "modulo by zero"),
        ("policies.0.model.params.hidden_size=15", "(15) is not a multiple of the number of"),
    ],
)
def test_models_and_devices_that_cannot_be(mrl, config, folder, override, words):
    code, message = mrl("train", config(), override)
    assert code == 2
    assert words in message
    assert not folder.exists()


def test_shipped_pairs_start_in_any_folder_or_say_what_they_miss(mrl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    smaller = ("rounds=1", "prompts=1", "evaluation.items=1", "task.size=4", "task.eval_size=4")
    assert mrl("train", "arithmetic-pair", "--unvalidated", *smaller)[0] == 0
    code, message = mrl("train", "demo-pair", "--unvalidated")
    assert code == 2
    assert (
        f"runs/demo/data/train.jsonl: No such file or directory, looked for from {tmp_path} "
        in message
    )
    assert "mrl demo writes it" in message


def test_a_folder_is_no_file_to_write(mrl, config, folder, tmp_path):
    path = config()
    assert mrl("train", path)[0] == 0
    code, message = mrl("report", str(folder), "-o", str(tmp_path))
    assert code == 2
    assert "is a folder" in message


def test_resume_needs_a_run_with_the_same_settings(mrl, config, folder):
    path = config()
    code, message = mrl("train", path, "--resume")
    assert code == 2
    assert "no run to resume" in message
    assert not folder.exists()

    assert mrl("train", path)[0] == 0
    before = (folder / "metrics.jsonl").read_bytes()
    code, message = mrl("train", path, "--resume", "seed=9", "prompts=2")
    assert code == 2
    assert "['prompts', 'seed']" in message
    code, message = mrl("train", path, "--resume", "rounds=1")
    assert code == 2
    assert "rounds=1" in message
    assert (folder / "metrics.jsonl").read_bytes() == before
    assert status(folder)["status"] == "finished"


def test_resume_refuses_a_task_whose_items_changed(mrl, config, folder, parity_task):
    path = config()
    assert mrl("train", path)[0] == 0
    before = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "config.yaml")}
    content = parity_task.read_text(encoding="utf-8")
    parity_task.write_text(content.replace('"0"', '"3"', 1), encoding="utf-8")
    code, message = mrl("train", path, "--resume", "rounds=3")
    assert code == 2
    assert "other items of the task" in message
    assert {name: (folder / name).read_bytes() for name in before} == before
    parity_task.write_text(content, encoding="utf-8")
    # How verdicts are bounded may change: no reward depends on it.
    assert mrl("train", path, "--resume", "rounds=3", "task.verification.workers=1")[0] == 0


def test_a_verifier_that_always_hangs_stops_the_run_and_leaves_no_process(
    mrl, config, folder, tmp_path, monkeypatch
):
    (tmp_path / "hanging.py").write_text(
        "import time\n"
        "def score(question, answer, response, finished):\n"
        "    if response != answer or not finished: time.sleep(60)\n"
        "    return True\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("mrl.tasks.workers.LOST", 2)
    path = config()
    bounds = "task.verification={timeout: 0.3, workers: 2}"
    code, message = mrl("train", path, "task.verifier=hanging:score", bounds)
    assert code == 1
    assert "'hanging:score' lost 2 of the" in message
    assert "task.verification.timeout" in message
    assert status(folder)["status"] == "failed"
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    assert "mrl.tasks.worker" not in "".join(
        Path(f"/proc/{pid}/cmdline").read_text() for pid in children.split()
    )


def test_unverified_responses_are_counted_by_reason_and_the_run_goes_on(
    mrl, config, folder, tmp_path, monkeypatch
):
    (tmp_path / "failing.py").write_text(
        "import os\n"
        "def score(question, answer, response, finished):\n"
        "    if response == '00': os._exit(1)\n"
        "    if len(response) == 2: raise KeyError(object(), 'x' * 1000)\n"
        "    return None if response == '' else 1.0\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    bounds = "task.verification={workers: 1, max_lost: 1.0}"
    path = config(2, probe={"kind": "prp"}, sampling={"max_tokens": 2})
    arguments = ("task.verifier=failing:score", bounds, "rounds=1", "--unvalidated")
    assert mrl("train", path, *arguments)[0] == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rounds = [row for row in rows if row["event"] == "round"]
    reasons = [row["unverified_by_reason"] for row in rounds]
    assert {reason for found in reasons for reason in found} == {
        "crash",
        "exception",
        "none",
    }
    assert [sum(found.values()) for found in reasons] == [row["unverified"] for row in rounds]
    evaluated = [row for row in rows if row["event"] == "evaluation"]
    assert all(sum(row["unverified_by_reason"].values()) == row["unverified"] for row in evaluated)
    # what the verifier said, bounded, and the same in every process
    said = [row["unverified_said"] for row in rows if "unverified_said" in row]
    assert [set(one) for one in said] == [
        set(row["unverified_by_reason"]) for row in rows if "unverified_by_reason" in row
    ]
    words = {reason: one[reason] for one in said for reason in one}
    assert words["exception"].startswith("KeyError: (<object object at 0x...>, 'xxx")
    assert len(words["exception"]) == 300
    assert words["crash"] == "its process ended (exit status 1)"
    assert words["none"] == "the verifier returned None"


def test_prompts_too_long_are_left_out_where_that_is_asked_for(mrl, config, folder, parity_task):
    with parity_task.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"question": "1" * 62 + "=", "answer": "0"}) + "\n")
    path = config(2)
    code, message = mrl("train", path)
    assert code == 2
    for words in ("63 tokens", "max_tokens=3", "64", "task.too_long=skip"):
        assert words in message
    assert not folder.exists()
    assert mrl("train", path, "task.too_long=skip", "rounds=1")[0] == 0
    (note,) = status(folder)["notes"]
    assert note.startswith("1 item(s) left out whose prompts are too long; the first: prompt ")
    assert mrl("evaluate", str(folder))[0] == 0


def test_a_probe_without_certificate_is_refused_unless_asked(mrl, config, folder):
    path = config(2, probe={"kind": "sgt"})
    code, message = mrl("train", path)
    assert code == 2
    assert "--unvalidated" in message
    assert not folder.exists()
    assert mrl("train", path, "rounds=1", "--unvalidated")[0] == 0
    assert status(folder)["unvalidated"] is True


def test_learning_rate_that_breaks_the_weights_stops_the_run(mrl, config, folder):
    code, message = mrl("train", config(group={"own": 16}), "policies.0.optimizer.lr=1e30")
    assert code == 1
    assert "'a'" in message
    assert "finite" in message
    assert "learning rate" in message
    assert status(folder)["status"] == "failed"
    assert "finite" in status(folder)["error"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("a/model.safetensors", flip),
        ("a/training.pt", flip),
        ("exchange.bin", Path.unlink),
        ("manifest.json", Path.unlink),
        ("manifest.json", lambda path: path.write_bytes(path.read_bytes()[:80])),
        ("manifest.json", lambda path: path.write_text("{}")),
        ("manifest.json", lambda path: path.write_text("[]")),
        ("manifest.json", lambda path: path.write_text('{"files": {}}')),
    ],
)
def test_damaged_checkpoint_is_named_and_an_earlier_one_continues(
    mrl, config, folder, file, damage
):
    path = config()
    assert mrl("train", path)[0] == 0
    whole = (folder / "metrics.jsonl").read_bytes()
    newest = folder / "checkpoints" / "round-000002"
    damage(newest / file)
    code, message = mrl("train", path, "--resume")
    assert code == 1
    assert f"{newest} is damaged" in message
    assert file in message
    assert f"remove {newest} and resume from round-000001" in message
    for part in sorted(newest.rglob("*"), reverse=True):
        part.unlink() if part.is_file() else part.rmdir()
    newest.rmdir()
    assert mrl("train", path, "--resume")[0] == 0
    assert (folder / "metrics.jsonl").read_bytes() == whole


@pytest.mark.parametrize(
    ("file", "room", "what"),
    [
        ("config.yaml", -200, "cannot write to"),
        ("metrics.jsonl", -200, "metrics.jsonl"),
        ("metrics.jsonl", 7000, "checkpoint of round 7"),
    ],
)
def test_full_disk_ends_the_run_and_loses_nothing(mrl, config, folder, file, room, what):
    # In turn no room for the configuration, the next metrics, the next weights.
    path = config()
    assert mrl("train", path, "rounds=6")[0] == 0
    whole = (folder / "metrics.jsonl").read_bytes()
    with no_file_beyond((folder / file).stat().st_size + room):
        code, message = mrl("train", path, "rounds=20", "--resume")
    assert code == 1
    assert what in message
    assert "File too large" in message
    kept = sorted(one.name for one in (folder / "checkpoints").iterdir())
    assert kept == ["round-000005", "round-000006"]
    assert mrl("train", path, "rounds=6", "--resume")[0] == 0
    assert (folder / "metrics.jsonl").read_bytes() == whole


def test_full_disk_at_the_start_leaves_no_half_run(mrl, config, folder):
    path = config()
    with no_file_beyond(900):
        code, message = mrl("train", path)
    assert code == 2
    assert "cannot write" in message
    assert mrl("train", path, "rounds=1")[0] == 0


ROOT = Path(__file__).parents[2]


def started(*arguments: str) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "mrl", *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_run_with_all_it_wrote(mrl, config, folder, sent):
    path = config(1)
    process = started("train", path, "rounds=5000")
    try:
        wait_for(folder / "checkpoints" / "round-000002", process)
        # One process has the folder; another neither starts in it nor resumes it.
        code, message = mrl("train", path, "rounds=5000", "--resume")
        assert code == 2
        assert "in use by another process" in message
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "continue a run with --resume" in err
    assert status(folder)["status"] == "stopped"
    lines = (folder / "metrics.jsonl").read_bytes().split(b"\n")
    assert lines[-1] == b""
    done = max(json.loads(line)["round"] for line in lines[:-1]) + 2
    assert mrl("train", path, f"rounds={done}", "--resume")[0] == 0
    assert status(folder)["status"] == "finished"


def test_the_lock_of_a_dead_process_is_no_hindrance(mrl, config, folder):
    path = config()
    assert mrl("train", path, "rounds=1")[0] == 0
    (folder / ".lock").write_text("12345")
    assert mrl("train", path, "--resume")[0] == 0


def test_an_unexpected_error_keeps_its_traceback_and_says_how_to_go_on(config, folder, monkeypatch):
    from mrl import update
    from mrl.config import load
    from mrl.reload import load_policies
    from mrl.train import train

    calls = []

    def broken(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 3:  # two policies: in the second round
            raise ZeroDivisionError("a bug")
        return accumulate(*arguments)

    accumulate = update.accumulate
    monkeypatch.setattr(update, "accumulate", broken)
    with pytest.raises(ZeroDivisionError) as raised:
        train(load(config(2)))
    assert raised.value.__notes__ == [f"{folder} is whole up to round 1; continue it with --resume"]
    assert status(folder)["status"] == "failed"
    assert status(folder)["error"] == "ZeroDivisionError: a bug"
    assert load_policies(folder)[2] == 1


def test_want_of_memory_ends_the_run_and_names_the_setting(mrl, config, folder, monkeypatch):
    from mrl.reload import load_policies
    from mrl.rollout import hf

    path = config()
    assert mrl("train", path, "rounds=1")[0] == 0

    def greedy(*_: Any, **__: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 1 TB")

    monkeypatch.setattr(hf, "sample", greedy)
    code, message = mrl("train", path, "rounds=2", "--resume")
    assert code == 1
    assert "'a' samples" in message
    assert "lower sampling.batch" in message
    assert "--resume" in message
    assert load_policies(folder)[2] == 1


def test_nothing_is_shown_before_wrong_input_is_named(config, capsys, one_thread):
    with pytest.raises(SystemExit):
        main(["train", config(), "prompts=100"])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", ["validate", "promote"])
def test_where_the_gate_cannot_write_is_said_before_it_runs(
    mrl, config, tmp_path, monkeypatch, command
):
    def gate(*_: Any, **__: Any) -> Any:
        raise AssertionError("the gate ran")

    monkeypatch.setattr("mrl.gate.run_gate", gate)
    monkeypatch.setattr("mrl.gate.promote.run_gate", gate)
    path = config()
    code, message = mrl(command, path, "-o", f"{path}/below-a-file.json")
    assert code == 2
    assert "cannot write" in message
    code, message = mrl(command, path, "-o", str(tmp_path))
    assert code == 2
    assert str(tmp_path) in message


def test_loading_weights_shows_no_bar_of_its_own(mrl, config, folder, capsys):
    path = config()
    assert mrl("train", path, "rounds=1")[0] == 0
    home = folder / "checkpoints" / "round-000001" / "a"
    model = f"policies.0.model={{kind: pretrained, path: {home}}}"
    code, message = mrl("train", path, model, "policies.0.tokenizer=null", "name=second")
    assert code == 0
    assert message == ""


def test_evaluate_needs_a_checkpoint(mrl, tmp_path):
    code, message = mrl("evaluate", str(tmp_path / "nothing"))
    assert code == 2
    assert "nothing" in message
