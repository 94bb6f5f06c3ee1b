"""A reply code: when one may help, what stands in it, and how the inviter is dialled until it answers."""

import asyncio
import itertools
from collections.abc import Sequence

import pytest
from meshd.base.errors import Refused
from meshd.identity.invite import MAX_REPLY_CANDIDATES, derive, parse_reply
from meshd.link.interface import DialError, DialFailure
from meshd.rendezvous.join_or_found import (
    MAX_TRIED,
    PAUSE_SECONDS,
    STUN_SECONDS,
    TRY_SECONDS,
    WAIT_SECONDS,
    join_by_reply,
    targets,
    why_no_code,
)
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable

from tests.unit.identity.cast import GUEST
from tests.unit.rendezvous.inviters import OUTER, FakeReplyPort, failed, invite

pytestmark = pytest.mark.virtual

LAN = (Candidate("192.168.1.5", 17430), Candidate("127.0.0.1", 17430, "udp"), Candidate("fd00::1", 1, "udp"))
HOST = Candidate("192.168.1.5", 17430, "udp")
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
    await joined(FakeReplyPort(HOST, after=None), script, notes)
    assert script.dials[0][0] == STUN_SECONDS and len(notes) == 1


async def test_the_addresses_are_dialled_in_turn_until_one_answers() -> None:
    refused = failed("refused", DialFailure.REFUSED)
    script = Script(refused, 100.0, refused, 1.0)
    await joined(FakeReplyPort(OUTER), script, [], HOST, OUTER)
    assert [place for _, place in script.dials] == [OUTER, HOST, OUTER, HOST]
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
