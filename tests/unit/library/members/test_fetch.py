"""Pieces of one content from holders in memory, on a virtual clock: who is waited for, how long, how fast."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.admission import TokenBucket
from meshd.identity.keys import PeerId
from meshd.library.members.fetch import COPY_SECONDS, LEAST_PIECE_RATE, PieceFetcher, PiecePlan, TooSlow
from meshd.model.weights_index import PIECE_BYTES, Piece, PieceIndex
from meshd.peer.interface import Stream
from meshd.wire.models import HERE, PIECES_SERVICE

from tests.sim.loop import run
from tests.unit.library.members.exchange_scene import Scene, scene

PIECES = 6
PIECE = bytes(PIECE_BYTES)
INDEX = PieceIndex((PIECES * PIECE_BYTES,), blake3(PIECE).digest() * PIECES)
Give = Callable[[Stream], Awaitable[None]]


class Fetch:
    """The pieces that one fetch has asked for and got; `holders` by name."""

    def __init__(self, it: Scene, *, pace: TokenBucket | None = None) -> None:
        self.plan = PiecePlan(INDEX)
        self.given: dict[PeerId, int] = {}
        self._it = it
        self._fetcher = PieceFetcher(it.taker, INDEX, self.plan, self._write, pace=pace, on_bytes=self._count)

    async def _write(self, _number: int, _data: bytes) -> None:
        await asyncio.sleep(0)

    def _count(self, peer: PeerId, count: int) -> None:
        self.given[peer] = self.given.get(peer, 0) + count

    def holder(self, name: str, give: Give) -> PeerId:
        mesh = self._it.mute(name)
        mesh.handle(PIECES_SERVICE, give, allow=lambda _member, _metadata: None)
        return mesh.key.peer

    async def fetch(self, peer: PeerId) -> None:
        await self._fetcher.fetch(peer)


async def numbers_of(stream: Stream) -> list[int]:
    """The pieces that are asked for now."""
    data = bytes(await stream.read())
    stream.consumed(len(data))
    return [int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4)]


def gives(rate: float) -> Give:
    """So many bytes a second, in pieces of as many as come in a second."""

    async def give(stream: Stream) -> None:
        while True:
            for _ in await numbers_of(stream):
                left = HERE + PIECE
                while left:
                    await asyncio.sleep(1.0)
                    await stream.write(left[: int(rate)])
                    left = left[int(rate) :]

    return give


async def stalls(_stream: Stream) -> None:
    """Says nothing, and never ends."""
    await asyncio.Event().wait()


async def drips(stream: Stream) -> None:
    """A byte each half minute: never silent for long enough to be lost for that."""
    await numbers_of(stream)
    await stream.write(HERE)
    while True:
        await asyncio.sleep(30.0)
        await stream.write(b"\0")


def seconds_of(main: Callable[[], Awaitable[None]]) -> float:
    """Return how long it takes."""

    async def timed() -> float:
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(10_000.0):
            await main()
        return asyncio.get_running_loop().time() - began

    return run(timed())


def test_colluding_holders_that_stall_do_not_keep_an_honest_one_from_giving_all(tmp_path: Path) -> None:
    first: set[int] = set()

    async def owes(stream: Stream) -> None:
        while len(first) < 2:
            first.update(await numbers_of(stream))
        await stalls(stream)

    async def owes_the_same(stream: Stream) -> None:
        """It is fast until it has the copies of what the other one owes."""
        while True:
            for number in await numbers_of(stream):
                if number in first:
                    await stalls(stream)
                await stream.write(HERE + PIECE)

    async def main() -> None:
        async with scene(tmp_path) as it:
            fetch = Fetch(it)
            tasks = []
            for name, give in (("one", owes), ("two", owes_the_same)):
                tasks.append(asyncio.create_task(fetch.fetch(fetch.holder(name, give))))
                await asyncio.sleep(1.0)
            honest = fetch.holder("honest", gives(PIECE_BYTES))
            await fetch.fetch(honest)
            assert fetch.plan.is_done and fetch.given[honest] == len(first) * PIECE_BYTES
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    assert seconds_of(main) < 40, "before any of them is lost for its silence"


def test_a_holder_from_which_a_piece_hardly_comes_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            fetch = Fetch(it)
            with pytest.raises(TooSlow, match=r"less than 16\.0 kB/s come from it"):
                await fetch.fetch(fetch.holder("drips", drips))
            assert fetch.plan.next("another", 0.0) is not None, "what it owed goes to others"

    assert 60 < seconds_of(main) < 60 + PIECE_BYTES / LEAST_PIECE_RATE + 1


def test_a_holder_that_says_nothing_is_lost_sooner(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            fetch = Fetch(it)
            with pytest.raises(TimeoutError):
                await fetch.fetch(fetch.holder("silent", stalls))

    assert seconds_of(main) == pytest.approx(60, abs=1)


def test_a_slow_holder_without_others_gives_all(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            fetch = Fetch(it)
            await fetch.fetch(fetch.holder("slow", gives(1.05 * LEAST_PIECE_RATE)))
            assert fetch.plan.is_done

    assert seconds_of(main) > PIECES * 200


def test_the_pauses_for_a_rate_of_the_user_count_against_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            now = asyncio.get_running_loop().time()
            fetch = Fetch(it, pace=TokenBucket(rate=LEAST_PIECE_RATE / 4, burst=PIECE_BYTES, now=now))
            await fetch.fetch(fetch.holder("fast", gives(PIECE_BYTES)))
            assert fetch.plan.is_done

    assert seconds_of(main) == pytest.approx((PIECES - 1) * PIECE_BYTES / (LEAST_PIECE_RATE / 4), rel=0.05)


FILES = st.integers(1, 12)


def index_of(files: int) -> PieceIndex:
    """So many files of one piece each."""
    data = [bytes([number]) * 10 for number in range(files)]
    return PieceIndex((10,) * files, b"".join(blake3(one).digest() for one in data))


def data_of(number: int) -> bytes:
    return bytes([number]) * 10


def next_of(plan: PiecePlan, holder: str, now: float = 0.0) -> Piece | None:
    """It is asked for at once."""
    if (piece := plan.next(holder, now)) is not None:
        plan.asked(holder, piece.number, now)
    return piece


def take(plan: PiecePlan, holder: str, number: int) -> bool:
    """It came, and is written."""
    if not plan.arrived(holder, number, data_of(number)):
        return False
    if plan.wants(number):
        plan.written(number)
    return True


def test_two_share_the_pieces() -> None:
    plan = PiecePlan(index_of(4))
    asked = [next_of(plan, holder) for holder in ("a", "b", "a", "b")]
    assert [piece.number for piece in asked if piece is not None] == [0, 1, 2, 3]


def test_what_is_there_is_not_asked_for() -> None:
    plan = PiecePlan(index_of(4), present={0, 2})
    assert plan.done_bytes == 20
    numbers = [piece.number for _ in range(2) if (piece := next_of(plan, "a")) is not None]
    assert numbers == [1, 3] and next_of(plan, "a") is None and not plan.is_done
    for number in numbers:
        assert take(plan, "a", number)
    assert plan.done_bytes == 40


def test_a_wrong_piece_goes_to_somebody_else() -> None:
    plan = PiecePlan(index_of(2))
    for _ in range(2):
        next_of(plan, "liar")
    assert not plan.arrived("liar", 0, b"wrong")
    assert next_of(plan, "liar") is None
    assert {piece.number for _ in range(2) if (piece := next_of(plan, "good"))} == {0, 1}


def test_a_stalled_holder_delays_nobody_and_counts_once() -> None:
    plan = PiecePlan(index_of(2))
    assert next_of(plan, "slow") is not None and next_of(plan, "fast") is not None
    assert take(plan, "fast", 1)
    late = next_of(plan, "fast")
    assert late is not None and late.number == 0 and next_of(plan, "third") is None, "two owe it"
    assert take(plan, "fast", 0) and plan.is_done
    assert plan.arrived("slow", 0, data_of(0)) and not plan.wants(0)
    assert plan.done_bytes == 20


def test_any_number_of_stalled_holders_cannot_keep_the_others_from_a_piece() -> None:
    plan, now = PiecePlan(index_of(2)), 0.0
    for holder in ("stalled 1", "stalled 2") * 2:  # two colluding ones owe both pieces
        assert next_of(plan, holder) is not None
    for holder in ("stalled 3", "stalled 4"):  # and more of them are there first, each time
        assert next_of(plan, "honest", now) is None, "nobody is asked for the same without need"
        now += COPY_SECONDS
        while next_of(plan, holder, now) is not None:
            pass
    now += COPY_SECONDS
    while (piece := next_of(plan, "honest", now)) is not None:
        assert take(plan, "honest", piece.number)
    assert plan.is_done


def test_a_piece_that_waits_for_the_users_rate_is_asked_of_nobody_else() -> None:
    plan = PiecePlan(index_of(1))
    for holder in ("a", "b"):
        assert plan.next(holder, 0.0) is not None
    assert plan.next("c", 1000.0) is None
    plan.asked("a", 0, 500.0)
    assert plan.next("c", 1000.0) is None, "one waits still"
    plan.asked("b", 0, 1000.0)
    assert plan.next("c", 1000.0 + COPY_SECONDS - 1) is None
    assert plan.next("c", 1000.0 + COPY_SECONDS) is not None


def test_one_that_is_lost_while_it_waits_for_the_rate_keeps_no_copy_from_others() -> None:
    plan = PiecePlan(index_of(1))
    for holder in ("stalled 1", "stalled 2"):
        assert next_of(plan, holder, 0.0) is not None
    assert plan.next("gone", COPY_SECONDS) is not None
    plan.lost("gone")
    plan.asked("gone", 0, COPY_SECONDS)  # it was about to be
    assert plan.next("honest", COPY_SECONDS) is not None


def test_what_a_lost_holder_owed_is_asked_for_first() -> None:
    plan = PiecePlan(index_of(5))
    for _ in range(2):
        next_of(plan, "gone")
    plan.lost("gone")
    numbers = [piece.number for _ in range(5) if (piece := next_of(plan, "a"))]
    assert sorted(numbers[:2]) == [0, 1] and sorted(numbers) == [0, 1, 2, 3, 4]


@given(FILES, st.sets(st.integers(0, 11)), st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_piece_arrives_while_one_holder_is_honest(
    files: int, present: set[int], holders: int, rng: random.Random
) -> None:
    """Others lie, stall and leave at any moment."""
    plan = PiecePlan(index_of(files), present={number for number in present if number < files})
    owed: dict[str, list[int]] = {f"h{number}": [] for number in range(holders)}
    for _ in range(2000):
        if plan.is_done:
            break
        holder = rng.choice(list(owed))
        honest = holder == "h0"
        if len(owed[holder]) < 2 and (piece := next_of(plan, holder)) is not None:
            assert piece.number not in owed[holder]
            owed[holder].append(piece.number)
        elif owed[holder] and (honest or rng.random() < 0.3):
            number = owed[holder].pop(0)
            if honest or rng.random() < 0.5:
                assert take(plan, holder, number)
            else:
                assert not plan.arrived(holder, number, b"lie")
                owed[holder] = []
        elif not honest and rng.random() < 0.2:
            plan.lost(holder)
            owed[holder] = []
    assert plan.is_done and plan.done_bytes == 10 * files


@given(FILES, st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)))
def test_only_what_is_wanted_is_asked_for_and_counted(
    files: int, present: set[int], wanted: set[int]
) -> None:
    present, wanted = ({one for one in numbers if one < files} for numbers in (present, wanted))
    plan = PiecePlan(index_of(files), present, wanted=wanted)
    assert plan.done_bytes == 10 * len(present & wanted)
    asked = []
    while (piece := next_of(plan, "a")) is not None:
        asked.append(piece.number)
        assert take(plan, "a", piece.number)
    assert asked == sorted(wanted - present) and plan.is_done
    assert plan.done_bytes == 10 * len(wanted)
