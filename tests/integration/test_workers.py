import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from mrl.demo.jobs import Job, Workers

HERE = Path(__file__).parent


def double(path: Path, number: int, report) -> None:
    """Write twice the number into a file."""
    path.write_text(str(2 * number))
    report(1)


def fail(report) -> None:
    """Fail with a message."""
    raise ValueError("no such luck")


def note_and_sleep(path: Path, report) -> None:
    """Write this process's id, then stay."""
    path.write_text(str(os.getpid()))
    time.sleep(600)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.slow
def test_jobs_run_and_the_first_error_comes_out(tmp_path):
    with Workers(Console(quiet=True)) as workers:
        jobs = [Job(str(n), 1, double, (tmp_path / str(n), n)) for n in range(3)]
        workers.run(jobs, title="double")
        assert [(tmp_path / str(n)).read_text() for n in range(3)] == ["0", "2", "4"]
        with pytest.raises(ValueError, match="no such luck"):
            workers.run([Job("bad", 1, fail, ())], title="fail")


@pytest.mark.slow
def test_workers_end_when_the_process_that_started_them_is_killed(tmp_path):
    note = tmp_path / "pid"
    script = tmp_path / "start.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "from pathlib import Path\n"
        "from rich.console import Console\n"
        "import test_workers as t\n"
        "if __name__ == '__main__':\n"
        "    with t.Workers(Console(quiet=True)) as workers:\n"
        f"        job = t.Job('stay', 1, t.note_and_sleep, (Path({str(note)!r}),))\n"
        "        workers.run([job], title='stay')\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)])
    deadline = time.monotonic() + 240
    while not (note.exists() and note.read_text()):
        assert parent.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    worker = int(note.read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while alive(worker):
        assert time.monotonic() < deadline
        time.sleep(0.2)
