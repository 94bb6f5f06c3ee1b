"""invite, revoke, leave, mesh: by the daemon if it runs, else on the files; config."""

import json
import shutil
import stat
import time
import tomllib
from pathlib import Path

import pytest
from meshd.admin.authority import Authority, save_addresses
from meshd.cli.layout import Layout
from meshd.config.load import load
from meshd.identity.invite import parse_token
from meshd.identity.keys import KeyPair
from meshd.identity.keystore import Home
from meshd.wire.address import Candidate

from tests.unit.admin.fake import PAGE_URL, PEER, FakeControl

from .shell import meshd, refused
from .test_layout import SGR


@pytest.fixture
def founder(home: Path) -> Home:
    """A home whose node founded a mesh, and whose daemon has run once."""
    store = Home(home)
    store.found_mesh(now=int(time.time()))
    save_addresses(store, [Candidate("10.0.0.1", 17430)])
    return store


def test_an_invite_by_the_daemon(daemon: FakeControl) -> None:
    ran = meshd("invite", "--expires", "2h", "--uses", "3", "--role", "use,invite", "--role", "use")
    assert (ran.code, ran.out) == (0, "meshd1token\n")
    assert "for 3 nodes" in ran.err
    assert daemon.asked == [("invite", 7200, 3, ("use", "invite"), "")]


def test_an_invite_as_a_qr_code_stands_beside_the_result(daemon: FakeControl) -> None:
    ran = meshd("invite", "--qr")
    assert (ran.code, ran.out) == (0, "meshd1token\n")
    assert sum("█" in line for line in ran.err.splitlines()) > 10
    assert meshd("invite", "--qr", answer="").out == "meshd1token\n"


def test_an_invite_for_a_browser_shows_the_page_with_it(daemon: FakeControl) -> None:
    drawn = "█"
    ran = meshd("invite", "--browser", "phone")
    assert (ran.code, ran.out) == (0, "meshd1token\n")
    assert "open http://192.168.1.5:17430/ and paste" in ran.err and drawn not in ran.err
    ran = meshd("invite", "--browser", "phone", answer="")  # on a terminal
    assert (ran.out, drawn in ran.err) == ("meshd1token\n", True)
    lines = Layout().qr_code(PAGE_URL)
    assert lines is not None
    assert drawn in meshd("invite", "--browser", "phone", "--qr").err
    assert SGR.sub("", ran.err).splitlines()[1:-3] == lines.splitlines()
    assert json.loads(meshd("invite", "--browser", "phone", "--json").out)["url"] == PAGE_URL
    ran = meshd("invite", "--browser", "tablet", answer="")  # the node has no page for its network
    assert "paste the invite into the saved page" in ran.err and drawn not in ran.err


def test_the_defaults_of_an_invite(daemon: FakeControl) -> None:
    body = json.loads(meshd("invite", "--json").out)
    assert body == {
        "schema": 1,
        "token": "meshd1token",
        "id": "00ff",
        "expires_at": 1_900_000_000,
        "uses": 1,
        "url": "",
    }
    assert daemon.asked == [("invite", 86400, 1, ("use", "work"), "")]


def test_an_invite_for_a_browser_names_it(daemon: FakeControl) -> None:
    assert meshd("invite", "--browser", "phone").code == 0
    assert daemon.asked == [("invite", 86400, 1, ("use",), "phone")]


def test_an_invite_without_a_daemon(founder: Home) -> None:
    ran = meshd("invite", "--uses", "2")
    assert ran.code == 0
    token = parse_token(ran.out)
    assert token.candidates == (Candidate("10.0.0.1", 17430),)
    rows = meshd("invite", "ls").out.splitlines()
    assert rows[0].startswith("ID") and "valid" in rows[1] and "0 of 2" in rows[1] and "use, work" in rows[1]
    view = json.loads(meshd("invite", "ls", "--json").out)["invites"][0]
    assert (view["uses"], view["used"], view["state"]) == (2, 0, "valid")
    assert token.secret.hex() not in ran.err + "".join(rows)
    assert meshd("invite", "revoke", view["id"][:6]).out.startswith(f"revoked invite {view['id']}")
    assert "revoked" in meshd("invite", "ls").out


def test_an_invite_before_the_first_start_has_no_address(home: Path) -> None:
    Home(home).found_mesh(now=int(time.time()))
    refused(meshd("invite"), 1, "addresses are unknown")
    assert (meshd("invite", "ls").out, meshd("invite", "ls").code) == ("", 0)


def test_the_files_are_left_alone_while_somebody_holds_them(founder: Home, tmp_path: Path) -> None:
    backup = tmp_path / "root.txt"
    assert meshd("mesh", "export", str(backup)).code == 0
    with founder.lock():
        for line in ("invite", "invite ls", "revoke x", "leave --force", f"mesh import {backup}"):
            refused(meshd(*line.split()), 1, str(founder.path))
    assert founder.load_membership() is not None


def test_invites_by_the_daemon(daemon: FakeControl) -> None:
    row = meshd("invite", "ls").out.splitlines()[1]
    assert row.startswith("00ff") and row.endswith("garage")
    [view] = json.loads(meshd("invite", "ls", "--json").out)["invites"]
    assert view["joined"] == [{"id": PEER.id, "name": "garage"}]
    ran = meshd("invite", "revoke", "00")  # no terminal: nobody is asked
    assert (ran.out, ran.err) == ("revoked invite 00 and the nodes that joined with it: garage\n", "")
    assert daemon.asked == [("invite_revoke", "00")]


def test_on_a_terminal_it_is_asked_before_nodes_are_removed(daemon: FakeControl) -> None:
    for answer in ("n\n", "\n", "", "never\n"):
        ran = meshd("invite", "revoke", "00", answer=answer)
        assert (ran.code, ran.out) == (1, "")
        assert "this also bans garage: continue? [y/N]" in ran.err and "not revoked" in ran.err
    assert daemon.asked == []
    assert meshd("invite", "revoke", "00", answer="Yes\n").code == 0
    ran = meshd("invite", "revoke", "--yes", "00", answer="")
    assert (ran.code, ran.err) == (0, "")
    ran = meshd("invite", "revoke", "77", answer="")  # of which nobody is known: the daemon judges
    assert (ran.code, ran.err) == (0, "")
    assert daemon.asked == [("invite_revoke", id) for id in ("00", "00", "77")]


def test_revoke_by_the_daemon(daemon: FakeControl) -> None:
    assert meshd("revoke", "garage").out == f"revoked garage ({PEER.id[:10]})\n"
    refused(meshd("revoke", "me"), 1, "cannot ban itself", "leave instead")


def test_forget_by_the_daemon(daemon: FakeControl) -> None:
    assert meshd("forget", "garage").out == f"forgot garage ({PEER.id[:10]})\n"
    assert daemon.asked == [("forget", "garage")]


def test_on_a_terminal_it_is_asked_before_a_node_is_banned(daemon: FakeControl) -> None:
    for answer in ("n\n", "\n", ""):
        ran = meshd("revoke", "garage", answer=answer)
        assert (ran.code, ran.out) == (1, "")
        assert "ban `garage` from the mesh? [y/N]" in ran.err and "not banned" in ran.err
    assert daemon.asked == []
    ran = meshd("revoke", "garage", answer="y\n")
    assert ran.code == 0 and f"meshd unban {PEER.id[:10]}" in ran.err
    assert "[y/N]" not in meshd("revoke", "garage", "--yes", answer="").err
    assert daemon.asked == [("revoke", "garage")] * 2


def test_bans_are_listed_and_lifted_by_the_daemon(daemon: FakeControl) -> None:
    rows = meshd("unban").out.splitlines()
    assert rows[0].split() == ["NAME", "ID", "KIND", "BANNED", "BY"]
    assert rows[1].split()[:2] == ["garage", PEER.id[:16]]
    [view] = json.loads(meshd("unban", "--json").out)["bans"]
    assert (view["id"], view["kind"], view["banned_at"]) == (PEER.id, "node", 1_790_000_000)
    assert view["name"] == "garage"
    assert meshd("unban", PEER.id[:10]).out == f"unbanned garage ({PEER.id[:10]})\n"
    assert daemon.asked == [("unban", PEER.id[:10])]


def test_a_ban_is_lifted_without_a_daemon(founder: Home) -> None:
    guest = KeyPair.from_seed(b"g" * 32).peer
    assert "nothing is banned" in meshd("unban").err
    meshd("revoke", str(guest))
    assert guest.short in meshd("unban").out
    refused(meshd("unban", "zzzz"), 1, "matches no ban", "run `meshd unban`")
    assert meshd("unban", guest.short).out == f"unbanned {guest.short}\n"
    membership = founder.load_membership()
    assert membership is not None
    assert founder.load_revocations(membership.mesh).why_node_banned(guest) is None


def test_revoke_without_a_daemon(founder: Home) -> None:
    guest = KeyPair.from_seed(b"g" * 32).peer
    assert meshd("revoke", str(guest)).out == f"revoked {guest.short}\n"
    membership = founder.load_membership()
    assert membership is not None
    assert founder.load_revocations(membership.mesh).why_node_banned(guest) is not None
    refused(meshd("revoke", "garage"), 1, "does not match a node that this one admitted")


def test_leave_without_a_daemon_keeps_the_root_unless_forced(founder: Home) -> None:
    refused(meshd("leave"), 1, "root key")
    assert founder.load_membership() is not None
    assert (meshd("leave", "--force").code, founder.load_membership()) == (0, None)
    refused(meshd("leave"), 1, "this node is not in a mesh")
    refused(meshd("invite"), 1, "is not in a mesh")


def test_a_new_identity_needs_the_daemon_gone(home: Path, founder: Home) -> None:
    before = founder.load_or_create_identity().peer
    ran = meshd("leave", "--new-identity")
    after = founder.load_or_create_identity().peer
    assert (ran.out, before != after) == (f"this node is now {after.short}\n", True)


def test_a_new_identity_is_refused_while_the_daemon_runs(daemon: FakeControl) -> None:
    refused(meshd("leave", "--new-identity"), 1, "a daemon is using the key", "meshd stop")


def test_the_root_is_backed_up_and_restored(
    founder: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = tmp_path / "root.txt"
    ran = meshd("mesh", "export", str(backup))
    assert (ran.code, ran.out) == (0, f"{backup}\n")
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    refused(meshd("mesh", "export", str(backup)), 1, "cannot write")
    assert meshd("mesh", "export").out == meshd("mesh", "export", "-").out == backup.read_text()
    membership = founder.load_membership()
    assert membership is not None
    monkeypatch.setenv("MESHD_HOME", str(tmp_path / "other"))
    ran = meshd("mesh", "import", str(backup))
    assert (ran.code, ran.out) == (0, f"this node is now a founder of mesh {membership.mesh.short}\n")
    assert "no member knows this node yet" in ran.err
    assert Authority.load(Home(tmp_path / "other")).gives
    assert meshd("mesh", "import", str(backup)).err == "", "nothing more is to be done"
    (tmp_path / "bad").write_text("rubbish")
    refused(meshd("mesh", "import", str(tmp_path / "bad")), 1, "cannot read the recovery code")


def test_the_recovery_code_is_typed_at_a_prompt_and_is_never_an_argument(
    founder: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = meshd("mesh", "export").out
    monkeypatch.setenv("MESHD_HOME", str(tmp_path / "other"))
    typo = code.replace(code[12], "1" if code[12] != "1" else "0", 1)
    ran = meshd("mesh", "import", answer=typo)
    assert ran.code == 1 and "recovery code: " in ran.err and f"must be `{code[12]}`" in ran.err
    ran = meshd("mesh", "import", answer=code)
    assert ran.code == 0 and ran.out.startswith("this node is now a founder of mesh ")
    ran = meshd("mesh", "import", *code.split()[:1])
    refused(ran, 1, "given as an argument", "type the code")


def test_a_backup_that_could_not_be_written_is_none(founder: Home, tmp_path: Path) -> None:
    refused(meshd("mesh", "export", str(tmp_path / "no" / "root.txt")), 1, "cannot write")
    assert not founder.has_root_backup
    assert meshd("mesh", "export", str(tmp_path / "root.txt")).code == 0
    assert founder.has_root_backup


def test_after_the_founder_is_lost_its_root_invites_and_lifts_bans_elsewhere(
    founder: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = KeyPair.from_seed(b"g" * 32).peer
    assert meshd("revoke", str(guest)).code == 0
    membership = founder.load_membership()
    assert membership is not None
    bans = founder.load_revocations(membership.mesh)
    backup = tmp_path / "root.txt"
    assert meshd("mesh", "export", str(backup)).code == 0
    shutil.rmtree(founder.path)
    monkeypatch.setenv("MESHD_HOME", str(tmp_path / "other"))
    assert meshd("mesh", "import", str(backup)).code == 0
    other = Home(tmp_path / "other")
    save_addresses(other, [Candidate("10.0.0.2", 17430)])  # as its daemon does
    token = parse_token(meshd("invite").out)
    identity = other.load_identity()
    assert identity is not None
    assert (token.mesh, token.inviter) == (membership.mesh, identity.peer)
    assert meshd("unban").out == "", "bans are known to the members only"
    other.save_revocations(bans)
    assert meshd("unban", str(guest)).code == 0
    assert other.load_revocations(membership.mesh).why_node_banned(guest) is None


def test_config_show_is_toml_with_origins(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[serve]\nport = 1\nctx_size = 512\n[node]\njoin = "sesame"\n[links]\nmax_upload = "2.5MB"\n'
    )
    monkeypatch.setenv("MESHD_PORT", "2")
    ran = meshd("config", "show", "--config", str(file))
    assert (ran.code, ran.err) == (0, "")
    assert "port = 2  # environment MESHD_PORT" in ran.out
    assert 'keep_weights = "20G"  # default' in ran.out and 'max_upload = "20Mbit"  # file' in ran.out
    assert f"ctx_size = 512  # file {file}" in ran.out
    assert f"# home: {home}  # environment MESHD_HOME" in ran.out
    assert "sesame" not in ran.out
    again = tmp_path / "again.toml"
    again.write_text(ran.out)
    assert tomllib.loads(ran.out)["serve"]["port"] == 2
    assert load(environ={}, file=again).config.serve == load(file=file).config.serve
    assert load(environ={}, file=again).config.worker == load(file=file).config.worker


def test_config_show_for_a_script(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHD_JOIN", "sesame")
    body = json.loads(meshd("config", "show", "--json").out)
    settings = body["settings"]
    assert settings["serve.port"] == {"value": 8090, "origin": "default"}
    assert settings["paths.home"] == {"value": str(home), "origin": "environment MESHD_HOME"}
    assert settings["node.join"] == {"value": "[hidden]", "origin": "environment MESHD_JOIN"}
    assert settings["links.kinds"]["value"] == ["tcp", "webrtc", "quic", "relay"]


def test_config_init_writes_the_example_once(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    assert meshd("config", "init", str(file)).out == f"{file}\n"
    assert load(environ={}, file=file).config == load(environ={}).config
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("mine")
    refused(meshd("config", "init", str(file)), 1, "already exists")
    assert file.read_text() == "mine"
    refused(meshd("config", "init", str(tmp_path / "no" / "m.toml")), 1, "cannot write")
