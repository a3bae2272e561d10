"""The demo: theory predicts, two different language models are trained and measured.

``mrl demo`` writes a small task, warms two decoders with different tokenizers up on one skill
each, measures where they stand, places every sharing rule on the plane of that regime, puts it
through the gate, trains with it, and sets what came out beside what was predicted.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from mrl.config import RunConfig
from mrl.demo import models as warmed
from mrl.demo.jobs import Job, run_jobs
from mrl.demo.picture import planes
from mrl.demo.plan import FULL, POLICIES, QUICK, SKILLS, Mode, Plan, Regime, pair_config, run_config
from mrl.demo.predict import predict
from mrl.demo.results import collect, summarise, table
from mrl.demo.skills import TaskFiles, write_task
from mrl.errors import InputError
from mrl.runs import RunFolder, read_status

Settings = tuple[Mode, Regime, int, RunConfig]


def run_demo(*, quick: bool, output: Path, console: Console) -> pd.DataFrame:
    """Run the demo; finished parts that are in `output` already are kept.

    Returns
    -------
    DataFrame
        The summary that the table shows, see `results.summarise`.
    """
    return carry_out(QUICK if quick else FULL, output, console)


def carry_out(plan: Plan, output: Path, console: Console, /) -> pd.DataFrame:
    """Everything in `plan`, in order: task, warm-up, prediction and gate, training, results."""
    try:
        files = write_task(output / "data")
    except OSError as error:
        raise InputError(f"cannot write to {output}: {error.strerror}") from None
    pairs = [(regime, seed) for regime in plan.regimes for seed in plan.seeds]
    models = output / "models"
    run_jobs(
        [
            Job(
                f"{regime.key} {seed} {name}", warmed.WARM_UP[name]["steps"], warmed.make, arguments
            )
            for regime, seed in pairs
            for name in POLICIES
            if (arguments := (name, regime, seed, files, models))
            and not warmed.is_ready(
                warmed.folder_of(models, regime, seed) / name,
                warmed.made_with(name, regime, seed, files),
            )
        ],
        console,
        title="warm-up",
    )
    settings = _settings(plan, files, models, output, console)
    prediction = pd.concat(
        predict(
            [
                (mode, config)
                for mode, where, seed, config in settings
                if where is regime and seed == plan.seeds[0]
            ]
        ).assign(regime=regime.key)
        for regime in plan.regimes
    )
    verdicts, settings = _gate(plan, settings, console)
    run_jobs(
        [
            Job(
                config.name,
                config.rounds,
                _train,
                (config, verdicts[regime.key][mode.key] != "yes"),
            )
            for mode, regime, _, config in settings
            if not _finished(config)
        ],
        console,
        title="training",
    )
    runs = [(mode, regime, seed, RunFolder(config)) for mode, regime, seed, config in settings]
    results = collect(runs)
    summary = summarise(results)
    results.to_csv(output / "results.csv", index=False)
    summary.merge(prediction, on=["regime", "mode", "policy"]).to_csv(
        output / "summary.csv", index=False
    )
    for regime in plan.regimes:
        console.print(table(summary, prediction, verdicts[regime.key], plan, regime))
    figure = planes(summary, prediction, plan.modes, plan.regimes)
    for ending in ("png", "svg"):
        figure.savefig(output / f"planes.{ending}", dpi=160)
    _report([folder.path for *_, folder in runs], output, console)
    return summary


def _settings(
    plan: Plan, files: TaskFiles, models: Path, output: Path, console: Console, /
) -> list[Settings]:
    """Every run's configuration; the gate's regime is measured on the warmed-up pairs."""
    out = []
    for regime in plan.regimes:
        success = _measure(regime, plan.seeds, files, models)
        for name, row in zip(POLICIES, success, strict=True):
            shown = ", ".join(f"{s} {p:.3f}" for s, p in zip(SKILLS, row, strict=True))
            console.print(f"start, {regime.label}: {name}: {shown}")
        for seed in plan.seeds:
            pair = warmed.folder_of(models, regime, seed)
            for mode in plan.modes:
                config = run_config(mode, regime, seed, files, pair, output / "runs", success)
                out.append((mode, regime, seed, config))
    return out


def _measure(
    regime: Regime, seeds: tuple[int, ...], files: TaskFiles, models: Path, /
) -> tuple[tuple[float, ...], ...]:
    """Held-out success probabilities of the warmed-up policies, mean over seeds, by skill."""
    from mrl.evaluate import evaluate
    from mrl.policy import build_policy
    from mrl.tasks import load_task

    found = []
    for seed in seeds:
        config = pair_config(
            files, warmed.folder_of(models, regime, seed), seed=seed, output=models
        )
        task = load_task(config.task, seed)
        policies = [build_policy(one, config, seed=seed) for one in config.policies]
        rows = evaluate(policies, task, config.evaluation, round=0, seed=seed).rows
        found += [row for row in rows if row["event"] == "evaluation" and row["tag"]]
    frame = pd.DataFrame(found).groupby(["policy", "tag"])["pass@1"].mean()
    return tuple(
        tuple(round(float(frame[name, skill]), 4) for skill in SKILLS) for name in POLICIES
    )


def _gate(
    plan: Plan, settings: list[Settings], console: Console, /
) -> tuple[dict[str, dict[str, str]], list[Settings]]:
    """Put each rule through the gate in each regime; hand its certificate to its runs."""
    from mrl.gate import run_gate

    verdicts: dict[str, dict[str, str]] = {regime.key: {} for regime in plan.regimes}
    certificates: dict[tuple[str, str], dict[str, Any]] = {}
    for mode, regime, _, config in settings:
        if mode.key in verdicts[regime.key]:
            continue
        console.print(f"gate: {mode.label}; {regime.label}")
        certificate = run_gate(config, console=console)
        verdicts[regime.key][mode.key] = "yes" if certificate.passed else "no"
        if certificate.passed:
            certificates[mode.key, regime.key] = certificate.to_dict()
    return verdicts, [
        (
            mode,
            regime,
            seed,
            config.model_copy(update={"certificate": certificates.get((mode.key, regime.key))}),
        )
        for mode, regime, seed, config in settings
    ]


def _finished(config: RunConfig, /) -> bool:
    return bool(read_status(config.folder).get("status") == "finished")


def _train(config: RunConfig, unvalidated: bool, report: Callable[[int], None]) -> None:
    from mrl.train import train

    train(
        config,
        resume=(config.folder / "config.yaml").exists(),
        unvalidated=unvalidated,
        progress=lambda done, rows: report(done),
    )


def _report(runs: list[Path], output: Path, console: Console, /) -> None:
    from mrl.report import write_report

    page = write_report(runs, output / "report.html", title="Mutual RL demo")
    console.print(f"picture: {output / 'planes.png'}", soft_wrap=True)
    console.print(f"report:  {page}", soft_wrap=True)
