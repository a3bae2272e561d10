"""The Ray cluster of a run: joined where one runs, else started on this machine."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from mrl.errors import RunError

# Seconds in which a cluster must answer.
REACHED = 10.0


@contextmanager
def connected(address: str | None, /) -> Iterator[None]:
    """Join a cluster, or start one here, and leave or end it; one that was joined before stays.

    Raises
    ------
    RunError
        If there is none at the address, or none starts.
    """
    if ray.is_initialized():
        yield
        return
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    settings: dict[str, Any] = {} if address else {"include_dashboard": False}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address is None:
        # A signal to all processes of a job ends Ray's first, and then the driver waits for them.
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "10")
    else:
        _knock(address)
    try:
        ray.init(
            address=address or "local",
            configure_logging=True,
            logging_level=logging.ERROR,
            log_to_driver=False,
            **settings,
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise _unreachable(address, error) from None
    try:
        if main:  # Ray has put its own there
            signal.signal(signal.SIGTERM, handler)
        yield
    finally:
        ray.shutdown()


def _knock(address: str, /) -> None:
    """Fail at once where nobody listens: Ray itself tries again for minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()) or "/" in address:
        return
    try:
        socket.create_connection((host, int(port)), timeout=REACHED).close()
    except OSError as error:
        raise _unreachable(address, error) from None


def _unreachable(address: str | None, error: Exception, /) -> RunError:
    where = f"no Ray cluster answers at {address!r}" if address else "Ray does not start here"
    return RunError(f"{where}: {error}; start one with: ray start --head")
