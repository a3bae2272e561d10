"""The stability-support plane of one run's regime, or of a whole grid of settings.

`study` places a run's own rule among the standard ones in the gate's world; `sweep` computes a
study file: worlds x rules x group sizes x residuals x receivers. Neither needs torch.
Source: docs/study.md.
"""

from mrl.study.assemble import Results
from mrl.study.regime import STANDARD, probes_of, study
from mrl.study.running import sweep

__all__ = ["STANDARD", "Results", "probes_of", "study", "sweep"]
