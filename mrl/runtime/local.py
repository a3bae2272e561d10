"""All members in one process, in turns."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from mrl.checkpoint import read_policy, write_policy
from mrl.config import RunConfig
from mrl.exchange import Exchange
from mrl.exchange.opening import open_exchange
from mrl.member import Member
from mrl.policy import Policy, engines
from mrl.replay import known_codecs
from mrl.tasks import Item, Task

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class LocalTeam:
    """A `Team` within this process.

    With a launcher's several processes each has the whole team; see `mrl.distributed`.

    Parameters
    ----------
    config : RunConfig
        The whole run, as `mrl.replay.resolve` leaves it.
    policies : sequence of Policy
        Its policies, or the first of them.
    """

    exchange: Exchange

    def __init__(self, config: RunConfig, policies: Sequence[Policy], /) -> None:
        self.config = config
        self.members = [Member(policy, config) for policy in policies]
        self.names = [policy.name for policy in policies]
        self._stack = ExitStack()
        self._stack.enter_context(engines(policies))

    def begin(self, task: Task, folder: Path, /) -> None:
        """See `Team.begin`."""
        self.join(task, self._stack.enter_context(open_exchange(self.config, task, folder)))

    def join(self, task: Task, exchange: Exchange, /) -> None:
        """Let all members join a run with an exchange that the caller closes."""
        self.exchange = exchange
        codecs = known_codecs([member.policy for member in self.members], exchange)
        for member in self.members:
            member.join(task, exchange, codecs)

    def publish(self, round: int, items: Sequence[Item], /) -> None:
        """See `Team.publish`; none is late where all take turns."""
        self.each(Member.publish, round, items)

    def each(
        self,
        function: Callable[Concatenate[Member, Arguments], Result],
        /,
        *args: Arguments.args,
        **settings: Arguments.kwargs,
    ) -> list[Result]:
        """See `Team.each`."""
        return [function(member, *args, **settings) for member in self.members]

    def save(self, folder: Path, /) -> None:
        """See `Team.save`."""
        for member in self.members:
            write_policy(folder / member.policy.name, member.policy)

    def load(self, folder: Path, /) -> None:
        """See `Team.load`."""
        for member in self.members:
            read_policy(folder / member.policy.name, member.policy)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()
