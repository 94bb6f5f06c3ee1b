"""The role of this node, built from the configuration."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshd.config import Config
from meshd.daemon.member_node import Estate
from meshd.daemon.preflight import Claims
from meshd.daemon.role_runtime import machine_id, make_runtime
from meshd.role.interface import NativeBuild, RunningRole
from meshd.role.worker.cycle import Worker, WorkerOptions, check_may_work

if TYPE_CHECKING:
    from meshd.gateway.server import Gateway

DEFAULT_LOAD_MODE = "none"  # the head reads what it computes itself and nothing of the workers' weights


@dataclass(frozen=True, slots=True)
class BuiltRole:
    """A role, and the gateway of a serving node."""

    role: RunningRole
    gateway: "Gateway | None"


async def build_role(
    name: str, *, config: Config, native: NativeBuild, estate: Estate, claims: Claims
) -> BuiltRole:
    """Raises MeshdError when the role cannot be played here."""
    runtime = make_runtime(config, estate.mesh, native)
    machine = machine_id(estate.membership.mesh.raw)
    if name == "worker":
        check_may_work(estate.membership.roles)
        lent = config.worker
        options = WorkerOptions(
            devices=lent.devices, memory=lent.memory, threads=lent.threads, machine=machine
        )
        worker = Worker(runtime, claims.files, options, claims.store)
        await worker.prepare()
        return BuiltRole(worker, None)
    # what a worker does without; aiohttp alone is 11 MB
    from meshd.gateway.server import Gateway
    from meshd.role.head.cycle import Serve
    from meshd.role.head.split_plan import HeadOptions

    serve = config.serve
    head = Serve(
        runtime,
        claims.files[0],
        HeadOptions(
            min_workers=serve.min_workers,
            tensor_split=serve.tensor_split,
            ctx_size=serve.ctx_size,
            devices=serve.devices,
            rpc=tuple(str(address) for address in serve.rpc),
            load_mode=serve.load_mode or DEFAULT_LOAD_MODE,
            push=not serve.no_push,
            activations=serve.activations,
            output=serve.output,
            llama_args=serve.llama_args,
            machine=machine,
            node_name=config.node.name,
            node_id=str(estate.node.facts.peer),
            incarnation=estate.node.facts.incarnation,
            grace=float(config.links.grace),
        ),
    )
    assert claims.api is not None
    return BuiltRole(head, Gateway(claims.api.config, head, claims.api))
