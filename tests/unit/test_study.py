import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from bandit import exact, tradeoff
from mrl.config import RunConfig, parse
from mrl.errors import InputError
from mrl.gate.worlds import gate_world
from mrl.study import STANDARD, probes_of, study

MODEL = {"kind": "pretrained", "path": "none"}


def run_of(probe: dict[str, Any], **settings: Any) -> RunConfig:
    return parse(
        {
            "probe": probe,
            "task": {"kind": "jsonl", "path": "none"},
            "policies": [{"name": "a", "model": MODEL}, {"name": "b", "model": MODEL}],
            "group": {"own": 4, "peers": 4},
            **settings,
        }
    )


def test_tables_and_figures_are_written_for_every_receiver(tmp_path: Path) -> None:
    run = run_of({"kind": "sgt", "weight": 0.3})
    output = tmp_path / "deep" / "study"
    console = Console(record=True, width=160, file=io.StringIO())
    found = study(run, output, console=console)
    assert {file.name for file in output.iterdir()} == {
        "plane.csv",
        "population.csv",
        *(f"plane-{name}.{kind}" for name in "ab" for kind in ("png", "svg")),
    }
    labels = {*STANDARD, *tradeoff.CONTROLS, "SGT (this run)"}
    population = pd.read_csv(output / "population.csv")
    assert set(population["label"]) == labels
    assert set(population["receiver"]) == {"a", "b"}
    pd.testing.assert_frame_equal(population, found, check_dtype=False)
    plane = pd.read_csv(output / "plane.csv")
    assert len(plane) == len(labels) * 2 * 2
    printed = console.export_text()
    assert all(label in printed for label in labels)


def test_the_numbers_are_those_of_the_theory(tmp_path: Path) -> None:
    run = run_of({"kind": "sgt", "weight": 0.3})
    found = study(run, tmp_path)
    mine = found[(found["receiver"] == "b") & (found["label"] == "SGT (this run)")].iloc[0]
    moments = exact.moments(gate_world(run), run.probe, receiver=1, own=4, peers=4)
    assert mine["support_gain"] == pytest.approx(moments.support_gain.mean())
    assert mine["population_cost"] == pytest.approx(moments.population_covariance_trace)


def test_a_standard_rule_is_marked_and_not_repeated() -> None:
    run = run_of({"kind": "sgt"})
    assert list(probes_of(run, run.policies[0])) == [
        *(label for label in STANDARD if label != "SGT"),
        "SGT (this run)",
    ]


@pytest.mark.parametrize("probe", [{"kind": "nll"}, {"kind": "prp"}, {"kind": "grpo", "ddof": 0}])
def test_every_rule_can_be_drawn(probe: dict[str, Any], tmp_path: Path) -> None:
    run = run_of(probe)
    found = study(run, tmp_path)
    assert f"{probe['kind'].upper()} (this run)" in set(found["label"])
    assert (tmp_path / "plane-a.svg").stat().st_size > 1000


def test_a_folder_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write to .*give a folder with -o"):
        study(run_of({"kind": "sgt"}), tmp_path / "file")


def test_group_sizes_beyond_the_closed_forms_are_bad_input(tmp_path: Path) -> None:
    run = run_of({"kind": "sgt"}, group={"own": 1000, "peers": 1000})
    with pytest.raises(InputError, match="'a' cannot be placed on the plane"):
        study(run, tmp_path)


def test_a_receiver_that_never_succeeds_has_no_place_on_the_plane(tmp_path: Path) -> None:
    run = run_of({"kind": "sgt"}, gate={"success": [[0.0, 0.0], [0.9, 0.9]]})
    with pytest.raises(InputError, match=r"'a' has no support gain.*set gate\.success"):
        study(run, tmp_path)
    assert not list(tmp_path.iterdir())
