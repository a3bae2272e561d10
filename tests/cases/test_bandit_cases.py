"""Exact moments against the reference values of one-context worlds."""

import json
from pathlib import Path

import numpy as np
import pytest

from bandit import Residual, World, exact
from bandit.probes import probe_from_config

CASES = json.loads((Path(__file__).parent / "bandit.json").read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_exact_moments_reproduce_the_reference_values(case):
    world = World.tabular(np.array(case["probs"])[:, None, :], [case["rewards"]])
    moments = exact.moments(
        world,
        probe_from_config(case["probe"]),
        receiver=0,
        own=case["own"],
        peers={int(j): m for j, m in case["peers"].items()},
        residual=Residual(**case["residual"]),
    )
    for name in ("mean", "covariance_trace", "support_gain", "true_gradient"):
        expected = np.array(case[name], dtype=np.float64)  # null is NaN: not defined
        np.testing.assert_allclose(
            getattr(moments, name)[0], expected, rtol=1e-9, atol=1e-12, err_msg=name
        )
    np.testing.assert_allclose(
        np.trace(moments.covariance()[0]), case["covariance_trace"], rtol=1e-9, atol=1e-12
    )
