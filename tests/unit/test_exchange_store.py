"""The durable exchange: what was acknowledged is kept, and a bad file is said to be one."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from mrl.exchange import ExchangeError, MemoryExchange, RolloutRecord, SQLiteExchange


def rollout(version=0, index=0, text=b"text"):
    return RolloutRecord("p", "b", version, index, text, [1], [-0.1], True, 1.0, "eos", "f")


def collect(exchange, round=0, **options):
    return exchange.collect("a", ["p"], {"rollout"}, round=round, **options)


def test_reopening_finds_records_deliveries_and_counts(tmp_path):
    path = tmp_path / "exchange.db"
    with SQLiteExchange(path) as exchange:
        exchange.publish([rollout(index=0), rollout(index=0, text=b"other")])
        assert len(collect(exchange)) == 1
        exchange.publish([rollout(index=1)])
        traffic = exchange.traffic()
    with SQLiteExchange(path) as exchange:
        assert exchange.traffic() == traffic
        assert exchange.refused() == {"b": {"conflict": 1}}
        assert collect(exchange) == [rollout(index=1)]
        assert exchange.publish([rollout(index=1)]) == 0


KILLED = """
import os, sys
from mrl.exchange import RolloutRecord, SQLiteExchange
exchange = SQLiteExchange(sys.argv[1])
for index in range(40):
    exchange.publish(
        [RolloutRecord("p", "b", 0, index, b"text", [1], [-0.1], True, 1.0, "eos", "f")]
    )
    if index == 19:
        exchange.collect("a", ["p"], {"rollout"}, round=0)
os._exit(7)
"""


def test_a_killed_process_loses_nothing_acknowledged(tmp_path):
    path = tmp_path / "exchange.db"
    process = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert process.returncode == 7
    with SQLiteExchange(path) as exchange:
        assert [record.index for record in collect(exchange)] == list(range(20, 40))
        assert len(collect(exchange, round=1, max_staleness=1)) == 40


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_or_delivered_twice_at_random_kill_points():
    script = Path(__file__).parents[1] / "kill_exchange.py"
    # a process of its own: it forks, which one with threads must not
    done = subprocess.run(
        [sys.executable, script, "--kills", "60"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "deliveries" in done.stdout


def test_two_processes_worth_of_connections_share_one_file(tmp_path):
    path = tmp_path / "exchange.db"
    with SQLiteExchange(path) as one, SQLiteExchange(path) as two:
        one.publish([rollout()])
        assert collect(two) == [rollout()]
        assert collect(one) == []


def test_kept_history_is_hidden_but_stays_in_the_file(tmp_path):
    path = tmp_path / "exchange.db"
    with SQLiteExchange(path, keep_history=True) as exchange:
        exchange.publish([rollout(version=0)])
        snapshot = exchange.snapshot()
        exchange.drop_before(1)
        assert collect(exchange, round=1, max_staleness=1) == []
        exchange.restore(snapshot)
        exchange.rollback(1)
        assert collect(exchange, round=1, max_staleness=1) == [rollout(version=0)]


def test_without_history_the_file_lets_go_of_dropped_records(tmp_path):
    with SQLiteExchange(tmp_path / "exchange.db") as exchange:
        exchange.publish([rollout(version=0)])
        snapshot = exchange.snapshot()
        exchange.drop_before(1)
        exchange.restore(snapshot)
        assert collect(exchange, round=1, max_staleness=1) == []
        assert exchange.publish([rollout(version=0)]) == 0


def test_a_file_older_than_the_checkpoint_is_refused(tmp_path):
    path, copy = tmp_path / "exchange.db", tmp_path / "copy.db"
    with SQLiteExchange(path) as exchange:
        exchange.publish([rollout(index=0)])
        with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
            source.backup(target)
        source.close()
        target.close()
        exchange.publish([rollout(index=1)])
        snapshot = exchange.snapshot()
    with SQLiteExchange(copy) as older, pytest.raises(ExchangeError, match="lost records"):
        older.restore(snapshot)


def test_a_missing_folder_gives_a_clear_error(tmp_path):
    path = tmp_path / "missing" / "exchange.db"
    with pytest.raises(ExchangeError, match=r"missing.*expected a folder that exists"):
        SQLiteExchange(path)


def test_a_path_through_a_file_gives_a_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ExchangeError, match="can be written"):
        SQLiteExchange(tmp_path / "file" / "exchange.db")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_gives_a_clear_error(tmp_path):
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o500)
    with pytest.raises(ExchangeError, match="can be written"):
        SQLiteExchange(folder / "exchange.db")


def test_a_file_that_is_no_database_is_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, " * 100)
    with pytest.raises(ExchangeError, match="not a database"):
        SQLiteExchange(path)
    assert path.read_text() == "not a database, " * 100


def test_the_database_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE record (text TEXT)")
    connection.close()
    with pytest.raises(ExchangeError, match="not an exchange"):
        SQLiteExchange(path)


def test_a_damaged_record_in_the_file_is_an_error_and_no_delivery(tmp_path):
    path = tmp_path / "exchange.db"
    with SQLiteExchange(path) as exchange:
        exchange.publish([rollout()])
        connection = sqlite3.connect(path)
        connection.execute("UPDATE record SET encoded = substr(encoded, 1, 20)")
        connection.commit()
        connection.close()
        with pytest.raises(ExchangeError, match="damaged record"):
            collect(exchange)
        with pytest.raises(ExchangeError, match="damaged record"):
            exchange.collect_encoded("a", ["p"], {"rollout"}, round=0)
        assert [row.receiver for row in exchange.traffic()] == [""]


def test_a_failed_publish_stores_nothing_and_the_exchange_goes_on(tmp_path):
    path = tmp_path / "exchange.db"
    with SQLiteExchange(path) as exchange:
        connection = sqlite3.connect(path)
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON record WHEN NEW.position = 1 "
            "BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
        )
        connection.commit()
        with pytest.raises(ExchangeError, match="disk is full"):
            exchange.publish([rollout(index=0), rollout(index=1)])
        assert exchange.traffic() == []
        connection.execute("DROP TRIGGER full")
        connection.commit()
        connection.close()
        assert exchange.publish([rollout(index=0), rollout(index=1)]) == 2


def test_a_closed_exchange_says_so(tmp_path):
    exchange = SQLiteExchange(tmp_path / "exchange.db")
    exchange.close()
    exchange.close()
    with pytest.raises(ExchangeError, match="closed"):
        exchange.publish([rollout()])


def test_a_memory_snapshot_carries_the_whole_exchange():
    with MemoryExchange() as exchange:
        exchange.publish([rollout(index=0), rollout(index=0, text=b"other")])
        collect(exchange)
        exchange.publish([rollout(index=1)])
        exchange.drop_before(0)
        snapshot = exchange.snapshot()
    with MemoryExchange() as other:
        other.restore(snapshot)
        assert other.snapshot() == snapshot
        assert other.refused() == {"b": {"conflict": 1}}
        assert collect(other) == [rollout(index=1)]
