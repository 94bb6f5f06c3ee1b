"""The actions of the page of the mesh: requests of the control socket by their names, and a few of its own.

Whatever the page sends is checked as a stranger's: names by a list, fields by the codec of the requests, and
the size of each value before. So a browser that has been led astray can do no more than the page can.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TypeVar

from meshd.admin.api import PauseRequest
from meshd.admin.request import Json, Request, from_json, to_fields
from meshd.admin.server import decoded
from meshd.base.errors import Refused, RemoteProtocolError, UserError
from meshd.base.files import end_of_log
from meshd.base.tasks import in_thread

R = TypeVar("R")
Act = Callable[[Mapping[str, object]], Awaitable[Mapping[str, Json]]]

MOST_AT_ONCE = 8
MOST_LETTERS = 4096  # of one text, such as a reply code
MOST_ITEMS = 256  # of one list or object
MOST_DEPTH = 4
MOST_NUMBER = 1 << 53  # which JSON of a browser holds exactly
MOST_LINES = 500  # of the log
MOST_LOGS = 32
_LOG_BYTES = 1 << 20
# Requests of the control socket that every node answers.
REQUESTS = frozenset(
    {
        *(
            "ping",
            "invite_list",
            "ban_list",
            "member_models",
            "capacity",
            "fits",
            "netcheck",
            "pull_progress",
        ),
        *("tunnel_list", "expose_list", "revoke", "forget", "accept", "pull", "pull_stop"),
        *("tunnel_open", "tunnel_close", "expose", "expose_remove"),
    }
)
INVITING = frozenset({"invite", "invite_revoke"})  # by nodes that may invite
FOUNDING = frozenset({"unban"})  # by the founder
LENDING = frozenset({"pause", "resume"})  # by workers
SERVING = frozenset({"why"})  # by nodes that serve a model


class Control(Protocol):
    """Answers requests of the control socket (control.py)."""

    async def answer(self, request: Request[R]) -> R: ...


@dataclass(frozen=True, slots=True)
class Abilities:
    """The abilities of this node now."""

    invites: bool = False
    is_founder: bool = False
    lends: bool = False
    serves: bool = False

    @property
    def requests(self) -> frozenset[str]:
        """Return the names of the control socket's requests."""
        found = REQUESTS
        found |= INVITING if self.invites else frozenset()
        found |= FOUNDING if self.is_founder else frozenset()
        found |= LENDING if self.lends else frozenset()
        return found | (SERVING if self.serves else frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsWish:
    """The fields of `logs`. `log`: `meshd` for the daemon's own, or the name of a child process."""

    lines: int = 100
    log: str = "meshd"


class ConsoleActions:
    """The actions of one node's page."""

    def __init__(
        self,
        control: Control,
        abilities: Callable[[], Abilities],
        log: Path,
        more: Callable[[], Mapping[str, Act]] = lambda: MappingProxyType({}),
    ) -> None:
        """Have `control` answer requests. `log`: the daemon's log file.

        `more`: returns further actions by name, which take the page's fields.
        """
        self._control = control
        self._abilities = abilities
        self._log = log
        self._more = more
        self._running = 0

    @property
    def names(self) -> Sequence[str]:
        """Return the names of what this node can do now."""
        found = self._abilities()
        drain = {"drain"} if found.lends else set()
        return sorted(found.requests | drain | self._own().keys())

    def _own(self) -> Mapping[str, Act]:
        return {"logs": partial(last_lines, self._log), **self._more()}

    async def act(self, name: str, fields: Mapping[str, object]) -> Mapping[str, Json]:
        """Do what `name` says. Raises MeshdError: Refused (code `busy`) while too much is under way."""
        if name not in self.names:
            raise UserError(
                f"this node cannot do `{name[:40]}`", hint="reload the page: it shows what the node can do"
            )
        check_size(fields)
        if self._running >= MOST_AT_ONCE:
            raise Refused(
                f"{MOST_AT_ONCE} actions are under way", code="busy", hint="wait until one of them has ended"
            )
        self._running += 1
        try:
            return await self._act(name, fields)
        finally:
            self._running -= 1

    async def _act(self, name: str, fields: Mapping[str, object]) -> Mapping[str, Json]:
        if (own := self._own().get(name)) is not None:
            return await own(fields)
        if name == "drain":  # as the verb: the control socket's own request of that name is for restarts
            return to_fields(await self._control.answer(PauseRequest(drain=True)))
        line = json.dumps({**fields, "request": name}).encode()
        return to_fields(await self._control.answer(decoded(line)))


def check_size(value: object, *, depth: int = 0) -> None:
    """Check the size of each part of a JSON value. Raises RemoteProtocolError."""
    inner: Sequence[object] = ()
    if isinstance(value, str):
        fits = len(value) <= MOST_LETTERS
    elif isinstance(value, int | float):
        fits = abs(value) <= MOST_NUMBER
    elif isinstance(value, Mapping | list):
        fits = len(value) <= MOST_ITEMS and depth < MOST_DEPTH
        inner = [*value, *value.values()] if isinstance(value, Mapping) else value
    else:
        fits = value is None
    if not fits:
        raise RemoteProtocolError("a field is too large, or nested too deeply", code="message")
    for part in inner:
        check_size(part, depth=depth + 1)


async def last_lines(log: Path, fields: Mapping[str, object]) -> Mapping[str, Json]:
    """Return the last lines of `log` or one beside it, and the names of all, for the fields of `logs`.

    Raises MeshdError.
    """
    wish = from_json(LogsWish, fields)
    if not 1 <= wish.lines <= MOST_LINES:
        raise UserError(f"`lines` is a number from 1 to {MOST_LINES}", hint="ask for fewer lines")
    logs = await in_thread(_logs_beside, log)
    if (chosen := logs.get(wish.log)) is None:
        raise UserError(f"no log named `{wish.log[:40]}`", hint=f"choose one of: {', '.join(logs)}")
    end = await in_thread(end_of_log, chosen, _LOG_BYTES)
    found = end.data.decode(errors="replace").splitlines()[-wish.lines :]
    return {"lines": list(found), "logs": list(logs)}


def _logs_beside(log: Path) -> Mapping[str, Path]:
    """Return the logs by name, the daemon's own first, whether or not it has written one."""
    try:
        others = sorted(path for path in log.parent.iterdir() if path.suffix == log.suffix and path != log)
    except OSError:
        others = []
    return {path.stem: path for path in (log, *others[:MOST_LOGS]) if path == log or path.is_file()}
