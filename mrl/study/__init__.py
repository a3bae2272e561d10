"""The stability-support plane of one run's regime, or of a whole grid of settings.

`study` places a run's own rule among the standard ones in the gate's world; `sweep` computes a
study file: worlds x rules x group sizes x residuals x receivers. Neither needs torch.
`world_of_run` measures the world that a run is in, which does; `study_of_run` is the study of it.
Source: docs/study.md.
"""

from mrl.run_world import RunWorld
from mrl.study.assemble import Results
from mrl.study.from_run import study_of_run, world_of_run
from mrl.study.regime import STANDARD, probes_of, study
from mrl.study.running import sweep

__all__ = [
    "STANDARD",
    "Results",
    "RunWorld",
    "probes_of",
    "study",
    "study_of_run",
    "sweep",
    "world_of_run",
]
