"""A run's folder, read and checked."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from mrl import config
from mrl.config import RunConfig
from mrl.errors import InputError
from mrl.report import rows
from mrl.report.rows import Row
from mrl.report.text import visible

STATUSES = ("running", "finished", "stopped", "failed")
PASS = re.compile(r"pass@(\d+)")

# What identifies a row of each event; a second row with the same identity is damage.
IDENTITY = {
    "round": ("round", "policy"),
    "evaluation": ("round", "policy", "tag"),
    "overlap": ("round", "policy", "peer"),
}
MEASURES = {
    "round": (
        "reward_mean", "success_share", "dead_share", "rescued_prompts", "unverified",
        "unrepresentable", "reverify_refused", "ess", "ratio_mean", "ratio_q50", "ratio_q90",
        "ratio_q99", "clip_share", "entropy", "grad_norm", "loss", "lr", "response_tokens",
        "trained_tokens_own", "trained_tokens_peer", "truncated_share", "canonical_share",
        "noncanonical_share", "gated_share", "residual_rollouts", "residual_unreachable",
        "residual_q50", "residual_q75", "residual_q90", "residual_q99", "residual_above_5_nats",
        "kl", "engine_weight_mean", "engine_capped_share", "skipped_steps",
    ),
    "evaluation": ("items", "samples", "unverified", "rescue_items", "rescue_share"),
    "overlap": ("jaccard",),
}  # fmt: skip
VOLUMES = ("records_in", "bytes_in")
TAGLESS = "all items"


@dataclass(frozen=True)
class Sample:
    """One held-out prompt at one evaluation: what a policy answered and what it was worth.

    Attributes
    ----------
    round : int
        Rounds completed before the evaluation.
    policy, prompt_id, question, answer : str
        As recorded; `answer` is the right one.
    tag : str or None
        Label of the prompt.
    responses : tuple of str
        Untrusted text.
    rewards : tuple of float or None
        One a response; None: not verified.
    """

    round: int
    policy: str
    prompt_id: str
    question: str
    answer: str
    tag: str | None
    responses: tuple[str, ...]
    rewards: tuple[float | None, ...]


@dataclass(frozen=True, eq=False)
class Run:
    """What a run's folder holds.

    Attributes
    ----------
    path : Path
        The folder.
    config : RunConfig
        The resolved configuration.
    status : {"running", "finished", "stopped", "failed"}
        As last written by the trainer.
    rounds_done : int
        Rounds completed.
    unvalidated : bool
        True where the run used a probe that no certificate speaks for.
    error : str or None
        Why the run failed.
    versions : dict
        Version of each package.
    rounds : DataFrame
        One row a round and policy; columns as in ``metrics.jsonl``, missing values NaN. Volumes by
        record type are columns ``records_in.KIND`` and ``bytes_in.KIND``.
    evaluations : DataFrame
        One row an evaluation, policy and tag (``"all items"`` for all).
    overlaps : DataFrame
        One row an evaluation and pair of policies, column ``jaccard``.
    timing : DataFrame
        Columns round, policy (None for shared phases), phase, seconds.
    samples : tuple of Sample
        Sample rollouts of every evaluation.
    notes : tuple of str
        What a reader of the numbers has to know about the files, for example a torn last line.
    """

    path: Path
    config: RunConfig
    status: str
    rounds_done: int
    unvalidated: bool
    error: str | None
    versions: dict[str, str]
    rounds: pd.DataFrame
    evaluations: pd.DataFrame
    overlaps: pd.DataFrame
    timing: pd.DataFrame
    samples: tuple[Sample, ...]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The run's name."""
        return self.config.name


def load_run(path: str | Path, /) -> Run:
    """Read and check a run's folder.

    Parameters
    ----------
    path : str or Path
        Folder with ``config.yaml``, ``run.json``, ``metrics.jsonl`` and, as far as the run came,
        ``timing.jsonl`` and ``samples.jsonl``.

    Returns
    -------
    Run
        A torn last line (a killed run) is left out and named in `Run.notes`.

    Raises
    ------
    InputError
        If a file is missing or damaged; the message names the file and the line.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; expected the folder of a run")
    state = _state(folder / "run.json")
    notes: list[str] = []
    metrics = _metrics(folder / "metrics.jsonl", notes)
    timing = [] if metrics["round"].empty else _timing(folder / "timing.jsonl", notes)
    samples = [] if metrics["evaluation"].empty else _samples(folder / "samples.jsonl", notes)
    return Run(
        path=folder,
        config=config.load(folder / "config.yaml"),
        **state,
        rounds=metrics["round"],
        evaluations=metrics["evaluation"],
        overlaps=metrics["overlap"],
        timing=pd.DataFrame(timing, columns=["round", "policy", "phase", "seconds"]),
        samples=tuple(samples),
        notes=tuple(notes),
    )


def _state(path: Path, /) -> dict[str, Any]:
    row = rows.read_object(path)
    status = row.get("status", rows.Kind(STATUSES.__contains__, f"one of {list(STATUSES)}"))
    versions = row.get("versions", rows.OBJECT)
    return {
        "status": status,
        "rounds_done": row.get("rounds_done", rows.COUNT),
        "unvalidated": row.get("unvalidated", rows.BOOL),
        "error": row.get("error", rows.TEXT_OR_NULL),
        "versions": {str(name): str(version) for name, version in versions.items()},
    }


def _metrics(path: Path, notes: list[str], /) -> dict[str, pd.DataFrame]:
    tables: dict[str, list[dict[str, Any]]] = {event: [] for event in IDENTITY}
    seen: dict[tuple[Any, ...], int] = {}
    unknown: dict[str, int] = {}
    for row in rows.read_rows(path, notes):
        event = row.get("event", rows.TEXT)
        if event not in tables:
            unknown[event] = unknown.get(event, 0) + 1
            continue
        record = _metric(row, event)
        identity = (event, *(record[key] for key in IDENTITY[event]))
        if identity in seen:
            raise row.damaged(f"a second row for {identity}; the first is line {seen[identity]}")
        seen[identity] = row.line
        tables[event].append(record)
    for event, count in unknown.items():
        notes.append(
            f"{count} rows of the unknown event {visible(event)!r} in {path} are not shown."
        )
    columns = {event: [*IDENTITY[event], *MEASURES[event]] for event in IDENTITY}
    return {
        event: pd.DataFrame(records, columns=None if records else columns[event])
        for event, records in tables.items()
    }


def _metric(row: Row, event: str, /) -> dict[str, Any]:
    record: dict[str, Any] = {"round": row.get("round", rows.COUNT)}
    record["policy"] = visible(row.get("policy", rows.TEXT))
    if event == "evaluation":
        tag = row.get("tag", rows.TEXT_OR_NULL)
        record["tag"] = TAGLESS if tag is None else visible(tag)
        passes = [key for key in row.values if PASS.fullmatch(key.split("_")[0])]
        record |= {key: row.number(key) for key in passes}
    if event == "overlap":
        record["peer"] = visible(row.get("peer", rows.TEXT))
    if event == "round":
        for volume in VOLUMES:
            kinds = row.get(volume, rows.NUMBERS_OR_NULL) or {}
            record |= {f"{volume}.{visible(kind)}": value for kind, value in kinds.items()}
    return record | {key: row.number(key) for key in MEASURES[event]}


def _timing(path: Path, notes: list[str], /) -> list[dict[str, Any]]:
    records = []
    for row in rows.read_rows(path, notes):
        shared = {
            "round": row.get("round", rows.COUNT),
            "policy": row.get("policy", rows.TEXT_OR_NULL),
        }
        phases = row.get("phases", rows.NUMBERS)
        records += [
            {**shared, "phase": visible(phase), "seconds": float(seconds)}
            for phase, seconds in phases.items()
            if seconds is not None
        ]
    return records


def _samples(path: Path, notes: list[str], /) -> list[Sample]:
    samples = []
    seen: dict[tuple[int, str, str], int] = {}
    for row in rows.read_rows(path, notes):
        sample = Sample(
            round=row.get("round", rows.COUNT),
            policy=visible(row.get("policy", rows.TEXT)),
            prompt_id=row.get("prompt_id", rows.TEXT),
            question=row.get("question", rows.TEXT),
            answer=row.get("answer", rows.TEXT),
            tag=row.get("tag", rows.TEXT_OR_NULL),
            responses=tuple(row.get("responses", rows.TEXT_LIST)),
            rewards=tuple(row.get("rewards", rows.NUMBER_LIST)),
        )
        if len(sample.responses) != len(sample.rewards):
            got = f"{len(sample.responses)} responses and {len(sample.rewards)} rewards"
            raise row.damaged(f"got {got}; expected one reward a response")
        identity = (sample.round, sample.policy, sample.prompt_id)
        if identity in seen:
            raise row.damaged(f"a second row for {identity}; the first is line {seen[identity]}")
        seen[identity] = row.line
        samples.append(sample)
    return samples
