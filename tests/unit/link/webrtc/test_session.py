"""The DTLS handshake of a webrtc link."""

import asyncio

import pytest
from aiortc import RTCDtlsFingerprint, RTCDtlsParameters
from meshd.base.tasks import cancel_and_wait
from meshd.link.webrtc.session import Dtls, Identity

from tests.conformance.run import ticks


class _Wire:
    """Holds back what the other side sends until it is told to hand it over."""

    state = "completed"
    role = "controlling"

    def __init__(self) -> None:
        self.arrived: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.waiting = asyncio.Event()

    async def _recv(self) -> bytes:
        self.waiting.set()
        data = await self.arrived
        self.arrived = asyncio.get_running_loop().create_future()
        return data

    async def _send(self, data: bytes) -> None:
        return


@pytest.mark.parametrize("turns", range(4))
async def test_a_handshake_is_cancelled_in_the_turn_in_which_a_datagram_comes(turns: int) -> None:
    wire, identity = _Wire(), Identity()
    dtls = Dtls(wire, [identity.certificate])  # type: ignore[arg-type]
    dtls._set_role("client")
    told = RTCDtlsFingerprint(algorithm="sha-256", value=identity.fingerprint.hex(":"))
    task = asyncio.get_running_loop().create_task(dtls.start(RTCDtlsParameters(fingerprints=[told])))
    await wire.waiting.wait()
    wire.arrived.set_result(b"\x16 no record")
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await ticks(10)
    ended = task.cancelled()
    await cancel_and_wait(task)
    assert ended
