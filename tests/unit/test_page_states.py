"""What the page of the mesh says of other nodes and of the network is what the command line says."""

import io
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
from meshd.admin.api import NatView, NetcheckReply, PortMappingView
from meshd.admin.health import AWAY_SECONDS, SUSPENDED_SECONDS, is_away
from meshd.admin.request import to_fields
from meshd.admin.status import PeerStateName, PeerView
from meshd.cli import doctor
from meshd.cli.output import Output

from tests.page_scripts import needs_typescript, page_script

pytestmark = [needs_typescript, pytest.mark.timeout(180)]
_PEERS = """
import { readFileSync } from 'node:fs';
import { isAway, peerState } from './peer_states.js';
const peers = JSON.parse(readFileSync(0, 'utf-8'));
console.log(JSON.stringify(peers.map((peer) => [isAway(peer), ...peerState(peer)])));
"""
_NETCHECK = """
import { readFileSync } from 'node:fs';
import { netcheckLines } from './netcheck_words.js';
const replies = JSON.parse(readFileSync(0, 'utf-8'));
console.log(JSON.stringify(replies.map(netcheckLines)));
"""
STATES: Sequence[PeerStateName] = get_args(PeerStateName)
SECONDS = (None, 0.0, SUSPENDED_SECONDS - 1, SUSPENDED_SECONDS, AWAY_SECONDS - 1, AWAY_SECONDS)
PEER = PeerView(id="p" * 52, name="garage", role="worker", state="known", link=None)


def seen(peers: Sequence[PeerView]) -> list[tuple[bool, str, str]]:
    """Whether the page takes each for away, the sign beside it, and its word."""
    found = page_script(_PEERS, [to_fields(peer) for peer in peers])
    return [(away, sign, word) for away, sign, word in found]


def test_a_peer_is_away_on_the_page_where_the_command_line_says_so() -> None:
    peers = [
        replace(
            PEER,
            state=state,
            state_s=seconds,
            native_protocol=native,
            stopped=stopped,
            present=present,
            says_banned=banned,
        )
        for state, seconds, native, stopped, present, banned in itertools.product(
            STATES, SECONDS, ("", "mesh 4"), ("", "it was stopped"), (False, True), ("", "you are banned")
        )
    ]
    wanted = [is_away(peer) for peer in peers]
    assert [away for away, _, _ in seen(peers)] == wanted
    assert any(wanted) and not all(wanted)


@pytest.mark.parametrize(
    ("peer", "sign", "word"),
    [
        (replace(PEER, state="connected"), "good", "connected"),
        (replace(PEER, state="connected", paused=True), "paused", "paused"),
        (replace(PEER, state="connected", paused=True, fetching=True), "busy", "fetching a model"),
        (replace(PEER, state="known", present=True, paused=True), "paused", "paused"),
        (replace(PEER, state="lost", present=True), "off", "running, not connected"),
        (replace(PEER, state="suspended", state_s=3.0), "bad", "interrupted"),
        (replace(PEER, state="lost", native_protocol="mesh 4", state_s=30.0), "bad", "lost"),
        (replace(PEER, state="lost", native_protocol="mesh 4", state_s=86_400.0), "off", "away"),
        (replace(PEER, state="lost", stopped="by its user", state_s=3.0), "off", "stopped"),
        (replace(PEER, state="connecting", state_s=3.0), "busy", "connecting"),
        (replace(PEER, state="connecting", state_s=86_400.0), "off", "away"),
        (replace(PEER, state="known", state_s=3.0), "off", "not connected"),
        (replace(PEER, state="connected", says_banned="you are"), "bad", "has banned this node"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_states_have_a_sign_and_a_word(peer: PeerView, sign: str, word: str) -> None:
    assert [found[1:] for found in seen([peer])] == [(sign, word)]


NAT = NatView(kind="port-restricted", mapping="independent", filtering="unknown", ports="preserved", step=0)
ROUTER = PortMappingView(
    state="mapped",
    language="pcp",
    gateway="192.168.1.1",
    external="203.0.113.9:17430",
    mappings=("203.0.113.9:17430", "203.0.113.9:17431"),
    verified=True,
    why="",
)
REPLY = NetcheckReply(
    udp="passes",
    tcp="only_443",
    nat=NAT,
    tcp_nat=NAT,
    ipv6="yes",
    hairpin="no",
    public_v4=None,
    public_v6="2001:db8::7",
    carrier_nat=False,
    port_mapping=ROUTER,
    direct="peers can be direct if they have a public address",
    problems=(),
    servers=(),
    age_s=0.0,
    daemon=True,
)
REPLIES = (
    REPLY,
    replace(REPLY, ipv6="no", tcp="passes", public_v4="203.0.113.9", servers=("a:3478", "b:3478")),
    *(
        replace(REPLY, nat=replace(NAT, ports=ports, step=2, mapping=mapping))
        for ports, mapping in itertools.product(
            ("unknown", "preserved", "random", "counting"), ("none", "symmetric")
        )
    ),
    *(
        replace(REPLY, port_mapping=replace(ROUTER, state=state, verified=sure, language=language, why=why))
        for state, sure, language, why in itertools.product(
            ("mapped", "offered", "off", "asking", "none"), (None, True, False), ("", "pcp"), ("", "no")
        )
    ),
    replace(REPLY, port_mapping=replace(ROUTER, mappings=())),
    replace(REPLY, port_mapping=replace(ROUTER, state="offered", external="")),
)


def test_netcheck_has_the_words_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[str, str]] = []
    monkeypatch.setattr(doctor, "_line", lambda _out, name, text: lines.append((name.lower(), text)))
    of_page = page_script(_NETCHECK, [to_fields(reply) for reply in REPLIES])
    for reply, shown in zip(REPLIES, of_page, strict=True):
        lines.clear()
        doctor.show(reply, Output(io.StringIO(), io.StringIO(), {}))
        assert [(name.lower(), text) for name, text in shown] == lines


def test_an_old_netcheck_says_how_old_it_is() -> None:
    (shown,) = page_script(_NETCHECK, [to_fields(replace(REPLY, age_s=180.0))])
    assert shown[-1] == ["Checked", "3 min ago"]
