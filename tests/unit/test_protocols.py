"""Each implementation fits the Protocol that others know it by.

The table is for mypy (`make check`). What runs here sees to it that no Protocol is left out.
"""

import ast
from collections.abc import Callable
from typing import TypeVar

import pytest
from meshd.base.wakeful_loop import Conversation
from meshd.bench.interface import BenchOutput
from meshd.cli.main import VERBS, Verb
from meshd.cli.output import Output
from meshd.client.api_client import ApiClient
from meshd.daemon.console_on_demand import ConsoleOnDemand
from meshd.daemon.plain_connections import MeshPortConnections
from meshd.devices.interface import (
    AwaitedConnection,
    DescriptorSocket,
    PlainConnections,
    Report,
    RunningRole,
    Tunnel,
    WeightsFromMembers,
)
from meshd.gateway.browser_socket import BrowserSocket
from meshd.gateway.interface import (
    ConsoleSource,
    MemberGate,
    Models,
    ModelTurn,
    NamedModel,
    Upstream,
)
from meshd.gateway.request import OneModel, PlainModel
from meshd.gateway.server import Gateway
from meshd.head.model import Model
from meshd.head.model_pool import ModelOnDemand, ModelPool, PoolTurn
from meshd.library.members.fetch_weights import MemberWeights
from meshd.link.browser.channels import DirectChannel, SealedChannel
from meshd.link.interface import BrowserChannel, BytePipe, Dialer, Link, Listener, Signals
from meshd.link.secure.handshake import ProvenLink
from meshd.link.tcp.links import TcpDialer, TcpListener
from meshd.link.tcp.plain_visit import Awaited
from meshd.link.tcp.visit import Visit
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
from meshd.rpc.mesh_lease_view import MeshLeaseView, MeshPushFilter
from meshd.store import content_store as content_store_module
from meshd.store.interface import ContentStore, LeaseCache, WeightsFile
from meshd.store.model_file import ModelFile
from meshd.tunnel.interface import Flow, Inspector, Passage
from meshd.tunnel.joined import JoinedTunnel
from meshd.worker.lending import Worker
from meshd.worker.mesh_server import ChildSilence

from tests.rules.source import dotted, last_part, sources

One = TypeVar("One")


def same(one: One) -> One:
    return one


# mypy finds a type for `One` only where each method of the first fits the second.
link: Callable[[ProvenLink], Link] = same
dialer: Callable[[TcpDialer], Dialer] = same
listener: Callable[[TcpListener], Listener] = same
peers_of_a_node: Callable[[PeerMesh], Mesh] = same
stream: Callable[[MeshStream], Stream] = same
book: Callable[[AddressBook], Book] = same
child: Callable[[OwnedChild], Child] = same
report: Callable[[ReportPipe], Report] = same
descriptor_socket: Callable[[DescriptorSender], DescriptorSocket] = same
member_weights: Callable[[MemberWeights], WeightsFromMembers] = same
plain_connections: Callable[[MeshPortConnections], PlainConnections] = same
awaited_connection: Callable[[Awaited], AwaitedConnection] = same
joined_tunnel: Callable[[JoinedTunnel], Tunnel] = same
mesh_head_view: Callable[[MeshHeadView], Inspector] = same
mesh_push_filter: Callable[[MeshPushFilter], Inspector] = same
weights: Callable[[ModelFile], WeightsFile] = same
worker_role: Callable[[Worker], RunningRole] = same
serve_role: Callable[[Model], RunningRole] = same
router: Callable[[PcpRouter], HomeRouter] = same
lease_cache: Callable[[content_store_module.DiskLeaseCache], LeaseCache] = same
content_store: Callable[[content_store_module.DiskContentStore], ContentStore] = same
inspector: Callable[[MeshLeaseView], Inspector] = same
flow: Callable[[ChildSilence], Flow] = same
passage: Callable[[Conversation], Passage] = same
bench_output: Callable[[Output], BenchOutput] = same
one_model: Callable[[OneModel], Models] = same
several_models: Callable[[ModelPool], Models] = same
one_of_several: Callable[[ModelOnDemand], NamedModel] = same
plain_model: Callable[[PlainModel], NamedModel] = same
plain_turn: Callable[[PlainModel], ModelTurn] = same
turn_in_a_pool: Callable[[PoolTurn], ModelTurn] = same
pool: Callable[[ModelPool], RunningRole] = same
upstream: Callable[[Model], Upstream] = same
api_client: Callable[[ApiClient], Models] = same
client_role: Callable[[ApiClient], RunningRole] = same
member_gate: Callable[[Gateway], MemberGate] = same
console_source: Callable[[ConsoleOnDemand], ConsoleSource] = same
sealed_channel: Callable[[SealedChannel], BrowserChannel] = same
direct_channel: Callable[[DirectChannel], BrowserChannel] = same
pipe_at_the_api: Callable[[BrowserSocket], BytePipe] = same
pipe_at_the_port: Callable[[Visit], BytePipe] = same
FITS = [fits.__args__ for fits in globals()["__annotations__"].values()]


def signals(one: SignalService) -> Signals:
    return one.topic("webrtc")


FUNCTIONS = {"Join"}  # what daemon/role_runtime.py hands over


def test_every_protocol_of_an_interface_is_spoken_for() -> None:
    spoken = {protocol.__name__ for _, protocol in FITS} | {"Signals"} | FUNCTIONS
    found = {
        node.name
        for source in sources("meshd")
        if source.path.endswith("/interface.py")
        for node in source.nodes
        if isinstance(node, ast.ClassDef) and "Protocol" in {last_part(dotted(base)) for base in node.bases}
    }
    assert found == spoken


@pytest.mark.parametrize("verb", VERBS, ids=[verb.name for verb in VERBS])
def test_a_verb_has_two_functions_and_a_help_text(verb: Verb) -> None:
    code = verb.load()
    assert callable(code.add_arguments)
    assert callable(code.run)
    assert code.__doc__, "its help is its docstring"
