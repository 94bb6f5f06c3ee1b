"""Every pair of places, joined by real nodes: `.venv/bin/python -m tests.netns.grid` (`make nat-grid`).

For each pair one node founds a mesh and prints a token, the other joins with it; a byte goes there and back.
Both are new for each pair, ends of a mesh of their own, and know a relay and a STUN server on a public host.
"""

import argparse
import contextlib
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tests.netns.agent import Agent, AgentError, LinkSeen, Settings, agent
from tests.netns.expect import pairs, ways, ways_together
from tests.netns.programs import relay_on, stun_on
from tests.netns.report import write
from tests.netns.sites import ONE_PLACE, Kind, Site, Together, site, together
from tests.netns.space import skip_reason
from tests.netns.wan import Line, Way
from tests.netns.world import Host, World

SETTLE_SECONDS = 12.0  # for a direct path to be found after a relayed one, where there can be one
RELAYED_SECONDS = 2.0  # where there can be none
PUBLIC_PORT = 443
RELAY_NAME = "relay.test"
DIRECT_PATHS = ("loopback", "lan", "public", "mapped", "punched")


Joined = tuple[Agent, Agent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One pair's result. Times in seconds since the joiner began; `error` is empty when they connected."""

    one: str
    two: str
    possible: tuple[str, ...]
    first_byte: float = 0.0
    first: LinkSeen | None = None
    last: LinkSeen | None = None
    direct_at: float | None = None
    error: str = ""

    @property
    def direct(self) -> bool:
        """True if the last path was no relayed one."""
        return self.last is not None and self.last.path in DIRECT_PATHS


@dataclass(slots=True)
class Bench:
    """A world with what all pairs share, and the sites that were built so far."""

    world: World
    folder: Path
    stun: tuple[str, ...]
    relays: tuple[str, ...]
    line: Line | None
    _sites: dict[tuple[Kind, str], Site] = field(default_factory=dict)
    _runs: int = 0

    def pair(self, one: Kind, two: Kind) -> tuple[Host, Host]:
        """A host of each kind, at two places; at one where a pair of the kind means that."""
        left = self._site(one, "left")
        left.forget()
        if one is two and one in ONE_PLACE:
            if (one, "beside") not in self._sites:
                self._sites[one, "beside"] = left.neighbour("beside")
            return left.host, self._sites[one, "beside"].host
        right = self._site(two, "right")
        right.forget()
        return left.host, right.host

    def _site(self, kind: Kind, side: str) -> Site:
        if (kind, side) not in self._sites:
            self._sites[kind, side] = site(self.world, kind, f"{side}-{kind.name.lower()}", line=self.line)
        return self._sites[kind, side]

    def settings(self, kind: Kind | None = None, *, join: str = "") -> Settings:
        """Return the settings of a node at such a place."""
        name = "near" if join else "far"
        port = PUBLIC_PORT if kind is Kind.PUBLIC else None
        return Settings(name=name, join=join, stun=self.stun, relays=self.relays, port=port, mdns=True)

    @contextmanager
    def joined(self, far: Host, near: Host, kinds: tuple[Kind, Kind] | None = None) -> Iterator[Joined]:
        """Two nodes: the founder at `far`, the joiner at `near`. Raises AgentError."""
        self._runs += 1
        folder = self.folder / str(self._runs)
        one, two = kinds or (None, None)
        with (
            agent(far.space, folder / "far", self.settings(one)) as founder,
            agent(near.space, folder / "near", self.settings(two, join=founder.token)) as joiner,
        ):
            yield founder, joiner

    def run(self, one: Kind, two: Kind) -> Result:
        """Join a host of each kind and see what happens."""
        blank = Result(one=one, two=two, possible=ways(one, two))
        return self._run(*self.pair(one, two), blank, (one, two))

    def run_together(self, kind: Together) -> Result:
        """The same with two whose places have to do with each other."""
        hosts = together(self.world, kind, kind.name.lower().replace("_", "-"))
        return self._run(*hosts, Result(one=kind, two="", possible=ways_together(kind)), None)

    def _run(self, far: Host, near: Host, blank: Result, kinds: tuple[Kind, Kind] | None) -> Result:
        wait = SETTLE_SECONDS if blank.possible else RELAYED_SECONDS
        try:
            with self.joined(far, near, kinds) as (_, joiner):
                joiner.connected(seconds=30.0)
                first_byte, first = joiner.echo(seconds=30.0), joiner.selected()
                direct_at = None
                if first is not None and first.path not in DIRECT_PATHS:
                    with contextlib.suppress(AgentError):
                        direct_at = joiner.connected(*DIRECT_PATHS, seconds=wait)
                last = joiner.selected()
                return replace(blank, first_byte=first_byte, first=first, last=last, direct_at=direct_at)
        except AgentError as error:
            return replace(blank, error=str(error))


@contextmanager
def bench(folder: Path, *, line: Line | None = None) -> Iterator[Bench]:
    """Everything that pairs need, gone at the end."""
    with World() as world, ExitStack() as stack:
        relay = world.public("relay")
        world.name(RELAY_NAME, relay)
        stun = stack.enter_context(stun_on(world.public("stun")))
        url = stack.enter_context(relay_on(relay, folder / "relay", name=RELAY_NAME))
        yield Bench(world, folder, stun[:2], (url,), line)


def run(chosen: Sequence[tuple[Kind, Kind]], others: Sequence[Together], line: Line | None) -> list[Result]:
    """All of them, one after the other, each told as it ends."""
    results = []
    with tempfile.TemporaryDirectory(prefix="meshd-grid-") as folder, bench(Path(folder), line=line) as made:
        work = [partial(made.run, one, two) for one, two in chosen]
        work += [partial(made.run_together, kind) for kind in others]
        for pair in work:
            result = pair()
            results.append(result)
            sys.stdout.write(_told(result) + "\n")
            sys.stdout.flush()
    return results


def _told(result: Result) -> str:
    name = f"{result.one} – {result.two}" if result.two else result.one
    if result.error or result.first is None or result.last is None:
        return f"{name}: {result.error or 'no path'}"
    first, last, then = result.first, result.last, ""
    if result.direct_at is not None:
        then = f", then {last.kind} {last.path} at {result.direct_at:.2f} s"
    return f"{name}: {first.kind} {first.path} {result.first_byte:.2f} s{then}"


def _chosen(given: argparse.Namespace) -> tuple[list[tuple[Kind, Kind]], list[Together]]:
    chosen, others = pairs(), list(Together)
    if given.pair:
        chosen, others = (
            [(_kind(one), _kind(two)) for one, two in (pair.split(":") for pair in given.pair)],
            [],
        )
    elif given.kind:
        kinds = set(map(_kind, given.kind))
        chosen, others = [pair for pair in chosen if kinds & set(pair)], []
    elif given.together:
        chosen = []
    elif given.rtt or given.loss:
        others = []  # their places have no line of their own
    if given.both:
        chosen += [(two, one) for one, two in chosen if one is not two]
    return [pair for pair in chosen for _ in range(given.tries)], others


def _kind(name: str) -> Kind:
    return Kind[name.upper().replace("-", "_")]


def main() -> None:
    """Run the grid and print it; with --write, into docs/lab/nat-grid.md as well."""
    parser = argparse.ArgumentParser(description="pairs of places, joined by real nodes")
    parser.add_argument("--kind", action="append", help="only pairs with this kind (may repeat)")
    parser.add_argument("--pair", action="append", help="FOUNDER:JOINER, only these (may repeat)")
    parser.add_argument("--together", action="store_true", help="only those whose places have to do")
    parser.add_argument("--both", action="store_true", help="each pair in both orders of joining")
    parser.add_argument("--rtt", type=float, default=0.0, help="round trip between places, ms")
    parser.add_argument("--loss", type=float, default=0.0, help="loss of each place's line, per cent")
    parser.add_argument("--tries", type=int, default=1)
    parser.add_argument("--write", type=Path, help="a page to write")
    given = parser.parse_args()
    if reason := skip_reason():
        raise SystemExit(reason)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of everything that has to be removed
    chosen, others = _chosen(given)
    line = None
    if given.rtt or given.loss:  # the way between two places is two lines
        line = Line.both(Way(delay_ms=given.rtt / 4, loss=given.loss / 200))
    began = time.monotonic()
    results = run(chosen, others, line)
    text = write(results, seconds=time.monotonic() - began, rtt=given.rtt, loss=given.loss)
    sys.stdout.write("\n" + text)
    if given.write:
        given.write.write_text(text, encoding="utf-8")
    firsts = [result.first_byte for result in results if not result.error]
    if firsts:
        sys.stdout.write(f"median first byte {statistics.median(firsts):.2f} s\n")
    if any(result.error for result in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
