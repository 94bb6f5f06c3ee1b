"""The networks of `networks.py` as a child of this process, for as long as its owner runs."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.tasks import Owner
from meshd.fleet.networks import FleetPlace, NetworkOrders, need_namespaces
from meshd.process.child import OwnedChild
from meshd.process.interface import ChildFailed, ChildSpec
from meshd.process.ready import LineSeen


async def apart(
    owner: Owner, round_trips: Sequence[float], folder: Path, *, wire: bool = False, stepped: bool = False
) -> FleetPlace:
    """Create networks for a head and as many workers, so far from the head in seconds. Raises UserError."""
    need_namespaces()
    seen = LineSeen(r"^\{")
    orders = json.dumps(asdict(NetworkOrders(tuple(round_trips), wire, stepped)))
    child = OwnedChild(
        ChildSpec(
            name="networks",
            argv=(sys.executable, "-m", "meshd.fleet.networks", orders),
            log=folder / "networks.log",
            stamped=False,
            probe=seen,
            on_line=seen.see,
        )
    )
    owner.start(child.serve(), name="networks")
    try:
        await child.ensure_ready()
    except ChildFailed as error:
        reason = error.tail[-1] if error.tail else error.what
        raise UserError(
            f"cannot create networks: {reason}", hint="run this as root, or allow user namespaces"
        ) from None
    found = json.loads(seen.line)
    return FleetPlace(int(found["pid"]), tuple(map(int, found["networks"])), int(found["api_port"]), wire)
