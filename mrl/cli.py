"""Command line: ``mrl``. Importable and useful without torch; commands import what they need.

Exit codes: 0 the thing asked for was done; 1 a run could not go on; 2 bad input.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mrl import config as configuration
from mrl.errors import DEMO, InputError, RunError

app = typer.Typer(
    name="mrl",
    help="Experience sharing between heterogeneous language models: study, validate, promote, "
    "train.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
tokens = typer.Typer(help="What lies between two tokenizers.", no_args_is_help=True)
app.add_typer(tokens, name="tokens")
exchange = typer.Typer(help="What policies sent each other.", no_args_is_help=True)
app.add_typer(exchange, name="exchange")
console = Console()
# Characters of a line where the output is no terminal: tables are wide, and files have no edge.
FILE_WIDTH = 160

ConfigPath = Annotated[
    Path, typer.Argument(help="A YAML file, or a shipped configuration by name.", metavar="CONFIG")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Overrides of the form section.key=value.", metavar="[section.key=value]"),
]


class Runtime(StrEnum):
    """Where the policies of a run are."""

    local = "local"
    ray = "ray"


@app.command()
def train(
    config: ConfigPath,
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option(help="Continue from the last checkpoint.")] = False,
    unvalidated: Annotated[
        bool,
        typer.Option(help="Train although no certificate covers the probe; the report says so."),
    ] = False,
    runtime: Annotated[
        Runtime, typer.Option(help="In this process, or as processes of a Ray cluster.")
    ] = Runtime.local,
    address: Annotated[
        str | None,
        typer.Option(help="A Ray cluster that runs; default: one is started on this machine."),
    ] = None,
    inventory: Annotated[
        Path | None,
        typer.Option(help="What its machines can do (YAML); needed for GPUs.", metavar="CLUSTER"),
    ] = None,
    worker_timeout: Annotated[
        float | None,
        typer.Option(
            min=1.0, help="Seconds after which a silent process is given up; default: 1800."
        ),
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Seconds to wait until the cluster's devices are free; default: 20."
        ),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(min=0, help="Losses in a row from which the run goes on; default: 3."),
    ] = None,
) -> None:
    """Train the policies of a configuration together.

    With --runtime ray each policy has processes of its own, on devices that are planned as mrl
    allocate shows; the options after it are for it alone.
    """
    from mrl.gate.certificate import check
    from mrl.replay import resolve

    run = resolve(configuration.load(config, overrides or []))
    require("torch")
    validated = check(run, unvalidated=unvalidated)
    set_environment()
    from mrl.progress import bar
    from mrl.runs import read_status

    settings: dict[str, Any] = {"resume": resume, "unvalidated": not validated}
    options = {
        "address": address,
        "inventory": None if inventory is None else configuration.load_inventory(inventory),
        "worker_timeout": worker_timeout,
        "patience": patience,
        "restarts": restarts,
    }
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if runtime is Runtime.ray:
        require("ray", "ray")
        from mrl.runtime.on_ray import RayRuntime, train_on_ray

        with bar(run, console) as progress:
            where = RayRuntime(**given)
            folder = train_on_ray(run, where, **settings, progress=progress, said=_note)
    else:
        if given:
            names = ", ".join("--" + name.replace("_", "-") for name in given)
            raise InputError(f"{names}: only for --runtime ray; add it, or leave them out")
        from mrl.distributed import processes, rank
        from mrl.train import train as start

        with processes(run.device):
            console.quiet = rank() > 0
            with bar(run, console) as progress:
                folder = start(run, **settings, progress=progress)
    for note in read_status(folder).get("notes", []):
        _note(note)
    console.print(f"run written to {folder}; read it with: mrl report {folder}", soft_wrap=True)


@app.command()
def validate(
    config: ConfigPath,
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option("-o", help="Write the certificate here.")] = None,
) -> None:
    """Put a configuration's probe through the gate and print each rung's verdict."""
    from mrl.gate import run_gate
    from mrl.gate.certificate import check_target, write

    run = configuration.load(config, overrides or [])
    require("torch")
    if output is not None:
        check_target(output)
    set_environment()
    certificate = run_gate(run, console=console)
    if output is not None:
        write(certificate, output)
    if not certificate.passed:
        raise RunError("the gate did not pass; the checks marked 'no' above say why")


@app.command()
def promote(
    config: ConfigPath,
    output: Annotated[Path, typer.Option("-o", help="Training configuration to write.")],
    overrides: Overrides = None,
) -> None:
    """Validate a configuration and write it out with its certificate, ready to train."""
    from mrl.gate.promote import promote as carry

    run = configuration.load(config, overrides or [])
    require("torch")
    set_environment()
    carry(run, output, console=console)
    console.print(f"promoted: {output}; train it with: mrl train {output}", soft_wrap=True)


@app.command()
def study(
    config: Annotated[
        str | None,
        typer.Argument(help="A study file, or a run's configuration.", metavar="[CONFIG]"),
    ] = None,
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("-o", help="Folder for tables, figures and page.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes for a study file; results do not depend on it.")
    ] = 1,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove a study file's parts of other settings.")
    ] = False,
    world_from: Annotated[
        Path | None,
        typer.Option(help="Folder of a run: the plane of the world that it is in.", metavar="RUN"),
    ] = None,
    round: Annotated[
        int | None,
        typer.Option(min=0, help="Its weights after so many rounds; default: the newest."),
    ] = None,
    prompts: Annotated[
        int, typer.Option(min=1, help="So many prompts, the first it trains on.")
    ] = 16,
    samples: Annotated[
        int, typer.Option(min=1, help="Responses of each of its policies a prompt.")
    ] = 64,
) -> None:
    """Draw the stability-support plane of a grid, or of a run's regime.

    A study file (kind: study) is a grid of worlds, sharing rules, group sizes, residuals and
    receivers. What is finished is kept, so the same command goes on after an interruption. For a
    run's configuration, its own rule is placed among the standard ones in the gate's world. With
    --world-from, in the world that a run's policies are in: their own responses, scored by each of
    them. That alone needs torch, until the world is in the run's folder.
    """
    from mrl.study import study as draw
    from mrl.study import sweep

    if world_from is not None:
        changes = [*([] if config is None else [config]), *(overrides or [])]
        loaded, folder = _run_study(world_from, changes, round, prompts, samples)
        folder = output or folder
    elif config is None:
        raise InputError("got nothing to study; expected a file, or --world-from RUN")
    else:
        file = configuration.load_any(config, overrides or [])
        if isinstance(file, configuration.RunConfig):
            draw(file, output or file.folder / "study", console=console)
            return
        loaded, folder = file, output or file.folder
    sweep(loaded, folder, n_jobs=jobs, prune=prune, console=console)
    console.print(f"study written to {folder}; open {folder / 'index.html'}", soft_wrap=True)


def _run_study(
    run: Path, changes: list[str], round: int | None, prompts: int, samples: int, /
) -> tuple[configuration.StudyConfig, Path]:
    """The study of a run's world, and the folder for it."""
    from mrl.study.from_run import sizes_of, stored_world, study_of_run, world_of_run

    found = stored_world(run, prompts=prompts, samples=samples, round=round)
    sizes_of(configuration.load(run / "config.yaml"))  # before the long work
    if found is None:
        require("torch")
        set_environment()
        with console.status("sampling and scoring the run's responses"):
            found = world_of_run(run, prompts=prompts, samples=samples, round=round)
    for name, seen in zip(found.policies, found.seen_NX.mean(axis=1), strict=True):
        console.print(f"{name}: {seen:.1%} of its probability lies on the responses seen")
    return study_of_run(run, found, changes), run / f"study-{found.round:06d}"


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    samples: Annotated[int, typer.Option(min=1, help="Responses a prompt.")] = 8,
    items: Annotated[int, typer.Option(min=1, help="Held-out items.")] = 200,
    best: Annotated[
        bool, typer.Option("--best", help="The best checkpoint (checkpoint.best), not the last.")
    ] = False,
) -> None:
    """Evaluate the policies of a run's last checkpoint on held-out items."""
    require("torch")
    set_environment()
    from mrl.reload import evaluate_run

    rows = evaluate_run(run, samples=samples, items=items, best=best).rows
    table = Table("policy", "tag", "items", "pass@1", "95% interval", f"pass@{samples}")
    for row in rows:
        if row["event"] == "evaluation":
            table.add_row(
                row["policy"],
                row["tag"] or "all",
                str(row["items"]),
                _figure(row["pass@1"]),
                f"{_figure(row['pass@1_low'])} to {_figure(row['pass@1_high'])}",
                _figure(row.get(f"pass@{samples}")),
            )
    console.print(table)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.", metavar="RUN...")],
    output: Annotated[Path | None, typer.Option("-o", help="HTML file to write.")] = None,
) -> None:
    """Write one self-contained HTML page about one or several runs."""
    from mrl.report import write_report

    path = write_report(runs, output or runs[0] / "report.html")
    console.print(f"report written to {path}", soft_wrap=True)


@app.command()
def demo(
    quick: Annotated[bool, typer.Option("--quick/--full", help="Minutes, or all of it.")] = True,
    output: Annotated[Path, typer.Option("-o", help="Folder for everything it makes.")] = Path(
        DEMO
    ),
) -> None:
    """Predict by theory, then train two different language models and measure."""
    require("torch")
    set_environment()
    from mrl.demo import run_demo

    run_demo(quick=quick, output=output, console=console)


@tokens.command("audit")
def audit_tokens(
    a: Annotated[
        str, typer.Argument(help="Source: folder, file or hub id of a tokenizer.", metavar="A")
    ],
    b: Annotated[str, typer.Argument(help="Receiver, likewise.", metavar="B")],
    text: Annotated[Path | None, typer.Option(help="A text file to audit on.")] = None,
    rollouts: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a run that kept its rollouts (exchange.store=sqlite, and PRP or "
            "exchange.keep=[rollout]): audit on A's in it. A and B may then be its policies.",
            metavar="RUN",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("-o", help="Folder for tables and picture.")] = Path(
        "runs/tokens-audit"
    ),
) -> None:
    """Measure what moving text from A's vocabulary to B's costs.

    Share of 1:1 blocks, block sizes, refused texts, canonical rollouts and their residual, with the
    residual that they suggest for the bandit. A and B may also be names of published tokenizers, as
    python -m mrl.tokens.published lists them.
    """
    require("tokenizers")
    if rollouts is not None:
        require("torch")
    set_environment()
    from mrl.tokens.auditing import run_audit

    run_audit(a, b, output=output, text=text, run=rollouts, console=console)


@exchange.command("inspect")
def inspect_exchange(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    output: Annotated[
        Path | None,
        typer.Option("-o", help="Folder for tables and picture; default: RUN/exchange."),
    ] = None,
) -> None:
    """Say who sent what to whom in a run, in records and bytes, and what was refused and why."""
    from mrl.exchange.inspection import inspect_run

    inspect_run(run, output or run / "exchange", console=console)


@app.command()
def allocate(
    config: ConfigPath,
    inventory: Annotated[
        Path, typer.Option(help="The cluster's devices (YAML).", metavar="CLUSTER")
    ],
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option("-o", help="Folder for the picture.")] = None,
    timing: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a run on one device: its measured times correct the estimates.",
            metavar="RUN",
        ),
    ] = None,
    timing_kind: Annotated[
        str | None, typer.Option(help="Kind of that device, where there are several.")
    ] = None,
) -> None:
    """Plan which devices serve which policy, so that a round is as short as possible."""
    from mrl.allocation.allocating import allocate as place

    run = configuration.load(config, overrides or [])
    cluster = configuration.load_inventory(inventory)
    if any(policy.model.kind == "init" for policy in run.policies):
        require("torch")
        set_environment()
    place(run, cluster, output=output, timing=timing, timing_kind=timing_kind, console=console)


@app.command()
def doctor() -> None:
    """Say what is installed and what this machine can run."""
    from importlib import metadata

    table = Table("package", "version", "needed for")
    needed = {
        "numpy": "theory",
        "scipy": "theory",
        "torch": "training",
        "transformers": "training",
        "peft": "low-rank adapters",
        "reasoning-gym": "reasoning-gym tasks",
        "ray": "clusters",
        "vllm": "fast generation on GPUs",
    }
    for name, use in needed.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = "not installed"
        table.add_row(name, version, use)
    console.print(table)
    console.print(f"python {sys.version.split()[0]}, {os.cpu_count()} processors")


def _figure(value: float | None, /) -> str:
    return "-" if value is None else f"{value:.3f}"


def _note(words: str, /) -> None:
    console.print(f"note: {words}", markup=False, soft_wrap=True)


def require(package: str, extra: str = "train") -> None:
    """Raise `InputError` with the way out when a package is missing."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise InputError(
            f"this command needs {package}, which is not installed; "
            f"install the {extra} extra: pip install 'mutual-rl[{extra}]'"
        )


def set_environment() -> None:
    """Settings that libraries read when they are imported; the user's own stay."""
    # OpenMP threads that spin while they wait slow small operations by an order of magnitude.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Commands have a progress line of their own.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


def main(arguments: list[str] | None = None) -> Any:
    """Entry point: run a command; errors of input, of runs and of memory become one message."""
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FILE_WIDTH
    try:
        with terminated_as_interrupted():
            return app(arguments, standalone_mode=True)
    except (InputError, RunError) as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except MemoryError as error:
        # only numpy says what it could not have
        _complain(f"out of memory: {str(error) or 'an allocation failed'}; use smaller sizes")
        sys.exit(RunError.exit_code)
    except SystemExit as end:
        if end.code == 130:  # what an interrupt became
            _complain("stopped; continue a run with --resume, a study with the same command")
        raise


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, which schedulers send, ends a command as Ctrl-C does: files are closed, all said."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _complain(message: str, /) -> None:
    Console(stderr=True).print(f"mrl: {message}", markup=False, highlight=False, soft_wrap=True)
