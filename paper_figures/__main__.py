"""Make the figures, all or by name."""

import argparse
import sys
import time
from pathlib import Path

from paper_figures import (
    baseline,
    break_even,
    learning,
    length,
    noisy,
    overlap,
    plane,
    rescue,
    residual,
    support_gain,
    truncation,
    variance_chi2,
)
from paper_figures.saving import save

FIGURES = {
    "plane": plane,
    "break_even": break_even,
    "support_gain": support_gain,
    "variance_chi2": variance_chi2,
    "truncation": truncation,
    "residual": residual,
    "baseline": baseline,
    "rescue": rescue,
    "learning": learning,
    "overlap": overlap,
    "noisy": noisy,
    "length": length,
}


def main(arguments: list[str] | None = None) -> None:
    """Compute, draw and save each figure that was asked for, and name the files.

    The names go to standard output, the time that each figure took to standard error.
    """
    parser = argparse.ArgumentParser(prog="python -m paper_figures", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of {', '.join(FIGURES)}; default: all"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/figures"), help="folder")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.names if name not in FIGURES]
    if unknown:
        parser.error(f"no figure is called {unknown}; expected any of {list(FIGURES)}")
    for name in asked.names or FIGURES:
        module, start = FIGURES[name], time.perf_counter()
        frame = module.compute()
        print(save(name, module.plot(frame), frame, module.caption(frame), asked.output))
        print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
