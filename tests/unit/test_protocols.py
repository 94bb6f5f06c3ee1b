"""Each implementation fits the Protocol that others know it by.

The functions are for mypy (`make check`): it accepts a return value only when every method fits. What runs
here sees to it that no Protocol is left out.
"""

import ast
from collections.abc import Callable

import pytest
from meshd.base.wakeful_loop import Conversation
from meshd.bench.interface import BenchOutput
from meshd.cli.main import VERBS, Verb
from meshd.cli.output import Output
from meshd.client.api_client import ApiClient
from meshd.client.head_call import HeadCall
from meshd.demo.interface import DemoOutput
from meshd.devices.interface import DescriptorSocket, Report, RunningRole, Tunnel, WeightsFromMembers
from meshd.gateway.dialects.interface import Answering, Dialect
from meshd.gateway.dialects.openai import ChatDialect
from meshd.gateway.dialects.responses import ResponsesAnswering
from meshd.gateway.interface import MemberGate, Models, ModelTurn, NamedModel, Upstream
from meshd.gateway.request import OneModel, PlainModel, TurnAtOnce
from meshd.gateway.server import Gateway
from meshd.head.model import Model
from meshd.head.model_pool import ModelOnDemand, ModelPool, PoolTurn
from meshd.library.members.fetch_weights import MemberWeights
from meshd.link.interface import Dialer, Link, Listener, Signals
from meshd.link.tcp.dial import TcpDialer, TcpLink
from meshd.link.tcp.listen import TcpListener
from meshd.netcheck.interface import NetCheck
from meshd.netcheck.watch import NetWatch
from meshd.peer.interface import Book, Mesh, Stream
from meshd.peer.mesh import PeerMesh
from meshd.peer.signals import SignalService
from meshd.peer.streams import MeshStream
from meshd.portmap.interface import HomeRouter
from meshd.portmap.pcp import PcpRouter
from meshd.process.child import OwnedChild
from meshd.process.handover import DescriptorSender, ReportPipe
from meshd.process.interface import Child
from meshd.rendezvous.book import AddressBook
from meshd.rpc.mesh_head_view import MeshHeadView
from meshd.rpc.mesh_lease_view import MeshLeaseView
from meshd.rpc.mesh_push_filter import MeshPushFilter
from meshd.store import content_store as content_store_module
from meshd.store import lease_cache as store_lease_cache
from meshd.store.interface import ContentStore, LeaseCache, WeightsFile
from meshd.store.model_file import ModelFile
from meshd.tunnel.forward import Forward
from meshd.tunnel.interface import Flow, Inspector, Passage
from meshd.tunnel.joined import JoinedTunnel
from meshd.worker.child_silence import ChildSilence
from meshd.worker.cycle import Worker

from tests.rules.source import dotted, last_part, sources


def link(one: TcpLink) -> Link:
    return one


def dialer(one: TcpDialer) -> Dialer:
    return one


def listener(one: TcpListener) -> Listener:
    return one


def peers_of_a_node(one: PeerMesh) -> Mesh:
    return one


def stream(one: MeshStream) -> Stream:
    return one


def book(one: AddressBook) -> Book:
    return one


def child(one: OwnedChild) -> Child:
    return one


def tunnel(one: Forward) -> Tunnel:
    return one


def report(one: ReportPipe) -> Report:
    return one


def descriptor_socket(one: DescriptorSender) -> DescriptorSocket:
    return one


def member_weights(one: MemberWeights) -> WeightsFromMembers:
    return one


def joined_tunnel(one: JoinedTunnel) -> Tunnel:
    return one


def mesh_head_view(one: MeshHeadView) -> Inspector:
    return one


def mesh_push_filter(one: MeshPushFilter) -> Inspector:
    return one


def weights(one: ModelFile) -> WeightsFile:
    return one


def worker_role(one: Worker) -> RunningRole:
    return one


def serve_role(one: Model) -> RunningRole:
    return one


def dialect(one: ChatDialect) -> Dialect:
    return one


def answering(one: ResponsesAnswering) -> Answering:
    return one


def router(one: PcpRouter) -> HomeRouter:
    return one


def net_check(one: NetWatch) -> NetCheck:
    return one


def signals(one: SignalService) -> Signals:
    return one.topic("webrtc")


def lease_cache(one: store_lease_cache.DiskLeaseCache) -> LeaseCache:
    return one


def content_store(one: content_store_module.DiskContentStore) -> ContentStore:
    return one


def inspector(one: MeshLeaseView) -> Inspector:
    return one


def flow(one: ChildSilence) -> Flow:
    return one


def passage(one: Conversation) -> Passage:
    return one


def demo_output(one: Output) -> DemoOutput:
    return one


def bench_output(one: Output) -> BenchOutput:
    return one


def one_model(one: OneModel) -> Models:
    return one


def several_models(one: ModelPool) -> Models:
    return one


def one_of_several(one: ModelOnDemand) -> NamedModel:
    return one


def plain_model(one: PlainModel) -> NamedModel:
    return one


def turn_at_once(one: TurnAtOnce) -> ModelTurn:
    return one


def turn_in_a_pool(one: PoolTurn) -> ModelTurn:
    return one


def pool(one: ModelPool) -> RunningRole:
    return one


def upstream(one: Model) -> Upstream:
    return one


def head_call(one: HeadCall) -> Upstream:
    return one


def api_client(one: ApiClient) -> Models:
    return one


def client_role(one: ApiClient) -> RunningRole:
    return one


def member_gate(one: Gateway) -> MemberGate:
    return one


FITS: tuple[Callable[..., object], ...] = (
    link,
    dialer,
    listener,
    peers_of_a_node,
    stream,
    book,
    child,
    tunnel,
    report,
    descriptor_socket,
    member_weights,
    joined_tunnel,
    mesh_head_view,
    mesh_push_filter,
    weights,
    worker_role,
    serve_role,
    one_model,
    several_models,
    one_of_several,
    plain_model,
    turn_at_once,
    turn_in_a_pool,
    pool,
    demo_output,
    bench_output,
    upstream,
    head_call,
    api_client,
    client_role,
    member_gate,
    dialect,
    answering,
    router,
    net_check,
    signals,
    inspector,
    flow,
    passage,
    lease_cache,
    content_store,
)
FUNCTIONS = {"Join"}  # what daemon/role_runtime.py hands over


def test_every_protocol_of_an_interface_is_spoken_for() -> None:
    spoken = {fits.__annotations__["return"].__name__ for fits in FITS} | FUNCTIONS
    found = {
        node.name
        for source in sources("meshd")
        if source.path.endswith("/interface.py")
        for node in source.nodes
        if isinstance(node, ast.ClassDef) and "Protocol" in {last_part(dotted(base)) for base in node.bases}
    }
    assert found == spoken


@pytest.mark.parametrize("verb", VERBS, ids=[verb.name for verb in VERBS])
def test_a_verb_is_a_module_with_two_functions(verb: Verb) -> None:
    module = verb.load()
    assert callable(module.add_arguments)
    assert callable(module.run)
    assert module.__doc__, "its help is its docstring"
