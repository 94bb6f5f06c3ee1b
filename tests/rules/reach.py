"""Rules for what this node does for peers: where it connects, and how much it holds."""

import ast
import re
from collections.abc import Iterator

from tests.rules.source import Fault, Source, last_part

MAKER = "meshd/wire/dialable.py"
FACING_PEERS = ("meshd/link/", "meshd/peer/", "meshd/rendezvous/", "meshd/daemon/", "meshd/wire/")
CONNECTS = frozenset({"sock_connect", "open_connection", "create_connection", "sendto"})
# These connect or send by themselves. The first three take nothing but `Dialable`.
CONNECTS_ALLOWED = frozenset(
    {
        "meshd/link/connecting.py",
        "meshd/link/punch_port.py",
        "meshd/link/birthday_sockets.py",
        "meshd/link/stun.py",  # servers that the user named; members among them come from daemon/places.py
        "meshd/link/quic_socket.py",  # to where a `DialPort` leads, or back to where a datagram came from
        "meshd/daemon/native_check.py",  # llama.cpp's own process
    }
)


def dialables(source: Source) -> Iterator[Fault]:
    """A `Dialable` is made by the policy alone: then a type checker proves that everybody has asked."""
    if source.path == MAKER:
        return
    for call, name in source.calls():
        made = last_part(name) == "Dialable"
        cast = last_part(name) == "cast" and any("Dialable" in ast.dump(word) for word in call.args[:1])
        if made or cast:
            yield source.fault(call, "dialable", f"`{name}`: ask `dialable`, or `trusted`")


def connects(source: Source) -> Iterator[Fault]:
    """What faces peers opens no connection past those who take a `Dialable`."""
    if not source.path.startswith(FACING_PEERS) or source.path in CONNECTS_ALLOWED:
        return
    for call, name in source.calls():
        has_socket = any(word.arg == "sock" for word in call.keywords)
        if last_part(name) in CONNECTS and not has_socket:
            yield source.fault(call, "connect", f"`{name}`: connect to a `Dialable` (meshd.link.connecting)")


HOLD_FOR_PEERS = (*FACING_PEERS[:3], "meshd/tunnel/", "meshd/role/", "meshd/gateway/")
_LIMIT = re.compile(r"(MAX|MOST)_[A-Z_]+")
# Sizes of one message or buffer, times, and what this user's own commands may do: nothing that members share.
NO_SHARES = frozenset(
    [
        "gateway/door.py:MAX_HEADERS",
        "link/birthday_plan.py:MAX_REMEMBERED",
        "link/ice_links.py:MAX_REMEMBERED",
        "link/member_relay.py:MAX_ASKED",
        "link/model_window.py:MOST_UP_SEGMENTS",
        "link/outer_port.py:MAX_ASKED",
        "link/outer_port.py:MAX_REQUESTS",
        "link/punch.py:MOST_HEAD_START",
        "link/punch_race.py:MAX_CONNECTED",
        "link/quic_socket.py:MOST_SEGMENTS",
        "link/relay.py:MAX_WAYS",
        "link/relay_control.py:MAX_WAITING",
        "link/relay_proxy.py:MAX_ADDRESSES",
        "link/sctp_inbox.py:MAX_HOLES",
        "link/sctp_outbox.py:MAX_REORDER_PACKETS",
        "link/sctp_outbox.py:MAX_FLIGHT_CHUNKS",
        "link/sctp_packet.py:MAX_GAPS",
        "link/stun.py:MAX_SERVERS",
        "link/udp_socket.py:MOST_KNOWN",
        "link/webrtc_ice.py:MAX_EARLY",
        "peer/attempts.py:MOST_SHORT",
        "peer/faults.py:MAX_PEERS",
        "peer/signal_ways.py:MAX_PEERS",
        "peer/streams.py:MAX_REASON",
        "rendezvous/book.py:MAX_PEERS",
        "rendezvous/book.py:MAX_HINTS",
        "rendezvous/join.py:MAX_RECORDS",
        "rendezvous/mdns.py:MAX_NETWORKS",
        "rendezvous/mdns_network.py:MAX_WAITING",
        "rendezvous/mdns_places.py:MAX_HOSTS",
        "rendezvous/mdns_text.py:MAX_FIELDS",
        "rendezvous/mdns_text.py:MAX_ADDRESSES",
        "role/extra.py:MOST_TOKENS",
        "role/fitness_report.py:MOST_WORD",
        "role/fitness_report.py:MOST_TEXT",
        "role/passed.py:MAX_KEPT",
        "role/standing.py:MOST_DOUBLINGS",
        "role/weights_report.py:MAX_UNSUPPORTED",
        "role/weights_report.py:MAX_UNROUNDED",
        "role/weights_report.py:MAX_KEPT",
        "tunnel/forward.py:MAX_CONNECTIONS",
        "tunnel/kept.py:MAX_EXPOSED",
        "tunnel/kept.py:MAX_OPENED",
        "tunnel/kept.py:MAX_PEERS",
        "tunnel/kept.py:MAX_HOST",
    ]
)


def limits(source: Source) -> Iterator[Fault]:
    """How many of something members may have stands in base/shares.py, and so in docs/security.md."""
    if not source.path.startswith(HOLD_FOR_PEERS):
        return
    for node in source.tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name = node.targets[0].id
        number = isinstance(node.value, ast.Constant | ast.BinOp)
        place = f"{source.path.removeprefix('meshd/')}:{name}"
        counts = _LIMIT.fullmatch(name) and not name.endswith(("_BYTES", "_SECONDS"))
        if number and counts and place not in NO_SHARES:
            yield source.fault(node, "limit", f"`{name}`: put a share into meshd/base/shares.py")
