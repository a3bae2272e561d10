"""Make the figures, all or by name."""

import argparse
from pathlib import Path

from paper_figures import plane
from paper_figures.saving import save

FIGURES = {"plane": plane}


def main(arguments: list[str] | None = None) -> None:
    """Compute, draw and save each figure that was asked for, and name the files."""
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
        module = FIGURES[name]
        frame = module.compute()
        print(save(name, module.plot(frame), frame, module.caption(frame), asked.output))


if __name__ == "__main__":
    main()
