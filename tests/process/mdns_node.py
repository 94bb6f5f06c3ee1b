"""A node that only does multicast DNS, in a process of its own: for a test with several networks.

`python -m tests.process.mdns_node announce MESH ME PORT PEER...` writes `up INTERFACES` once it has joined a
network, then `found PEER ADDRESSES` for each change, and ends at SIGTERM. `... find MESH PEER SECONDS` looks
for one node. Names are any words: keys are made from them.
"""

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import Sequence

from meshd.base.tasks import Owner
from meshd.identity.keys import MeshId, PeerId
from meshd.link.net import local_addresses
from meshd.rendezvous.mdns import Mdns, find
from meshd.wire.address import Candidate


def mesh_of(word: str) -> MeshId:
    return MeshId(hashlib.sha256(word.encode()).digest())


def peer_of(word: str) -> PeerId:
    return PeerId(hashlib.sha256(word.encode()).digest())


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def be_patient() -> None:
    """A loaded machine is no fault: asyncio's debug mode is on for leaks, not for slow steps."""
    asyncio.get_running_loop().slow_callback_duration = 60.0


async def announce(mesh: str, me: str, port: int, peers: Sequence[str]) -> None:
    be_patient()
    names = {peer_of(word): word for word in peers}
    mdns = Mdns(
        mesh=mesh_of(mesh),
        me=peer_of(me),
        addresses=local_addresses.neighbourhood,
        candidates=lambda: [Candidate(host, port) for host in local_addresses.hosts()],
        peers=lambda: tuple(names),
        found=lambda peer, at: say("found", names[peer], *sorted(map(str, at))),
        random=os.urandom,
    )
    async with Owner() as owner:
        task = owner.start(mdns.serve(), name="mdns")
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        while not mdns.status.networks and not task.done():  # noqa: ASYNC110 - a status is looked at
            await asyncio.sleep(0.02)
        say("up", *mdns.status.networks)
        shown = None
        while not task.done():
            await asyncio.sleep(0.2)
            if mdns.status != shown:
                shown = mdns.status
                say(
                    "status", *shown.networks, "silent" if shown.state == "silent" else "heard", shown.members
                )


async def look(mesh: str, peer: str, seconds: float) -> None:
    be_patient()
    found = await find(
        mesh=mesh_of(mesh),
        peer=peer_of(peer),
        addresses=local_addresses.neighbourhood,
        random=os.urandom,
        seconds=seconds,
    )
    say("found", *sorted(map(str, found)))


def main(how: str, mesh: str, *words: str) -> None:
    if how == "find":
        asyncio.run(look(mesh, words[0], float(words[1])), debug=True)
    else:
        asyncio.run(announce(mesh, words[0], int(words[1]), words[2:]), debug=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
