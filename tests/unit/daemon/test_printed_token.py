"""The token that a role prints at its start: alone on stdout, and what to do with it beside it."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from meshd.admin.api import InviteReply
from meshd.config.tree import Config, LogConfig
from meshd.daemon.member_node import MemberNode
from meshd.daemon.run import Daemon, url_in_the_lan
from meshd.gateway.interface import GatewayStatus
from meshd.identity.keystore import Home
from meshd.link.net import local_addresses
from meshd.link.net.local_addresses import InterfaceAddress

from tests.sim.loop import run

NOW = 1_900_000_000


class Inviting:
    """Of a member, what the printing needs."""

    def __init__(self, invite: InviteReply | None) -> None:
        self._invite = invite
        self.node = self

    def wall_clock(self) -> int:
        return NOW

    def printed_invite(self) -> InviteReply | None:
        return self._invite


def printed(
    folder: Path, role: str, *, form: str = "text", may_invite: bool = True
) -> tuple[list[str], list[str]]:
    """The lines of stdout, and those of stderr."""
    out: list[str] = []
    notes: list[str] = []

    async def main() -> None:
        config = replace(Config(), log=replace(LogConfig(), format=form))
        daemon = Daemon(config, role, Home(folder / "home"), out=out.append, note=notes.append)
        invite = InviteReply(token="meshd1x", id="00ff", expires_at=NOW + 86_400, uses=10)
        daemon._print_token(cast(MemberNode, Inviting(invite if may_invite else None)))

    asyncio.run(main())
    return out, [line for note in notes for line in note.splitlines()]


@pytest.mark.parametrize(
    ("host", "reachable", "url"),
    [
        ("0.0.0.0", ("fd00::7", "192.168.1.7", "10.1.1.1"), "http://192.168.1.7:8090"),
        ("::", ("fd00::7",), "http://[fd00::7]:8090"),
        ("::", ("fd00::7", "192.168.1.7"), "http://192.168.1.7:8090"),
        ("0.0.0.0", ("fd00::7",), None),
        ("127.0.0.1", ("192.168.1.7",), None),
        ("192.168.1.7", ("192.168.1.7",), None),
    ],
)
def test_the_address_for_other_devices(host: str, reachable: tuple[str, ...], url: str | None) -> None:
    assert url_in_the_lan("http://127.0.0.1:8090", host, reachable) == url


@pytest.mark.parametrize(
    ("role", "command"),
    [("worker", "meshd serve --model FILE --join INVITE"), ("serve", "meshd worker --join INVITE")],
)
def test_what_it_is_for_and_how_long_is_told_beside_it(tmp_path: Path, role: str, command: str) -> None:
    out, (validity, use) = printed(tmp_path, role)
    assert out == ["meshd1x"]
    assert validity == "invite 00ff: valid for 10 nodes and 24 h 0 min; keep it secret"
    assert f"run `{command}`, with this invite" in use


def test_a_log_for_programs_has_no_other_lines(tmp_path: Path) -> None:
    assert printed(tmp_path, "worker", form="json") == (["meshd1x"], [])


def test_one_that_joined_and_may_not_invite_says_what_it_does_now(tmp_path: Path) -> None:
    out, [note] = printed(tmp_path, "worker", may_invite=False)
    assert out == [] and "lends its devices to each node that runs `meshd serve`" in note
    assert printed(tmp_path, "worker", form="json", may_invite=False) == ([], [])
    assert printed(tmp_path, "serve", may_invite=False) == ([], []), "its API says when it is ready"


@pytest.mark.parametrize(
    ("host", "lines"),
    [
        ("127.0.0.1", ["ready: chat at http://127.0.0.1:8090"]),
        (
            "0.0.0.0",
            ["ready: chat at http://127.0.0.1:8090", "from other devices: http://192.168.1.7:8090"],
        ),
    ],
)
def test_a_node_with_an_api_says_once_where_to_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, lines: list[str]
) -> None:
    found = [InterfaceAddress("lo", "127.0.0.1"), InterfaceAddress("eth0", "192.168.1.7")]
    monkeypatch.setattr(local_addresses, "enumerate_addresses", lambda: found)
    config = replace(Config(), serve=replace(Config().serve, host=host))
    notes: list[str] = []
    loading = GatewayStatus(url="http://127.0.0.1:8090", ready=False, requests=0, tokens=0)
    states = iter([loading, loading, replace(loading, ready=True)])

    async def main() -> None:
        daemon = Daemon(config, "serve", Home(tmp_path / "home"), out=print, note=notes.append)
        await daemon._say_when_ready(lambda: next(states))

    run(main())
    assert notes == lines
