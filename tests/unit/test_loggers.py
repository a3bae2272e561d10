"""Loggers get each step's figures once, whatever interrupts the run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mrl.config import LoggingConfig
from mrl.errors import InputError
from mrl.loggers import check_loggers, figures_of
from mrl.train import train

FAKE_WANDB = """
import json, os
def _say(**what):
    with open(os.environ["FAKE_WANDB"], "a") as file:
        file.write(json.dumps(what) + "\\n")
def init(**settings):
    _say(init={key: settings[key] for key in ("project", "name", "id", "resume")})
def log(figures, step):
    _say(step=step, figures=figures)
def finish():
    _say(finish=True)
"""


class Killed(BaseException):
    pass


def broken_and_resumed(config: Any) -> Path:
    """4 rounds with a stop after the third; the only checkpoint before is that of the second."""

    def stop(done: int, _: Any) -> None:
        if done == 3:
            raise Killed

    with pytest.raises(Killed):
        train(config, progress=stop)
    return train(config, resume=True)


def logged_by(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What ``metrics.jsonl`` says that loggers should have: (step, value) by name."""
    found: dict[str, list[tuple[int, float]]] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        step = row["round"] + (row["event"] == "round")
        for name, value in figures_of(row).items():
            found.setdefault(name, []).append((step, value))
    return found


@pytest.fixture
def config(configure: Callable[..., Any]) -> Callable[..., Any]:
    def make(**logging: Any) -> Any:
        evaluation = {"items": 2, "samples": 2, "ks": [1], "every": 3}
        checkpoint = {"every": 2}
        return configure(1, rounds=4, logging=logging, evaluation=evaluation, checkpoint=checkpoint)

    return make


def test_tensorboard_has_each_figure_once(config):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = broken_and_resumed(config(tensorboard=True))
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    expected = logged_by(folder)
    assert set(events.Tags()["scalars"]) == set(expected)
    assert "a/reward_mean" in expected
    assert [step for step, _ in expected["a/reward_mean"]] == [1, 2, 3, 4]
    assert [step for step, _ in expected["a/evaluation/pass@1"]] == [0, 3, 4]
    for name, points in expected.items():
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in found] == [step for step, _ in points]
        assert [value for _, value in found] == pytest.approx([value for _, value in points])


def test_trackio_has_each_step_once(config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    from trackio import sqlite_storage

    # where trackio keeps its files is fixed when it is first imported
    monkeypatch.setattr(sqlite_storage, "TRACKIO_DIR", tmp_path / "trackio")
    folder = broken_and_resumed(config(trackio="tiny-project"))
    storage = sqlite_storage.SQLiteStorage
    (name,) = storage.get_runs("tiny-project")
    assert name.startswith("tiny-")
    expected = logged_by(folder)["a/reward_mean"]
    logs = storage.get_logs("tiny-project", name)
    found = [(row["step"], row["a/reward_mean"]) for row in logs if "a/reward_mean" in row]
    assert found == expected


def test_wandb_is_resumed_under_its_id(config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "packages" / "wandb").mkdir(parents=True)
    (tmp_path / "packages" / "wandb" / "__init__.py").write_text(FAKE_WANDB)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.setenv("FAKE_WANDB", str(tmp_path / "said.jsonl"))
    folder = broken_and_resumed(config(wandb="tiny-project"))
    said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    first, second = (one["init"] for one in said if "init" in one)
    assert first == second
    assert (first["project"], first["resume"]) == ("tiny-project", "allow")
    values = [
        (one["step"], one["figures"]["a/reward_mean"])
        for one in said
        if "a/reward_mean" in one.get("figures", {})
    ]
    assert values == logged_by(folder)["a/reward_mean"]
    assert said[-1] == {"finish": True}


def test_what_is_not_installed_is_refused_before_anything_is_written(
    config, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mrl.loggers.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"logging.wandb.*pip install wandb"):
        check_loggers(LoggingConfig(wandb="p"))
    settings = config(tensorboard=True)
    with pytest.raises(InputError, match="pip install tensorboard"):
        train(settings)
    assert not settings.folder.exists()


def test_figures_are_named_by_policy_and_what_they_are_about():
    row = {
        "event": "round",
        "round": 3,
        "policy": "a",
        "reward_mean": 0.5,
        "ess_low": True,
        "clip_share": None,
        "grad_norm": float("nan"),
        "records_in": {"success": 2},
    }
    assert figures_of(row) == {
        "a/reward_mean": 0.5,
        "a/ess_low": 1.0,
        "a/records_in/success": 2.0,
    }
    tagged = {"event": "evaluation", "round": 0, "policy": "a", "tag": "sums", "pass@1": 0.25}
    assert figures_of(tagged) == {"a/sums/evaluation/pass@1": 0.25}
    overlap = {"event": "overlap", "round": 0, "policy": "a", "peer": "b", "jaccard": 1.0}
    assert figures_of(overlap) == {"a/b/overlap/jaccard": 1.0}
