"""The metrics of a node: what `meshd status` shows, as numbers. Pure.

Peers appear by the beginning of their id, which never changes; `meshd_peer_info` has their names. Of many
peers only MOST_PEERS have metrics of their own, connected ones first: members choose their names and their
number, and Prometheus keeps each series.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import get_args

from meshd.admin.status import LinkView, PeerStateName, PeerView, Status
from meshd.base.metrics import Metric, counter, gauge
from meshd.base.metrics_port import MetricsReader
from meshd.gateway.interface import KeyStatus
from meshd.identity.naming import SHORT_CHARS
from meshd.model.status import ModelState, ModelStatus

MOST_PEERS = 100


def node_metrics(status: Status, reader: MetricsReader) -> Iterator[Metric]:
    """Yield the metrics of one status that `reader` may see."""
    api = status.api
    has_key = reader is MetricsReader.API and api is not None and bool(api.keys)
    models = status.models or ([status.model] if status.model is not None else [])
    if not has_key:
        yield from _node(status)
        yield from _peers(status.peers)
        yield from _machine(status)
        yield from _splits(models)
    yield from _models(models)
    if api is not None:
        yield gauge("meshd_api_ready", "1 if some model answers.", api.ready)
        if reader is MetricsReader.OPERATOR:
            yield from _keys(api.keys)


def _node(status: Status) -> Iterator[Metric]:
    node = status.node
    info = {(node.name, node.role, node.version): 1}
    yield gauge("meshd_node_info", "This node.", info, "name", "role", "version")
    yield gauge("meshd_node_uptime_seconds", "Time since the daemon's start.", node.uptime_s)
    yield gauge("meshd_node_memory_bytes", "Memory of the daemon.", node.rss_bytes)
    yield gauge("meshd_node_paused", "1 if this node lends nothing, as its user wants.", node.paused)
    if status.mesh is not None:
        yield gauge("meshd_mesh_members", "Known members, with this node.", status.mesh.members)
    warnings = Counter((warning.code, str(warning.severity)) for warning in status.warnings)
    yield gauge("meshd_warnings", "Conditions that need attention.", warnings, "code", "severity")
    children = {child.name: child.state == "ready" for child in status.children}
    yield gauge("meshd_child_ready", "1 if a child process is ready.", children, "child")
    restarts = {child.name: child.restarts for child in status.children}
    yield counter("meshd_child_restarts", "Restarts of a child process.", restarts, "child")


def _peers(peers: Sequence[PeerView]) -> Iterator[Metric]:
    states = Counter(dict.fromkeys(get_args(PeerStateName), 0))
    states.update(peer.state for peer in peers)
    yield gauge("meshd_peers", "Other members, by the state of the session.", states, "state")

    # the same ones at each scrape, as long as none is lost or new
    shown = sorted(peers, key=lambda peer: (peer.state != "connected", peer.id))[:MOST_PEERS]
    by_id = {peer.id[:SHORT_CHARS]: peer for peer in shown}
    about = {(peer, view.name, view.role, view.version): 1 for peer, view in by_id.items()}
    yield gauge("meshd_peer_info", "A member.", about, "peer", "name", "role", "version")
    connected = {peer: view.state == "connected" for peer, view in by_id.items()}
    yield gauge("meshd_peer_connected", "1 if a member is connected.", connected, "peer")
    resumes = {peer: view.resumes for peer, view in by_id.items()}
    yield counter("meshd_peer_resumes", "Times that a session continued on a new link.", resumes, "peer")

    # the link that carries data
    links = {peer: view.link for peer, view in by_id.items() if view.link is not None}
    rtts = {_way(peer, link): link.rtt_ms / 1000 for peer, link in links.items() if link.rtt_ms is not None}
    labels = ("peer", "kind", "path")
    yield gauge("meshd_link_rtt_seconds", "Round trip on the link that carries data.", rtts, *labels)
    sent = {_way(peer, link): link.sent_bytes for peer, link in links.items()}
    yield counter("meshd_link_sent_bytes", "Sent on that link since it came up.", sent, *labels)
    received = {_way(peer, link): link.received_bytes for peer, link in links.items()}
    yield counter("meshd_link_received_bytes", "Received on it.", received, *labels)


def _way(peer: str, link: LinkView) -> tuple[str, str, str]:
    return peer, str(link.kind), link.path


def _machine(status: Status) -> Iterator[Metric]:
    """Yield what a worker lends, and what its caches hold."""
    free = {(device.name, device.kind): device.free_bytes for device in status.devices}
    total = {(device.name, device.kind): device.total_bytes for device in status.devices}
    labels = ("device", "kind")
    yield gauge("meshd_device_free_bytes", "Memory that was free when it was listed.", free, *labels)
    yield gauge("meshd_device_total_bytes", "Memory of a device.", total, *labels)

    # a head may have several leases, of one model too
    lent: defaultdict[tuple[str, ...], float] = defaultdict(float)
    computed: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for lease in status.lent:
        key = (lease.head[:SHORT_CHARS], lease.model)
        lent[key] += lease.bytes
        computed[key] += lease.computed_s
    labels = ("head", "model")
    yield gauge("meshd_lent_bytes", "Memory that a head uses here.", lent, *labels)
    name = "meshd_lent_computed_seconds"
    yield counter(name, "Time computed for a head since its use began.", computed, *labels)

    if (store := status.store) is not None:
        yield gauge("meshd_kept_weights_bytes", "Downloaded weights that are kept.", store.bytes)
        yield gauge("meshd_kept_weights_limit_bytes", "The most that is kept.", store.limit)
    if status.storage is not None and status.storage.free_bytes is not None:
        yield gauge("meshd_disk_free_bytes", "Free on the cache's disk.", status.storage.free_bytes)


def _models(models: Sequence[ModelStatus]) -> Iterator[Metric]:
    if not models:
        return
    states = {(model.name, str(state)): model.state is state for model in models for state in ModelState}
    yield gauge("meshd_model_state", "1 for the state of a model.", states, "model", "state")
    took = {model.name: model.load_seconds for model in models if model.load_seconds is not None}
    yield gauge("meshd_model_load_seconds", "How long its last load took.", took, "model")
    progress = {model.name: model.progress for model in models if model.progress is not None}
    yield gauge("meshd_model_progress_ratio", "Progress of a load, 0 to 1.", progress, "model")
    slots = {model.name: model.answers.slots for model in models if model.answers is not None}
    yield gauge("meshd_model_slots", "Requests that it answers at a time.", slots, "model")
    sent = {model.name: model.weights_network_bytes for model in models}
    yield gauge("meshd_model_sent_weights_bytes", "Weights sent with its last load.", sent, "model")

    # its drafts
    drafts = {model.name: model.speculation for model in models if model.speculation is not None}
    drafted = {key: draft.drafted for key, draft in drafts.items()}
    yield counter("meshd_model_drafted_tokens", "Drafted since the load.", drafted, "model")
    accepted = {key: draft.accepted for key, draft in drafts.items()}
    yield counter("meshd_model_accepted_tokens", "Drafted tokens that were accepted.", accepted, "model")


def _splits(models: Sequence[ModelStatus]) -> Iterator[Metric]:
    """Yield which member has what of a model."""
    if not models:
        return
    parts = {(model.name, part.node, part.device): part for model in models for part in model.split}
    labels = ("model", "node", "device")
    layers = {key: part.layers for key, part in parts.items()}
    yield gauge("meshd_model_layers", "Layers on a device.", layers, *labels)
    weights = {key: part.bytes for key, part in parts.items()}
    yield gauge("meshd_model_weights_bytes", "Weights on a device.", weights, *labels)


def _keys(keys: Sequence[KeyStatus]) -> Iterator[Metric]:
    active = {key.name: key.active for key in keys}
    yield gauge("meshd_key_requests", "Requests of an API key now.", active, "key")
    answers = {key.name: key.answers for key in keys}
    yield counter("meshd_key_answers", "Requests answered for an API key.", answers, "key")
    prompts = {key.name: key.prompt_tokens for key in keys}
    yield counter("meshd_key_prompt_tokens", "Tokens of its prompts.", prompts, "key")
    generated = {key.name: key.generated_tokens for key in keys}
    yield counter("meshd_key_generated_tokens", "Tokens generated for it.", generated, "key")
