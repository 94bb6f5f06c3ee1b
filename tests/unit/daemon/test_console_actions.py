"""What the page of the mesh may do: by role, by the codec of the requests, and within limits."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.admin import api
from meshd.admin.request import Json, Request, requests
from meshd.admin.server import decoded
from meshd.base.errors import MeshdError, Refused, RemoteProtocolError, UserError
from meshd.base.tasks import Owner
from meshd.daemon.console_actions import (
    FOUNDING,
    INVITING,
    LENDING,
    MOST_AT_ONCE,
    MOST_DEPTH,
    MOST_ITEMS,
    MOST_LETTERS,
    MOST_LINES,
    MOST_NUMBER,
    REQUESTS,
    SERVING,
    Abilities,
    ConsoleActions,
    Control,
    check_size,
)
from meshd.daemon.control import TunnelAnswers
from meshd.identity.keys import PeerId
from meshd.peer.mesh import PeerMesh, find
from meshd.tunnel.user_tunnels import OwnTunnels

from tests.conformance.run import run
from tests.unit.admin.fake import FakeControl

R = TypeVar("R")
ALL = Abilities(invites=True, is_founder=True, lends=True, serves=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


class Noting(FakeControl):
    """Keeps the requests themselves."""

    def __init__(self) -> None:
        super().__init__(pulls=[api.PullReply(id=1, step="asking")])
        self.came: list[Request[object]] = []

    async def answer(self, request: Request[R]) -> R:
        self.came.append(request)
        return await super().answer(request)


def actions(control: Control | None = None, can: Abilities = ALL, log: Path = Path("none")) -> ConsoleActions:
    return ConsoleActions(control or FakeControl(), lambda: can, log=log)


def test_all_names_are_requests() -> None:
    with pytest.raises(RemoteProtocolError):
        decoded(b'{"request": "capacity", "again": 1}\n')  # defines all of them
    names = REQUESTS | INVITING | FOUNDING | LENDING | SERVING
    assert names <= requests().keys()
    assert not names & {"stop", "leave", "metrics", "status", "files_in_use"}


@pytest.mark.parametrize(
    ("can", "more"),
    [
        (Abilities(), set()),
        (Abilities(invites=True), {"invite", "invite_revoke"}),
        (Abilities(is_founder=True), {"unban"}),
        (Abilities(lends=True), {"pause", "resume", "drain"}),
        (Abilities(serves=True), {"why"}),
    ],
)
def test_a_node_can_do_what_its_role_allows(can: Abilities, more: set[str]) -> None:
    assert set(actions(can=can).names) == {*REQUESTS, "logs", *more}


async def test_what_a_node_cannot_do_is_refused() -> None:
    for name in ("pause", "stop", "leave", "status", "no" * 100, ""):
        with pytest.raises(UserError, match="this node cannot do"):
            await actions(can=Abilities()).act(name, {})


async def test_a_request_is_that_of_the_control_socket() -> None:
    control = Noting()
    found = await actions(control).act("invite", {"expires_s": 60, "uses": 2, "roles": ["use"]})
    assert control.came == [api.InviteRequest(expires_s=60, uses=2, roles=("use",))]
    assert found["uses"] == 2 and isinstance(found["token"], str)


async def test_fields_cannot_name_another_request() -> None:
    control = Noting()
    await actions(control).act("resume", {"request": "stop"})
    assert control.came == [api.ResumeRequest()] and not control.stopping


async def test_drain_is_that_of_the_verb() -> None:
    control = Noting()
    assert await actions(control).act("drain", {"on": False}) == {}
    assert control.came == [api.PauseRequest(drain=True)]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("invite", {}),
        ("invite", {"expires_s": "60", "uses": 1, "roles": []}),
        ("invite", {"expires_s": True, "uses": 1, "roles": []}),
        ("revoke", {"peer": 3}),
        ("pull", {"name": ["a"]}),
        ("ping", {"peer": "a", "timeout_s": MOST_NUMBER * 2}),
        ("ping", {"peer": "a" * (MOST_LETTERS + 1)}),
    ],
)
async def test_wrong_fields_are_refused(name: str, fields: Mapping[str, object]) -> None:
    control = Noting()
    with pytest.raises(RemoteProtocolError, match="field"):
        await actions(control).act(name, fields)
    assert control.came == []


@given(st.sampled_from(sorted({*REQUESTS, "invite", "pause", "unban", "logs", "drain"})), JSON)
def test_any_fields_are_taken_or_refused(name: str, fields: object) -> None:
    """Never anything but an error of ours, nor a request of another name."""
    control = Noting()
    given_fields = fields if isinstance(fields, Mapping) else {"name": fields, "id": fields, "peer": fields}
    try:
        run(actions(control).act(name, given_fields))
    except MeshdError:
        return
    kinds = {request.request_name for request in control.came}
    assert kinds <= {"pause" if name == "drain" else name}


class FakeMesh:
    """One peer, and whoever else is asked for is unknown."""

    def handle(self, service: str, handler: object, *, allow: object) -> None: ...

    def peers(self) -> list[object]:
        return []

    def find(self, text: str, also: object) -> PeerId:
        return find(text, me=PeerId(bytes(32)), names={GARAGE: "garage", PeerId(bytes(32)): "desk"})


class Services(TunnelAnswers):
    """Answers as the daemon does, about services alone."""

    def __init__(self) -> None:
        self.saved: list[bytes] = []
        mesh = cast(PeerMesh, FakeMesh())
        super().__init__(mesh, OwnTunnels(mesh=mesh, save=self.saved.append))


GARAGE = PeerId(b"g" * 32)
SSH: Mapping[str, object] = {"name": "ssh", "target": "127.0.0.1:22", "to": ["garage"]}
HTML = "<img src=x onerror=alert(1)>"


async def test_a_service_is_exposed_listed_and_removed() -> None:
    services = Services()
    acts = actions(services)
    made = await acts.act("expose", SSH)
    assert made["target"] == "127.0.0.1:22" and made["to"] == [str(GARAGE)]
    assert await acts.act("expose_list", {}) == {"exposed": [made]}
    assert await acts.act("expose_remove", {"name": "ssh"}) == {}
    assert await acts.act("expose_list", {}) == {"exposed": []} and len(services.saved) == 2


@pytest.mark.parametrize(
    "fields",
    [
        *({"name": name} for name in (HTML, "", "-x", "a b", "a\n", "\x1b[2J", "\u202essh", "é", "x" * 64)),
        *({"name": name} for name in ("ls", "rm", "x" * MOST_LETTERS)),
        *(
            {"target": place}
            for place in ("", "22", "nas", "nas:", "nas:0", "nas:65536", "nas:-1", "nas:2 2")
        ),
        *({"target": f"{host}:22"} for host in (HTML, "a b", "a\n", "\x1b[2J", "[::1", "é", "x" * 300)),
        *({"to": [node]} for node in ("", HTML, "desk", "nobody", "\x1b[2J", "x" * MOST_LETTERS)),
        *({"to": ["garage", node]} for node in ("nobody", "desk")),
        {"to": ["garage"] * (MOST_ITEMS + 1)},
        {"to": "garage"},
        {"target": 22},
        {"name": None},
    ],
    ids=lambda fields: ascii(fields)[:40],
)
async def test_a_service_that_the_command_line_refuses_is_not_exposed(fields: Mapping[str, object]) -> None:
    services = Services()
    acts = actions(services)
    with pytest.raises((UserError, RemoteProtocolError)) as refused:
        await acts.act("expose", {**SSH, **fields})
    assert len(refused.value.what) <= MOST_LETTERS + 100
    assert await acts.act("expose_list", {}) == {"exposed": []} and services.saved == []


async def test_a_service_that_is_not_there_is_not_removed() -> None:
    for name in (HTML, "", "x" * MOST_LETTERS):
        with pytest.raises(UserError, match="is exposed") as refused:
            await actions(Services()).act("expose_remove", {"name": name})
        assert len(refused.value.what) < 120


NESTED: object = "x"
for _ in range(MOST_DEPTH + 1):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    "value",
    [
        "a" * (MOST_LETTERS + 1),
        {"a" * (MOST_LETTERS + 1): 1},
        {"a": -MOST_NUMBER - 1},
        {"a": float("inf")},
        {"a": float("nan")},
        {"a": [0] * (MOST_ITEMS + 1)},
        {str(number): 0 for number in range(MOST_ITEMS + 1)},
        NESTED,
        object(),
    ],
)
def test_what_is_too_large(value: object) -> None:
    with pytest.raises(RemoteProtocolError, match="too large"):
        check_size(value)


@pytest.mark.parametrize(
    "value", ["a" * MOST_LETTERS, {"a": [None, True, MOST_NUMBER, 1.5]}, [0] * MOST_ITEMS, {}, [[[["x"]]]]]
)
def test_what_is_not(value: object) -> None:
    check_size(value)


class Slow(FakeControl):
    """Answers a netcheck when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.cancelled = 0

    async def answer(self, request: Request[R]) -> R:
        if isinstance(request, api.NetcheckRequest):
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return await super().answer(request)


async def test_long_actions_hold_up_no_other_and_are_few() -> None:
    control = Slow()
    acts = actions(control)
    async with Owner() as owner:
        running = [owner.start(acts.act("netcheck", {}), name="netcheck") for _ in range(MOST_AT_ONCE - 1)]
        await asyncio.sleep(0)
        assert await acts.act("invite_list", {})
        running.append(owner.start(acts.act("netcheck", {}), name="netcheck"))
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="8 actions") as refused:
            await acts.act("invite_list", {})
        assert refused.value.code == "busy"
        running[0].cancel()
        await asyncio.wait([running[0]])
        assert await acts.act("invite_list", {}), "one that was given up makes room"
        control.go.set()
    assert control.cancelled == 1


async def test_the_last_lines_of_the_log(tmp_path: Path) -> None:
    log, logs = tmp_path / "meshd.log", ["meshd"]
    acts = actions(log=log)
    assert await acts.act("logs", {}) == {"lines": [], "logs": logs}
    log.write_text("".join(f"line {number}\n" for number in range(300)))
    last: Mapping[str, Json] = await acts.act("logs", {"lines": 2})
    assert last == {"lines": ["line 298", "line 299"], "logs": logs}
    log.rename(f"{log}.1")
    log.write_bytes(b"new \xff\n")
    last = await acts.act("logs", {"lines": 2})
    assert last["lines"] == ["line 299", "new \N{REPLACEMENT CHARACTER}"]
    for lines in (0, -1, MOST_LINES + 1):
        with pytest.raises(UserError, match="`lines`"):
            await acts.act("logs", {"lines": lines})


async def test_logs_of_child_processes_by_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    acts = actions(log=folder / "meshd.log")
    assert (await acts.act("logs", {}))["logs"] == ["meshd"], "before there is a folder"
    folder.mkdir()
    (tmp_path / "secret.log").write_text("secret\n")
    for name, text in {
        "meshd.log": "own\n",
        "llama-server.log": "a child\n",
        "other.txt": "no log\n",
    }.items():
        (folder / name).write_text(text)
    (folder / "folder.log").mkdir()
    found = await acts.act("logs", {"log": "llama-server"})
    assert found == {"lines": ["a child"], "logs": ["meshd", "llama-server"]}
    assert (await acts.act("logs", {}))["lines"] == ["own"]
    for name in ("../secret", str(tmp_path / "secret"), "other", "folder", "", ".", "llama-server.log"):
        with pytest.raises(UserError, match="no log named") as refused:
            await acts.act("logs", {"log": name})
        assert refused.value.hint == "choose one of: meshd, llama-server"
