"""The head's side of pushes: workers that send their activations straight to the next one.

The head introduces those whose layers follow one another, and hears what came of it: from a worker why there
is no way to the other one, from both of their servers with whom they have a connection.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from meshd.base import log
from meshd.head.lease import Lease
from meshd.identity.keys import PeerId
from meshd.model.status import SplitPart
from meshd.plan.split import Plan, followers

_WRONG_VALUE = ": wrong value: "  # a mesh-server cannot compute with this (`bad_value` in native/mesh/wire.h)
_SENT_WRONG = ": it sent values that are not finite"  # to llama-server (client_copies.cpp)
OFF = "disabled (`no_push`)"
WHY_APART = "during this push one of the two ended a lease before, and it is unknown which"
_NAMED_NEIGHBOUR = re.compile(r"neighbour ([0-9]{1,2})\b")
UNCONNECTED = "the two have no connection"
LOG = log.get("serve")


def names_neighbour(why: str) -> bool:
    """Return True if a mesh-server says that it has ended because of another one."""
    return _NAMED_NEIGHBOUR.search(why) is not None


Place = tuple[str, str]  # node and device


@dataclass(frozen=True, slots=True)
class PushRoute:
    """Lead from a worker to the one with the layers behind its own, which is `number` in the head's list."""

    source: Lease
    target: Lease
    number: int

    @property
    def ends(self) -> Place:
        """Return both as llama-server names them."""
        return self.source.endpoint, self.target.endpoint


class PushPlan:
    """Hold the push routes of one run, and what came of each.

    `introduce` once all leases are there.
    """

    def __init__(self, *, allowed: bool, are_apart: Callable[[PeerId, PeerId], bool]) -> None:
        """Introduce nobody yet. `allowed`: the user wants pushes. `are_apart`: these two may not."""
        self._allowed = allowed
        self._are_apart = are_apart
        self._routes: dict[Place, PushRoute] = {}  # by where they lead
        self._no_push_reasons: dict[Place, str] = {}
        self._chain: list[PeerId] = []  # workers in the order of their layers

    async def introduce(self, plan: Plan, leases: Sequence[Lease]) -> None:
        """Tell the workers of each other. One that is lost meanwhile is found out elsewhere."""
        numbers = {lease.name: number for number, lease in enumerate(leases)}
        by_name = {lease.name: lease for lease in leases}
        nodes = [share.device.node for share in plan.shares if share.layers]
        self._chain = [by_name[node].peer for node in nodes if node in by_name]
        for before, behind in followers(plan):
            place = behind.device.node, behind.device.name
            source, target = by_name.get(before.device.node), by_name.get(behind.device.node)
            if not self._allowed:
                self._no_push_reasons[place] = OFF
            elif source is None or target is None:
                plain = behind if target is None else before
                self._no_push_reasons[place] = f"{plain.device.node} is a plain rpc-server"
            elif self._are_apart(source.peer, target.peer):
                self._no_push_reasons[place] = WHY_APART
            else:
                self._routes[place] = PushRoute(source, target, numbers[target.name])
        await self._tell_workers(leases)

    async def _tell_workers(self, leases: Sequence[Lease]) -> None:
        routes = {route.ends: route for route in self._routes.values()}.values()
        for route in routes:
            await route.target.admit(route.source)
        for route in routes:
            await route.source.introduce(route.number, route.target)
        for lease in leases:
            await lease.say_introduced()

    def others(self, peer: PeerId, why: str) -> tuple[PeerId, ...]:
        """Find who else may be at fault for its loss, by what `why` says.

        The neighbour that it names. All with layers before its own, if it cannot compute with a value: they
        may have sent what leads to that. If llama-server got hidden states from it that are not finite, those
        whose own were pushed on to it: of all others llama-server has seen that they were finite.
        """
        if _SENT_WRONG in why:
            return self._pushed_on_to(peer)
        if _WRONG_VALUE in why:
            return self._before(peer)
        named = _NAMED_NEIGHBOUR.search(why)
        found = []
        for route in self._routes.values():
            ends = (route.source, route.target)
            if peer not in (ends[0].peer, ends[1].peer) or not self._result(route)[0]:
                continue
            other = ends[1] if ends[0].peer == peer else ends[0]
            if named is not None and int(named[1]) == other.place:
                found.append(other.peer)
        return tuple(dict.fromkeys(found))

    def _before(self, peer: PeerId) -> tuple[PeerId, ...]:
        last = max((place for place, one in enumerate(self._chain) if one == peer), default=0)
        return tuple(dict.fromkeys(one for one in self._chain[:last] if one != peer))

    def _pushed_on_to(self, peer: PeerId) -> tuple[PeerId, ...]:
        found, last = [peer], 0
        while last < len(found):
            found += [
                route.source.peer
                for route in self._routes.values()
                if route.target.peer == found[last]
                and route.source.peer not in found
                and self._result(route)[0]
            ]
            last += 1
        return tuple(found[1:])

    def parts(self, split: Sequence[SplitPart]) -> tuple[SplitPart, ...]:
        """Return the split with how each part gets its activations now."""
        return tuple(self._part(part) for part in split)

    def _part(self, part: SplitPart) -> SplitPart:
        place = part.node, part.device
        if (route := self._routes.get(place)) is not None:
            pushed, why = self._result(route)
            return replace(part, push=pushed, why_no_push=why)
        if (reason := self._no_push_reasons.get(place)) is not None:
            return replace(part, push=False, why_no_push=reason)
        return part

    def _result(self, route: PushRoute) -> tuple[bool, str]:
        """Return True if both servers have a connection with each other, and if not, why."""
        pushed = route.source.has_neighbour(route.target) and route.target.has_neighbour(route.source)
        return pushed, "" if pushed else route.source.unreached.get(route.number) or UNCONNECTED

    def tell(self) -> None:
        """Log the routes, once a load."""
        for route in self._routes.values():
            pushed, why = self._result(route)
            source, target = route.source.name, route.target.name
            if pushed:
                LOG.info("push_direct", source=source, target=target)
            else:
                LOG.warning("push_through_head", source=source, target=target, why=why)
