"""How the last attempts ended, in words."""

from meshd.link.interface import DialFailure, Transport
from meshd.peer.reasons import Failed, last_error


def test_every_direct_way_is_named_and_the_relay_is_not() -> None:
    failed = {
        4: Failed(Transport.WEBRTC, DialFailure.TIMEOUT, "x"),
        0: Failed(Transport.TCP, DialFailure.REFUSED, "x"),
        1: Failed(Transport.TCP_PUNCH, DialFailure.UNREACHABLE, "no route to `10.0.0.9`"),
        2: Failed(Transport.RELAY, DialFailure.TIMEOUT, "x"),
        3: Failed(Transport.QUIC_ICE, DialFailure.WRONG_PEER, "x"),
        6: Failed(Transport.QUIC_PORT_PREDICTION, DialFailure.TIMEOUT, "x"),
        7: Failed(Transport.QUIC, DialFailure.UNFIT, "x"),
        5: Failed(Transport.MEMBER_RELAY, None, "x"),
    }
    assert last_error(failed) == (
        "tcp connections are refused at the peer's addresses, punched tcp: no route to `10.0.0.9`, "
        "quic over ice finds another node at the peer's addresses, webrtc gets no answer, "
        "quic by port search gets no answer"
    )
    assert last_error({}) == ""
