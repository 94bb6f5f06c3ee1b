"""A plan over given offers and devices of the head, for tests."""

from collections.abc import Mapping, Sequence

from meshd.model.layers import ModelLayers
from meshd.plan import over_offers
from meshd.plan.machines import Machines, NodeOffer, PlainRpc
from meshd.plan.reasons import Absence
from meshd.plan.split import Plan
from meshd.plan.wishes import HeadOptions
from meshd.wire.lease import OfferedDevice


def make_plan(
    layers: ModelLayers,
    *,
    offers: Sequence[NodeOffer],
    plain_rpc: Sequence[PlainRpc],
    own: Sequence[OfferedDevice],
    options: HeadOptions,
    own_excluded: Mapping[str, Absence] | None = None,
) -> Plan:
    """Make the plan over these machines."""
    machines = Machines(
        tuple(offers), tuple(own), plain_rpc=tuple(plain_rpc), own_excluded=own_excluded or {}
    )
    return over_offers.make_plan(layers, machines, options)
