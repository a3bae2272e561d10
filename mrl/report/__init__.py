"""The report of one or several runs: one self-contained HTML page.

`load_run` reads a run's folder, `tables` turns runs into tidy frames, `figures` draws frames, and
`write_report` puts the page together. Nothing here needs a deep-learning library.
"""

from mrl.report.page import write_report
from mrl.report.runs import Run, Sample, load_run

__all__ = ["Run", "Sample", "load_run", "write_report"]
