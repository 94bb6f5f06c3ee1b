"""Nodes of different versions: neighbours work together; others say so on both sides, with what to do."""

from pathlib import Path

import pytest
from meshd import __version__
from meshd.admin.status import Status
from meshd.build.pin import read_pin
from meshd.identity.invite import relay_url
from meshd.rpc.mesh_protocol import VERSION as MESH_VERSION
from meshd.wire.versions import OLDEST_WIRE_VERSION, WIRE_VERSION

from tests.e2e.alone import alone
from tests.e2e.models import native, small, smollm2
from tests.e2e.nodes import (
    PROMPT,
    SAME_THREADS,
    Fleet,
    api_of,
    cli,
    has_logged,
    log_of,
    model_of,
    peer_of,
    play,
)
from tests.e2e.other_version import RELEASE_VERSION, changed_copy, last_release, run_by, shares_models
from tests.process.relay_process import Relay, relay

__all__ = ["relay"]  # a fixture

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

OTHERS = "f" * 40
TOKENS = 24
VERSIONS = "meshd/wire/versions.py"
FAR = WIRE_VERSION + 2


@pytest.mark.parametrize("older", ["worker", "head"])
def test_the_last_release_shares_a_model_with_this_version_on_either_side(tmp_path: Path, older: str) -> None:
    release = last_release()
    if not shares_models(release):
        pytest.skip("the last release has other native parts: the two share no model (docs/release.md)")
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            spec = fleet.spec("worker", "worker", "--model", str(smollm2()))
            worker = await fleet.start(run_by(spec, release) if older == "worker" else spec)
            token = await worker.token()
            serve = ("--model", str(smollm2()), "--port", "0", *SAME_THREADS)
            spec = fleet.spec("head", "serve", *serve, token=token)
            head = await fleet.start(run_by(spec, release) if older == "head" else spec)
            status = await fleet.ready(head)
            assert await api_of(status).complete(PROMPT, TOKENS) == reference
            expected = {"worker": __version__, "head": __version__, older: RELEASE_VERSION}
            there = await worker.status()
            assert (there.node.version, status.node.version) == (expected["worker"], expected["head"])
            assert peer_of(status, "worker").version == expected["worker"]
            assert peer_of(there, "head").version == expected["head"]
            for told in (status, there):
                assert not {one.code for one in told.warnings} & {"native_mismatch", "version_refused"}

    play(check())


def test_a_home_of_the_last_release_is_used_by_this_version_and_back(tmp_path: Path) -> None:
    """An upgrade, and the way back, of the node that founded the mesh, while another member runs."""
    release = last_release()

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            spec = fleet.spec("founder", "worker")
            founder = await fleet.start(run_by(spec, release))
            member = await fleet.worker("member", token=await founder.token())
            before = await founder.until(_is_connected)
            assert before.node.version == RELEASE_VERSION
            for upgraded, version in ((spec, __version__), (run_by(spec, release), RELEASE_VERSION)):
                await founder.stop()
                fleet.forget(founder)
                founder = await fleet.start(upgraded)
                now = await founder.until(_is_connected)
                assert (now.node.version, now.node.id, now.mesh) == (version, before.node.id, before.mesh)
                await member.until(_is_connected)
                invited = await cli(founder.spec.home, "invite")
                assert invited.returncode == 0, invited.stderr

    play(check())


def _is_connected(status: Status) -> bool:
    return any(peer.state == "connected" for peer in status.peers)


def test_the_next_version_of_both_protocols_shares_a_model_with_this_one(tmp_path: Path) -> None:
    """Test what the next release will say, as far as this one has to understand it: its versions."""
    newer = changed_copy(
        tmp_path / "newer",
        (VERSIONS, f"\nWIRE_VERSION = {WIRE_VERSION}", f"\nWIRE_VERSION = {WIRE_VERSION + 1}"),
        ("meshd/wire/versions.py", 'f"{_MESH}{version}"', 'f"{_MESH}{version}-{version + 1}"'),
    )

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            spec = fleet.spec("worker", "worker", "--model", str(small()))
            worker = await fleet.start(run_by(spec, newer))
            head = await fleet.head(small(), token=await worker.token())
            status = await fleet.ready(head)
            peer = peer_of(status, "worker")
            assert peer.native_protocol == f"mesh {MESH_VERSION}-{MESH_VERSION + 1}"
            assert [part.node for part in model_of(status).split if part.node == "worker"]

    play(check())


def _far_newer(folder: Path) -> Path:
    """A release that no longer speaks this one's protocol on links."""
    return changed_copy(
        folder,
        (VERSIONS, f"\nWIRE_VERSION = {WIRE_VERSION}", f"\nWIRE_VERSION = {FAR}"),
        (VERSIONS, f"\nOLDEST_WIRE_VERSION = {OLDEST_WIRE_VERSION}", f"\nOLDEST_WIRE_VERSION = {FAR}"),
    )


def test_versions_without_a_common_protocol_are_refused_at_the_join_and_as_members(tmp_path: Path) -> None:
    newer = _far_newer(tmp_path / "newer")
    remedy = "run `meshd upgrade` on node "

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            founder = await fleet.worker("founder")
            token = await founder.token()
            me = (await founder.status()).node.id[:10]
            # a stranger with an invite
            spec = run_by(fleet.spec("stranger", "worker", token=token), newer)
            refused = await cli(spec.home, "worker", "--listen", "127.0.0.1:0", **spec.environment)
            assert refused.returncode == 1
            versions = f"speaks version {FAR} of meshd's protocol, node {me} version {WIRE_VERSION}"
            assert versions in refused.stderr
            assert remedy + me in refused.stderr
            await has_logged(founder, "version_refused")  # the stranger's refusal may be told before
            assert remedy + me in log_of(founder)
            # a member that was upgraded too far
            member = await fleet.worker("member", token=token)
            await member.until(_is_connected)
            await member.stop()
            fleet.forget(member)
            member = await fleet.start(run_by(member.spec, newer))
            for node in (founder, member):
                status = await node.until(_is_refused)
                [warning] = [one for one in status.warnings if one.code == "version_refused"]
                assert warning.severity == "error" and remedy + me in warning.hint

    play(check())


def _is_refused(status: Status) -> bool:
    return any(one.code == "version_refused" for one in status.warnings)


def test_a_relay_without_a_common_protocol_is_told_with_the_remedy(
    relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("PYTHONPATH", str(_far_newer(tmp_path / "newer")))
        elsewhere.setenv("PYTHONSAFEPATH", "1")
        hint = relay.start("--open")

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            node = await fleet.worker("worker", "--relay", relay_url(hint))
            await has_logged(node, "relay_unreachable")
            status = await node.status()
            [line] = [line for line in log_of(node).splitlines() if "relay_unreachable" in line]
            assert f"run `meshd upgrade` on node {status.node.id[:10]}" in line

    play(check())


def test_another_pin_is_told_on_both_sides_at_the_join(tmp_path: Path) -> None:
    other = changed_copy(tmp_path / "other", ("native/UPSTREAM.toml", read_pin().commit, OTHERS))

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            spec = fleet.spec("worker", "worker", "--model", str(small()))
            worker = await fleet.start(run_by(spec, other))
            head = await fleet.head(small(), "--min-workers", "1", token=await worker.token())
            there = await worker.until(
                lambda status: any(one.code == "native_mismatch" for one in status.warnings)
            )
            here = await head.until(lambda s: s.model is not None and "llama.cpp" in s.model.reason)
            mine, theirs = native().pin[:12], OTHERS[:12]
            assert f"worker runs llama.cpp {theirs}, this node {mine}" in model_of(here).reason
            for status, far, near in ((here, theirs, mine), (there, mine, theirs)):
                [warning] = [one for one in status.warnings if one.code == "native_mismatch"]
                assert warning.severity == "error"
                assert f"runs llama.cpp {far}, this node {near}" in warning.what
                assert "meshd native build" in warning.hint
            for node in (worker, head):
                await has_logged(node, "native_differs")

    play(check())
