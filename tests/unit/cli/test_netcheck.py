"""netcheck: from the daemon, or by itself."""

import json
from dataclasses import replace

import pytest
from meshd.admin.snapshot import netcheck_reply
from meshd.cli import doctor
from meshd.netcheck.interface import NetReport
from meshd.portmap.interface import Language, MapState, MapStatus
from meshd.wire.netfacts import NetFacts

from tests.unit.admin.fake import NETCHECK, FakeControl

from .shell import meshd, refused


def test_for_a_person(daemon: FakeControl) -> None:
    ran = meshd("netcheck")
    assert (ran.code, ran.err) == (0, "") and daemon.asked == [("netcheck",)]
    for words in (
        "UDP           works",
        "symmetric, counting, ports count by 2",
        "20.1.0.2:17430/tcp/mapped by pcp, seen to work",
        "any peer can reach this node",
        "stun.example:3478",
        "5 min ago",
        "warning: the NAT is hard [symmetric]",
        "hint: a relay",
    ):
        assert words in ran.out, words


def test_for_a_script(daemon: FakeControl) -> None:
    ran = meshd("netcheck", "--json")
    assert ran.code == 0 and daemon.asked == [("netcheck",)]
    body = json.loads(ran.out)
    assert body["nat"]["mapping"] == "address_port" and body["port_mapping"]["verified"] is True
    assert body["problems"][0]["code"] == "symmetric" and body["daemon"] is True


def test_an_error_is_an_exit_code(daemon: FakeControl) -> None:
    """As of `meshd doctor`; a warning is none."""
    [problem] = NETCHECK.problems
    daemon.network = replace(NETCHECK, problems=(problem, replace(problem, severity="error")))
    ran = meshd("netcheck")
    assert ran.code == 1 and "error: the NAT is hard" in ran.out
    assert meshd("netcheck", "--json").code == 1


def test_without_a_daemon_it_checks_by_itself() -> None:
    ran = meshd("netcheck", "--json", "--stun", "none", "--no-portmap")
    assert ran.code == 0 and "checking without a running node" in ran.err
    body = json.loads(ran.out)
    assert (body["udp"], body["daemon"], body["port_mapping"]["state"]) == ("unknown", False, "off")
    assert [problem["code"] for problem in body["problems"]] == ["no_servers"]


def test_servers_that_are_given_are_asked_from_here(daemon: FakeControl) -> None:
    ran = meshd("netcheck", "--stun", "none", "--no-portmap")
    assert ran.code == 0 and not daemon.asked
    assert "no_servers" in ran.out and "disabled" in ran.out


def test_a_relay_that_cannot_be_read() -> None:
    refused(meshd("netcheck", "--stun", "none", "--no-portmap", "--relay", "nonsense"), 1, "nonsense")


STATUS = MapStatus(state=MapState.SILENT, why="nobody answers")


@pytest.mark.parametrize(
    ("router", "words"),
    [
        (STATUS, "none: nobody answers"),
        (replace(STATUS, state=MapState.ASKING), "asking the router"),
        (replace(STATUS, state=MapState.OFF), "disabled"),
        (
            replace(STATUS, state=MapState.OFFERED, gateway="10.0.0.1", language=Language.UPNP),
            "10.0.0.1 offers it by upnp",
        ),
        (replace(STATUS, state=MapState.MAPPED, external="20.1.0.2", verified=False), "not reached"),
    ],
)
def test_what_the_router_does(router: MapStatus, words: str) -> None:
    report = NetReport(facts=NetFacts(), at=5.0, seconds=1.0, servers=())
    reply = netcheck_reply(report, router, now=10.0, daemon=True)
    assert reply.age_s == 5.0 and words in doctor._mapping(reply.port_mapping)
    assert NETCHECK.daemon
