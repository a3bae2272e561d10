"""Publish and collect: the rules by which experience moves between policies.

The rules of delivery, the same for every exchange:

- a receiver gets records of other policies only, on the prompts and of the kinds it asks for;
- of each peer and prompt it gets the newest version within its staleness bound, and nothing of
  an older one;
- a limit opens the first positions of a peer's group, by index and never by reward;
- the order is that of the prompts asked for, then policy id, then index: it does not depend on
  the order of publishing;
- a record is delivered to a receiver at most once a round.

What `mrl.exchange.admission.Admission` does not let in is refused and counted, and changes nothing
else.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Protocol, Self

from mrl.exchange.records import Record
from mrl.exchange.request import Limit
from mrl.exchange.traffic import Refusals, TrafficRow


class Exchange(Protocol):
    """Where policies publish what they experienced and collect what their peers did.

    On resume a trainer calls ``restore(snapshot)`` with the checkpoint's snapshot and then
    ``rollback(round)`` with the round it is about to run, whichever exchange it uses.
    """

    def publish(self, records: Iterable[Record], /) -> int:
        """Store records and return how many were new; when it returns they are kept.

        A record that is already there is left alone. A different one with the same key is refused
        (the first wins) and counted as ``conflict``; one older than the last `drop_before` as
        ``expired``; the others by the reasons of `Admission`.
        """
        ...

    def publish_encoded(self, encoded: Iterable[bytes], /, *, sender: str | None = None) -> int:
        """Decode and store what a peer sent; what cannot be stored is refused and counted.

        Parameters
        ----------
        encoded : iterable of bytes
            Encoded records, or anything else.
        sender : str, optional
            The policy that the transport received them from: records under another policy's name
            are refused (``sender``). Refusals are counted for it.
        """
        ...

    def close_round(self, policy: str, round: int, /) -> None:
        """Say that a policy has published all it will of `round` and the rounds before.

        Latecomers are taken all the same. An unknown policy is refused (``policy``).
        """
        ...

    def wait_round(self, round: int, policies: Iterable[str], timeout: float, /) -> frozenset[str]:
        """Wait until all of `policies` have closed a round, and no longer than `timeout`.

        Parameters
        ----------
        round : int
            The round to be closed.
        policies : iterable of str
            Those that are expected.
        timeout : float
            Seconds; 0 only looks.

        Returns
        -------
        frozenset of str
            Policies that had not closed the round when the time was over: go on without them.

        Raises
        ------
        ValueError
            If an argument is out of range.
        """
        ...

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
        """Return records for a receiver by the rules at the top of this module.

        Parameters
        ----------
        receiver : str
            Policy id of the receiver.
        prompt_ids : iterable of str
            Prompts of its batch.
        needs : set of {"rollout", "group_stats", "success"}
            Kinds of records; a probe's `needs`.
        limit : int or mapping of policy id to int, optional
            Open positions of each peer's group: records with ``index < limit``. A peer that the
            mapping leaves out is not limited.
        max_staleness : int
            Versions from ``round - max_staleness`` to ``round`` are looked at.
        round : int
            The round the receiver is in.

        Returns
        -------
        list of Record
            In order of prompts, policy id, index, kind; empty where nothing is new this round.

        Raises
        ------
        ValueError
            If an argument is out of range.
        """
        ...

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
        """As `collect`, but return the records' bytes: what a transport carries to a receiver.

        They are as they were sent where the record came by `publish_encoded`.
        """
        ...

    def traffic(self, round: int | None = None) -> list[TrafficRow]:
        """Return tidy counts of records and bytes, sorted; of one round, or of all."""
        ...

    def refused(self) -> Refusals:
        """Return how many records were refused so far, by sender and reason.

        The sender is the policy that the transport named, else the one that the record names; it
        is empty for what cannot be decoded and for policies that are not known.
        """
        ...

    def drop_before(self, round: int, /) -> None:
        """Forget versions before `round`; later ones of them are refused as ``expired``."""
        ...

    def rollback(self, round: int, /) -> None:
        """Forget versions, deliveries, closings and traffic of `round` and later.

        Refusals stay counted.
        """
        ...

    def snapshot(self) -> bytes:
        """Return what a checkpoint must carry."""
        ...

    def restore(self, snapshot: bytes, /) -> None:
        """Take up what `snapshot` says, refusals included.

        Raises
        ------
        ExchangeError
            If it is damaged or of another exchange.
        """
        ...

    def close(self) -> None:
        """Let go of files and connections; may be called twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...
