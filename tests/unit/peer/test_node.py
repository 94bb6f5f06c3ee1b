"""What all peers of a node share: bans that are saved before they are told, and a version to wait for."""

import asyncio
from dataclasses import replace

import pytest
from meshd.base.errors import Refused
from meshd.wire.limits import MAX_FRAME_BYTES
from meshd.wire.versions import WIRE_VERSION

from tests.unit.admin.test_snapshot import path
from tests.unit.identity.cast import ADMIN, FOUNDER, STRANGER, WORKER, WORKER_CHAIN
from tests.unit.peer.news_scene import Telling, ban_of

pytestmark = pytest.mark.virtual

SPOILT = ban_of(ADMIN)[:-1] + bytes([ban_of(ADMIN)[-1] ^ 1])


async def test_new_bans_are_saved_once_and_then_told() -> None:
    here = Telling()
    version = here.node.version
    assert here.node.learn_bans([SPOILT, b"nonsense"]) == 2
    assert (here.saved_bans, here.node.version, len(here.node.bans)) == (0, version, 0)
    assert here.node.learn_bans([ban_of(STRANGER), SPOILT, ban_of(ADMIN)]) == 1
    assert (here.saved_bans, here.node.version, len(here.node.bans)) == (1, version + 1, 2)
    assert here.node.learn_bans([ban_of(STRANGER)]) == 0
    assert (here.saved_bans, here.node.version) == (1, version + 1), "it is known"


async def test_bans_that_were_taken_in_are_kept_when_all_have_come() -> None:
    here = Telling()
    assert here.node.take_bans([ban_of(STRANGER)]) == 0
    assert here.node.take_bans([ban_of(STRANGER)]) == 0
    assert here.saved_bans == 0
    here.node.keep_bans()
    here.node.keep_bans()
    assert here.saved_bans == 1
    here.node.events = None
    here.node.learn_bans([ban_of(ADMIN)])
    assert here.saved_bans == 2


async def test_a_banned_member_is_refused() -> None:
    here = Telling()
    member = replace(path(selected=True).link.member, peer=WORKER.peer, chain=WORKER_CHAIN)
    here.node.check_banned(member)
    assert here.node.why_banned(member) is None
    here.node.learn_bans([ban_of(WORKER)])
    with pytest.raises(Refused) as caught:
        here.node.check_banned(member)
    assert caught.value.code == "banned" and caught.value.hint
    assert caught.value.what == here.node.why_banned(member)


async def test_that_this_node_is_banned_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    here = Telling()
    for judge in ("bert", "carl"):
        here.node.told_banned(WORKER.peer, judge, "by the root")
    shown = capsys.readouterr().err
    assert shown.count("by the root") == 1 and "bert" in shown


async def test_a_hello_says_who_and_what_this_node_is() -> None:
    here = Telling()
    here.node.learn_bans([ban_of(STRANGER)])
    hello = here.node.hello(current=b"c" * 16, fresh=b"f" * 8, chosen=b"")
    facts = here.node.facts
    assert (hello.version, hello.software, hello.name) == (WIRE_VERSION, facts.software, "anna")
    assert (hello.role, hello.incarnation, hello.grace) == (facts.role, facts.incarnation, facts.grace)
    assert (hello.current, hello.fresh, hello.chosen) == (b"c" * 16, b"f" * 8, b"")
    assert (hello.native, hello.largest_frame) == (facts.native, MAX_FRAME_BYTES)
    assert (hello.bans_count, hello.bans_digest) == (1, here.node.bans.digest())
    assert hello.record == here.host.shown.encode() and here.node.peer == FOUNDER.peer
    assert abs(hello.clock - here.node.wall_clock()) <= 1
    assert here.node.mux_config(7) == replace(here.node.config, grace=7.0)


async def test_who_waits_for_a_change_gets_the_version_after_it() -> None:
    node = Telling().node
    seen = node.version
    assert await node.wait_changed(seen - 1) == seen, "it has missed one"
    waiting = asyncio.create_task(node.wait_changed(seen))
    await asyncio.sleep(1)
    assert not waiting.done()
    node.changed()
    node.changed()
    assert await waiting == seen + 2
