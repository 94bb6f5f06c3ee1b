"""A member of a mesh without a role, driven over pipes: what links do between two places, without llama.cpp.

    python -m tests.netns.node FOLDER      # settings: the first line of standard input, JSON (agent.py)

Built as the daemon builds itself. It prints a line of JSON for each line that it reads, the first when it is
a member and listens; it ends with its input. Streams of service `echo` send back what comes.
"""

import asyncio
import contextlib
import hashlib
import json
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshd.base import log
from meshd.base.errors import EndOfStream, MeshdError
from meshd.base.tasks import Owner
from meshd.config.forms import HostPort
from meshd.config.tree import Config, LinksConfig, NodeConfig, Paths
from meshd.daemon.member_node import MemberNode
from meshd.daemon.mesh_port import MeshPort
from meshd.daemon.run import watch_addresses
from meshd.daemon.transports import enter
from meshd.identity.keystore import Home
from meshd.link.interface import BrowserChannel
from meshd.peer.interface import PeerState, PeerStatus, Stream
from meshd.wire.versions import NativeVersion

SERVICE = "echo"
CHUNK = 64 << 10
BEAT_SECONDS = 0.05
TICK_SECONDS = 0.1
GOODBYE_SECONDS = 0.2

Answer = Mapping[str, object]


def _config(folder: Path, settings: Mapping[str, object]) -> Config:
    def words(name: str) -> tuple[str, ...]:
        given = settings.get(name, [])
        assert isinstance(given, list)
        return tuple(map(str, given))

    links = LinksConfig(
        stun=words("stun"),
        relays=words("relays"),
        no_mdns=not settings.get("mdns", False),
        no_portmap=not settings.get("portmap", False),
        listen=HostPort("", port) if isinstance(port := settings.get("port"), int) else None,
    )
    if kinds := words("kinds"):
        links = replace(links, kinds=kinds)
    name, join = str(settings.get("name", "node")), str(settings.get("join", ""))
    return Config(
        node=NodeConfig(name=name, join=join), links=links, paths=Paths(home=folder, cache=folder / "cache")
    )


@dataclass(slots=True)
class Beat:
    """A stream that carries a byte there and back every 50 ms: the longest silence, and its end."""

    beats: int = 0
    longest: float = 0.0
    ended: str = ""
    stop: bool = False
    next: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, mesh: MemberNode) -> None:
        """Until told to stop, or until the stream breaks."""
        loop = asyncio.get_running_loop()
        stream = _open(mesh)
        try:
            while not self.stop:
                began = loop.time()
                await stream.write(b".")
                stream.consumed(len(await stream.read()))
                self.longest = max(self.longest, loop.time() - began)
                self.beats += 1
                self.next.set()
                await asyncio.sleep(BEAT_SECONDS)
            stream.write_eof()
        except MeshdError as error:
            self.ended = error.what
            self.next.set()


def _open(member: MemberNode) -> Stream:
    [peer, *_] = [one for one in member.mesh.peers() if one.state is PeerState.CONNECTED]
    return member.mesh.open_stream(peer.peer, SERVICE, metadata={})


async def _echo(stream: Stream) -> None:
    try:
        while True:
            data = await stream.read()
            await stream.write(bytes(data))
            stream.consumed(len(data))
    except EndOfStream:
        stream.write_eof()


async def _serve_browser(channel: BrowserChannel) -> None:
    with contextlib.suppress(MeshdError):
        while True:
            message = await channel.receive()
            word, _, count = message.decode().partition(" ")
            if word == "down":
                for _ in range(int(count)):
                    await channel.send(bytes(16000))
            elif word == "tick":
                for number in range(int(count)):
                    await channel.send(str(number).encode())
                    await asyncio.sleep(TICK_SECONDS)
            else:
                await channel.send(message)


class Commands:
    """The commands of the driver; each is a method and answers with a JSON object."""

    def __init__(self, member: MemberNode, owner: Owner, began: float) -> None:
        self._member = member
        self._owner = owner
        self._began = began
        self._beat = Beat()
        self._beating: asyncio.Task[None] | None = None

    async def obey(self, command: Mapping[str, object]) -> Answer:
        """Answer one line. Errors of meshd are answers too."""
        methods: dict[str, Callable[[Mapping[str, object]], Awaitable[Answer]]] = {
            "peers": self.peers,
            "connected": self.connected,
            "echo": self.echo,
            "beat": self.beat,
            "beats": self.beats,
            "beaten": self.beaten,
            "gone": self.gone,
            "idle": self.idle,
            "browser": self.browser,
        }
        try:
            return await methods[str(command["do"])](command)
        except MeshdError as error:
            return {"error": error.what}

    async def peers(self, _: Mapping[str, object]) -> Answer:
        """All peers with their links."""
        return {"peers": [_shown(peer) for peer in self._member.mesh.peers()]}

    async def connected(self, command: Mapping[str, object]) -> Answer:
        """Wait until `count` peers are connected, one over a path of `paths` (any), for `within` seconds."""
        count, paths, within = command.get("count", 1), command.get("paths"), command.get("within", 30.0)
        assert isinstance(count, int)
        assert isinstance(within, int | float)
        assert paths is None or isinstance(paths, list)
        try:
            async with asyncio.timeout(within):
                return await self._connected(count, paths)
        except TimeoutError:
            return {"error": f"not connected so within {within:g} s"}

    async def _connected(self, count: int, paths: list[str] | None) -> Answer:
        seen = -1
        while True:
            found = [peer for peer in self._member.mesh.peers() if peer.state is PeerState.CONNECTED]
            selected = [path for peer in found for path in peer.paths if path.selected]
            if len(found) >= count and (paths is None or any(one.link.path in paths for one in selected)):
                return {"seconds": self._since(), "peers": [_shown(peer) for peer in found]}
            seen = await self._member.mesh.changed(seen)

    async def echo(self, command: Mapping[str, object]) -> Answer:
        """Send `bytes` there and back and compare; seconds since the start of this node, and of the echo."""
        size = command.get("bytes", 1)
        assert isinstance(size, int)
        loop = asyncio.get_running_loop()
        began = loop.time()
        stream = _open(self._member)
        sent, came = hashlib.sha256(), hashlib.sha256()

        async def send() -> None:
            left, number = size, 0
            while left:
                block = (number.to_bytes(8, "big") * (CHUNK // 8))[:left]
                sent.update(block)
                await stream.write(block)
                left, number = left - len(block), number + 1
            stream.write_eof()

        task = self._owner.start(send(), name="send")
        try:
            while True:
                data = await stream.read()
                came.update(data)
                stream.consumed(len(data))
        except EndOfStream:
            await task
        return {"equal": sent.digest() == came.digest(), "seconds": loop.time() - began, "at": self._since()}

    async def beat(self, _: Mapping[str, object]) -> Answer:
        """Begin a stream that beats."""
        self._beat = Beat()
        self._beating = self._owner.start(self._beat.run(self._member), name="beat")
        return {}

    async def beats(self, command: Mapping[str, object]) -> Answer:
        """Wait until it has beaten so often."""
        count = command["count"]
        assert isinstance(count, int)
        while self._beat.beats < count and not self._beat.ended:
            self._beat.next.clear()
            await self._beat.next.wait()
        return {"beats": self._beat.beats}

    async def gone(self, command: Mapping[str, object]) -> Answer:
        """Wait until no peer is connected any more, for `within` seconds."""
        within = command["within"]
        assert isinstance(within, int | float)
        seen = -1
        try:
            async with asyncio.timeout(within):
                while any(peer.state is PeerState.CONNECTED for peer in self._member.mesh.peers()):
                    seen = await self._member.mesh.changed(seen)
        except TimeoutError:
            return {"error": f"still connected after {within:g} s"}
        return {"seconds": self._since()}

    async def idle(self, command: Mapping[str, object]) -> Answer:
        """Do nothing for so long."""
        seconds = command["for_seconds"]
        assert isinstance(seconds, int | float)
        await asyncio.sleep(seconds)
        return {}

    async def browser(self, _: Mapping[str, object]) -> Answer:
        """Make an invite for a browser. A channel gets back what it sends; after `down N` N messages of 16000
        bytes, after `tick N` N numbers, ten a second.
        """
        self._member.transports.browsers.serve_channel = _serve_browser
        reply = self._member.authority.invite(
            now=int(time.time()),
            expires_s=3600,
            uses=1,
            roles=("use",),
            secret=secrets.token_bytes(16),
            candidates=self._member.local.token_candidates(),
            relays=self._member.transports.relays,
            browser="phone",
        )
        return {"token": reply.token}

    async def beaten(self, _: Mapping[str, object]) -> Answer:
        """End it, and tell how it went."""
        assert self._beating is not None
        self._beat.stop = True
        await self._beating
        return {"beats": self._beat.beats, "longest": self._beat.longest, "ended": self._beat.ended}

    def _since(self) -> float:
        return asyncio.get_running_loop().time() - self._began


def _shown(peer: PeerStatus) -> Answer:
    return {
        "name": peer.name,
        "state": str(peer.state),
        "resumes": peer.resumes,
        "error": peer.last_error,
        "links": [
            {
                "kind": str(path.link.kind),
                "path": path.link.path,
                "remote": path.link.remote,
                "selected": path.selected,
                "rtt": path.rtt,
                "why": path.why,
            }
            for path in peer.paths
        ],
    }


async def serve(folder: Path) -> None:
    """Be a member until standard input ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    config = _config(folder, json.loads(await reader.readline()))
    home = Home(folder)
    began = loop.time()
    mesh_port = MeshPort(asked=config.links.listen, home=home)
    key = home.load_or_create_identity()
    entered = await enter(home, key, config, "client", mesh_port=mesh_port)
    member = MemberNode(
        config=config,
        home=home,
        key=key,
        entered=entered,
        role="client",
        native=NativeVersion("0", "none", "none", "cpu"),
        mesh_port=mesh_port,
    )
    joined = loop.time() - began
    member.mesh.handle(SERVICE, _echo, allow=lambda _member, _metadata: None)
    async with Owner() as owner:
        owner.start(member.serve(), name="peers")
        owner.start(watch_addresses(member), name="addresses")
        await member.transports.network_state.first_look()
        _say({"token": member.printed_token() or "", "joined": joined})
        commands = Commands(member, owner, began)
        while line := await reader.readline():
            _say(await commands.obey(json.loads(line)))
        member.local.say_goodbye()
        await asyncio.sleep(GOODBYE_SECONDS)
        owner.cancel()


def _say(answer: Answer) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main(folder: str) -> None:
    """Run the program described at the top of the file."""
    log.set_up(level="info", file=Path(folder) / "node.log")
    try:
        asyncio.run(serve(Path(folder)))
    except MeshdError as error:
        _say({"error": error.what, "hint": error.hint})
        raise SystemExit(1) from None


if __name__ == "__main__":
    main(sys.argv[1])
