"""The report holds what the runs' files say, shows untrusted text as text, and loads nothing."""

import base64
import html
import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrl import config
from mrl.errors import InputError
from mrl.report import Run, figures, load_run, tables, text, write_report
from mrl.report.cohorts import Cohort, cohorts, over_seeds, settings_table
from mrl.report.samples import changes, transitions

ATTACK = '<script>alert("x")</script><img src="http://example.org/a.png" onerror=alert(1)>'
POLICIES = ("chars", "bpe")
TAGS = (None, "rotation", "reversal")
CERTIFICATE = {
    "version": "0.1.0",
    "created_by": "mutual-rl",
    "hash": "ab12cd34",
    "probe": {"kind": "sgt"},
    "passed": False,
    "rungs": {
        "estimators": {
            "passed": True,
            "figures": {"worlds": [{"stability_cost": 0.034}]},
            "checks": [{"name": "largest |z|", "value": 2.1, "bound": 4.0, "passed": True}],
        },
        "dynamics": {
            "passed": False,
            "checks": [{"name": "share of collapse", "value": 0.4, "bound": 0.1, "passed": False}],
            "surprise": "an unknown figure",
        },
    },
}


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def round_row(index: int, policy: str, rng: np.random.Generator) -> dict[str, Any]:
    return {
        "event": "round", "round": index, "policy": policy,
        "reward_mean": 0.3 + 0.01 * index + 0.02 * rng.random(), "dead_share": 0.5,
        "rescued_prompts": 3, "unverified": 0, "unrepresentable": 1, "reverify_refused": 0,
        "entropy": 1.0 / (1 + index), "grad_norm": float("inf") if index == 1 else 0.5,
        "ess": 0.4 if index else None, "trained_tokens_own": 100, "trained_tokens_peer": 10,
        "gated_share": 0.25, "canonical_share": 0.75, "residual_rollouts": 64,
        "residual_unreachable": 0, "residual_q50": 0.0, "residual_q75": 0.5, "residual_q90": 2.0,
        "residual_q99": 9.0, "residual_above_5_nats": 0.03,
        "records_in": {"success": 4}, "bytes_in": {"success": 512},
    }  # fmt: skip


def evaluation_row(index: int, policy: str, tag: str | None, value: float) -> dict[str, Any]:
    return {
        "event": "evaluation", "round": index, "policy": policy, "tag": tag, "items": 4,
        "samples": 2, "pass@1": value, "pass@1_low": value - 0.05, "pass@1_high": value + 0.05,
        "pass@2": value + 0.1, "rescue_items": 2, "rescue_share": value,
    }  # fmt: skip


def sample_rows(index: int) -> list[dict[str, Any]]:
    """Before: chars solves rotation only, bpe reversal only. After: chars also prompt 3."""
    rows = []
    for policy in POLICIES:
        for prompt in range(4):
            tag = TAGS[1] if prompt < 2 else TAGS[2]
            own = (policy == "chars") == (prompt < 2)
            reward = float(own or (index > 0 and policy == "chars" and prompt == 3))
            rows.append(
                {
                    "round": index,
                    "policy": policy,
                    "prompt_id": f"p{prompt}",
                    "question": f"question {prompt} {ATTACK}",
                    "answer": "a < b",
                    "tag": tag,
                    "responses": [f"response {index}-{prompt} {ATTACK}", "\x00\u202e\ud800"],
                    "rewards": [reward, None],
                }  # fmt: skip
            )
    return rows


MakeRun = Callable[..., Path]


def run_maker(root: Path) -> MakeRun:
    """Return a function that writes a run's folder as the trainer does and returns its path."""

    def make(
        name: str = "run",
        *,
        probe: dict[str, Any] | None = None,
        seed: int = 0,
        rounds: int = 4,
        evaluated: bool = True,
        tags: tuple[str | None, ...] = TAGS,
        final: float = 0.8,
        certificate: dict[str, Any] | None = None,
        **state: Any,
    ) -> Path:
        folder = root / "runs" / name
        folder.mkdir(parents=True)
        model = {"kind": "init", "params": {}}
        tokenizer = {"kind": "characters", "alphabet": "abc"}
        values = {
            "name": name,
            "seed": seed,
            "rounds": rounds,
            "probe": probe or {"kind": "sgt"},
            "task": {"kind": "jsonl", "path": "items.jsonl"},
            "policies": [{"name": p, "model": model, "tokenizer": tokenizer} for p in POLICIES],
            "certificate": certificate,
        }
        (folder / "config.yaml").write_text(config.dump(config.parse(values)), encoding="utf-8")
        status = {
            "status": "finished", "rounds_done": rounds, "unvalidated": False,
            "versions": {"mutual-rl": "0.1.0", "torch": "2.13.0"}, "error": None, **state,
        }  # fmt: skip
        (folder / "run.json").write_text(json.dumps(status))
        rng = np.random.default_rng(seed)
        metrics = [round_row(i, p, rng) for i in range(rounds) for p in POLICIES]
        if evaluated:
            for index, value in ((0, 0.2), (rounds, final)):
                metrics += [evaluation_row(index, p, t, value) for p in POLICIES for t in tags]
                metrics.append(
                    {"event": "overlap", "round": index, "policy": "chars", "peer": "bpe",
                     "jaccard": 0.1 + value / 2}
                )  # fmt: skip
            (folder / "samples.jsonl").write_text(lines(sample_rows(0) + sample_rows(rounds)))
        (folder / "metrics.jsonl").write_text(lines(metrics))
        timing = [
            row
            for i in range(rounds)
            for row in (
                {"round": i, "policy": None, "phases": {"publish": 0.5, "verify": 1.5}},
                {"round": i, "policy": "chars", "phases": {"generate": 3.0, "update": 5.0}},
            )
        ]
        (folder / "timing.jsonl").write_text(lines(timing))
        return folder

    return make


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    return run_maker(tmp_path)


class Page(HTMLParser):
    """Addresses, tags, handlers and text of a page or an image."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(self.source)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("href", "src", "srcset", "action", "data", "poster", "xlink:href"):
                self.addresses.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)
            if name == "id":
                self.ids.append(value or "")

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def report(tmp_path: Path, *runs: Path, **options: Any) -> Page:
    path = write_report(list(runs), tmp_path / "out" / "report.html", **options)
    return Page(path.read_text(encoding="utf-8"))


# Figures take most of the time: pages are made once and looked at by several tests.
@pytest.fixture(scope="module")
def finished_page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    root = tmp_path_factory.mktemp("finished")
    return report(root, run_maker(root)(certificate=CERTIFICATE))


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A failed, unvalidated run whose every free text is an attack."""
    root = tmp_path_factory.mktemp("hostile")
    folder = run_maker(root)(status="failed", error=ATTACK, unvalidated=True, rounds_done=2)
    for name in ("metrics.jsonl", "samples.jsonl"):
        rewrite(folder / name, '"rotation"', json.dumps(f"$x{ATTACK}"))
    return report(root, folder, title=ATTACK)


def image(source: str) -> Page:
    return Page(base64.b64decode(source.split(",")[1]).decode())


@pytest.mark.parametrize("which", ["finished_page", "hostile_page"])
def test_a_page_loads_nothing_and_runs_nothing(which: str, request: pytest.FixtureRequest) -> None:
    page = request.getfixturevalue(which)
    anchors = [address[1:] for address in page.addresses if address.startswith("#")]
    sources = [address for address in page.addresses if not address.startswith("#")]
    assert set(anchors) <= set(page.ids)
    assert len(sources) >= 6
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert not {"script", "link", "iframe", "object", "embed", "form", "base"} & set(page.tags)
    assert page.handlers == []
    assert "@import" not in page.source
    assert "url(" not in page.source
    for drawn in map(image, sources):
        assert all(address.startswith("#") for address in drawn.addresses)
        assert not {"script", "img", "image", "foreignobject"} & set(drawn.tags)


def test_markup_in_rollouts_tags_titles_and_errors_is_shown_as_text(hostile_page: Page) -> None:
    assert f"response 0-0 {ATTACK}" in hostile_page.text
    assert f"run failed after 2 rounds. {ATTACK}" in hostile_page.text
    assert f"chars $x{ATTACK} pass@1 0.200 0.800" in hostile_page.text


def test_hidden_characters_are_shown_as_escapes(finished_page: Page) -> None:
    assert r"\x00\u202e\ud800" in finished_page.text
    assert not set("\x00\u202e") & set(finished_page.source)


@given(st.text(st.characters(), max_size=30))
def test_visible_text_is_harmless_and_stays_as_it_is(value: str) -> None:
    shown = text.visible(value)
    shown.encode("utf-8")
    assert text.visible(shown) == shown
    assert not set(shown) & (set(map(chr, range(32))) - set("\n\t") | text.BIDI)


@given(st.text("abc<>&é日 \n\t", max_size=30))
def test_visible_changes_no_printable_text(value: str) -> None:
    assert text.visible(value) == value


def test_one_run_states_its_results(finished_page: Page) -> None:
    said = finished_page.text
    assert "4 of 4 rounds" in said
    assert "pass@1 0.200 0.800 [0.750, 0.850] +0.600 0 → 4 1 bootstrap over items" in said
    assert "torch 2.13.0" in said
    assert "Unvalidated" not in said


def test_what_tokenizers_cost_is_drawn_by_round(finished_page: Page) -> None:
    for label in (
        "effective sample size",
        "share of peers' rollouts gated out",
        "canonical share of own rollouts",
        "residual, 99% quantile (nats)",
        "share of residuals above 5 nats",
    ):
        assert f"{label}, by round." in html.unescape(finished_page.source), label


def test_a_certificate_is_shown_whole_in_the_order_of_the_ladder(finished_page: Page) -> None:
    said = finished_page.text
    assert "share of collapse 0.4 0.1 ✗ failed" in said
    assert "an unknown figure" in said
    assert "worlds.0.stability_cost 0.034" in said
    assert said.index("estimators ✓ passed") < said.index("dynamics ✗ failed")
    assert "certificate not passed" in said


def test_an_unvalidated_run_says_so_loudly(hostile_page: Page) -> None:
    assert "Unvalidated run." in hostile_page.text
    assert 'role="alert"' in hostile_page.source


@pytest.mark.parametrize(
    ("certificate", "badge"),
    [
        (None, "no certificate"),
        ({"passed": True, "hash": "x"}, "validated"),
        ({"passed": "yes"}, "certificate not passed"),
    ],
)
def test_only_a_passed_certificate_counts_as_validated(
    make_run: MakeRun, tmp_path: Path, certificate: dict[str, Any] | None, badge: str
) -> None:
    page = report(tmp_path, started(make_run(certificate=certificate)))
    assert f">{badge}<" in page.source
    assert (">validated<" in page.source) == (badge == "validated")


def test_a_run_without_evaluations_gives_a_page_that_says_so(
    make_run: MakeRun, tmp_path: Path
) -> None:
    page = report(tmp_path, make_run(evaluated=False))
    assert "No evaluation was recorded" in page.text
    assert "No sample rollouts were recorded" in page.text


def without_verdicts(folder: Path, rounds: tuple[int, ...]) -> Path:
    """Turn a run's evaluations after so many rounds into ones that verified nothing."""
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row["event"] == "evaluation" and row["round"] in rounds:
            row |= {key: None for key in row if key.startswith("pass@")} | {"unverified": 8}
    path.write_text(lines(rows))
    return folder


def test_evaluations_without_a_verdict_are_not_said_to_be_missing(
    make_run: MakeRun, tmp_path: Path
) -> None:
    page = report(tmp_path, without_verdicts(make_run(), rounds=(0, 4)))
    assert "No evaluation was recorded" not in page.text
    # two evaluations of two policies
    assert "No response of the evaluations has a verdict (32 were not verified" in page.text
    page = report(tmp_path, without_verdicts(make_run("half"), rounds=(4,)))
    assert "No response of the last evaluation has a verdict" in page.text
    # nor where one of two seeds lacks the rounds of the other
    other = make_run("other", seed=1, rounds_done=3)
    for name in ("metrics.jsonl", "samples.jsonl"):
        for old, new in (("0", "1"), ("4", "3")):
            path = other / name
            path.write_text(
                "".join(
                    line.replace(f'"round": {old}', f'"round": {new}')
                    if '"event": "round"' not in line
                    else line
                    for line in path.read_text().splitlines(keepends=True)
                )
            )
    page = report(tmp_path, make_run("first"), other)
    assert "No evaluation was recorded at a round that the seeds have in common" in page.text


def test_a_run_is_named_by_the_rules_that_its_policies_learn_by(make_run: MakeRun) -> None:
    folder = make_run()
    run = config.load(folder / "config.yaml").model_dump(mode="json")
    rules = ({"kind": "grpo"}, {"kind": "prp", "cap": 2.0})
    for policy, rule in zip(run["policies"], rules, strict=True):
        policy["probe"] = rule
    (folder / "config.yaml").write_text(config.dump(config.parse(run)), encoding="utf-8")
    (group,) = cohorts([load_run(folder)])
    assert group.label == "grpo (chars), prp(cap=2) (bpe)"
    run["policies"][0]["probe"] = rules[1]
    (folder / "config.yaml").write_text(config.dump(config.parse(run)), encoding="utf-8")
    (group,) = cohorts([load_run(folder)])
    assert group.label == "prp(cap=2)"


def started(folder: Path) -> Path:
    """Turn a run's folder into that of a run without a single row."""
    (folder / "metrics.jsonl").write_text("")
    (folder / "timing.jsonl").unlink()
    (folder / "samples.jsonl").unlink()
    return folder


def test_a_run_that_has_only_started_gives_a_page(make_run: MakeRun, tmp_path: Path) -> None:
    page = report(tmp_path, started(make_run(status="running", rounds_done=0)))
    assert "Still running or killed" in page.text
    assert "No round and no evaluation was recorded" in page.text


def test_a_torn_last_line_is_said_on_the_page(make_run: MakeRun, tmp_path: Path) -> None:
    folder = started(make_run())
    (folder / "metrics.jsonl").write_text('{"event": "round", "rou')
    assert "metrics.jsonl (line 1) is torn" in report(tmp_path, folder).text


@pytest.mark.parametrize("name", ["metrics.jsonl", "timing.jsonl", "samples.jsonl"])
def test_a_torn_last_line_is_left_out(make_run: MakeRun, name: str) -> None:
    folder = make_run()
    whole = load_run(folder)
    with (folder / name).open("a") as stream:
        stream.write('{"event": "round", "rou')
    torn = load_run(folder)
    assert len(torn.notes) == 1
    assert torn.samples == whole.samples
    pd.testing.assert_frame_equal(torn.rounds, whole.rounds)
    pd.testing.assert_frame_equal(torn.timing, whole.timing)


def rewrite(path: Path, old: str, new: str) -> None:
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new))


@pytest.mark.parametrize("name", ["metrics.jsonl", "timing.jsonl", "samples.jsonl"])
def test_a_damaged_line_is_an_error_that_names_file_and_line(make_run: MakeRun, name: str) -> None:
    folder = make_run()
    rows = (folder / name).read_text().splitlines()
    (folder / name).write_text("\n".join([rows[0], rows[1][:20], *rows[2:], ""]))
    with pytest.raises(InputError, match=rf"{name}, line 2: not valid JSON"):
        load_run(folder)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("metrics.jsonl", '"dead_share": 0.5', '"dead_share": ""', "line 1: 'dead_share': got ''"),
        ("metrics.jsonl", '"round": 0', '"round": -1', "line 1: 'round': got -1; expected a whole"),
        ("metrics.jsonl", '"event": "round"', '"kind": "round"', "line 1: 'event': got nothing"),
        ("metrics.jsonl", '"round": 1', '"round": 0', "line 3: a second row .* line 1"),
        ("timing.jsonl", '"phases": {', '"phases": [], "x": {', r"line 1: 'phases': got \[\]"),
        ("samples.jsonl", '"rewards": [', '"rewards": [0, ', "line 1: got 2 responses and 3"),
        ("samples.jsonl", '"p1"', '"p0"', r"line 2: a second row"),
        ("run.json", '"finished"', '"done"', r"'status': got 'done'; expected one of"),
        ("run.json", '"rounds_done": 4', '"rounds_done": ', r"run.json, line 1: not valid JSON"),
        ("config.yaml", "seed: 0", "seeds: 0", r"config.yaml is not right"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_an_error_that_names_it(
    make_run: MakeRun, name: str, old: str, new: str, message: str
) -> None:
    folder = make_run()
    rewrite(folder / name, old, new)
    with pytest.raises(InputError, match=message):
        load_run(folder)


@pytest.mark.parametrize(
    "name", ["config.yaml", "run.json", "metrics.jsonl", "timing.jsonl", "samples.jsonl"]
)
def test_a_missing_file_is_an_error_that_names_it(make_run: MakeRun, name: str) -> None:
    folder = make_run()
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"cannot read .*{name}"):
        load_run(folder)


def test_unknown_events_are_counted_and_not_shown(make_run: MakeRun) -> None:
    folder = make_run()
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"event": "weather"}\n{"event": "weather"}\n')
    assert "2 rows of the unknown event 'weather'" in load_run(folder).notes[0]


def test_no_folder_no_run_and_no_place_to_write_are_input_errors(
    make_run: MakeRun, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="got no run"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(InputError, match="is no folder"):
        write_report([tmp_path / "nowhere"], tmp_path / "report.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        write_report([started(make_run())], tmp_path / "file" / "report.html")


def test_a_page_is_a_function_of_the_files(
    make_run: MakeRun, tmp_path: Path, finished_page: Page
) -> None:
    again = report(tmp_path, make_run(certificate=CERTIFICATE))
    assert again.source == finished_page.source
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]


@pytest.fixture
def three_cohorts(make_run: MakeRun) -> list[Path]:
    finals = {("sgt", 0): 0.8, ("sgt", 1): 0.9, ("grpo", 0): 0.3, ("grpo", 1): 0.3}
    folders = [
        make_run(f"{kind}-{seed}", probe={"kind": kind}, seed=seed, final=final, tags=(None,))
        for (kind, seed), final in finals.items()
    ]
    folders.append(make_run("heavy", probe={"kind": "sgt", "weight": 0.5}, final=0.7, tags=(None,)))
    return folders


def test_runs_are_grouped_by_everything_but_the_seed(three_cohorts: list[Path]) -> None:
    groups = cohorts([load_run(path) for path in three_cohorts])
    assert [(group.label, group.seeds) for group in groups] == [
        ("sgt", (0, 1)),
        ("grpo", (0, 1)),
        ("sgt(weight=0.5)", (0,)),
    ]
    table = settings_table(groups)
    assert list(table.index[table["differs"]]) == ["probe.kind", "probe.weight"]
    assert list(table.index[:2]) == ["probe.kind", "probe.weight"]


def test_the_same_settings_and_seed_twice_are_an_input_error(make_run: MakeRun) -> None:
    folders = [make_run("first"), make_run("second")]
    with pytest.raises(InputError, match=r"first and .*second have the same settings"):
        cohorts([load_run(path) for path in folders])


def test_the_comparison_states_interval_and_method(
    three_cohorts: list[Path], tmp_path: Path
) -> None:
    page = report(tmp_path, *three_cohorts)
    # Two seeds, 0.8 and 0.9: t(0.975, 1) = 12.706 times 0.05, cut to [0, 1].
    assert (
        "chars all items pass@1 sgt 0.200 0.850 [0.215, 1.000] +0.650 0 → 4 2 Student t over seeds"
        in page.text
    )
    assert (
        "pass@1 sgt(weight=0.5) 0.200 0.700 [0.650, 0.750] +0.500 0 → 4 1 bootstrap over items"
        in page.text
    )
    assert "5 runs compared" in page.text


def test_interval_over_seeds_is_students() -> None:
    frame = pd.DataFrame({"arm": ["a"] * 3 + ["b"], "value": [1.0, 2.0, 3.0, 5.0]})
    result = over_seeds(frame, ["arm"]).set_index("arm")
    # t(0.975, 2) = 4.302653; standard error 1 / sqrt(3).
    assert result.loc["a", "high"] == pytest.approx(2 + 4.302653 / np.sqrt(3), rel=1e-6)
    assert result.loc["a", "seeds"] == 3
    assert np.isnan(result.loc["b", "high"])
    assert result.loc["b", "method"] == "none"


def test_a_comparison_uses_rounds_that_all_seeds_have(make_run: MakeRun) -> None:
    long = make_run("long", seed=0, rounds=6, final=0.9)
    short = make_run("short", seed=1, rounds=6, rounds_done=4)
    for name in ("metrics.jsonl", "samples.jsonl"):
        rewrite(short / name, '"round": 6', '"round": 4')
    with (long / "metrics.jsonl").open("a") as stream:
        rows = [evaluation_row(4, p, tag, 0.6) for p in POLICIES for tag in TAGS]
        stream.write(lines(rows))
    (group,) = cohorts([load_run(long), load_run(short)])
    table = tables.comparison([group])
    assert set(table["last"]) == {4}
    assert table.loc[table["k"] == 1, "value"].to_numpy() == pytest.approx(0.7)


def one(path: Path) -> tuple[Run, list[Cohort]]:
    run = load_run(path)
    return run, list(cohorts([run]))


def test_rescued_prompts_are_those_unsolved_before_and_solved_after(make_run: MakeRun) -> None:
    run, groups = one(make_run())
    rescued = [c.before for c in changes(run) if c.rescued]
    assert [(s.policy, s.prompt_id) for s in rescued] == [("chars", "p3")]
    row = transitions(groups).set_index(["policy", "tag"]).loc[("chars", "reversal")]
    assert row[["prompts", "unsolved", "rescued", "from_peer", "solved", "lost"]].tolist() == [
        2, 2, 1, 1, 0, 0,
    ]  # fmt: skip


def test_a_prompt_never_verified_is_neither_unsolved_nor_rescued(make_run: MakeRun) -> None:
    folder = make_run()
    rewrite(folder / "samples.jsonl", '"rewards": [0.0, null]', '"rewards": [null, null]')
    run, groups = one(folder)
    assert not any(change.rescued for change in changes(run))
    assert transitions(groups)["unsolved"].sum() == 0


def test_phase_shares_add_up_to_a_round(make_run: MakeRun) -> None:
    _, groups = one(make_run())
    times = tables.phase_times(groups)
    assert times["share"].sum() == pytest.approx(1)
    assert times["seconds"].sum() == pytest.approx(10)
    assert times.set_index("phase").loc["publish", "share"] == pytest.approx(0.05)


def test_sharing_volume_is_a_mean_over_rounds(make_run: MakeRun) -> None:
    folder = make_run()
    content = (folder / "metrics.jsonl").read_text()
    first = '"records_in": {"success": 4}, "bytes_in": {"success": 512}'
    (folder / "metrics.jsonl").write_text(
        content.replace(first, '"records_in": {}, "bytes_in": {}', 2)
    )
    _, groups = one(folder)
    table = tables.sharing_volume(groups)
    assert table["records"].tolist() == [3, 3]
    assert table["bytes"].tolist() == [384, 384]


def test_infinite_values_leave_a_gap_in_a_curve(make_run: MakeRun) -> None:
    _, groups = one(make_run())
    curve = tables.training_curves(groups, "grad_norm")
    assert curve["x"].unique().tolist() == [0, 2, 3]


def test_long_runs_are_drawn_with_a_bounded_number_of_points(make_run: MakeRun) -> None:
    _, groups = one(make_run(rounds=250))
    curve = tables.training_curves(groups, "reward_mean")
    assert tables.window(groups) == 3
    assert len(curve) == 2 * 84


CURVES = pd.DataFrame(
    {
        "facet": ["a"] * 4,
        "series": ["_x", "_x", "$y", "$y"],
        "x": [0, 1, 0, 1],
        "value": [0.1, 0.2, 0.3, 0.4],
        "low": [0.0, 0.1, np.nan, np.nan],
        "high": [0.2, 0.3, np.nan, np.nan],
    }
)


def test_series_differ_in_colour_marker_and_line() -> None:
    figure = figures.curves(CURVES, ylabel="reward")
    drawn = [line for line in figure.axes[0].lines if len(line.get_xdata())]
    assert len(drawn) == 2
    for look in ("get_color", "get_marker", "get_linestyle"):
        assert len({getattr(line, look)() for line in drawn}) == 2
    assert [label.get_text() for label in figure.legends[0].get_texts()] == ["_x", "$y"]
    assert figure.axes[0].get_xlabel() == "rounds completed"
    assert figure.axes[0].get_ylabel() == "reward"


def test_figures_leave_matplotlib_as_it_was() -> None:
    import matplotlib as mpl
    from matplotlib import pyplot

    before = dict(mpl.rcParams)
    figures.to_data_uri(figures.curves(CURVES, ylabel="reward"))
    assert dict(mpl.rcParams) == before
    assert pyplot.get_fignums() == []


def test_labels_in_any_script_stay_text_in_the_image() -> None:
    frame = CURVES.assign(series=["回転", "回転", "$a_b", "$a_b"])
    uri = figures.to_data_uri(figures.curves(frame, ylabel="reward"))
    drawn = image(uri)
    assert "回転" in drawn.text
    assert "$a_b" in drawn.text
