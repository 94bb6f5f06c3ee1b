"""A client and heads in one process: real gateways and sockets, streams in memory, fakes for llama-server."""

import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import aiohttp
from meshd.base.tasks import Owner
from meshd.client.api_client import ApiClient
from meshd.client.follow_heads import HeadFollower
from meshd.config.tree import LinksConfig
from meshd.daemon.role_runtime import open_tunnel
from meshd.devices.interface import Tunnel, TunnelRequest
from meshd.gateway.interface import ApiKey, GatewayConfig
from meshd.gateway.request import OneModel, PlainModel
from meshd.gateway.server import Gateway
from meshd.head.member_api import MemberApi
from meshd.identity.membership import Role
from meshd.model.status import ModelState
from meshd.peer.interface import MetadataValue, PeerState
from meshd.tunnel.joined import join, open_on_demand
from meshd.wire.models import ApiModel

from tests.conformance.run import until
from tests.process.gateway_fake import Answer, FakeServer, FakeUpstream, gateway_of, listening, serving
from tests.unit.head.fake_mesh import FakeMesh, Net

ALL = frozenset(Role)
FINGERPRINT = bytes(range(32))
HELLO = {"choices": [{"message": {"content": "hello"}}], "usage": {"completion_tokens": 2}}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}


@dataclass
class Head:
    """A serving node. `models` is what it tells of, in place of what its gateway has.

    `others`: requests that it has besides.
    """

    mesh: FakeMesh
    gateway: Gateway
    upstream: FakeUpstream
    server: FakeServer
    models: list[ApiModel] = field(default_factory=list)
    others: int = 0

    @property
    def asked(self) -> list[dict[str, object]]:
        """The requests that its llama-server got."""
        return [json.loads(body) for method, _path, _headers, body in self.server.seen if method == "POST"]

    def serves(self) -> Sequence[ApiModel]:
        return [
            replace(one, requests=self.others + self.gateway.requests_of(self.upstream.model_name))
            for one in self.models
        ]

    def vanish(self, now: float) -> None:
        """Without a word: no link to it for so long that nobody waits any more."""
        self.mesh.since = now - 60
        self.mesh.say(PeerState.SUSPENDED)


@dataclass
class Scene:
    """`client` is the node whose API a test calls."""

    net: Net
    folder: Path
    client: FakeMesh
    api: ApiClient
    gateway: Gateway
    http: aiohttp.ClientSession
    held: contextlib.AsyncExitStack
    shown: list[Mapping[str, MetadataValue]]
    """The metadata of the requests that the client has sent, in order."""

    async def head(
        self,
        name: str,
        answer: Answer,
        *,
        model: str = "tiny",
        keys: tuple[str, ...] = (),
        roles: frozenset[Role] = ALL,
        others: int = 0,
    ) -> Head:
        """It serves, and the client knows that when this returns, unless `roles` lack `use`."""
        path = self.folder / name
        mesh, server, upstream = (
            self.net.mesh(name, "serve", roles=roles),
            FakeServer(answer),
            FakeUpstream(path),
        )
        upstream.model_name = model
        api_keys = tuple(ApiKey(key, f"key-{number}") for number, key in enumerate(keys))
        gateway = await gateway_of(GatewayConfig(port=0, api_keys=api_keys), OneModel(upstream))
        head = Head(mesh, gateway, upstream, server, others=others)
        head.models = [ApiModel(model, "ready", takes=True, slots=4, fingerprint=FINGERPRINT)]
        await self.held.enter_async_context(listening(server, path))
        await self.held.enter_async_context(serving(gateway))
        MemberApi(mesh, join, gateway, head.serves, me=mesh.key.peer)
        mesh.say(PeerState.CONNECTED)
        if Role.USE in roles and Role.USE in self.client.member_here.roles:
            await until(lambda: self.told(name) is not None)
        return head

    def told(self, name: str) -> Sequence[ApiModel] | None:
        """Return what the client has heard from the head of that name."""
        known = next((one for one in self.api.heads.known() if one.name == name), None)
        return known.serving.models if known is not None and known.serving is not None else None

    async def post(
        self, path: str = "/v1/chat/completions", *, key: str = "", **more: object
    ) -> aiohttp.ClientResponse:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return await self.http.post(f"{self.gateway.url}{path}", json={**CHAT, **more}, headers=headers)

    async def get(self, path: str) -> tuple[int, dict[str, object]]:
        async with self.http.get(f"{self.gateway.url}{path}") as answer:
            return answer.status, await answer.json()

    async def names(self) -> list[str]:
        """Return the names of the models that are listed."""
        status, body = await self.get("/v1/models")
        assert status == 200 and isinstance(body["data"], list)
        return [one["id"] for one in body["data"]]

    @property
    def sent(self) -> list[bytes]:
        """Return what it has sent on all its streams."""
        return [bytes(port.sent) for port in self.client.ports]

    async def until_ready(self) -> None:
        await until(lambda: self.api.readiness.state is ModelState.READY)


def text_of(streamed: bytes) -> str:
    """Return the text of a streamed chat's pieces."""
    found = []
    for line in streamed.decode().splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: ")).get("choices", ()):
                found.append(choice["delta"].get("content") or "")
    return "".join(found)


@contextlib.asynccontextmanager
async def scene(*, roles: frozenset[Role] = ALL, only: Sequence[str] = ()) -> AsyncIterator[Scene]:
    """A client in a mesh of its own so far; nothing is left when the block is."""
    with tempfile.TemporaryDirectory(prefix="cl") as folder:
        async with Owner() as owner:
            net = Net(owner)
            mesh = net.mesh("client", "client", roles=roles)

            shown: list[Mapping[str, MetadataValue]] = []

            def shows(asked: TunnelRequest) -> Tunnel:
                shown.append(asked.metadata)
                return open_tunnel(LinksConfig(compress="off"), mesh, asked)

            heads = HeadFollower(mesh, partial(open_on_demand, mesh, metadata={}), only)
            api = ApiClient(heads, shows, mesh.key.peer, PlainModel)
            gateway = await gateway_of(GatewayConfig(port=0, fails_over=True), api)
            role = owner.start(api.serve(), name="client")
            async with contextlib.AsyncExitStack() as held:
                async with serving(gateway), aiohttp.ClientSession() as http:
                    yield Scene(net, Path(folder), mesh, api, gateway, http, held, shown)
                role.cancel()
            owner.cancel()
