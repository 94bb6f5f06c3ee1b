"""Say in words what has happened on this node and in its mesh, for the page of the mesh.

Two sources, which do not overlap. The log has most of it, with its reasons, also while nobody watches: the
last lines of the events in console_words.py stay in memory (base/log.py), and until one is logged that costs
nothing. What the log has no line for is found in two statuses, while somebody watches: paths that changed,
and warnings that came and went. A daemon that logs warnings alone has no more to tell than these.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from meshd.admin.status import LinkView, Status
from meshd.base.log import RememberedLine
from meshd.base.units import without_numbers
from meshd.daemon.console_words import WORDS

MOST_EVENTS = 100
Level = Literal["info", "warning", "error"]
_LEVELS: Mapping[str, Level] = {"warning": "warning", "error": "error"}
_BAD_STATES = frozenset({"degraded", "failed"})
# by the log; and by the paths, whose reasons change with each attempt at a better one
_TOLD_OTHERWISE = frozenset(
    {"peer_lost", "model_waiting", "model_failed", "device_unfit", "child_failed", "banned", "relayed"}
)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. `at`: Unix seconds; `text` is one line."""

    at: float
    level: Level
    text: str


def event_of(line: RememberedLine, names: Mapping[str, str]) -> Event:
    """Return the event of a line of the log whose event is in WORDS. `names`: of nodes, by id."""
    fields = line.fields
    peer = fields.get("peer", fields.get("node", ""))
    known = next((name for node, name in names.items() if peer and node.startswith(peer)), "")
    who = fields.get("name", "") or known or peer or "a node"
    text = WORDS[line.event].format_map(_Fields({**fields, "who": who}))
    level = _LEVELS.get(line.level, "info")
    if fields.get("state") in _BAD_STATES and level == "info":
        level = "warning"
    return Event(datetime.fromisoformat(line.at).timestamp(), level, text.removesuffix(": "))


class _Fields(dict[str, str]):
    """The fields of a line; one that it lacks is empty."""

    def __missing__(self, name: str) -> str:
        return ""


def events_between(before: Status, after: Status, now: float) -> Iterator[Event]:
    """Yield what has changed between two statuses that the log does not tell. `now`: Unix seconds."""
    links = {peer.id: peer.link for peer in before.peers}
    for peer in after.peers:
        old = links.get(peer.id)
        if peer.link is not None and old is not None and _is_relayed(peer.link) != _is_relayed(old):
            direct = f"{peer.name} is reached directly now, by {peer.link.kind}"
            why = f": {peer.why_not_direct}" if peer.why_not_direct else ""
            relayed = f"{peer.name} is reached through others now, by {peer.link.kind}{why}"
            yield Event(now, "info", relayed if _is_relayed(peer.link) else direct)
    was, warned = _warnings(before), _warnings(after)
    for key, (level, what) in warned.items():
        if key not in was:
            yield Event(now, level, what)
    for key, (_, what) in was.items():
        if key not in warned:
            yield Event(now, "info", f"no longer: {what}")


def _is_relayed(link: LinkView) -> bool:
    return link.path == "relayed"


def _warnings(status: Status) -> Mapping[tuple[str, str], tuple[Level, str]]:
    """Return the warnings by what tells them apart, without figures that change all the time."""
    return {
        (warning.code, without_numbers(warning.what)): (warning.severity, warning.what)
        for warning in status.warnings
        if warning.code not in _TOLD_OTHERWISE
    }


def latest(events: Iterable[Event]) -> list[Event]:
    """Return the newest events, the oldest of them first."""
    return sorted(events, key=lambda event: event.at)[-MOST_EVENTS:]
