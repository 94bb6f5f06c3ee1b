"""Test how a node comes into a mesh: what is tried when, what a failure means, and what is kept."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import Broken, MeshdError, Refused, UserError
from meshd.identity.invite import MAX_REPLY_CANDIDATES, Invite, derive, encode_token, parse_reply
from meshd.identity.keystore import Home
from meshd.identity.membership import Chain, Role
from meshd.identity.record import PeerRecord
from meshd.identity.revocation import RevocationSet, ban
from meshd.link.interface import DialError, DialFailure
from meshd.rendezvous.book import KeptBook
from meshd.rendezvous.join import Admitted
from meshd.rendezvous.join_or_found import (
    MAX_TRIED,
    PAUSE_SECONDS,
    STUN_SECONDS,
    TRY_SECONDS,
    WAIT_SECONDS,
    Enrolment,
    Entered,
    JoinOptions,
    join_by_reply,
    remember,
    targets,
    why_no_code,
    with_udp,
)
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable
from meshd.wire.hello import NotAdmitted, Welcome

from tests.unit.identity.cast import (
    FOUNDER,
    FOUNDER_CHAIN,
    GUEST,
    GUEST_CHAIN,
    INVITER,
    MESH,
    ROOT,
    WORKER,
    WORKER_CHAIN,
)
from tests.unit.rendezvous.inviters import (
    HOST,
    NEAR,
    NOW,
    OUTER,
    OWN_RELAY,
    RELAY,
    FakeInviter,
    FakeReplyPort,
    InvitersPipe,
    failed,
    invite,
)

OPTIONS = JoinOptions(
    name="guest",
    role="worker",
    kinds=("tcp", "quic", "webrtc", "relay"),
    relays=(OWN_RELAY,),
    mdns=True,
    local_only=False,
    has_udp=True,
)
ALL_FAIL = {
    "tcp": failed("tcp"),
    "quic": failed("quic"),
    "relay": failed("relay", DialFailure.REFUSED),
    "nearby": failed("near"),
}


class Start:
    """One start of the guest's node in `folder`."""

    def __init__(self, folder: Path, options: JoinOptions = OPTIONS) -> None:
        self.home = Home(folder / "home")
        me = self.home.load_or_create_identity(lambda count: b"guest".ljust(count, b"."))
        assert me.peer == GUEST.peer
        self.options = options
        self.now = NOW
        self.notes: list[str] = []
        self.failures: list[str] = []

    async def enter(
        self, reach: FakeInviter, token: Invite | None = None, *, raw: str | None = None
    ) -> Entered[InvitersPipe]:
        def last(errors: Sequence[Exception]) -> Exception:
            self.failures = [str(error) for error in errors]
            return errors[-1]

        enrolment = Enrolment(
            self.home,
            GUEST,
            self.options,
            lambda _invite, _keys: reach,
            closest=last,
            random=bytes,
            wall_clock=lambda: self.now,
            note=self.notes.append,
            looking=self.notes.append,
        )
        return await enrolment.enter(encode_token(token or invite(HOST)) if raw is None else raw)


@pytest.mark.virtual
async def test_all_transports_are_raced_each_at_its_time(tmp_path: Path) -> None:
    reach = FakeInviter({}, nearby=[NEAR])
    task = asyncio.ensure_future(Start(tmp_path).enter(reach, invite(HOST)))
    await asyncio.sleep(10)
    twin = replace(HOST, proto="udp")
    assert reach.tried == [
        ("tcp", 0.0, (HOST,)),
        ("relay", 0.0, (RELAY, OWN_RELAY)),
        ("quic", 0.3, (HOST, twin)),
        ("nearby", 0.5, (NEAR,)),
    ]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.virtual
async def test_a_person_is_told_what_is_waited_for(tmp_path: Path) -> None:
    start = Start(tmp_path)
    await start.enter(FakeInviter({"tcp": 0.9}))
    assert start.notes == [], "it was there at once"
    start.home.leave(drop_root=False)
    await start.enter(FakeInviter({"tcp": 8.0}), invite(HOST, OUTER))
    looking = "looking for the node that made this invite (2 addresses, mDNS, 2 relays)…"
    assert start.notes == [looking, f"{looking} 4 s", f"{looking} 7 s"]


@pytest.mark.virtual
async def test_only_what_is_tried_is_told(tmp_path: Path) -> None:
    start = Start(tmp_path, replace(OPTIONS, kinds=("quic",)))
    await start.enter(FakeInviter({"quic": 2.0}))
    assert start.notes == ["looking for the node that made this invite (1 address)…"]


@pytest.mark.virtual
async def test_the_first_that_leads_there_is_joined_by_and_the_others_are_closed(tmp_path: Path) -> None:
    reach = FakeInviter({"tcp": 5.0, "quic": 1.0, "tcp anyway": 1.0})
    start = Start(tmp_path)
    entered = await start.enter(reach)
    assert entered.pipe is not None and entered.pipe.transport == "quic"
    assert {pipe.transport: pipe.closed for pipe in reach.pipes} == {"quic": 0, "tcp": 1}
    assert entered.membership == start.home.load_membership()
    assert entered.membership.chain == GUEST_CHAIN and entered.membership.inviter == INVITER.peer
    await entered.aclose()
    assert entered.pipe.closed == 1


@pytest.mark.parametrize(
    ("options", "tried"),
    [
        (replace(OPTIONS, kinds=("tcp",)), ["tcp", "nearby"]),
        (replace(OPTIONS, kinds=("tcp",), mdns=False), ["tcp"]),
        (replace(OPTIONS, kinds=("quic",)), ["quic"]),
        (replace(OPTIONS, kinds=("relay",)), ["relay"]),
    ],
)
@pytest.mark.virtual
async def test_only_what_the_settings_allow_is_tried(
    tmp_path: Path, options: JoinOptions, tried: Sequence[str]
) -> None:
    reach = FakeInviter(ALL_FAIL, nearby=[NEAR])
    with pytest.raises(MeshdError, match="cannot reach the node that made the invite"):
        await Start(tmp_path, options).enter(reach)
    assert [transport for transport, _, _ in reach.tried] == tried


@pytest.mark.parametrize(("kinds", "relays"), [(("webrtc",), (OWN_RELAY,)), (("relay",), ())])
@pytest.mark.virtual
async def test_with_nothing_to_join_by_the_settings_are_named(
    tmp_path: Path, kinds: Sequence[str], relays: Sequence[object]
) -> None:
    options = replace(OPTIONS, kinds=kinds, relays=OPTIONS.relays if relays else ())
    with pytest.raises(UserError, match=f"kinds `{kinds[0]}` cannot join") as caught:
        await Start(tmp_path, options).enter(FakeInviter({}), invite(HOST, relays=()))
    assert "--links" in caught.value.hint


@pytest.mark.virtual
async def test_a_node_that_is_alone_in_its_mesh_joins_another_without_leaving(tmp_path: Path) -> None:
    """`meshd worker` was run on both machines."""
    start = Start(tmp_path)
    own = start.home.found_mesh(now=NOW)
    book = start.home.load_invites(own.mesh)
    book.create(secret=b"s" * 16, roles=frozenset({Role.USE}), now=NOW, expires_at=NOW + 9, uses=1)
    start.home.save_invites(book)
    with pytest.raises(MeshdError, match="cannot reach"):
        await start.enter(FakeInviter(ALL_FAIL))
    assert start.home.load_membership() == own, "a join that fails costs nothing"
    entered = await start.enter(FakeInviter({"tcp": 0.0}))
    assert entered.membership == start.home.load_membership()
    assert entered.membership.chain == GUEST_CHAIN and not entered.membership.is_founder
    assert not start.home.load_invites(own.mesh).entries()


@pytest.mark.parametrize("has", ["guest", "peers", "imported root"])
@pytest.mark.virtual
async def test_a_founder_that_is_not_alone_is_told_how_to_leave(tmp_path: Path, has: str) -> None:
    start = Start(tmp_path)
    if has == "imported root":
        lost = Home(tmp_path / "lost")
        lost.load_or_create_identity()
        lost.found_mesh(now=NOW)
        own = start.home.import_root(lost.export_root(), now=NOW)
    else:
        own = start.home.found_mesh(now=NOW)
    book = start.home.load_invites(own.mesh)
    entry = book.create(secret=b"s" * 16, roles=frozenset({Role.USE}), now=NOW, expires_at=NOW + 9, uses=1)
    if has == "guest":
        book.reserve(entry.invite_id, WORKER.peer, now=NOW)
    start.home.save_invites(book)
    if has == "peers":
        start.home.write_blob("book", b"x")
    with pytest.raises(UserError, match="but the invite is for mesh") as caught:
        await start.enter(FakeInviter({"tcp": 0.0}))
    assert "run `meshd leave --force`, then repeat this command" in caught.value.hint
    assert "meshd mesh export" in caught.value.hint
    assert start.home.load_membership() == own


@pytest.mark.virtual
async def test_where_mdns_finds_nobody_that_is_one_failure_of_several(tmp_path: Path) -> None:
    start = Start(tmp_path)
    with pytest.raises(MeshdError):
        await start.enter(FakeInviter(ALL_FAIL))
    assert sorted(start.failures) == ["mDNS does not find it on this network", "quic", "relay", "tcp"]


@pytest.mark.virtual
async def test_a_reply_code_is_the_last_resort(tmp_path: Path) -> None:
    start = Start(tmp_path)
    entered = await start.enter(FakeInviter({**ALL_FAIL, "code": 0.1}), invite(HOST, OUTER))
    assert entered.pipe is not None and entered.pipe.transport == "code"
    assert ["meshd accept" in note for note in start.notes] == [True]


@pytest.mark.virtual
async def test_no_reply_code_is_made_where_a_transport_leads_there_or_the_inviter_says_no(
    tmp_path: Path,
) -> None:
    start = Start(tmp_path)
    await start.enter(FakeInviter({"relay": 0.1}), invite(HOST, OUTER))
    other = Start(tmp_path / "other", replace(OPTIONS, kinds=("quic",)))
    with pytest.raises(Refused):
        await other.enter(FakeInviter({"quic": Refused("banned", code="banned")}), invite(HOST, OUTER))
    assert start.notes == other.notes == []


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (failed("t", hint="open the port"), "open the port; no reply code is possible: it needs quic"),
        (failed("t"), "check that it is running and that its firewall allows its mesh port; no reply code"),
    ],
)
@pytest.mark.virtual
async def test_a_failure_says_why_what_to_do_and_why_there_is_no_code(
    tmp_path: Path, error: MeshdError, hint: str
) -> None:
    options = replace(OPTIONS, kinds=("tcp",), mdns=False)
    start = Start(tmp_path, options)
    with pytest.raises(MeshdError, match="cannot reach the node that made the invite: t") as caught:
        await start.enter(FakeInviter({"tcp": error}))
    assert caught.value.hint.startswith(hint)
    assert start.home.load_membership() is None


@pytest.mark.virtual
async def test_the_date_of_a_token_is_judged_by_a_clock_that_may_be_wrong(tmp_path: Path) -> None:
    start = Start(tmp_path)
    with pytest.raises(UserError, match="expired 1 day ago"):
        await start.enter(FakeInviter({}), invite(HOST, expires_at=NOW - 86400 - 60))
    with pytest.raises(MeshdError, match="expired 2 hours ago by this machine's clock"):
        await start.enter(FakeInviter(ALL_FAIL), invite(HOST, expires_at=NOW - 7205))
    late = await start.enter(FakeInviter({"tcp": 0.0}), invite(HOST, expires_at=NOW - 7205))
    assert late.pipe is not None  # the inviter's clock decides


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (NotAdmitted("used_up", "no use is left", "get another"), "not admitted: no use is left"),
        (Broken("gone"), "gone"),
        (Welcome(WORKER_CHAIN.encode(), (), ()), "another node"),  # of somebody else
    ],
)
@pytest.mark.virtual
async def test_the_pipe_of_a_joiner_that_is_not_let_in_is_closed(
    tmp_path: Path, answer: NotAdmitted | Broken | Welcome, error: str
) -> None:
    reach, start = FakeInviter({"tcp": 0.0}, answer=answer), Start(tmp_path)
    with pytest.raises(MeshdError, match=error):
        await start.enter(reach)
    assert [pipe.closed for pipe in reach.pipes] == [1]
    assert start.home.load_membership() is None


@pytest.mark.virtual
async def test_a_node_founds_a_mesh_once_and_keeps_it(tmp_path: Path) -> None:
    start, nobody = Start(tmp_path), FakeInviter({})
    first = await start.enter(nobody, raw="")
    assert (await start.enter(nobody, raw="")).membership == first.membership
    assert nobody.tried == []


@pytest.mark.virtual
async def test_with_the_token_again_the_membership_stands_and_nobody_is_asked(tmp_path: Path) -> None:
    start, reach = Start(tmp_path), FakeInviter({"tcp": 0.0})
    first = await start.enter(reach)
    start.now += 10**6  # as old as it may be
    again = await start.enter(reach)
    assert (again.membership, again.pipe) == (first.membership, None)
    assert len(reach.tried) == 1  # by the first start
    await again.aclose()


def test_a_udp_port_is_where_the_tcp_port_is_of_hosts_only() -> None:
    mapped, known = Candidate("9.9.9.9", 1, "tcp", "mapped"), Candidate("10.0.0.1", 2, "udp")
    there = Candidate("10.0.0.1", 2)
    assert with_udp((HOST, mapped, there, known)) == (HOST, mapped, there, known, replace(HOST, proto="udp"))


class Learned:
    """The things that a node that has joined keeps."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "home")
        self.bans = RevocationSet(MESH)
        self.kept = KeptBook(self.home, me=GUEST.peer, mesh=MESH, bans=self.bans)

    def remember(self, admitted: Admitted | None) -> None:
        membership = Home(self.home.path).load_membership() or self.home.found_mesh(now=NOW)
        remember(Entered(membership, invite(HOST), admitted, None), self.kept, self.bans, self.home)

    def at_the_next_start(self) -> KeptBook:
        bans = Home(self.home.path).load_revocations(MESH)
        return KeptBook(Home(self.home.path), me=GUEST.peer, mesh=MESH, bans=bans)


def _record() -> PeerRecord:
    return PeerRecord.sign(WORKER, chain=WORKER_CHAIN, name="w", role="worker", sequence=1)


@pytest.mark.virtual
async def test_what_the_inviter_told_is_on_the_disk_at_once(tmp_path: Path) -> None:
    node = Learned(tmp_path)
    node.remember(Admitted(GUEST_CHAIN, (_record(),), ()))
    assert set(node.at_the_next_start().book.peers()) == {WORKER.peer, INVITER.peer}


@pytest.mark.virtual
async def test_one_damaged_ban_or_record_keeps_no_other_out_and_banned_ones_are_no_peers(
    tmp_path: Path,
) -> None:
    against = ban(signer=ROOT, chain=None, mesh=MESH, kind="node", target=INVITER.peer.raw, issued_at=1)
    stranger = PeerRecord.sign(FOUNDER, chain=FOUNDER_CHAIN, name="f", role="worker", sequence=1)
    node = Learned(tmp_path)
    node.bans.add(against)
    forged = replace(_record(), chain=Chain(FOUNDER_CHAIN.certificates, FOUNDER_CHAIN.root))
    node.remember(Admitted(GUEST_CHAIN, (forged, stranger), (b"no ban", against.encode())))
    book = node.at_the_next_start()
    assert set(book.book.peers()) == {FOUNDER.peer}
    assert Home(node.home.path).load_revocations(MESH).why_node_banned(INVITER.peer)


pytestmark = pytest.mark.virtual

LAN = (Candidate("192.168.1.5", 17430), Candidate("127.0.0.1", 17430, "udp"), Candidate("fd00::1", 1, "udp"))
REPLY_HOST = Candidate("192.168.1.5", 17430, "udp")
SECOND = Candidate("20.1.0.2", 9, "udp", "srflx")


@pytest.mark.parametrize(
    ("quic", "local_only", "bound", "candidates", "why"),
    [
        (True, False, True, (OUTER,), ""),
        (True, False, True, LAN, "no STUN server answered the node that made it"),
        (True, False, False, (OUTER,), "another program is using this node's UDP port"),
        (True, True, True, (OUTER,), "this node listens on loopback only"),
        (False, False, True, (OUTER,), "needs quic"),
    ],
)
def test_why_there_is_no_reply_code(
    quic: bool, local_only: bool, bound: bool, candidates: tuple[Candidate, ...], why: str
) -> None:
    told = why_no_code(invite(*candidates), quic=quic, local_only=local_only, bound=bound)
    assert why in told and bool(told) == bool(why)


def test_the_inviter_is_looked_for_outside_first_at_few_addresses() -> None:
    many = [Candidate(f"10.0.0.{number}", 1, "udp") for number in range(1, 9)]
    found = targets(invite(*many, *LAN, OUTER))
    assert found[0] == OUTER and len(found) == MAX_TRIED
    assert all(place.kind == "host" and place.proto == "udp" for place in found[1:])


class Script:
    """A dial: each answer is an error, or after how many seconds the inviter is reached."""

    def __init__(self, *answers: DialError | Refused | float) -> None:
        self.dials: list[tuple[float, Candidate]] = []
        self._answers = answers
        self._began = asyncio.get_running_loop().time()

    async def dial(self, places: Sequence[Dialable]) -> str:
        (place,) = places
        self.dials.append((round(asyncio.get_running_loop().time() - self._began, 3), place))
        answer = self._answers[min(len(self.dials), len(self._answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        await asyncio.sleep(answer)
        return "reached"


async def joined(port: FakeReplyPort, script: Script, notes: list[str], *places: Candidate) -> str:
    token = invite(*(places or (OUTER,)))
    keys = derive(token.secret)
    return await join_by_reply(token, keys, GUEST.peer, port, script.dial, note=notes.append)


async def test_the_code_names_where_this_node_is_seen_and_who_it_is() -> None:
    notes: list[str] = []
    own = [Candidate(f"10.0.0.{number}", 7, "udp") for number in range(1, 9)]
    port = FakeReplyPort(SECOND, Candidate("127.0.0.1", 7, "udp"), Candidate("fd00::1", 7, "udp"), *own)
    script = Script(0.5)
    assert await joined(port, script, notes) == "reached"
    keys = derive(invite().secret)
    code = notes[0].split("meshd accept ")[1].strip()
    reply = parse_reply(code, lambda invite_id: keys if invite_id == keys.invite_id else None)
    assert reply.joiner == GUEST.peer
    assert reply.candidates == (SECOND, *own)[:MAX_REPLY_CANDIDATES]
    assert "within 10 minutes" in notes[0]
    assert script.dials[0][0] == 0.1  # as soon as a server has answered
    assert not port.asking


async def test_where_no_server_answers_the_code_is_made_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    notes: list[str] = []
    script = Script(0.0)
    await joined(FakeReplyPort(REPLY_HOST, after=None), script, notes)
    assert script.dials[0][0] == STUN_SECONDS and len(notes) == 1


async def test_the_addresses_are_dialled_in_turn_until_one_answers() -> None:
    refused = failed("refused", DialFailure.REFUSED)
    script = Script(refused, 100.0, refused, 1.0)
    await joined(FakeReplyPort(OUTER), script, [], REPLY_HOST, OUTER)
    assert [place for _, place in script.dials] == [OUTER, REPLY_HOST, OUTER, REPLY_HOST]
    begun = [at for at, _ in script.dials]
    pauses = [later - before for before, later in itertools.pairwise(begun)]
    assert pauses == pytest.approx([PAUSE_SECONDS, TRY_SECONDS, PAUSE_SECONDS])


async def test_after_ten_minutes_the_last_wrong_node_that_was_met_is_told() -> None:
    loop = asyncio.get_running_loop()
    timeout, wrong = failed("no answer"), failed("another node is there", DialFailure.WRONG_PEER)
    for answers, what in (([timeout], "nobody accepted"), ([wrong, timeout], "another node is there")):
        began = loop.time()
        port = FakeReplyPort(OUTER)
        with pytest.raises(DialError, match=what):
            await joined(port, Script(*answers), [])
        assert 0 <= loop.time() - began - WAIT_SECONDS - 0.1 <= PAUSE_SECONDS
        assert not port.asking


async def test_a_refusal_by_the_inviter_itself_ends_the_dialling() -> None:
    script = Script(Refused("banned", code="banned"))
    with pytest.raises(Refused):
        await joined(FakeReplyPort(OUTER), script, [])
    assert len(script.dials) == 1
