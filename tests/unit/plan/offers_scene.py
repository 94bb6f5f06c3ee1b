"""A plan over given offers and devices of the head, for tests."""

from collections.abc import Mapping, Sequence

from meshd.model.layers import ModelLayers, read_layers
from meshd.plan import over_offers
from meshd.plan.machines import Machines, NodeOffer, PlainRpc
from meshd.plan.reasons import Absence
from meshd.plan.split import Plan
from meshd.plan.wishes import HeadOptions
from meshd.wire.lease import OfferedDevice, WorkerOffer

from tests.gguf_bytes import gguf, language_model, parse

GIB = 1 << 30


def model(layers: int = 8, *, trained: int = 4096) -> ModelLayers:
    extra = {"llama.context_length": trained}
    return read_layers([parse(gguf(*language_model(layers=layers, extra=extra)))], name="tiny")


def long_model(layers: int = 8) -> ModelLayers:
    """Return a model that may have a context which fills the memory of these devices."""
    return model(layers, trained=1 << 20)


def cpu(free: float = 4) -> OfferedDevice:
    return OfferedDevice("CPU", "cpu", "", int(free * GIB), 8 * GIB)


def gpu(free: float = 4, name: str = "CUDA0") -> OfferedDevice:
    return OfferedDevice(name, "gpu", "", int(free * GIB), 8 * GIB)


def node_offer(
    name: str, *devices: OfferedDevice, machine: str = "", excluded: Mapping[str, Absence] | None = None
) -> NodeOffer:
    return NodeOffer(name, WorkerOffer(devices, True, machine, bytes(16)), excluded=excluded or {})


def make_plan(
    layers: ModelLayers,
    *,
    offers: Sequence[NodeOffer],
    options: HeadOptions,
    plain_rpc: Sequence[PlainRpc] = (),
    own: Sequence[OfferedDevice] = (),
) -> Plan:
    """Make the plan over these machines; the head has a CPU unless it is said."""
    machines = Machines(tuple(offers), tuple(own) or (cpu(),), plain_rpc=tuple(plain_rpc))
    return over_offers.make_plan(layers, machines, options)
