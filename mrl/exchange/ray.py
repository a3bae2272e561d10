"""The exchange in a Ray actor: one for a run, which all its processes share.

Records travel as the bytes of their own encoding: the actor checks what it is sent, whoever sent
it, and so does the receiver.
"""

import os
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Self

import ray

from mrl.config import RunConfig
from mrl.distributed import once
from mrl.exchange.batches import decode_all
from mrl.exchange.opening import open_exchange
from mrl.exchange.records import Record
from mrl.exchange.request import Limit, checked_records, round_to_wait_for
from mrl.exchange.traffic import Refusals, TrafficRow
from mrl.runtime.waiting import fetch
from mrl.tasks import Task

# Calls that wait for others must not keep those from coming.
CONCURRENT = 16


class ExchangeHolder:
    """The actor's side: the exchange that the configuration asks for."""

    def __init__(self, config: RunConfig, task: Task, folder: Path, home: str, /) -> None:
        os.chdir(home)  # this is the driver's machine
        self._exchange = open_exchange(config, task, folder)

    def call(self, name: str, *args: Any, **settings: Any) -> Any:
        """Call a method of the exchange."""
        return getattr(self._exchange, name)(*args, **settings)


def start(config: RunConfig, task: Task, folder: Path, node: str, /) -> Any:
    """Start the actor on a machine: the driver's, so that a file in the run's folder is local."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor = ray.remote(ExchangeHolder).options(
        num_cpus=0,
        max_concurrency=CONCURRENT,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )
    return actor.remote(config, task, folder, os.getcwd())


class RayExchange:
    """An `Exchange` that is an actor; of several processes of one policy, one calls it.

    Parameters
    ----------
    actor : ActorHandle
        See `start`.
    timeout : float
        Seconds to wait for an answer.
    sender : str, optional
        The policy that this process plays; it can publish under no other name.
    """

    def __init__(self, actor: Any, timeout: float, sender: str | None = None, /) -> None:
        self._actor, self._timeout, self._sender = actor, timeout, sender

    def _fetch(self, call: Any, timeout: float, /) -> Any:
        return fetch([(call, "the exchange")], timeout)[0]

    def _call(self, name: str, *args: Any, **settings: Any) -> Any:
        return once(
            lambda: self._fetch(self._actor.call.remote(name, *args, **settings), self._timeout)
        )

    def publish(self, records: Iterable[Record], /) -> int:
        """See `Exchange.publish`."""
        encoded = [record.encode() for record in checked_records(records)]
        return self.publish_encoded(encoded, sender=self._sender)

    def publish_encoded(self, encoded: Iterable[bytes], /, *, sender: str | None = None) -> int:
        """See `Exchange.publish_encoded`."""
        return int(self._call("publish_encoded", list(encoded), sender=sender))

    def close_round(self, policy: str, round: int, /) -> None:
        """See `Exchange.close_round`."""
        self._call("close_round", policy, round)

    def wait_round(self, round: int, policies: Iterable[str], timeout: float, /) -> frozenset[str]:
        """See `Exchange.wait_round`."""
        round_to_wait_for(round, timeout)
        expected = frozenset(policies)
        absent: frozenset[str] = once(
            lambda: self._fetch(
                self._actor.call.remote("wait_round", round, expected, timeout),
                timeout + self._timeout,
            )
        )
        return absent

    def collect(
        self,
        receiver: str,
        prompt_ids: Iterable[str],
        needs: AbstractSet[str],
        limit: Limit = None,
        max_staleness: int = 0,
        *,
        round: int,
    ) -> list[Record]:
        """See `Exchange.collect`."""
        asked = receiver, prompt_ids, needs, limit, max_staleness
        return decode_all(self.collect_encoded(*asked, round=round))

    def collect_encoded(
        self,
        receiver: str,
        prompt_ids: Iterable[str],
        needs: AbstractSet[str],
        limit: Limit = None,
        max_staleness: int = 0,
        *,
        round: int,
    ) -> list[bytes]:
        """See `Exchange.collect_encoded`."""
        asked = receiver, list(prompt_ids), frozenset(needs), limit, max_staleness
        encoded: list[bytes] = self._call("collect_encoded", *asked, round=round)
        return encoded

    def traffic(self, round: int | None = None) -> list[TrafficRow]:
        """See `Exchange.traffic`."""
        rows: list[TrafficRow] = self._call("traffic", round)
        return rows

    def refused(self) -> Refusals:
        """See `Exchange.refused`."""
        found: Refusals = self._call("refused")
        return found

    def drop_before(self, round: int, /) -> None:
        """See `Exchange.drop_before`."""
        self._call("drop_before", round)

    def rollback(self, round: int, /) -> None:
        """See `Exchange.rollback`."""
        self._call("rollback", round)

    def snapshot(self) -> bytes:
        """See `Exchange.snapshot`."""
        return bytes(self._call("snapshot"))

    def restore(self, snapshot: bytes, /) -> None:
        """See `Exchange.restore`."""
        self._call("restore", snapshot)

    def close(self) -> None:
        """Close the exchange in the actor; those who hold the actor end it."""
        self._call("close")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
