"""From a validated configuration to one that is ready to train."""

from pathlib import Path

from rich.console import Console

from mrl.config import RunConfig, dump
from mrl.errors import InputError, RunError
from mrl.gate import run_gate
from mrl.gate.certificate import Certificate, check_target, write_text


def promote(run: RunConfig, output: Path, /, *, console: Console | None = None) -> Certificate:
    """Put a run through the gate and write it out with its certificate.

    Every setting is written as it is, the sharing rule's section included; only `certificate`
    is new. An existing file is never overwritten.

    Parameters
    ----------
    run : RunConfig
        The configuration, overrides applied.
    output : Path
        YAML file to write.
    console : rich.console.Console, optional
        Where the rungs are printed.

    Returns
    -------
    Certificate
        What was written.

    Raises
    ------
    InputError
        If `output` exists.
    RunError
        If the gate did not pass, or the file cannot be written.
    """
    if output.exists():
        raise InputError(
            f"{output} exists and is not overwritten; give another name with -o, or remove it"
        )
    check_target(output)
    certificate = run_gate(run, console=console)
    if not certificate.passed:
        failed = [name for name, rung in certificate.rungs.items() if not rung.passed]
        raise RunError(
            f"the gate did not pass (rungs {failed}), so {output} was not written; "
            "the checks marked 'no' say why"
        )
    promoted = run.model_copy(update={"certificate": certificate.to_dict()})
    write_text(output, dump(promoted))
    return certificate
