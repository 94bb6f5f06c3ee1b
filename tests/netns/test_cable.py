"""Two machines joined by one cable: nothing gave them addresses, so they have link-local IPv6 alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netns.agent import Settings, agent
from tests.netns.space import Namespace

SECONDS = 30.0  # mDNS looks at the interfaces every 2 s; a machine under load takes longer for all else


@pytest.fixture
def ends() -> Iterator[tuple[Namespace, Namespace]]:
    """Two machines, and a cable between them whose ends are both called `eth0`."""
    with Namespace("left") as left, Namespace("right") as right:
        for space in (left, right):  # as on real machines, an address is looked for before it is used
            space.sysctl({"net/ipv6/conf/all/accept_dad": "1", "net/ipv6/conf/default/accept_dad": "1"})
        left.ip(f"link add eth0 type veth peer name eth0 netns {right.name}")
        for space in (left, right):
            space.ip("link set eth0 up")
        yield left, right


def addresses(space: Namespace) -> list[str]:
    """All that are not of the loopback interface."""
    lines = [line.split() for line in space.listing("-o", "address").splitlines()]
    return [words[3] for words in lines if words[1] != "lo"]


def test_a_joiner_finds_the_node_of_its_token_and_they_link_and_find_each_other_again(
    ends: tuple[Namespace, Namespace], tmp_path: Path
) -> None:
    left, right = ends
    with agent(left, tmp_path / "far", Settings(name="far", mdns=True)) as far:
        joiner = Settings(name="near", join=far.token, mdns=True)
        with agent(right, tmp_path / "near", joiner) as near:
            for node, space in ((near, right), (far, left)):
                [own] = addresses(space)
                assert own.startswith("fe80:")
                node.connected("lan", seconds=SECONDS)
                selected = node.selected()
                assert selected is not None
                assert (selected.kind, selected.path) == ("tcp", "lan")
                assert selected.remote.startswith("[fe80:") and "%eth0]:" in selected.remote
            near.echo(1 << 20)
        with agent(right, tmp_path / "near", Settings(name="near", mdns=True)) as near:  # a member already
            near.connected("lan", seconds=SECONDS)
            near.echo(1 << 20)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".log"]
    kept = {path.name: path.read_bytes() for path in files}
    assert "book" in " ".join(kept)
    assert [name for name, data in kept.items() if b"fe80:" in data or b"%eth0" in data] == []
