"""Rules for what this node does for peers: where it connects, how much it holds, what it logs."""

import ast
import re
from collections.abc import Iterator

from tests.rules.source import Fault, Source, dotted, last_part

MAKER = "meshd/wire/dialable.py"
FACING_PEERS = ("meshd/link/", "meshd/peer/", "meshd/rendezvous/", "meshd/daemon/", "meshd/wire/")
CONNECTS = frozenset({"sock_connect", "open_connection", "create_connection", "sendto"})
# These connect or send by themselves. The first three take nothing but `Dialable`.
CONNECTS_ALLOWED = frozenset(
    {
        "meshd/link/tcp/sockets.py",
        "meshd/link/punch.py",
        "meshd/link/port_prediction/links.py",
        "meshd/link/net/stun.py",  # servers that the user named, and members: rendezvous/book.py
        "meshd/link/net/udp_sockets.py",  # where a `DialPort` leads, or back to a datagram's source
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
    """Require that what faces peers opens no connection past those who take a `Dialable`."""
    if not source.path.startswith(FACING_PEERS) or source.path in CONNECTS_ALLOWED:
        return
    for call, name in source.calls():
        has_socket = any(word.arg == "sock" for word in call.keywords)
        if last_part(name) in CONNECTS and not has_socket:
            yield source.fault(call, "connect", f"`{name}`: connect to a `Dialable` (meshd.link.tcp.sockets)")


HOLD_FOR_PEERS = (
    *FACING_PEERS[:3],
    "meshd/tunnel/",
    "meshd/head/",
    "meshd/worker/",
    "meshd/client/",
    "meshd/devices/",
    "meshd/gateway/",
)
_LIMIT = re.compile(r"(MAX|MOST)_[A-Z_]+")
# Sizes of one message or buffer, times, and what this user's own commands may do: nothing that members share.
NO_SHARES = frozenset(
    [
        "gateway/client_connections.py:MAX_HEADERS",
        "link/relayed/through_member.py:MAX_ASKED",
        "link/bbr.py:MOST_UP_SEGMENTS",
        "link/net/stun.py:MAX_SERVERS_ASKED",
        "link/net/stun.py:MAX_REQUESTS",
        "link/punch.py:MOST_HEAD_START",
        "link/net/udp_sockets.py:MOST_SEGMENTS",
        "link/relayed/control_connection.py:MAX_CALLS_WAITING",
        "link/relayed/http_proxy.py:MAX_PROXY_ADDRESSES",
        "link/webrtc/sctp.py:MAX_HOLES",
        "link/webrtc/sctp.py:MAX_REORDER_PACKETS",
        "link/webrtc/sctp.py:MAX_FLIGHT_CHUNKS",
        "link/webrtc/sctp.py:MAX_GAPS",
        "link/net/stun.py:MAX_SERVERS",
        "link/net/udp_sockets.py:MOST_KNOWN",
        "link/ice/agent.py:MAX_EARLY",
        "peer/dial_schedule.py:MOST_SHORT",
        "peer/streams.py:MAX_REASON",
        "rendezvous/join.py:MAX_RECORDS",
        "rendezvous/mdns.py:MAX_NETWORKS",
        "rendezvous/mdns.py:MAX_NAMES_WAITING",
        "rendezvous/mdns_records.py:MAX_HOSTS",
        "rendezvous/mdns_records.py:MAX_FIELDS",
        "rendezvous/mdns_records.py:MAX_MDNS_HOSTS",
        "rendezvous/book.py:MAX_JUDGED",
        "rendezvous/book.py:MAX_MEMBERS_ASKED",
        "rendezvous/join_or_found.py:MAX_TRIED",
        "plan/wishes.py:MOST_TOKENS",
        "devices/device_trial.py:MOST_TEXT",
        "devices/device_trial.py:MAX_TRIALS",
        "head/failures.py:MOST_DOUBLINGS",
        "gateway/console.py:MOST_STREAMS",
        "gateway/console.py:MOST_ACTIONS",
        "gateway/sessions.py:MOST_LINKS",
        "gateway/sessions.py:MOST_SESSIONS",
        "head/lease.py:MAX_KEPT",
        "tunnel/user_tunnels.py:MAX_CLIENTS",
        "tunnel/user_tunnels.py:MAX_EXPOSED",
        "tunnel/user_tunnels.py:MAX_OPENED",
        "tunnel/user_tunnels.py:MAX_ALLOWED_PEERS",
        "tunnel/user_tunnels.py:MAX_HOST",
    ]
)


def limits(source: Source) -> Iterator[Fault]:
    """Require that what members may have of something stands in base/peer_limits.py."""
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
            yield source.fault(node, "limit", f"`{name}`: put a share into meshd/base/peer_limits.py")


LOGGERS = frozenset({"log", "_log", "LOG", "logger"})
LIMITED_LEVELS = frozenset({"info", "warning"})  # base/log.py lets so many through; debug is asked for
HEARD_BY_PEERS = (
    *("meshd/peer/", "meshd/link/", "meshd/tunnel/", "meshd/relay/", "meshd/rpc/", "meshd/rendezvous/"),
    *(
        "meshd/worker/lending.py",
        "meshd/worker/lent_streams.py",
        "meshd/worker/push_neighbours.py",
    ),
    *(
        "meshd/worker/mesh_server.py",
        "meshd/head/lease.py",
        "meshd/head/leases.py",
        "meshd/store/content_store.py",
    ),
)
# Errors are never left out, so they are written where a limit of their own holds.
ERRORS_ALLOWED = frozenset(
    {
        "meshd/base/fault_boundary.py",  # FAULT_LINES
        "meshd/head/model.py",  # why the model cannot be served: once for each try, which has its pause
    }
)
KINDS_OF_A_TABLE = frozenset({"meshd/process/child.py"})  # `child_` and a state
# Lines without a peer, in code that peers reach: all of a kind have one share together (KIND_LINES).
OF_NO_PEER = frozenset(
    {
        # this node's own life, and its user's
        ("meshd/peer/mesh.py", "woke_up"),
        ("meshd/peer/local_member.py", "addresses_changed"),
        ("meshd/rendezvous/join_or_found.py", "mesh_founded"),
        ("meshd/rendezvous/join_or_found.py", "mesh_joined"),
        ("meshd/rendezvous/join_or_found.py", "mesh_left_empty"),
        ("meshd/rendezvous/join_or_found.py", "join_not_used"),
        ("meshd/rendezvous/join_or_found.py", "stun_silent"),
        ("meshd/rendezvous/join_or_found.py", "nat_symmetric"),
        # what the one inviter told when this node joined
        ("meshd/rendezvous/join_or_found.py", "ban_refused"),
        ("meshd/rendezvous/join_or_found.py", "record_refused"),
        ("meshd/worker/lending.py", "device"),
        ("meshd/relay/run.py", "stopping"),
        ("meshd/relay/run.py", "relay_ready"),
        ("meshd/rendezvous/mdns.py", "network_joined"),
        ("meshd/rendezvous/mdns.py", "network_not_joined"),
        ("meshd/tunnel/user_tunnels.py", "tunnel_waits"),
        # this node's own disk
        ("meshd/store/content_store.py", "kept_weights_damaged"),
        ("meshd/store/content_store.py", "weights_store_unusable"),
        # programs of this machine, at a tunnel's local end
        ("meshd/tunnel/user_tunnels.py", "tunnel_full"),
        ("meshd/tunnel/user_tunnels.py", "tunnel_foreign_client"),
        # no descriptor is free, for many reasons
        ("meshd/tunnel/user_tunnels.py", "accept_paused"),
        ("meshd/base/sockets.py", "accept_paused"),
        # who has proven nothing, or is no member: naming it would use up the lines about somebody else
        ("meshd/link/secure/handshake.py", "version_refused"),
        ("meshd/peer/signals.py", "signal_dropped"),
        ("meshd/rendezvous/join.py", "joiner_refused"),
        ("meshd/rendezvous/book.py", "record_dropped"),
        ("meshd/link/relayed/relay_client.py", "relay_unreachable"),
        ("meshd/link/relayed/relay_client.py", "relay_connected"),
        ("meshd/link/relayed/relay_client.py", "relay_lost"),
    }
)


def limited_lines(source: Source) -> Iterator[Fault]:
    """Require a limit for each line that others make this node log: the line names its `peer`, by its key.

    A line of a kind that is made up as it goes would have a fresh share each time, so kinds are constants.
    """
    for call, level in _log_calls(source):
        kind = _kind(call)
        if level == "error" and source.path not in ERRORS_ALLOWED:
            yield source.fault(call, "log", "an error in the log has no limit: raise it to the boundary")
        if level not in LIMITED_LEVELS:
            continue
        if not kind and source.path not in KINDS_OF_A_TABLE:
            yield source.fault(call, "log", "the kind of a line is a constant")
        elif source.path.startswith(HEARD_BY_PEERS):
            peer = next((word.value for word in call.keywords if word.arg == "peer"), None)
            if peer is None and (source.path, kind) not in OF_NO_PEER:
                yield source.fault(call, "log", f"`{kind}` names no peer whose share of the log it is")
            if peer is not None and not _by_key(peer):
                yield source.fault(call, "log", f"`{kind}`: `peer` is the short id of a key, not a name")


def _log_calls(source: Source) -> Iterator[tuple[ast.Call, str]]:
    """Calls of a logger, and of a name to which one of its methods was given, with the most severe level."""
    aliases: dict[str, str] = {}
    for node in source.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            levels = {level for part in ast.walk(node.value) if (level := _level(part))}
            if levels and not isinstance(node.value, ast.Call):
                aliases[node.targets[0].id] = "error" if "error" in levels else "warning"
    for call, name in source.calls():
        if level := _level(call.func) or aliases.get(name, ""):
            yield call, level


def _level(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute) and last_part(dotted(node.value)) in LOGGERS:
        return node.attr if node.attr in LIMITED_LEVELS | {"error"} else ""
    return ""


def _kind(call: ast.Call) -> str:
    first = call.args[0] if call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def _by_key(node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):  # an id as text, cut
        return isinstance(node.slice, ast.Slice) and "SHORT_CHARS" in ast.dump(node.slice)
    return isinstance(node, ast.Attribute) and node.attr == "short"
