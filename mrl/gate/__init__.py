"""The gate: what a sharing rule must show in toy worlds before a run may rely on it.

`run_gate` climbs the validation ladder, with the rungs "estimators", "tokenised", "parity" and
"dynamics". Of these "tokenised" needs tokenizers, and only "parity" torch. Source: docs/gate.md.
"""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from mrl.config import RunConfig
from mrl.gate.certificate import Certificate, Rung
from mrl.gate.dynamics import LABELS, dynamics_rung
from mrl.gate.estimators import estimators_rung
from mrl.gate.lengths import lengths_rung
from mrl.gate.tokenised.rung import gate_texts, tokenised_rung
from mrl.gate.worlds import gate_world

__all__ = ["run_gate"]


def run_gate(run: RunConfig, /, *, console: Console | None = None) -> Certificate:
    """Put a run's settings through every rung.

    Parameters
    ----------
    run : RunConfig
        What is to be validated; `run.gate` says where and against which thresholds.
    console : rich.console.Console, optional
        Where progress and the table of checks are printed; default: nowhere.

    Returns
    -------
    Certificate
        Passed or not; all rungs are run in either case.

    Raises
    ------
    InputError
        If the gate's settings do not fit the run.
    """
    from mrl.gate.parity import parity_rung

    world = gate_world(run)
    console = console or Console(quiet=True)
    columns = (TextColumn("{task.description}"), BarColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        total = 2 * len(run.policies) + 1 + len(LABELS)
        line = progress.add_task("", total=total)

        def enter(rung: str) -> Callable[[], None]:
            progress.update(line, description=f"gate: {rung}")
            return lambda: progress.advance(line)

        advance = enter("estimators")
        estimators = []
        for policy in run.policies:
            estimators.append(estimators_rung(run, world, policy))
            advance()
        advance = enter("tokenised")
        texts, tokenised = gate_texts(run), []
        for policy in run.policies:
            tokenised += [tokenised_rung(run, texts, policy), lengths_rung(run, policy)]
            advance()
        advance = enter("parity")
        parity = parity_rung(run, world)
        advance()
        dynamics = dynamics_rung(run, world, advance=enter("dynamics"))
    rungs = {
        "estimators": _joined(estimators),
        "tokenised": _joined(tokenised),
        "parity": parity,
        "dynamics": dynamics,
    }
    certificate = Certificate.of(run, rungs)
    _show(certificate, console)
    return certificate


def _joined(parts: Sequence[Rung], /) -> Rung:
    """One rung of several receivers."""
    return Rung(
        checks=tuple(check for part in parts for check in part.checks),
        figures={name: found for part in parts for name, found in part.figures.items()},
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _show(certificate: Certificate, console: Console, /) -> None:
    table = Table("rung", "check", title="gate")
    table.add_column("value", justify="right")
    table.add_column("bound", justify="right")
    table.add_column("passed")
    for name, rung in certificate.rungs.items():
        for check in rung.checks:
            bound = f"{check.sense} {check.bound:.3g}"
            verdict = "yes" if check.passed else "no"
            table.add_row(name, check.name, f"{check.value:.3g}", bound, verdict)
        table.add_section()
    console.print(table)
    for name, rung in certificate.rungs.items():
        for note in rung.notes:
            console.print(f"{name}: {note}", markup=False, highlight=False)
    console.print(f"gate passed: {'yes' if certificate.passed else 'no'}")
