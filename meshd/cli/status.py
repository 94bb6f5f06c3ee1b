"""The verbs about the running node and its peers: status, metrics, peers and ping."""

import argparse
import time
from collections.abc import Sequence
from functools import partial

from meshd import __version__
from meshd.admin.api import MetricsRequest, PingReply, PingRequest, StatusRequest
from meshd.admin.client import Client, ask
from meshd.admin.health import is_away, is_met
from meshd.admin.request import to_json
from meshd.admin.status import PeerView
from meshd.admin.status import Status as NodeStatus
from meshd.admin.status_json import for_scripts
from meshd.base.errors import Refused
from meshd.base.units import in_bytes, in_memory, in_number, in_time
from meshd.cli.layout import State
from meshd.cli.options import Arguments, number
from meshd.cli.output import Output
from meshd.config.tree import home_here
from meshd.gateway.interface import GatewayStatus
from meshd.identity.naming import WORKER_ROLE
from meshd.model.status import (
    NOT_HELD,
    FetchStatus,
    LentState,
    ModelStatus,
    SpeculationStatus,
    Speeds,
    SplitPart,
    StandbyStatus,
    of_each_layer,
)

WATCH_SECONDS = 1.0
DEFAULT_COUNT = 4
_PAUSE_SECONDS = 0.5
REPLY_MARGIN_SECONDS = 5.0
_SHOWN_TENSORS = 10
MISTAKE = "user"  # what was asked cannot be done: asking again changes nothing


class Status:
    """Show what this node does: mesh, peers, tunnels, model, API, and what needs attention."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add --json, --watch."""
        parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
        parser.add_argument(
            "--watch",
            action="store_true",
            help="refresh every second; without a terminal, print a line per change",
        )

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the daemon and print."""
        home = home_here()
        with Client(home) as client:
            if args.watch:
                _watch(client, out, as_json=args.json)
            status = client.ask(StatusRequest())
        if args.json:
            out.json(for_scripts(status))
        else:
            show(status, out)
        return 0


def _watch(client: Client, out: Output, *, as_json: bool) -> None:
    """Show the status until interrupted, or the daemon ends (an error)."""
    if out.can_draw_screens and not as_json:
        with out.screen() as show_on_screen:
            while True:
                show_on_screen(partial(show, client.ask(StatusRequest())))
                time.sleep(WATCH_SECONDS)
    seen = ""
    while True:
        status = client.ask(StatusRequest())
        if as_json:
            out.json(for_scripts(status), compact=True)
        elif (line := summary(status)) != seen:
            out.line(line)
            seen = line
        time.sleep(WATCH_SECONDS)


def summary(status: NodeStatus) -> str:
    """Return one line that changes when something worth a look has changed."""
    states = [f"{peer.name}={peer.state}" for peer in status.peers]
    parts = [f"{status.node.name} {status.node.role}", "peers " + (" ".join(states) or "none")]
    if status.node.draining is not None:
        parts.append(status.node.draining.text)
    if status.models:
        parts.append("models " + " ".join(f"{model.name}={model.state}" for model in status.models))
    elif status.model is not None:
        reason = f": {status.model.reason}" if status.model.reason else ""
        parts.append(f"model {_state(status.model)}{reason}")
        if status.model.draining is not None:
            parts.append("draining")
    elif status.fetching is not None:
        share = status.fetching.share
        done = "" if share is None else f" {share:.0%}"
        parts.append(f"fetching {status.fetching.name}{done}")
    return ", ".join(parts)


def show(status: NodeStatus, out: Output) -> None:
    """Show the whole status to a person."""
    _show_node(status, out)
    _show_lent(status, out)
    _show_machine(status, out)
    if status.fetching is not None:
        _show_fetch(status.fetching, out)
    _show_models(status.models, out)
    if status.model is not None:
        _show_model(status.model, out)
    if status.store is not None and (status.store.limit or status.store.bytes):
        there, most = in_bytes(status.store.bytes), in_bytes(status.store.limit)
        count = in_number(status.store.tensors, "tensor")
        out.field("cache", f"{there} of {most}: {count} downloaded")
    out.line()
    print_peers(status, out)
    if status.api is not None:
        _show_keys(status.api, out)
    _show_tunnels(status, out)
    if status.children:
        out.line()
        out.table(
            ("CHILD", "PROCESS", "STATE", "RESTARTS", "REASON"),
            [(c.name, str(c.pid or "-"), State(c.state), str(c.restarts), c.reason) for c in status.children],
            below="REASON",
        )
    for warning in status.warnings:
        out.line()
        out.text(State(f"{warning.severity}:"), f" {warning.what} [{warning.code}]")
        out.text(f"hint: {warning.hint}", indent=2)


def _show_node(status: NodeStatus, out: Output) -> None:
    node = status.node
    out.field("node", f"{node.name} ({node.id[:10]})  {node.role}, meshd {node.version}, process {node.pid}")
    out.field("", f"up {in_time(node.uptime_s)}, {in_memory(node.rss_bytes)} of memory")
    if node.version != __version__:
        out.field("", f"installed is meshd {__version__}: `meshd stop` and start it again to use that")
    if node.draining is not None:
        out.field("", node.draining.text)
    elif node.paused:
        out.field("", "paused: it lends nothing until `meshd resume`")
    if node.listen:
        out.field("", f"listens on {', '.join(node.listen)}")
    if status.mdns is not None and status.mdns.state == "silent":
        out.field("", f"mDNS is silent: {status.mdns.why}")
    if status.mesh is None:
        out.field("mesh", "none")
    else:
        roles = f", roles of this node: {', '.join(status.mesh.roles)}" if status.mesh.roles else ""
        out.field("mesh", f"{status.mesh.id[:10]}, {in_number(status.mesh.members, 'member')}{roles}")
    if status.api is not None:
        api = status.api
        ready = State("ready" if api.ready else "not ready")
        requests, tokens = in_number(api.requests, "request"), in_number(api.tokens, "token")
        waiting = f", {api.waiting} waiting for their turn" if api.waiting else ""
        out.field("api", f"{api.url}  ", ready, f", {requests}, {tokens}{waiting}")
        if status.model is None and status.fetching is None and api.reason:  # else it is said below
            out.field("", api.reason)


def _show_lent(status: NodeStatus, out: Output) -> None:
    """Show who has a worker's memory."""
    if status.node.role != WORKER_ROLE:
        return
    for lent in status.lent:
        head = _peer_name(status, lent.head)
        if lent.state is LentState.STANDBY:
            out.field(
                "lends", f"nothing yet to {head}: standby for {lent.model}, {in_bytes(lent.bytes)} for it"
            )
        else:
            out.field("lends", f"{in_memory(lent.bytes)} to {head} for {lent.model}, {lent.state}")
    if status.fetching is not None:
        out.field("lends", "nothing yet: it fetches its model first")
    elif not status.lent and not status.node.paused:
        out.field("lends", "nothing now: it waits for a head (`meshd serve` on another machine)")


def _show_fetch(now: FetchStatus, out: Output) -> None:
    """Show how far a model is that this node takes before its role begins."""
    share = "" if now.share is None else f" {now.share:.0%}"
    out.field("model", f"{now.name}  ", State(f"fetching{share}"), f": {now.text}")
    if out.terminal and now.share is not None:
        out.bar(now.share)
    for source in now.sources:
        if source.problem:
            out.field("", f"{source.node} gives no more: {source.problem}")


def _show_machine(status: NodeStatus, out: Output) -> None:
    for place, device in enumerate(status.devices):
        memory = f"{in_memory(device.free_bytes)} of {in_memory(device.total_bytes)} free"
        speeds = f", weights {in_bytes(device.weight_bytes_s)}/s" if device.weight_bytes_s is not None else ""
        speeds += f", prompts {device.flops / 1e9:.0f} GFLOP/s" if device.flops is not None else ""
        label = "" if place else "device"
        out.field(label, f"{device.name}: {memory} {in_time(device.listed_s)} ago{speeds}")
    if (storage := status.storage) is not None:
        free = "" if storage.free_bytes is None else f"{in_bytes(storage.free_bytes)} free"
        room = storage.cache_room_bytes
        kept = "" if room is None else f"room for {in_bytes(room)} of weights"
        files = ""
        if storage.models is not None:
            files = f"{in_number(storage.models, 'model')}, {in_bytes(storage.models_bytes or 0)}"
        if disk := "; ".join(part for part in (free, kept, files) if part):
            out.field("disk", disk)


def _show_keys(api: GatewayStatus, out: Output) -> None:
    used = [key for key in api.keys if key.answers or key.active]
    if used:
        out.line()
        rows = [
            (
                key.name,
                *(str(number) for number in (key.active, key.answers, key.prompt_tokens)),
                str(key.generated_tokens),
                str(key.tokens_today),
            )
            for key in used
        ]
        out.table(("KEY", "NOW", "ANSWERS", "PROMPT TOKENS", "GENERATED", "TODAY"), rows, drop=("TODAY",))


def _show_tunnels(status: NodeStatus, out: Output) -> None:
    if not status.tunnels:
        return
    rows = [
        (
            _peer_name(status, tunnel.peer),
            tunnel.service,
            tunnel.listen,
            str(tunnel.streams),
            in_bytes(tunnel.sent_bytes),
            in_bytes(tunnel.received_bytes),
        )
        for tunnel in status.tunnels
    ]
    out.line()
    out.table(
        ("TUNNEL TO", "SERVICE", "LISTENS ON", "STREAMS", "SENT", "RECEIVED"), rows, drop=("RECEIVED", "SENT")
    )


def _show_models(models: Sequence[ModelStatus], out: Output) -> None:
    """Show the models of a gateway that serves several; details of the last used one follow below."""
    if not models:
        return
    rows = [
        (
            model.name,
            ", ".join(model.aliases) or "-",
            model.group or "-",
            State(model.state),
            f"{model.running} running, {model.waiting} waiting",
            model.draining.text if model.draining else model.reason if model.state != "ready" else "",
        )
        for model in models
    ]
    headers = ("NAME", "ALIASES", "GROUP", "STATE", "REQUESTS", "REASON")
    out.table(headers, rows, label="models", drop=("GROUP", "ALIASES"), below="REASON")


def _show_model(model: ModelStatus, out: Output) -> None:
    # State, load, and speeds.
    out.field("model", f"{model.name} ({model.fingerprint[:12]})  ", State(_state(model)))
    if model.reason:
        out.field("", model.reason)
    if model.draining is not None:
        out.field("", model.draining.text)
    if load := _load(model):
        out.field("", load)
    if model.answers is not None:
        out.field("", model.answers.text)
        if model.answers.note:
            out.field("", model.answers.note)
    if (speed := _speeds(model)) is not None:
        out.field("", speed)
    if model.estimated:
        out.field("", _estimated(model.estimated))
    if (speculation := _speculation(model.speculation)) is not None:
        out.field("", speculation)
    # Workers that stand by, and those that load now.
    for standby in model.standby:
        out.field("", _standby(standby))
    if model.fallbacks and not model.fallback:
        out.field("", f"fallback: {', '.join(model.fallbacks)}")
    for worker in model.workers if out.terminal and model.state == "loading" else ():
        out.bar(worker.share, worker.node)
    # Weights that crossed the network although a worker has a copy; others are in the sum above.
    unusable = [tensor for tensor in model.tensors_from_network if tensor.reason != NOT_HELD]
    for tensor in unusable[:_SHOWN_TENSORS]:
        out.field("", f"over the network: {tensor.name} ({in_bytes(tensor.bytes)}): {tensor.reason}")
    if len(unusable) > _SHOWN_TENSORS:
        out.field("", f"and {len(unusable) - _SHOWN_TENSORS} more (all of them with --json)")
    # The split.
    if model.split:
        counts = [part.layers for part in model.split]
        layers = of_each_layer(counts) if model.by_tensors else [str(count) for count in counts]
        out.table(
            ("NODE", "DEVICE", "OF EACH LAYER" if model.by_tensors else "LAYERS", "WEIGHTS", "PUSH"),
            [
                (part.node, part.device, held, in_bytes(part.bytes), _push(part))
                for part, held in zip(model.split, layers, strict=True)
            ],
            label="",
            below="PUSH",
        )


def _state(model: ModelStatus) -> str:
    """Return the state, with the progress of a load."""
    progress = f" {model.progress:.0%}" if model.progress is not None and model.state == "loading" else ""
    return f"{model.state}{progress}"


def _load(model: ModelStatus) -> str:
    """Return where the workers' weights came from, and how long it took; empty before a load."""
    parts: list[str] = []
    if model.weights_local_bytes or model.weights_network_bytes:
        local, network = in_bytes(model.weights_local_bytes), in_bytes(model.weights_network_bytes)
        fetched = model.weights_fetched_bytes
        before = f" after fetching {in_bytes(fetched)}" if fetched else ""
        by = "sent with the load" if fetched else "over the network"
        parts.append(f"workers' weights: {local} from their files{before}, {network} {by}")
    if model.load_seconds is not None:
        parts.append(f"loaded in {model.load_seconds:.2f} s")
    if model.measuring_seconds:
        parts.append(f"devices measured in {model.measuring_seconds:.0f} s after that, once")
    if model.bytes_per_token is not None:
        parts.append(f"{in_bytes(model.bytes_per_token)} per token over the network")
    return ", ".join(parts)


def _speeds(model: ModelStatus) -> str | None:
    """Return speeds measured beside those predicted, as far as either is known.

    `meshd plan` and `why` predict again, by what answers and paths have shown since.
    """
    measured, predicted = model.measured or Speeds(None, None), model.predicted or Speeds(None, None)
    parts = [
        _rates("generation", measured.generate_tok_s, predicted.generate_tok_s),
        _rates("prompts", measured.prompt_tok_s, predicted.prompt_tok_s),
    ]
    return ", ".join(part for part in parts if part) or None


def _estimated(nodes: Sequence[str]) -> str:
    """Name the nodes whose speed was estimated for the split."""
    return f"split by estimates: {', '.join(nodes)} will be measured once nobody asks for a while"


def _speculation(found: SpeculationStatus | None) -> str | None:
    if found is None or not (max(found.free, found.model) or found.why_no_model):
        return None
    parts = [found.why]
    if found.drafted:
        parts.append(f"{found.accepted / found.drafted:.0%} of {found.drafted} accepted")
    if found.gain is not None and f"{found.gain:.2f}" != "1.00":
        parts.append(f"{found.gain:.2f} times as fast as without")
    text = ", ".join(parts)
    return f"{text}; {found.why_no_model}" if found.why_no_model else text


def _standby(standby: StandbyStatus) -> str:
    held = f"{in_bytes(standby.held_bytes)} of weights held ready" if standby.ready else "not ready"
    return (
        f"standby {standby.node}: {held}: {standby.why}" if standby.why else f"standby {standby.node}: {held}"
    )


def _rates(what: str, measured: float | None, predicted: float | None) -> str:
    if measured is None:
        return "" if predicted is None else f"{what}: {predicted:.1f} tokens/s predicted at load"
    beside = "" if predicted is None else f" ({predicted:.1f} predicted at load)"
    return f"{what}: {measured:.1f} tokens/s{beside}"


def _push(part: SplitPart) -> str:
    """Return how it gets activations from the worker before, if there is one."""
    if part.push is None:
        return "-"
    return "direct" if part.push else f"through the head: {part.why_no_push}"


def _peer_name(status: NodeStatus, peer: str) -> str:
    """Return the name, with the id where another node, or this one, has the same name."""
    names = {p.id: p.name for p in status.peers}
    name = names.get(peer)
    if name is None:
        return peer[:10]
    same = [node for node, other in {**names, status.node.id: status.node.name}.items() if other == name]
    return name if len(same) == 1 else f"{name} ({peer[:10]})"


class Metrics:
    """Print the metrics of this node in Prometheus's text format.

    Prometheus can scrape the same metrics from the API at `/metrics`, or from the address in `node.metrics`.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add nothing."""

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the daemon and print."""
        out.raw(ask(home_here(), MetricsRequest()).text)
        return 0


class Peers:
    """List the other nodes of the mesh: their state, and the connection to each."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add --json."""
        parser.add_argument("--json", action="store_true", help="print JSON, for scripts")

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the daemon and print."""
        status = ask(home_here(), StatusRequest())
        if args.json:
            out.json({"peers": to_json(status.peers)})
        else:
            print_peers(status, out)
        return 0


def print_peers(status: NodeStatus, out: Output) -> None:
    """Print a table, or a line that says that there are none."""
    if not status.peers:
        out.line("no other nodes known yet")
        return
    out.table(
        (
            "PEER",
            "ID",
            "ROLE",
            "MESHD",
            "STATE",
            "LINK",
            "RTT",
            "RATE",
            "SENT",
            "RECEIVED",
            "RESUMES",
            "NOTE",
        ),
        [_row(peer) for peer in status.peers],
        drop=("RESUMES", "MESHD", "RATE", "SENT", "RECEIVED", "ID"),
        below="NOTE",
    )


def _peer_state(peer: PeerView) -> str:
    if is_away(peer):
        return f"away {in_time(peer.state_s or 0.0)}" if is_met(peer) else "away"
    state = "there" if peer.present else peer.state
    if peer.fetching:
        return f"{state}, fetching"
    if peer.draining:
        return f"{state}, draining"
    return f"{state}, paused" if peer.paused else state


def _row(peer: PeerView) -> tuple[str, ...]:
    link = peer.link
    note = peer.why_not_direct or ("" if link is not None else _why_no_link(peer))
    if peer.standby_links:
        note = in_number(len(peer.standby_links), "spare link") + (f"; {note}" if note else "")
    return (
        peer.name,
        peer.id[:10],
        peer.role,
        peer.version or "-",
        State(_peer_state(peer)),
        "-" if link is None else f"{link.kind} {link.path} {link.remote}",
        "-" if link is None or link.rtt_ms is None else f"{link.rtt_ms:.2f} ms",
        "-" if link is None or not link.bytes_s else f"{in_bytes(link.bytes_s)}/s",
        "-" if link is None else in_bytes(link.sent_bytes),
        "-" if link is None else in_bytes(link.received_bytes),
        str(peer.resumes),
        note,
    )


def _why_no_link(peer: PeerView) -> str:
    if is_away(peer) and not is_met(peer):  # what its addresses say is of no use to anybody then
        return "not connected since this node started"
    return peer.stopped or peer.last_error


class Ping:
    """Measure the round trip to a node, given by its name, its id, or the beginning of its id.

    Each answer shows the kind of link, the path and the address it used.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add PEER, --count, --timeout, --json."""
        parser.add_argument("peer", metavar="PEER", help="name, id, or unique beginning of an id")
        parser.add_argument(
            "--count",
            metavar="N",
            default=str(DEFAULT_COUNT),
            help=f"number of pings (default: {DEFAULT_COUNT})",
        )
        parser.add_argument(
            "--timeout",
            metavar="SECONDS",
            default="5",
            help="how long to wait for each answer (default: 5, at most 60)",
        )
        parser.add_argument("--json", action="store_true", help="print JSON at the end, for scripts")

    def run(self, args: Arguments, out: Output) -> int:
        """Return 0 when at least one answer came."""
        count = number("--count", args.count, 1, 1_000_000)
        seconds = float(number("--timeout", args.timeout, 1, 60))
        replies: list[tuple[int, PingReply]] = []
        last: Refused | None = None
        # Ping; a refusal is a lost ping, but for a mistake in the arguments.
        with Client(home_here()) as client:
            for turn in range(count):
                if turn:
                    time.sleep(_PAUSE_SECONDS)
                try:
                    reply = client.ask(
                        PingRequest(peer=args.peer, timeout_s=seconds),
                        seconds=seconds + REPLY_MARGIN_SECONDS,
                    )
                except Refused as refusal:
                    if refusal.code == MISTAKE:
                        raise
                    last = refusal
                    out.note(f"no answer: {refusal.what}")
                    continue
                replies.append((turn, reply))
                if not args.json:
                    out.text(
                        f"pong from {reply.name} ({reply.peer[:10]}) via {reply.kind} {reply.path} "
                        f"{reply.remote} in {reply.rtt_ms:.2f} ms"
                    )
        # Report the result.
        if args.json:
            _print_json(args.peer, count, replies, out)
        if not replies:
            hint = last.hint if last is not None else ""
            out.error(f"`{args.peer}` did not answer", hint or "run `meshd peers` for the state of each node")
            return 1
        return 0


def _print_json(peer: str, count: int, replies: list[tuple[int, PingReply]], out: Output) -> None:
    times = [reply.rtt_ms for _, reply in replies]
    out.json(
        {
            "peer": replies[0][1].peer if replies else peer,
            "name": replies[0][1].name if replies else None,
            "sent": count,
            "received": len(replies),
            "rtt_min_ms": min(times, default=None),
            "rtt_avg_ms": sum(times) / len(times) if times else None,
            "rtt_max_ms": max(times, default=None),
            "replies": [
                {"seq": turn, "rtt_ms": r.rtt_ms, "kind": r.kind, "path": r.path, "remote": r.remote}
                for turn, r in replies
            ],
        }
    )
