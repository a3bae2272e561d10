"""What an exchange lets in: known policies and prompts, each under its own name, within bounds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mrl.exchange.records import Record

UNKNOWN = ""
"""Stands in counts for a sender that is not known: its name is a stranger's text."""


@dataclass(frozen=True)
class Admission:
    """Bounds on what policies may publish; by default everything valid is let in.

    With all of them an exchange holds at most ``quota * (ahead + 1)`` records of a policy, whatever
    it sends.

    Parameters
    ----------
    policies : frozenset of str, optional
        Policies that may publish; records of others are refused (``policy``).
    prompts : frozenset of str, optional
        Prompts that there are; records on others are refused (``prompt``).
    quota : int or mapping of str to int, optional
        Records of one version, which is one round, that a policy may have in the exchange; more
        are refused (``quota``). A policy that a mapping leaves out has no quota.
    ahead : int, optional
        Versions later than the last `drop_before` by more than this are refused (``future``).
    """

    policies: frozenset[str] | None = None
    prompts: frozenset[str] | None = None
    quota: int | Mapping[str, int] | None = None
    ahead: int | None = None

    def refusal(self, record: Record, sender: str | None, floor: int, /) -> str | None:
        """Return why a record is not let in, or None if it is.

        Parameters
        ----------
        record : Record
            What was sent.
        sender : str or None
            Who sent it, where the transport knows; none may publish under another's name.
        floor : int
            Oldest version that is still taken.
        """
        if not self.knows(record.policy_id):
            return "policy"
        if sender is not None and record.policy_id != sender:
            return "sender"
        if self.prompts is not None and record.prompt_id not in self.prompts:
            return "prompt"
        if record.version < floor:
            return "expired"
        if self.ahead is not None and record.version > floor + self.ahead:
            return "future"
        return None

    def quota_of(self, policy: str, /) -> float:
        """Return how many records a version a policy may have; inf without a quota."""
        if self.quota is None:
            return math.inf
        if isinstance(self.quota, Mapping):
            return self.quota.get(policy, math.inf)
        return self.quota

    def knows(self, policy: str, /) -> bool:
        """Return whether a policy may publish."""
        return self.policies is None or policy in self.policies

    def counted_for(self, sender: str | None, /) -> str:
        """Return for whom a refusal is counted: `UNKNOWN` for a sender that is not known."""
        return sender if sender is not None and self.knows(sender) else UNKNOWN


OPEN = Admission()
