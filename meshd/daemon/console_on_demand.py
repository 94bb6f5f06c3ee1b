"""The page of the mesh before anybody has opened it: its modules are imported when somebody does."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

from meshd.base.tasks import in_thread

if TYPE_CHECKING:
    from meshd.config.tree import Config
    from meshd.daemon.console import ConsoleAnswers
    from meshd.daemon.control import DaemonControl
    from meshd.daemon.member_node import MemberNode
    from meshd.daemon.role_kind import BuiltRole
    from meshd.gateway.server import Gateway
    from meshd.gateway.work import GatewayWork


class ConsoleOnDemand:
    """Implements ConsoleSource of gateway/interface.py by what `make` returns, from the first call on."""

    def __init__(self, make: "Callable[[], ConsoleAnswers]") -> None:
        self._make = make
        self._made: ConsoleAnswers | None = None

    async def watch(self) -> AsyncGenerator[Mapping[str, object], None]:
        """Watch the state, as ConsoleSource does."""
        async with aclosing((await self._source()).watch()) as states:
            async for state in states:
                yield state

    async def act(self, name: str, fields: Mapping[str, object]) -> Mapping[str, object]:
        """Act as ConsoleSource does. Raises MeshdError."""
        return await (await self._source()).act(name, fields)

    async def _source(self) -> "ConsoleAnswers":
        if self._made is None:
            await in_thread(_import_console)
        if self._made is None:  # another one waited for the same
            self._made = self._make()
        return self._made


def _import_console() -> None:
    """Import what the page needs, which may take long, so call this in a thread."""
    import meshd.daemon.console
    import meshd.daemon.console_models  # noqa: F401 - imported for the code that makes a source


def console_of(
    control: "DaemonControl",
    member: "MemberNode",
    config: "Config",
    *,
    built: "Callable[[], BuiltRole]",
    gateway: "Callable[[], Gateway | None]",
) -> ConsoleOnDemand:
    """Return the source of the page of one daemon; it runs in the role that `built` returns."""

    def make() -> "ConsoleAnswers":
        from meshd.daemon.console import ConsoleAnswers
        from meshd.daemon.console_actions import Abilities, ConsoleActions
        from meshd.daemon.console_models import ModelActions

        def abilities() -> Abilities:
            role = built()
            return Abilities(
                invites=bool(member.authority.gives),
                is_founder=member.membership.is_founder,
                lends=role.pause is not None,
                serves=role.explain is not None,
            )

        models = ModelActions(control, config, lambda: built().pool)
        log = config.paths.logs / "meshd.log"
        actions = ConsoleActions(control, abilities, log=log, more=models.acts)

        def work() -> "GatewayWork | None":
            return now.work if (now := gateway()) is not None else None

        return ConsoleAnswers(control, actions, work=work)

    return ConsoleOnDemand(make)
