"""Make the figures, all or by name."""

import argparse
import shutil
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

NUMBERS = (
    "The numbers behind each figure, and the figure as PDF and SVG, lie in `runs/figures`; the "
    "formulas are in [theory.md](theory.md)."
)


def main(arguments: list[str] | None = None) -> None:
    """Compute, draw and save each figure that was asked for, and name the files.

    The names go to standard output, the time that each figure took to standard error.
    """
    parser = argparse.ArgumentParser(prog="python -m paper_figures", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of {', '.join(FIGURES)}; default: all"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/figures"), help="folder")
    parser.add_argument(
        "--gallery", type=Path, metavar="DOCS", help="write DOCS/figures.md and its images as well"
    )
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.names if name not in FIGURES]
    if unknown:
        parser.error(f"no figure is called {unknown}; expected any of {list(FIGURES)}")
    for name in asked.names or FIGURES:
        module, start = FIGURES[name], time.perf_counter()
        frame = module.compute()
        print(save(name, module.plot(frame), frame, module.caption(frame), asked.output))
        print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    if asked.gallery is not None:
        gallery(asked.output, asked.gallery)


def gallery(figures: Path, docs: Path, /) -> None:
    """Write a page with every figure and its caption, from what was saved.

    Parameters
    ----------
    figures : Path
        Where all figures were saved.
    docs : Path
        Gets ``figures.md`` and ``images/NAME.png``.
    """
    page = ["# Figures", "", "Written by `make figures`, captions included. " + NUMBERS, ""]
    for name, module in FIGURES.items():
        shutil.copy(figures / f"{name}.png", docs / "images" / f"{name}.png")
        title = (module.__doc__ or name).splitlines()[0].rstrip(".")
        caption = (figures / f"{name}.txt").read_text(encoding="utf-8").strip()
        page += [f"## {title}", "", f"![{title}](images/{name}.png)", "", caption, ""]
    (docs / "figures.md").write_text("\n".join(page), encoding="utf-8")


if __name__ == "__main__":
    main()
