"""The terminal on which a person started a node: lines for what happened, and one for what is under way.

It shows what `meshd status` shows, from inside the daemon. A worker has to be small, so none of this needs
rich, which would take 5 MB.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.admin.api import InviteReply
from meshd.admin.status import LinkView, PeerView, Status
from meshd.base.units import in_memory, in_number, in_time, without_numbers
from meshd.cli.layout import State
from meshd.cli.output import Output
from meshd.identity.naming import WORKER_ROLE
from meshd.model.status import LentMemory, LentState, ModelState, ModelStatus, of_each_layer

LOOK_SECONDS = 1.0
ELAPSED_SECONDS = 3.0  # a step that takes longer shows for how long it runs
MOST_LINES = 6  # of what happened between two looks: a mesh may have any number of nodes
_PATHS = {"loopback": "same machine", "lan": "same network", "relayed": "through a relay"}
_TOLD_OTHERWISE = frozenset({"peer_lost", "model_waiting"})  # warnings, by lines of their own


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text; without a label, it begins with the time. `hint`: what to do about it."""

    parts: tuple[str, ...]
    label: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """The thing that is under way; `share` from 0 to 1 if that is known.

    `waits`: a person waits for its end, and sees for how long it runs. `hint`: what ends it, if that takes
    long.
    """

    text: str
    share: float | None = None
    waits: bool = True
    hint: str = ""


class NodeScreen:
    """Announces on a terminal (implements Announcer of daemon/run.py)."""

    def __init__(
        self,
        out: Output,
        *,
        drain: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], str] = lambda: time.strftime("%H:%M"),
    ) -> None:
        """Write to `out`. `drain` waits for what was written to stderr; `now` gives the time to be shown."""
        self._out = out
        self._drain = drain
        self._clock = clock
        self._now = now
        self._status: Callable[[], Status] | None = None
        self._woken = asyncio.Event()
        self._later: list[Callable[[], None]] = []  # what stands below the lines of the next look
        self._before: Status | None = None
        self._step = Step("checking this machine")
        self._since = clock()
        self._hinted = ""

    def note(self, text: str) -> None:
        """Show the text below the last line, at once."""
        self._out.note(text)
        self._draw()

    def remark(self, text: str) -> None:
        """Show the text, if there is any."""
        if text:
            self._show(lambda: self._out.note(text))

    def looking(self, text: str) -> None:
        """Show the text as what is under way."""
        self._begin(Step(text))

    def invite(self, invite: InviteReply, now: float, use: str) -> None:
        """Show the invite, which goes to stdout on a line of its own, and what to do with it."""
        left = in_time(max(0.0, invite.expires_at - now))

        def show() -> None:
            of = f"{invite.id}, for {in_number(invite.uses, 'node')} and {left}; keep it secret"
            self._out.note()
            if self._out.terminal:
                self._out.note(of, label="invite")
                self._out.note()
                self._drain()  # what is on stdout stands below that
            else:
                self._out.note(f"{of}; it was written to standard output", label="invite")
            self._out.line(invite.token)
            self._out.note()
            self._out.note(use)
            self._out.note()

        self._show(show)

    def ready(self, url: str, lan_url: str | None) -> None:
        """Show where to chat."""

        def show() -> None:
            self._out.note(f"chat at {url}", label=State("ready"))
            self._out.note(f"programs: {url}/v1", label="")
            if lan_url is not None:
                self._out.note(f"other devices: {lan_url}", label="")

        self._show(show)

    def follow(self, status: Callable[[], Status]) -> None:
        """Show this status, and what changes."""
        self._status = status
        self._woken.set()

    async def serve(self) -> None:
        """Look at the status every second until cancelled."""
        while True:
            self._woken.clear()
            if self._status is not None:
                self._look(self._status())
            self._draw()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._woken.wait()

    def stopping(self) -> None:
        """Show that the node is stopping."""
        self._begin(Step("stopping"))

    def close(self) -> None:
        """Leave the terminal without the line for what is under way."""
        self._out.end_progress()

    def _show(self, show: Callable[[], None]) -> None:
        self._later.append(show)
        self._woken.set()

    def _look(self, status: Status) -> None:
        lines = list(news(self._before, status))
        for line in lines[:MOST_LINES]:
            self._out.note(*line.parts, label=line.label or self._now())
            if line.hint:
                self._out.note(f"hint: {line.hint}", label="")
        if len(lines) > MOST_LINES:
            self._out.note(f"and {len(lines) - MOST_LINES} more: `meshd status`", label="")
        while self._later:
            self._later.pop(0)()
        self._before = status
        self._begin(under_way(status))

    def _begin(self, step: Step) -> None:
        if without_numbers(step.text) != without_numbers(self._step.text):
            self._since = self._clock()
        self._step = step
        self._draw()

    def _draw(self) -> None:
        step, text, elapsed = self._step, self._step.text, self._clock() - self._since
        if step.waits and step.share is None and elapsed >= ELAPSED_SECONDS:
            if step.hint not in ("", self._hinted):
                self._hinted = step.hint
                self._out.note(text, label=self._now())
                self._out.note(f"hint: {step.hint}", label="")
            text += f" ({in_time(elapsed)})"
        self._out.progress(text, step.share)


def news(before: Status | None, now: Status) -> Iterator[Line]:
    """Yield lines for what has changed; all of it is new without a status before."""
    if before is None:
        yield from _node(now)
    if now.devices and not (before and before.devices) and now.node.role == WORKER_ROLE:
        for device in now.devices:
            free = f"{in_memory(device.free_bytes)} of {in_memory(device.total_bytes)} free"
            yield Line((f"{device.name}, {free}",), label="lends")
    yield from _peers(before.peers if before else (), now.peers)
    yield from _models(_served(before) if before else (), _served(now))
    yield from _lent(before.lent if before else (), now.lent)
    yield from _warnings(before, now)


def _node(now: Status) -> Iterator[Line]:
    yield Line((f"{now.node.name}, {now.node.role}",), label="node")
    if now.mesh is not None:
        others = now.mesh.members - 1
        with_others = f"with {in_number(others, 'other node')}" if others else "no other node yet"
        yield Line((f"{now.mesh.id[:10]}, {with_others}",), label="mesh")
    logs = Path(now.node.home) / "logs" / "meshd.log"
    shown = f"~/{logs.relative_to(Path.home())}" if logs.is_relative_to(Path.home()) else str(logs)
    yield Line((f"{shown}, or `meshd logs -f`",), label="log")


def _peers(before: Sequence[PeerView], now: Sequence[PeerView]) -> Iterator[Line]:
    known = {peer.id: peer for peer in before}
    for peer in now:
        old = known.get(peer.id)
        was_met = old is not None and old.state in ("connected", "suspended")
        if peer.state == "connected" and peer.link is not None:
            if not was_met:
                yield Line((f"{peer.name} ", State("connected"), f": {_path(peer.link)}"))
            elif old is not None and old.link is not None and _is_relayed(old.link) != _is_relayed(peer.link):
                yield Line((f"{peer.name} now: {_path(peer.link)}",))
        elif was_met and peer.state not in ("connected", "suspended"):
            why = peer.stopped or peer.last_error
            state = State("away" if peer.stopped else "lost")
            yield Line((f"{peer.name} ", state, f": {why}" if why else ""))


def _is_relayed(link: LinkView) -> bool:
    return link.path == "relayed"


def _path(link: LinkView) -> str:
    rtt = "" if link.rtt_ms is None else f", {link.rtt_ms:.1f} ms"
    return f"{_PATHS.get(link.path, 'direct')}, {link.kind}{rtt}"


def _served(status: Status) -> Sequence[ModelStatus]:
    return status.models or ((status.model,) if status.model is not None else ())


def _models(before: Sequence[ModelStatus], now: Sequence[ModelStatus]) -> Iterator[Line]:
    states = {model.name: model.state for model in before}
    for model in now:
        if model.state == states.get(model.name):
            continue
        if model.state == ModelState.READY:
            used = [part for part in model.split if part.layers]
            if model.by_tensors:
                shares = of_each_layer([part.layers for part in used])
                held = [f"{share} of each layer" for share in shares]
            else:
                held = [in_number(part.layers, "layer") for part in used]
            parts = ", ".join(f"{part.node} {what}" for part, what in zip(used, held, strict=True))
            took = f" in {model.load_seconds:.1f} s" if model.load_seconds is not None else ""
            yield Line((f"{model.name} ", State("loaded"), took, f": {parts}" if parts else ""))
        elif model.state in (ModelState.DEGRADED, ModelState.UNLOADED):
            yield Line((f"{model.name} ", State(model.state), f": {model.reason}"))


def _lent(before: Sequence[LentMemory], now: Sequence[LentMemory]) -> Iterator[Line]:
    states = {(lent.head, lent.model): lent.state for lent in before}
    for lent in now:
        if states.get((lent.head, lent.model)) == lent.state:
            continue
        if lent.state is LentState.LOADED:
            amount = f" {in_memory(lent.bytes)} of {lent.model} here"
            yield Line((f"{_head(lent)} ", State("loaded"), amount))
        elif lent.state is LentState.STANDBY:
            yield Line((f"stands by for {_head(lent)}, with {lent.model}",))
    kept = {(lent.head, lent.model) for lent in now}
    for lent in before:
        if (lent.head, lent.model) not in kept:
            yield Line((f"{_head(lent)} let go of {lent.model}",))


def _head(lent: LentMemory) -> str:
    return lent.head_name or lent.head[:10]


def _warnings(before: Status | None, now: Status) -> Iterator[Line]:
    known = (
        {(warning.code, without_numbers(warning.what)) for warning in before.warnings} if before else set()
    )
    for warning in now.warnings:
        if warning.code in _TOLD_OTHERWISE or warning.severity == "info":
            continue
        if (warning.code, without_numbers(warning.what)) not in known:
            yield Line((State(f"{warning.severity}:"), f" {warning.what}"), hint=warning.hint)


def under_way(now: Status) -> Step:
    """Return what the node does now."""
    if now.fetching is not None:
        return Step(now.fetching.text, now.fetching.share)
    if now.node.draining is not None:
        return Step(now.node.draining.text)
    if now.node.paused:
        return Step("paused: it lends nothing until `meshd resume`")
    if now.node.role == WORKER_ROLE:
        return _lending(now)
    for model in _served(now):
        if model.state == ModelState.LOADING:
            return Step(f"{model.name}: {model.reason}" if now.models else model.reason, model.progress)
    if now.api is None:
        return Step("starting")
    if not now.api.ready:
        hint = next((warning.hint for warning in now.warnings if warning.code == "model_waiting"), "")
        return Step(now.api.reason or "starting", hint=hint)
    counts = f"{in_number(now.api.requests, 'request')}, {in_number(now.api.tokens, 'token')} so far"
    if now.api.running or now.api.waiting:
        waiting = f", {now.api.waiting} waiting" if now.api.waiting else ""
        return Step(f"answering {in_number(now.api.running, 'request')}{waiting}; {counts}", waits=False)
    return Step(f"serving; {counts}", waits=False)


def _lending(now: Status) -> Step:
    loading = [lent for lent in now.lent if lent.state is LentState.LOADING]
    if loading:
        first = loading[0]
        return Step(f"{_head(first)} loads {in_memory(first.bytes)} of {first.model} here")
    if now.lent:
        heads = ", ".join(dict.fromkeys(map(_head, now.lent)))
        return Step(f"lends {in_memory(sum(lent.bytes for lent in now.lent))} to {heads}", waits=False)
    return Step("waiting for a node that serves a model (`meshd serve`)")
