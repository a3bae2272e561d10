import pandas as pd
import pytest
from rich.console import Console

from mrl.demo import carry_out
from mrl.demo.jobs import Workers
from mrl.demo.plan import APART, GRPO, POLICIES, SGT, Plan, WarmUp
from mrl.errors import InputError

PLAN = Plan(
    "small",
    (GRPO, SGT),
    (APART,),
    (0,),
    warm_up={name: WarmUp(steps=3, batch=4, lr=1e-3) for name in POLICIES},
    settings={
        "rounds": 2,
        "prompts": 4,
        "evaluation": {"items": 12, "samples": 2, "ks": [1, 2]},
        "gate": {"arms": 8, "draws": 1000, "steps": 5, "replicas": 4},
    },
)


@pytest.mark.slow
def test_the_demo_runs_writes_everything_and_starts_at_once_the_second_time(tmp_path):
    console = Console(quiet=True)
    with Workers(console) as workers:
        first = carry_out(PLAN, tmp_path, workers, console)
    assert set(first["mode"]) == {"grpo", "sgt"}
    assert len(first) == len(PLAN.modes) * len(POLICIES) * 2
    home = tmp_path / PLAN.name
    for name in ("planes.png", "planes.svg", "results.csv", "summary.csv", "report.html"):
        assert (home / name).stat().st_size > 0
    metrics = home / "runs" / "apart-sgt-seed0" / "metrics.jsonl"
    made = metrics.stat().st_mtime_ns
    idle = Workers(console)  # nothing is left to do, so it starts no process
    second = carry_out(PLAN, tmp_path, idle, console)
    pd.testing.assert_frame_equal(first, second)
    assert metrics.stat().st_mtime_ns == made

    other = Plan(**{**PLAN.__dict__, "settings": {**PLAN.settings, "rounds": 3}})
    with pytest.raises(InputError, match="run of other settings"):
        carry_out(other, tmp_path, idle, console)
