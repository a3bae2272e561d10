"""Where the members of a run are: in this process, or on a cluster; the main loop does not know.

Importable without torch and without Ray.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from mrl.exchange import Exchange
    from mrl.member import Member
    from mrl.tasks import Item, Task

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Team(Protocol):
    """The members of one run; use it as a context manager, which ends them.

    Attributes
    ----------
    names : sequence of str
        The policies, in the order of the configuration.
    exchange : Exchange
        Theirs; there is one after `begin`.
    """

    names: "list[str]"
    exchange: "Exchange"

    def begin(self, task: "Task", folder: Path, /) -> None:
        """Open the exchange, in the run's folder where it is durable, and let all members join."""

    def publish(self, round: int, items: "Sequence[Item]", /) -> None:
        """Call `Member.publish` for each; from ``exchange.barrier_timeout`` on without the late.

        Raises
        ------
        RunError
            As `each`; what a late member raises comes with the next call.
        """

    def each(
        self,
        function: "Callable[Concatenate[Member, Arguments], Result]",
        /,
        *args: Arguments.args,
        **settings: Arguments.kwargs,
    ) -> list[Result]:
        """Call a method of `Member` for each; results in the order of `names`.

        Raises
        ------
        RunError
            What a member raised, or that it is lost.
        """
        ...

    def save(self, folder: Path, /) -> None:
        """Write what each member has learned into ``folder / name``; see `mrl.checkpoint`."""

    def load(self, folder: Path, /) -> None:
        """Put all members back to what `save` wrote."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: Any) -> None: ...
