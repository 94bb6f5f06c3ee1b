"""The head's side of a lease, with a worker that a test plays, and what is known of its load."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.peer_limits import LEASE_MESSAGES
from meshd.base.tasks import Owner
from meshd.head.lease import MAX_KEPT, Lease, NodeWeights, WeightsReport
from meshd.model.status import NetworkTensor
from meshd.peer.interface import Stream
from meshd.peer.messages import MessageStream
from meshd.wire.lease import LEASE_SERVICE, Grant, Lost, OfferedDevice, Progress, WorkerOffer

from tests.unit.head.calls import ACQUIRE
from tests.unit.head.fake_mesh import Net
from tests.unit.head.rig import Bench

pytestmark = pytest.mark.virtual

LEASE = bytes(16)
FLOOD = 2 * int(LEASE_MESSAGES.burst)
OFFER = WorkerOffer(
    (OfferedDevice("CPU", "cpu", "", 1 << 30, 1 << 30),),
    has_model=False,
    machine="m",
    lease_id=LEASE,
    protocol=ACQUIRE.protocol,
)


@pytest.mark.parametrize("granted", [False, True], ids=["before the grant", "after it"])
async def test_a_worker_that_floods_its_lease_is_read_at_the_rate_of_its_messages(
    tmp_path: Path, granted: bool
) -> None:
    async def worker(stream: Stream) -> None:
        messages = MessageStream(stream)
        flood = [Progress("busy").encode()] * FLOOD
        grant = Grant(LEASE).encode()
        for word in (OFFER.encode(), *((grant, *flood) if granted else (*flood, grant))):
            await messages.send(word)
        await messages.send(Lost("failed", "enough").encode())

    async with Owner() as owner:
        net = Net(owner)
        head, flooding = net.mesh("head", "serve"), net.mesh("flooding")
        flooding.handle(LEASE_SERVICE, worker, allow=lambda _member, _metadata: None)
        bench = Bench(head, tmp_path)
        client = Lease(
            head,
            bench.runtime.tunnels,
            peer=flooding.key.peer,
            name="flooding",
            on_progress=lambda _text: None,
            mesh_end=bench.mesh_end(),
        )
        began = asyncio.get_running_loop().time()
        await client.ask(ACQUIRE)
        await client.until_granted()
        assert (await client.until_lost()).text == "enough"
        took = asyncio.get_running_loop().time() - began
        assert took > 0.9 * LEASE_MESSAGES.burst / LEASE_MESSAGES.per_second
        client.release()
        owner.cancel()


def test_tensors_are_counted_and_those_from_the_network_named() -> None:
    report = WeightsReport({"127.0.0.1:1": "anna"})
    report.placed("127.0.0.1:1", "blk.0.attn_q.weight", 100, "")
    report.placed("127.0.0.1:1", "a name with spaces", 7, "not_in_file")
    report.placed("10.0.0.9:5", "x", 5, "other_bytes")
    assert (report.local_bytes, report.network_bytes) == (100, 12)
    assert report.by_node == {"anna": NodeWeights(100, 7), "10.0.0.9:5": NodeWeights(0, 5)}
    assert report.from_network == (
        NetworkTensor("a name with spaces", 7, "anna", "not in file"),
        NetworkTensor("x", 5, "10.0.0.9:5", "other bytes"),
    )


def test_what_was_asked_beyond_a_reservation_is_told() -> None:
    report = WeightsReport({"1": "bert"})
    report.line("exceeded 1 0 -1 5")
    report.line("exceeded 1 0 5")
    assert report.exceeded == ""
    report.line(f"exceeded 1 0 {1 << 30} {1 << 29}")
    assert report.exceeded.startswith(
        "llama-server needs 1.0 GiB on a device of bert, 512 MiB are reserved there; "
    )


def test_more_than_are_kept_by_name_are_counted_all_the_same() -> None:
    report = WeightsReport({})
    for number in range(MAX_KEPT + 3):
        report.placed("e", f"t{number}", 2, "r")
    assert len(report.from_network) == MAX_KEPT
    assert report.network_bytes == 2 * (MAX_KEPT + 3)


@given(st.lists(st.text(max_size=40) | st.from_regex(r"exceeded \S{1,5} 0 \S{1,5} \S{1,5}", fullmatch=True)))
def test_any_line_is_understood_or_left_alone(lines: list[str]) -> None:
    report = WeightsReport({})
    for line in lines:
        report.line(line)
    assert not report.exceeded or any(line.startswith("exceeded ") for line in lines)
