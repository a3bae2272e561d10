"""Who sent what to whom: what a run's folder says of it, on the screen and in files."""

import pandas as pd
import pytest

from mrl.cli import main
from mrl.errors import InputError
from mrl.exchange import GroupStats, MemoryExchange, RolloutRecord, SQLiteExchange
from mrl.exchange.inspection import inspection_of
from mrl.exchange.plots import sharing
from mrl.exchange.replay import ReplayExchange


def rollout(policy, version=0, index=0):
    return RolloutRecord(
        "p", policy, version, index, b"text", [1, 2], [-0.1, -0.2], True, 1.0, "eos", "f"
    )


SIZE = len(rollout("a").encode())


def play(exchange):
    """Two rounds of two policies, and a stranger's bytes."""
    for round in range(2):
        exchange.publish([rollout(policy, round, i) for policy in "ab" for i in range(3)])
        exchange.publish([GroupStats("p", "a", round, 1, 1.0, 0.0, 1.0, 1.0)])
        exchange.collect("a", ["p"], {"rollout"}, 2, round=round)
        exchange.collect("b", ["p"], {"rollout", "group_stats"}, round=round)
    exchange.publish_encoded([b"junk"] * 3)
    exchange.publish([RolloutRecord("p", "b", 0, 0, b"x", [], [], True, 1.0, "eos", "f")])


@pytest.fixture(params=["sqlite", "memory", "replay"])
def folder(request, tmp_path):
    path = tmp_path / "run"
    checkpoint = path / "checkpoints" / "round-000002"
    checkpoint.mkdir(parents=True)
    (path / "config.yaml").write_text("name: run\n", encoding="utf-8")
    if request.param == "sqlite":
        with SQLiteExchange(path / "exchange.sqlite") as exchange:
            play(exchange)
        return path
    with SQLiteExchange(tmp_path / "stored.sqlite"):
        pass
    memory = MemoryExchange()
    replay = request.param == "replay"
    with ReplayExchange(memory, tmp_path / "stored.sqlite", []) if replay else memory as exchange:
        play(exchange)
        (checkpoint / "exchange.bin").write_bytes(exchange.snapshot())
    return path


def test_counts_are_those_of_the_exchange_wherever_it_was(folder):
    found = inspection_of(folder)
    rows = found.traffic.set_index(["round", "source", "receiver", "kind"])
    assert rows["records"].loc[0].to_dict() == {
        ("a", "", "group_stats"): 1,
        ("a", "", "rollout"): 3,
        ("a", "b", "group_stats"): 1,
        ("a", "b", "rollout"): 3,
        ("b", "", "rollout"): 3,
        ("b", "a", "rollout"): 2,
    }
    assert rows["bytes"].loc[1, "b", "a", "rollout"] == 2 * SIZE
    assert found.refused.to_numpy().tolist() == [["", "truncated", 3], ["b", "conflict", 1]]


def test_the_command_shows_sums_and_writes_tables_and_picture(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        main(["exchange", "inspect", str(folder)])
    assert end.value.code == 0
    lines = [line.split("│") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert ["b", "a", "rollout", "2", "4", f"{4 * SIZE:,}", f"{2 * SIZE:,}"] in cells
    assert ["(unknown)", "truncated", "3"] in cells
    written = folder / "exchange"
    assert len(pd.read_csv(written / "traffic.csv", keep_default_na=False)) == 12
    assert pd.read_csv(written / "refused.csv", keep_default_na=False)["records"].sum() == 4
    assert (written / "sharing.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_shows_each_pair_in_its_place():
    rows = [("a", "b", 3, 300), ("a", "b", 1, 100), ("c", "a", 2, 50)]
    figure = sharing(pd.DataFrame(rows, columns=["source", "receiver", "records", "bytes"]))
    records, size = figure.axes
    assert records.images[0].get_array().filled(0).tolist() == [[0, 4, 0], [0, 0, 0], [2, 0, 0]]
    assert size.images[0].get_array().filled(0).tolist() == [[0, 400, 0], [0, 0, 0], [50, 0, 0]]
    assert sorted(text.get_text() for text in size.texts) == ["400", "50"]


def test_nothing_delivered_is_no_picture(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("name: run\n", encoding="utf-8")
    with SQLiteExchange(tmp_path / "exchange.sqlite") as exchange:
        exchange.publish([rollout("a")])
    with pytest.raises(SystemExit) as end:
        main(["exchange", "inspect", str(tmp_path), "-o", str(tmp_path / "out")])
    assert end.value.code == 0
    assert "nothing was refused" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "refused.csv",
        "traffic.csv",
    ]


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(InputError, match="holds no run"):
        inspection_of(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "config.yaml").write_text("name: run\n", encoding="utf-8")
    (tmp_path / "exchange.sqlite").write_text("not a database, " * 100)
    with pytest.raises(InputError, match="not a database"):
        inspection_of(tmp_path)


def test_a_damaged_checkpoint_is_named(tmp_path):
    (tmp_path / "config.yaml").write_text("name: run\n", encoding="utf-8")
    checkpoint = tmp_path / "checkpoints" / "round-000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "exchange.bin").write_bytes(b"\xc1")
    with pytest.raises(InputError, match="snapshot"):
        inspection_of(tmp_path)
