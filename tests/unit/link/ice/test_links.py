"""Which candidates are checked, and what a pair of them is called."""

import pytest
from meshd.link.ice.links import checkable, path_of
from meshd.wire.address import Candidate


def candidates(*places: str) -> list[Candidate]:
    return [Candidate.parse(place) for place in places]


def test_what_is_of_no_use_is_not_checked() -> None:
    offered = candidates("9.9.9.9:7/udp/relay", "10.0.0.1:7/tcp", "[2001:db8::1]:7/udp")
    assert checkable(offered, hosts=["10.0.0.2"]) == []
    assert checkable(offered, hosts=["10.0.0.2", "2001:db8::2"]) == candidates("[2001:db8::1]:7/udp")


@pytest.mark.parametrize(
    ("local", "remote", "told", "path"),
    [
        ("127.0.0.1", "127.0.0.1", "host", "loopback"),
        ("10.0.0.1", "10.0.0.2", "host", "lan"),
        ("10.0.0.1", "198.51.100.7", "srflx", "punched"),
        ("10.0.0.1", "198.51.100.7", None, "punched"),
        ("10.0.0.1", "198.51.100.7", "mapped", "mapped"),
        ("10.0.0.1", "9.9.9.9", "host", "public"),
        ("9.9.9.9", "8.8.8.8", None, "public"),
    ],
)
def test_what_a_pair_is_called(local: str, remote: str, told: str | None, path: str) -> None:
    assert path_of(local, remote, told) == path  # type: ignore[arg-type]
