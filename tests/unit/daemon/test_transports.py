"""What a daemon dials with."""

from pathlib import Path

import pytest
from meshd.link.interface import Transport

from tests.conformance.run import run
from tests.unit.daemon.test_joining import Machine


@pytest.mark.parametrize("outside", [False, True])
def test_each_transport_is_dialled_with_once_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outside: bool
) -> None:
    """A node that keeps to this machine has no NAT whose ports it could search."""

    async def main() -> None:
        if outside:  # it still listens on loopback alone
            monkeypatch.setattr("meshd.daemon.mesh_port.is_loopback", lambda _host: False)
        member = await Machine(tmp_path, "node").enter()
        member.mesh_port.close()
        missing = () if outside else (Transport.QUIC_PORT_PREDICTION,)
        assert [dialer.transport for dialer in member.transports.dialers] == [
            transport for transport in Transport if transport not in missing
        ]

    run(main())
