"""expose and tunnel: requests to the daemon, output, refusals."""

import json
from dataclasses import replace

from tests.unit.admin.fake import TUNNEL, FakeControl, exposed

from .shell import meshd, refused


def test_a_service_is_exposed_to_the_nodes_named(daemon: FakeControl) -> None:
    ran = meshd("expose", "web", "127.0.0.1:8000", "--to", "garage", "attic", "--to", "desk")
    assert (ran.code, ran.out, ran.err) == (
        0,
        "web  127.0.0.1:8000  to garage (garage), attic (attic), desk (desk)\n",
        "",
    )
    assert daemon.asked == [("expose", "web", "127.0.0.1:8000", ("garage", "attic", "desk"))]


def test_a_service_for_nobody_is_said_to_be_one(daemon: FakeControl) -> None:
    ran = meshd("expose", "web", "localhost:8000")
    assert (ran.code, ran.out) == (0, "web  localhost:8000  to nobody\n")
    assert "no node can connect to `web` yet" in ran.err


def test_a_service_of_another_machine_is_pointed_out(daemon: FakeControl) -> None:
    ran = meshd("expose", "nas", "192.168.1.7:445", "--to", "garage")
    assert ran.code == 0 and "`192.168.1.7:445` is not a loopback address" in ran.err


def test_what_is_exposed_is_listed(daemon: FakeControl) -> None:
    assert "exposes nothing" in meshd("expose", "ls").err
    daemon.services = (exposed("web", "127.0.0.1:8000", ("garage",)), exposed("db", "[::1]:1", ()))
    rows = meshd("expose", "ls").out.splitlines()
    assert rows[0].split() == ["NAME", "SERVICE", "TO", "OPEN", "SENT", "RECEIVED"]
    assert rows[1].split()[:3] == ["web", "127.0.0.1:8000", "garage"] and "nobody" in rows[2]
    body = json.loads(meshd("expose", "ls", "--json").out)
    assert [one["name"] for one in body["exposed"]] == ["web", "db"]


def test_a_service_is_ended(daemon: FakeControl) -> None:
    assert meshd("expose", "rm", "web").out == "`web` is no longer exposed\n"
    assert daemon.asked == [("expose_remove", "web")]


def test_expose_refuses_what_it_cannot_read(daemon: FakeControl) -> None:
    refused(meshd("expose"), 2, "`meshd expose` needs one of NAME HOST:PORT | ls")
    refused(meshd("expose", "web"), 2, "expected a name and an address")
    refused(meshd("expose", "ls", "web"), 2, "expected a name and an address")
    refused(meshd("expose", "a", "b", "c"), 2, "expected a name and an address")
    refused(meshd("expose", "rm", "web", "--to", "garage"), 2, "takes no `--to`")
    refused(meshd("expose", "web", "h:1", "--to", "nobody"), 1, "no node `nobody` is known", "meshd peers")
    assert daemon.asked == [("expose", "web", "h:1", ("nobody",))]


def test_a_tunnel_is_opened_and_its_address_printed(daemon: FakeControl) -> None:
    ran = meshd("tunnel", "open", "garage", "web")
    assert (ran.code, ran.out, ran.err) == (0, "127.0.0.1:4001\n", "")
    ran = meshd("tunnel", "open", "garage", "web", "--listen", "0.0.0.0:80", "--json")
    assert json.loads(ran.out)["tunnel"]["listen"] == "0.0.0.0:80"
    assert "anyone who can reach `0.0.0.0:80`" in ran.err
    assert daemon.asked == [
        ("tunnel_open", "garage", "web", ""),
        ("tunnel_open", "garage", "web", "0.0.0.0:80"),
    ]


def test_a_peer_that_refuses_is_quoted(daemon: FakeControl) -> None:
    refused(meshd("tunnel", "open", "garage", "secret"), 1, "no service `secret` is exposed to this node")


def test_tunnels_are_listed_with_what_went_wrong(daemon: FakeControl) -> None:
    assert "no open tunnels" in meshd("tunnel", "ls").err
    daemon.open = (TUNNEL,)
    rows = meshd("tunnel", "ls").out.splitlines()
    assert rows[0].split() == ["LISTEN", "PEER", "SERVICE", "OPEN", "SENT", "RECEIVED", "NOTE"]
    assert rows[1].split()[:3] == ["127.0.0.1:4001", "garage", "web"]
    assert rows[1].endswith("the peer reset the stream")
    assert json.loads(meshd("tunnel", "ls", "--json").out)["tunnels"][0]["user"] is True


def test_tunnels_to_nodes_of_one_name_are_told_apart(daemon: FakeControl) -> None:
    daemon.open = (TUNNEL, replace(TUNNEL, peer="z" * 52, service="db"), replace(TUNNEL, service="x"))
    rows = meshd("tunnel", "ls").out.splitlines()[1:]
    assert [row.split("  ")[1] for row in rows] == [f"garage ({peer * 10})" for peer in "qzq"]
    daemon.open = (TUNNEL, replace(TUNNEL, service="x"))
    assert [row.split()[1] for row in meshd("tunnel", "ls").out.splitlines()[1:]] == ["garage", "garage"]


def test_tunnels_are_closed_by_address_or_by_name(daemon: FakeControl) -> None:
    assert meshd("tunnel", "close", "4001").out == "closed 127.0.0.1:4001 to `web` of garage\n"
    assert meshd("tunnel", "close", "garage", "web").code == 0
    assert daemon.asked == [("tunnel_close", "4001", "", ""), ("tunnel_close", "", "garage", "web")]
    refused(meshd("tunnel", "close", "a", "b", "c"), 2, "too many arguments")
    refused(meshd("tunnel"), 2)


def test_without_a_daemon_both_say_so() -> None:
    refused(meshd("expose", "ls"), 1, "no daemon")
    refused(meshd("tunnel", "open", "garage", "web"), 1, "no daemon")
