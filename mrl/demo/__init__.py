"""The demo: theory predicts, two different language models are trained and measured.

``mrl demo`` writes a small task, warms two decoders with different tokenizers up on one skill
each, measures where they stand, places every sharing rule on the plane of that regime, puts it
through the gate, trains with it, and sets what came out beside what was predicted.
"""

import itertools
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from rich.console import Console

from mrl.config import RunConfig, load
from mrl.demo import models as warmed
from mrl.demo.gating import failures, gate_job, stored_certificate
from mrl.demo.jobs import Job, Workers
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
    with Workers(console) as workers:
        return carry_out(QUICK if quick else FULL, output, workers, console)


def carry_out(plan: Plan, output: Path, workers: Workers, console: Console, /) -> pd.DataFrame:
    """Everything in `plan`, in order: task, warm-up, prediction and gate, training, results.

    Task and warmed-up models are shared by all plans with this output, the rest is the plan's own.
    """
    try:
        files = write_task(output / "data")
    except OSError as error:
        raise InputError(f"cannot write to {output}: {error.strerror}") from None
    models, output = output / "models", output / plan.name
    workers.run(_warm_ups(plan, files, models), title="warm-up")
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
    verdicts, settings = _gate(settings, output / "certificates", workers, console)
    jobs = [
        Job(
            config.name,
            config.rounds,
            _train,
            (config, verdicts[regime.key, mode.key] == "refused"),
        )
        for mode, regime, _, config in settings
        if not _finished(config)
    ]
    workers.run(jobs, title="training")
    runs = [(mode, regime, seed, RunFolder(config)) for mode, regime, seed, config in settings]
    results = collect(runs)
    summary = summarise(results)
    results.to_csv(output / "results.csv", index=False)
    summary.merge(prediction, on=["regime", "mode", "policy"]).to_csv(
        output / "summary.csv", index=False
    )
    for regime, policy in itertools.product(plan.regimes, POLICIES):
        console.print(table(summary, prediction, verdicts, plan, regime, policy))
    figure = planes(summary, prediction, plan.modes, plan.regimes)
    for ending in ("png", "svg"):
        figure.savefig(output / f"planes.{ending}", dpi=160)
    _report([folder.path for *_, folder in runs], output, console)
    return summary


def _warm_ups(plan: Plan, files: TaskFiles, models: Path, /) -> list[Job]:
    """The warm-ups that are not there yet."""
    jobs = []
    for regime, seed, name in itertools.product(plan.regimes, plan.seeds, POLICIES):
        how = plan.warm_up[name]
        home = warmed.folder_of(models, regime, seed) / name
        if not warmed.is_ready(home, warmed.made_with(name, how, regime, seed, files)):
            arguments = (name, how, regime, seed, files, models)
            jobs.append(Job(f"{regime.key} {name} {seed}", how.steps, warmed.make, arguments))
    return jobs


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
                config = run_config(plan, mode, regime, seed, files, pair, output / "runs", success)
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
        config = pair_config(files, warmed.folder_of(models, regime, seed), seed=seed)
        task = load_task(config.task, seed)
        policies = [build_policy(one, config, seed=seed) for one in config.policies]
        rows = evaluate(policies, task, config.evaluation, round=0, seed=seed).rows
        found += [row for row in rows if row["event"] == "evaluation" and row["tag"]]
    frame = pd.DataFrame(found).groupby(["policy", "tag"])["pass@1"].mean()
    return tuple(
        tuple(round(float(frame[name, skill]), 4) for skill in SKILLS) for name in POLICIES
    )


def _gate(
    settings: list[Settings], folder: Path, workers: Workers, console: Console, /
) -> tuple[dict[tuple[str, str], str], list[Settings]]:
    """Put each rule that uses peers through the gate, and hand its certificate to its runs.

    Returns the verdict of each (regime, mode): "passed", "refused", or "-" where nothing is shared.
    """
    paths = {
        (regime.key, mode.key): folder / f"{regime.key}-{mode.key}.json"
        for mode, regime, _, config in settings
        if config.probe.needs
    }
    first = {(regime.key, mode.key): config for mode, regime, _, config in reversed(settings)}
    jobs = [gate_job(first[key], path) for key, path in paths.items()]
    workers.run([job for job in jobs if job is not None], title="gate")
    verdicts: dict[tuple[str, str], str] = {}
    certified: list[Settings] = []
    for mode, regime, seed, config in settings:
        key = regime.key, mode.key
        certificate = stored_certificate(paths[key]) if key in paths else None
        passed = certificate is None or certificate["passed"]
        if key not in verdicts and certificate is not None and not passed:
            console.print(f"gate refuses {mode.label} ({regime.label}); trained unvalidated:")
            for failure in failures(certificate):
                console.print(f"  {failure}", markup=False, highlight=False, soft_wrap=True)
        verdicts[key] = "-" if certificate is None else "passed" if passed else "refused"
        update = {"certificate": certificate if passed else None}
        certified.append((mode, regime, seed, config.model_copy(update=update)))
    return verdicts, certified


def _finished(config: RunConfig, /) -> bool:
    """Whether the run is there; a run of other settings in its place is an error."""
    stored = config.folder / "config.yaml"
    if stored.exists() and load(stored) != config:
        raise InputError(
            f"{config.folder} holds a run of other settings; remove it or choose another output"
        )
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
