"""Write a figure with what it was drawn from."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

# Without the date, and with a fixed salt for ids, equal figures are equal files.
FORMATS: dict[str, dict[str, Any]] = {
    "pdf": {"metadata": {"CreationDate": None}},
    "svg": {"metadata": {"Date": None}},
    "png": {"dpi": 160},
}


def save(name: str, figure: Figure, frame: pd.DataFrame, caption: str, /, folder: Path) -> Path:
    """Write ``NAME.pdf``, ``.svg``, ``.png``, the frame as ``.csv`` and the caption as ``.txt``.

    Parameters
    ----------
    name : str
        Name of the files, without suffix.
    figure : Figure
        The picture.
    frame : DataFrame
        The numbers it shows.
    caption : str
        What it claims.
    folder : Path
        Where to write; made if it does not exist.

    Returns
    -------
    Path
        The PNG file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "pdf.fonttype": 42}):
        for suffix, options in FORMATS.items():
            figure.savefig(folder / f"{name}.{suffix}", **options)
    frame.to_csv(folder / f"{name}.csv", index=False)
    (folder / f"{name}.txt").write_text(caption + "\n", encoding="utf-8")
    return folder / f"{name}.png"
