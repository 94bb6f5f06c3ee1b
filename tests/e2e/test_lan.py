"""Real daemons in one local network: found by mDNS when addresses are old, and without it when not."""

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode

from tests.e2e.models import smollm2
from tests.e2e.nodes import TEST_SECONDS, Fleet, play
from tests.process.lan import Lan, skip_reason

pytestmark = [
    pytest.mark.native,
    pytest.mark.root,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "-"),
]

ALONE = ("--stun", "none", "--no-portmap")  # nothing outside of this network may help


@pytest.fixture
def lan() -> Iterator[Lan]:
    with Lan() as made:
        made.plug("a", 1)
        made.plug("b", 1)
        yield made


async def start(fleet: Fleet, lan: Lan, machine: str, *options: str, token: str = "") -> LocalNode:
    spec = fleet.spec(
        machine, "worker", *ALONE, *options, token=token, listen=":0", prefix=lan.prefix(machine)
    )
    return await fleet.start(spec)


def linked(*hosts: str) -> tuple[str, ...]:
    return tuple(f"{host}:" for host in hosts)


def goes_to(status: Status, places: tuple[str, ...]) -> bool:
    return any(peer.link is not None and peer.link.remote.startswith(places) for peer in status.peers)


def test_a_token_of_yesterday_and_an_address_that_changes(lan: Lan, tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            inviter = await start(fleet, lan, "a")
            token = await inviter.token()
            lan.unplug("a")
            lan.plug("a", 1, host=77)  # no address of the token is anybody's now
            joiner = await start(fleet, lan, "b", token=token)
            await joiner.until(lambda now: goes_to(now, linked("10.1.0.77", "[fd01::77]")))
            status = await joiner.until(lambda now: now.mdns is not None and now.mdns.members == 1)
            assert status.mdns is not None and status.mdns.networks == ("eth0",)

            lan.unplug("a")
            lan.plug("a", 1, host=99)
            status = await joiner.until(lambda now: goes_to(now, linked("10.1.0.99", "[fd01::99]")))
            assert len(status.peers) == 1

    play(check())


@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nftables: apt-get install -y nftables")
def test_without_multicast_the_tokens_addresses_do_and_status_says_so(lan: Lan, tmp_path: Path) -> None:
    async def check() -> None:
        lan.filter_multicast("a")
        async with Fleet(tmp_path) as fleet:
            inviter = await start(fleet, lan, "a")
            joiner = await start(fleet, lan, "b", token=await inviter.token())
            await joiner.until(lambda now: goes_to(now, linked("10.1.0.1", "[fd01::1]")))
            for node in (inviter, joiner):
                status = await node.until(lambda now: now.mdns is not None and now.mdns.state == "silent")
                assert "mdns_silent" in [warning.code for warning in status.warnings]

    play(check())


def test_without_mdns_nothing_is_announced(lan: Lan, tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            loud = await start(fleet, lan, "a")
            quiet = await start(fleet, lan, "b", "--no-mdns", token=await loud.token())
            status = await quiet.until(lambda now: goes_to(now, linked("10.1.0.1", "[fd01::1]")))
            assert status.mdns is not None and status.mdns.state == "off"
            status = await loud.until(lambda now: now.mdns is not None and now.mdns.state == "silent")
            assert status.mdns is not None and status.mdns.members == 0

    play(check())


def test_a_head_that_listens_everywhere_names_an_address_that_other_devices_reach(
    lan: Lan, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("a-secret-of-these-two\n")
    key.chmod(0o600)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            options = ("--model", str(smollm2()), "--host", "0.0.0.0", "--port", "8090")
            alone = ("--min-workers", "0", "--api-key-file", str(key))
            spec = fleet.spec("a", "serve", *ALONE, *options, *alone, listen=":0", prefix=lan.prefix("a"))
            head = await fleet.start(spec)
            log = head.spec.home / "node.log"
            async with asyncio.timeout(TEST_SECONDS):
                while "from other devices: " not in (said := log.read_text(errors="replace")):
                    assert head.pid is not None, said
                    await asyncio.sleep(0.1)
            [url] = re.findall("^from other devices: (.*)$", said, re.MULTILINE)
            assert url == "http://10.1.0.1:8090"
            ask = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"
            health = lan.run("b", sys.executable, "-c", ask, f"{url}/health")
            assert json.loads(health)["status"] == "ok"

    play(check())
