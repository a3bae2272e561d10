"""A study is a function of its file: interrupted, resumed, in one process or several."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console

from bandit import World, exact, tradeoff, worlds
from bandit.probes import PRP, SGT, probe_from_config
from bandit.tradeoff.recommendation import MORE
from mrl import config
from mrl.cli import main
from mrl.config import StudyConfig, parse_study
from mrl.errors import InputError
from mrl.gate.worlds import gate_world
from mrl.study import running, sweep
from mrl.study.cells import compute
from mrl.study.grid import cells_of, digest

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "mrl" / "configs" / "study.yaml"
SMALL: dict[str, Any] = {
    "kind": "study",
    "worlds": {
        "rare": {"kind": "example", "name": "rare_success", "params": {"p": [0.04, 0.01, 0.001]}},
        "pair": {"kind": "success", "success": [[0.9, 0.02], [0.02, 0.9]], "arms": 6},
    },
    "rules": {"GRPO": {"kind": "grpo"}, "SGT": {"kind": "sgt", "weight": [0.1, 0.3]}},
    "own": [2, 3],
    "peers": 3,
    "max_figures": 0,
}
TABLE: dict[str, Any] = {
    "kind": "table",
    "probs": [[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.5, 0.5]]],
    "rewards": [[0, 1], [0, 1]],
    "weights": [3, 1],
}
LEARNING = {"dynamics": {"steps": 3, "replicas": 4}}


def study_of(**sections: Any) -> StudyConfig:
    return parse_study(SMALL | sections)


def written(folder: Path) -> dict[str, bytes]:
    """Every file that a study leaves for its reader."""
    files = [path for path in folder.rglob("*") if path.is_file() and "parts" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files)}


def run(folder: Path, /, **sections: Any) -> dict[str, bytes]:
    sweep(study_of(**sections), folder)
    return written(folder)


@pytest.fixture
def study_file(tmp_path: Path) -> Callable[..., Path]:
    def write(**sections: Any) -> Path:
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump(SMALL | sections, sort_keys=False), encoding="utf-8")
        return path

    return write


def test_the_tables_are_tidy_and_in_the_order_of_the_grid(tmp_path: Path) -> None:
    sweep(study_of(analysis=LEARNING), tmp_path)
    plane = pd.read_parquet(tmp_path / "plane.parquet")
    population = pd.read_parquet(tmp_path / "population.parquet")
    keys = ["world", "own", "peers", "mu", "sigma", "drop", "gate", "receiver", "label", "method"]
    assert not population.duplicated(keys).any()
    assert not plane.duplicated([*keys, "context"]).any()
    labels = ["GRPO", "SGT, weight=0.1", "SGT, weight=0.3", *tradeoff.CONTROLS]
    assert list(population["label"]) == labels * 8
    assert list(plane["world"].unique()) == [
        "rare, p=0.04",
        "rare, p=0.01",
        "rare, p=0.001",
        "pair",
    ]
    assert plane["world_p"].dtype == np.float64
    assert plane.loc[plane["world"] == "pair", "world_p"].isna().all()
    assert set(population.loc[population["kind"] == "sgt", "rule_weight"]) == {0.1, 0.3}
    curves = pd.read_parquet(tmp_path / "dynamics.parquet")
    assert not curves.duplicated([*keys[:7], "label", "step", "replica", "policy"]).any()
    assert len(curves) == 4 * 2 * 3 * (4 * 4 * 2)
    for name in ("plane", "population", "dynamics"):
        types = {str(field.type) for field in pq.read_schema(tmp_path / f"{name}.parquet")}
        assert types <= {"int64", "double", "bool", "string", "large_string"}


def test_the_figures_are_those_of_the_theory(tmp_path: Path) -> None:
    found = sweep(
        study_of(receivers=[1], residual={"sigma": [0.0, 0.5]}, rules={"PRP": {"kind": "prp"}}),
        tmp_path,
    )
    rows = found.population[(found.population["world"] == "pair") & (found.population["own"] == 3)]
    pair = SMALL["worlds"]["pair"]
    model = {"kind": "pretrained", "path": "none"}
    a_run = config.parse(
        {
            "probe": {"kind": "grpo"},
            "task": {"kind": "jsonl", "path": "none"},
            "policies": [{"name": "a", "model": model}, {"name": "b", "model": model}],
            "gate": {"success": pair["success"], "arms": 6},
        }
    )
    world = gate_world(a_run)
    for sigma in (0.0, 0.5):
        mine = rows[(rows["label"] == "PRP") & (rows["sigma"] == sigma)].iloc[0]
        moments = exact.moments(
            world, PRP(), receiver=1, own=3, peers=3, residual=exact.Residual(sigma=sigma)
        )
        assert mine["stability_cost"] == pytest.approx(moments.covariance_trace.mean())
        assert mine["support_gain"] == pytest.approx(moments.support_gain.mean())
        assert mine["population_cost"] == pytest.approx(moments.population_covariance_trace)


def test_the_frontier_spans_rules_and_sizes_of_one_place(tmp_path: Path) -> None:
    found = sweep(study_of(), tmp_path).population
    for _, rows in found.groupby("world"):
        for _, row in rows.iterrows():
            beaten = (
                (rows["stability_cost"] <= row["stability_cost"])
                & (rows["support_gain"] >= row["support_gain"])
                & (
                    (rows["stability_cost"] < row["stability_cost"])
                    | (rows["support_gain"] > row["support_gain"])
                )
            ).any()
            assert row["on_frontier"] != beaten


def test_a_table_world_is_what_was_given(tmp_path: Path) -> None:
    study = study_of(worlds={"mine": TABLE}, receivers=None)
    (point,) = study.world_points()
    expected = World.tabular(TABLE["probs"], TABLE["rewards"], TABLE["weights"])
    assert digest(point.value) == digest(expected)
    assert set(sweep(study, tmp_path).population["receiver"]) == {0, 1}


def test_an_interrupted_study_goes_on_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"analysis": LEARNING, "max_figures": 1, "max_stability_cost": 0.1, "own": 2}
    whole = run(tmp_path / "whole", **settings)
    computed: list[str] = []

    def stops_after_seven(cell: Any) -> pd.DataFrame:
        if len(computed) == 7:
            raise KeyboardInterrupt
        computed.append(cell.key)
        return compute(cell)

    monkeypatch.setattr(running, "compute", stops_after_seven)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", **settings)
    assert not written(tmp_path / "cut")
    rest: list[str] = []

    def counts(cell: Any) -> pd.DataFrame:
        rest.append(cell.key)
        return compute(cell)

    monkeypatch.setattr(running, "compute", counts)
    assert run(tmp_path / "cut", **settings) == whole
    assert sorted(computed + rest) == sorted({cell.key for cell in cells_of(study_of(**settings))})


def test_a_killed_process_leaves_a_study_that_can_go_on(
    tmp_path: Path, study_file: Callable[..., Path]
) -> None:
    settings = {"analysis": {"dynamics": {"steps": 30, "replicas": 32}}, "own": 2}
    path = study_file(**settings)
    cut = tmp_path / "cut"
    command = [sys.executable, "-m", "mrl", "study", str(path), "-o", str(cut)]
    started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    try:
        while len(list(cut.glob("parts/*.parquet"))) < 3 and time.monotonic() < deadline:
            assert started.poll() is None, "the study ended before it could be killed"
            time.sleep(0.005)
    finally:
        started.send_signal(signal.SIGKILL)
        started.wait()
    done = {file.name: file.stat().st_mtime_ns for file in cut.glob("parts/*.parquet")}
    assert 3 <= len(done) < len(cells_of(study_of(**settings)))
    (cut / "parts" / f".{'0' * 32}.parquet.1.partial").write_bytes(b"half a part")
    whole = run(tmp_path / "whole", **settings)
    assert run(cut, **settings) == whole
    again = {name: (cut / "parts" / name).stat().st_mtime_ns for name in done}
    assert again == done
    assert {path.name for path in cut.glob("parts/.*")} == {".lock"}


def test_changed_settings_are_computed_anew_and_old_parts_kept_until_asked(tmp_path: Path) -> None:
    changed = study_of(own=[3], rules={"SGT": {"kind": "sgt", "weight": [0.1, 0.5]}})
    wanted = {f"{cell.key}.parquet" for cell in cells_of(changed)}
    printed = []

    def parts_after(study: StudyConfig, **options: Any) -> set[str]:
        with open(os.devnull, "w") as nowhere:
            console = Console(record=True, width=200, file=nowhere)
            sweep(study, tmp_path, console=console, **options)
        printed.append(console.export_text())
        return set(os.listdir(tmp_path / "parts"))

    before = parts_after(study_of())
    (tmp_path / "parts" / "notes.txt").write_text("mine")
    old = before - wanted - {".lock"}
    assert parts_after(changed) == before | wanted | {"notes.txt"}
    assert parts_after(changed, prune=True) == wanted | {"notes.txt", ".lock"}
    parts_after(changed, prune=True)
    first, kept, removed, nothing = printed
    assert "other settings" not in first + nothing
    # SGT at weight 0.1 and the controls, in each of 4 worlds at G = 3
    assert "8 of 12 cells are there from before" in kept
    assert kept.count(f"kept {len(old)} parts of other settings") == 1
    assert "--prune removes them" in kept
    assert f"removed {len(old)} parts of other settings" in removed
    assert written(tmp_path) == run(
        tmp_path.with_name("fresh"), own=[3], rules=changed.model_dump()["rules"]
    )


def test_prune_is_an_option_of_the_command(study_file: Callable[..., Path], tmp_path: Path) -> None:
    path, output = str(study_file(own=2)), tmp_path / "out"

    def parts_after(*arguments: str) -> int:
        with pytest.raises(SystemExit) as end:
            main(["study", path, *arguments, "-o", str(output)])
        assert not end.value.code
        return len(list(output.glob("parts/*.parquet")))

    assert parts_after("peers=3") == 16
    assert parts_after("peers=2") > 16
    assert parts_after("peers=2", "--prune") == 16


HOLDS = """
import sys
from pathlib import Path
from mrl.study.parts import Parts

with Parts.open(Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_study_in_a_folder_is_refused_until_the_first_ends_or_dies(
    study_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    command = [sys.executable, "-c", HOLDS, str(output / "parts")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == "held\n"
            with pytest.raises(SystemExit) as end:
                main(["study", str(study_file(own=2)), "-o", str(output)])
        finally:
            first.kill()
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        f"mrl: another study writes to {output}; wait for it, or give another folder with -o\n"
    )
    assert not written(output)
    assert not list(output.glob("parts/*.parquet"))
    assert "plane.parquet" in run(output, own=2)


def test_the_folder_is_locked_while_a_study_writes_and_free_after_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meets_another(cell: Any) -> pd.DataFrame:
        sweep(study_of(own=3), tmp_path)
        return compute(cell)

    with monkeypatch.context() as patch:
        patch.setattr(running, "compute", meets_another)
        with pytest.raises(InputError, match="another study writes to"):
            sweep(study_of(own=2), tmp_path)
    sweep(study_of(own=2), tmp_path)


def test_errors_of_sqlite_in_a_study_are_not_taken_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(cell: Any) -> pd.DataFrame:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(running, "compute", fails)
    with pytest.raises(sqlite3.OperationalError):
        sweep(study_of(), tmp_path)


def test_a_damaged_lock_is_named(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / ".lock").write_bytes(b"no database" * 200)
    with pytest.raises(InputError, match=r"cannot lock .*\.lock: .*remove it if it is damaged"):
        sweep(study_of(), tmp_path)


def without_a_word() -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (lambda: np.empty(1 << 58), "Unable to allocate 2.00 EiB for an array with shape"),
        (without_a_word, "an allocation failed"),
    ],
)
def test_too_little_memory_is_one_message(
    raised: Callable[[], Any],
    said: str,
    study_file: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def needs_too_much(cell: Any) -> Any:
        return raised()

    monkeypatch.setattr(running, "compute", needs_too_much)
    with pytest.raises(SystemExit) as end:
        main(["study", str(study_file()), "-o", str(tmp_path / "out")])
    assert end.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith(f"mrl: out of memory: {said}")
    assert error.endswith("; use smaller sizes\n")
    assert error.count("\n") == 1


def test_a_damaged_part_is_computed_again(tmp_path: Path) -> None:
    whole = run(tmp_path)
    parts = sorted((tmp_path / "parts").glob("*.parquet"))
    parts[0].write_bytes(parts[0].read_bytes()[:100])
    parts[1].write_bytes(b"")
    assert run(tmp_path) == whole


def test_labels_are_no_part_of_a_cell(tmp_path: Path) -> None:
    run(tmp_path)
    renamed = {"other": SMALL["worlds"]["rare"], "pair": SMALL["worlds"]["pair"]}
    keys = {cell.key for cell in cells_of(study_of(worlds=renamed))}
    assert keys == {cell.key for cell in cells_of(study_of())}


@pytest.mark.parametrize(
    "change",
    [
        {"own": [2, 4]},
        {"peers": 2},
        {"receivers": [1]},
        {"residual": {"mu": 0.1}},
        {"analysis": {"rare": 0.1}},
        {"analysis": {"method": "sampled"}},
        {"worlds": {"mine": TABLE}},
        {"rules": {"GRPO": {"kind": "grpo", "ddof": 0}}},
    ],
)
def test_whatever_a_result_depends_on_is_part_of_a_cells_key(change: dict[str, Any]) -> None:
    usual = {cell.key for cell in cells_of(study_of())}
    assert {cell.key for cell in cells_of(study_of(**change))} - usual


def test_the_seed_counts_where_something_is_drawn() -> None:
    exactly = [cell.key for cell in cells_of(study_of(seed=0))]
    assert [cell.key for cell in cells_of(study_of(seed=1))] == exactly
    drawn = [
        {cell.key for cell in cells_of(study_of(seed=seed, analysis={"method": "both"} | LEARNING))}
        for seed in (0, 1)
    ]
    assert len(drawn[0] & drawn[1]) == len(set(exactly))


def test_results_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    settings = {
        "worlds": {"pair": SMALL["worlds"]["pair"]},
        "analysis": {"method": "both", "draws": 50} | LEARNING,
        "max_figures": 1,
    }
    alone = run(tmp_path / "alone", **settings)
    sweep(study_of(**settings), tmp_path / "two", n_jobs=2)
    assert written(tmp_path / "two") == alone


def test_simulation_agrees_with_the_closed_forms(tmp_path: Path) -> None:
    found = sweep(
        study_of(worlds={"mine": TABLE}, own=4, analysis={"method": "both", "draws": 20_000}),
        tmp_path,
    ).population
    rows = found[~found["label"].isin(tradeoff.CONTROLS)]
    exactly, sampled = (rows[rows["method"] == m].set_index("label") for m in ("exact", "sampled"))
    assert (exactly["stability_cost_se"] == 0).all()
    for name in ("stability_cost", "support_gain"):
        off = (sampled[name] - exactly[name]).abs()
        assert (off <= 5 * sampled[f"{name}_se"] + 1e-12).all()
    for name in ("rescue_probability", "dead_probability", "true_norm"):
        pd.testing.assert_series_equal(sampled[name], exactly[name])
    assert sampled["relative_cost"].loc["GRPO"] == 1.0


TOO_LARGE = {
    "worlds": {
        "graded": {
            "kind": "table",
            "probs": [[[0.1] * 10]] * 3,
            "rewards": [[i / 9 for i in range(10)]],
        }
    },
    "own": 25,
    "peers": 2,
}


def test_what_is_too_large_for_closed_forms_is_never_simulated_unasked(tmp_path: Path) -> None:
    controls = {"controls": False, "draws": 40}
    with pytest.raises(InputError, match=r"'graded' \(G=25, M=2, receiver 0\).*sampled_if_too"):
        sweep(study_of(**TOO_LARGE, analysis=controls), tmp_path)
    asked = {**controls, "method": "sampled_if_too_large"}
    found = sweep(study_of(**TOO_LARGE, analysis=asked), tmp_path).population
    assert set(found["method"]) == {"sampled"}
    exactly = sweep(study_of(analysis=asked), tmp_path).population
    assert set(exactly["method"]) == {"exact"}


def test_recommendations_stay_within_the_bound_and_say_why(tmp_path: Path) -> None:
    found = sweep(study_of(max_stability_cost=0.05), tmp_path)
    table = found.recommendations
    assert table is not None
    assert len(table) == 4 * 2
    merged = table.merge(
        found.population, left_on=["world", "own", "rule"], right_on=["world", "own", "label"]
    )
    assert len(merged) > 0
    assert (merged["stability_cost"] <= 0.05).all()
    assert {type(probe_from_config(json.loads(text))) for text in table["probe"]} >= {SGT}
    assert table["reason"].str.contains("stability cost").all()
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "Recommendations" in page
    assert f"The control {tradeoff.CONTROLS[0]} has support gain 0 by definition" in page
    assert f"under the name {MORE}, and credit these" in page
    refused = sweep(study_of(max_stability_cost=1e-9), tmp_path).recommendations
    assert refused is not None
    assert refused["rule"].isna().all()
    assert refused["reason"].str.contains("smallest stability cost").all()


def test_figures_are_drawn_once_and_old_ones_removed(tmp_path: Path) -> None:
    analysis = LEARNING
    sweep(study_of(analysis=analysis, max_figures=4), tmp_path)
    kinds = {path.name.split("-")[1] for path in tmp_path.glob("figures/*")}
    assert kinds == {"sweep", "frontier", "plane", "learning"}
    assert len(list(tmp_path.glob("figures/*.png"))) == 4
    assert len(list(tmp_path.glob("figures/*.svg"))) == 4
    sweep(study_of(max_figures=1), tmp_path)
    assert len(list(tmp_path.glob("figures/*"))) == 2
    assert not (tmp_path / "dynamics.parquet").exists()


def test_the_page_is_self_contained_and_shows_labels_as_text(tmp_path: Path) -> None:
    attack = "<script>alert(1)</script>"
    sweep(study_of(rules={attack: {"kind": "sgt"}}, max_figures=1), tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert set(re.findall(r'(?:src|href)="([^"#:]*:?)', page)) <= {"", "data:"}
    assert page.count("<img") == 1
    assert "more figures were not drawn" in page


def test_a_random_world_is_drawn_from_its_seed() -> None:
    section = {"kind": "example", "name": "random_world", "params": {"seed": [1, 2], "arms": 4}}
    points = list(study_of(worlds={"random": section}).world_points())
    assert [point.label for point in points] == ["random, seed=1", "random, seed=2"]
    expected = worlds.random_world(np.random.default_rng(2), arms=4)
    assert digest(points[1].value) == digest(expected)
    assert digest(points[0].value) != digest(points[1].value)


def test_every_example_world_can_be_studied() -> None:
    examples = config.study.example_worlds()
    assert {"rare_success", "specialists", "random_world"} <= set(examples)
    for name in examples:
        params = {"p": 0.1} if name == "rare_success" else {}
        section = {"kind": "example", "name": name, "params": params}
        (point,) = study_of(worlds={"one": section}).world_points()
        assert point.value.n_policies >= 1


def test_overrides_reach_into_the_grid(study_file: Callable[..., Path]) -> None:
    loaded = config.load_study(
        study_file(),
        ["worlds.rare.params.p=[0.3, 0.2]", "rules.SGT.weight=0.7", "analysis.dynamics.steps=5"],
    )
    assert [point.label for point in loaded.world_points()] == [
        "rare, p=0.3",
        "rare, p=0.2",
        "pair",
    ]
    assert loaded.probes["SGT"] == SGT(weight=0.7)
    assert loaded.analysis.dynamics is not None


def test_a_study_survives_a_round_trip() -> None:
    for study in (study_of(), study_of(worlds={"mine": TABLE}, analysis=LEARNING)):
        assert parse_study(yaml.safe_load(config.dump(study))) == study


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("recievers=[0]", r"recievers: no such setting \(did you mean 'receivers'\?\)"),
        ("worlds.rare.name=rare_sucess", r"worlds\.rare.*did you mean 'rare_success'"),
        (
            "worlds.rare.params.q=1",
            r"worlds\.rare.*no parameter 'q'; expected any of \['p', 'arms'",
        ),
        ("worlds.rare.params={}", r"worlds\.rare.*needs the parameters \['p'\]"),
        ("worlds.rare.params.p=2", r"worlds\.rare: got p=2"),
        *(
            (
                f"worlds.rare.params.{value}",
                r"worlds\.rare.*: p: got the text '1e-3'; expected a number "
                r"\(YAML reads 1e-3 as text: write 1\.0e-3\)",
            )
            for value in ("p=1e-3", "p=[0.1, 1e-3]")
        ),
        ("worlds.rare.params.p=null", r"worlds\.rare.*: p: got None; expected a number"),
        ("worlds.pair.success=[[2]]", r"worlds\.pair.*less than or equal to 1"),
        ("rules.SGT.wieght=1", r"rules\.SGT: probe 'sgt' has no setting 'wieght'.*'weight'"),
        ("rules.SGT.weight=[]", r"rules\.SGT: weight is an empty list"),
        ("rules.SGT.weight=[0.1, -1]", r"rules\.SGT: weight=-1"),
        ("rules.SGT.weight=[0.1, 0.1]", r"rules: two have the label 'SGT, weight=0\.1'"),
        ("rules.SGT.kind=[sgt, nll]", r"rules\.SGT: kind is a list"),
        ("own=[0]", r"own\.0: .*greater than or equal to 1; got 0"),
        ("receivers=[2]", r"receivers names \[2\].*policies 0 to 1"),
        ("residual.drop=2", r"residual\.drop\.0: .*less than or equal to 1"),
        ("analysis.method=fast", r"analysis\.method: .*'exact'"),
        ("kind=stduy", r"kind 'stduy' is unknown; expected study"),
    ],
)
def test_bad_input_is_one_message_that_names_file_and_key(
    override: str,
    message: str,
    study_file: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = study_file()
    with pytest.raises(SystemExit) as end:
        main(["study", str(path), override])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"mrl: {path}")
    assert re.search(message, error, flags=re.DOTALL)
    assert "Traceback" not in error


def test_a_refusal_of_the_theory_is_bad_input(
    study_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["study", str(study_file(**TOO_LARGE)), "-o", str(tmp_path / "out")])
    assert end.value.code == 2
    assert "in world 'graded'" in capsys.readouterr().err


def test_an_interrupt_ends_the_command_and_keeps_what_is_done(
    study_file: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, output, calls = study_file(), tmp_path / "out", []

    def stops(cell: Any) -> pd.DataFrame:
        calls.append(cell)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return compute(cell)

    monkeypatch.setattr(running, "compute", stops)
    with pytest.raises(SystemExit) as end:
        main(["study", str(path), "-o", str(output)])
    assert end.value.code == 130
    assert "a study with the same command" in capsys.readouterr().err
    assert len(list(output.glob("parts/*.parquet"))) == 2


def test_other_commands_say_what_a_study_is_for(
    study_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["validate", str(study_file())])
    assert end.value.code == 2
    assert "is a study, not a run; the command for it is mrl study" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_bad_input_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write to .*give a folder with -o"):
        sweep(study_of(), tmp_path / "file")


def test_the_shipped_study_runs_at_reduced_size(tmp_path: Path) -> None:
    study = config.load_study(
        SHIPPED,
        ["own=4", "analysis.dynamics.steps=2", "analysis.dynamics.replicas=2", "max_figures=0"],
    )
    found = sweep(study, tmp_path)
    assert set(found.population["label"]) == {*study.probes, *tradeoff.CONTROLS}
    assert found.dynamics is not None


def test_the_shipped_bound_leaves_a_choice(tmp_path: Path) -> None:
    study = config.load_study(
        SHIPPED, ["analysis.dynamics=null", "analysis.controls=false", "max_figures=0"]
    )
    table = sweep(study, tmp_path).recommendations
    assert table is not None
    chosen = table.pivot(index="world", columns="own", values="rule")
    assert set(chosen[8]) == {"PRP without ratio"}
    assert chosen[4].to_dict() == {
        "rare success, p=0.05": MORE,
        "rare success, p=0.01": "SGT, weight=0.3",
        "rare success, p=0.001": "SGT, weight=0.3",
        "two specialists": MORE,
    }
