"""Whether the hub is asked: folders and a hub that does not answer need no long wait."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from mrl.config import DatasetTask, PolicyConfig
from mrl.errors import InputError
from mrl.hub import local_only
from mrl.models import load_tokenizer
from mrl.tasks import load_task
from mrl.tokens.sources import encoder_of

constants = pytest.importorskip("huggingface_hub.constants")


class NotFound(BaseHTTPRequestHandler):
    """Answers, and has nothing."""

    def do_HEAD(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Keep the tests' output as it is."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HTTPServer]:
    """A hub of this process."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with HTTPServer(("127.0.0.1", 0), NotFound) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def no_hub(hub: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address where nobody answers: a port that is not free, and closed."""
    hub.shutdown()
    hub.socket.close()


def test_a_hub_that_answers_is_asked(hub):
    assert not local_only("somebody/something")


def test_a_folder_needs_no_hub(hub, tmp_path):
    assert local_only(str(tmp_path))


def test_the_users_word_that_there_is_no_network_is_kept(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert local_only("somebody/something")


def test_without_an_answer_only_this_machine_is_searched(no_hub):
    assert local_only("somebody/something")


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting before another attempt is a failure."""
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("waited for the hub"))


def test_an_unknown_tokenizer_is_an_error_at_once(no_hub, no_pause):
    with pytest.raises(InputError, match="'somebody/something'.*expected a folder"):
        encoder_of("somebody/something")


def test_an_unknown_model_is_an_error_at_once(no_hub, no_pause):
    model = {"kind": "pretrained", "path": "somebody/something"}
    config = PolicyConfig.model_validate({"name": "a", "model": model})
    with pytest.raises(InputError, match=r"'somebody/something'.*one of \['smollm2'\]"):
        load_tokenizer(config)


def test_an_unknown_data_set_is_an_error_at_once_and_says_the_ways_out(no_hub, no_pause, capfd):
    datasets = pytest.importorskip("datasets")
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    with pytest.raises(InputError) as caught:
        load_task(DatasetTask(kind="dataset", path="somebody/something"), 0)
    for words in ("'somebody/something'", "the hub cannot be asked", "HF_HOME", ".parquet"):
        assert words in str(caught.value)
    assert "Retrying" not in "".join(capfd.readouterr())
    assert before == (constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE)


def test_a_local_file_of_another_type_is_not_looked_for_on_the_hub(no_hub, tmp_path):
    pytest.importorskip("datasets")
    path = tmp_path / "sums.txt"
    path.write_text("1+1=2\n")
    with pytest.raises(InputError, match=r"sums.txt is a local file of a type that is not read"):
        load_task(DatasetTask(kind="dataset", path=str(path)), 0)
