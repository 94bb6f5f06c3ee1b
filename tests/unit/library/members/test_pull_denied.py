"""One lying member keeps nobody from a model that an honest one has, whoever of them is asked first."""

from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.library import disk
from meshd.library.members import fetch, offers
from meshd.library.members import pull as pulling
from meshd.library.members.pull import HoldersLost, NobodyHasIt
from meshd.model.weights_index import HASH_BYTES, PIECE_BYTES, PieceIndex

from tests.conformance.run import run
from tests.unit.library.members.exchange_scene import NAME, Scene, failed, scene
from tests.unit.library.members.test_pull_trust import WANTED, other
from tests.unit.library.members.told_member import Member, fingerprint_of, index_of, large, pull_of
from tests.unit.store.header_files import hashes_of

Usage = namedtuple("Usage", "total used free")
HONEST = Member(large(), hashes_of(large()), WANTED)
BY_DIGITS = f"mesh:{WANTED.hex()}"
SIZE = len(large())


def of_zeros(*sizes: int) -> PieceIndex:
    """An index that fits no file of these sizes."""
    return PieceIndex(sizes, bytes(HASH_BYTES * sum(-(-size // PIECE_BYTES) for size in sizes)))


JUNK = (b"junk" * SIZE)[:SIZE]
LIARS: dict[str, Member] = {
    "wrong pieces": Member(large(), hashes_of(large()), WANTED, index=of_zeros(SIZE)),
    "wrong pieces, and gives none": Member(
        large(), hashes_of(large()), WANTED, gives=False, index=of_zeros(SIZE)
    ),
    "no model": Member(JUNK, (), WANTED),
    "no model, as a content id": Member(JUNK, (), content=WANTED),
    "another model": Member(other(), hashes_of(other()), WANTED),
    "two fingerprints": Member(other(), hashes_of(other()), bytes.fromhex(fingerprint_of(other())), WANTED),
    "a fingerprint that begins alike": Member(other(), hashes_of(other()), WANTED[:-1] + b"x"),
    "wrong hashes": Member(large(), (bytes(HASH_BYTES),) * len(hashes_of(large())), WANTED),
    "a long name": Member(large(), hashes_of(large()), WANTED, names=("a" * 251,)),
    "a long name that goes": Member(large(), hashes_of(large()), WANTED, names=("a" * 200,)),
    "two files": Member(large(), (), WANTED, gives=False, index=of_zeros(SIZE - 5, 5)),
    "a hundred files": Member(large(), (), WANTED, gives=False, index=of_zeros(*[PIECE_BYTES] * 100)),
    "no pieces": replace(HONEST, index=of_zeros(1)),
}


def speaking(it: Scene, liar: Member, *, first: bool, honest: Member = HONEST) -> None:
    """A liar and an honest member, of which one is asked first."""
    both = [(liar, "liar"), (honest, "honest")]
    for member, name in both if first else reversed(both):
        member.speaks_for(it.mute(name))


@pytest.mark.parametrize("header", [False, True], ids=["whole", "header"])
@pytest.mark.parametrize("first", [True, False], ids=["liar first", "honest first"])
@pytest.mark.parametrize("liar", LIARS)
async def test_a_liar_keeps_nobody_from_it(tmp_path: Path, liar: str, first: bool, header: bool) -> None:
    async with scene(tmp_path) as it:
        speaking(it, LIARS[liar], first=first)
        pull = pull_of(it, BY_DIGITS) if header else it.pull(BY_DIGITS)
        await pull.run()
        assert pull.state.fingerprint == WANTED.hex()
        if not header:
            assert pull.state.paths[0].read_bytes() == large()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(list(LIARS)), min_size=2, max_size=10), st.integers(0, 10), st.booleans())
def test_no_mix_of_liars_does(liars: list[str], before: int, header: bool) -> None:
    """`before`: those that are asked before the honest member."""

    async def main(folder: Path) -> None:
        async with scene(folder) as it:
            said = [LIARS[one] for one in liars]
            for number, one in enumerate([*said[:before], HONEST, *said[before:]]):
                one.speaks_for(it.mute(str(number)))
            pull = pull_of(it, BY_DIGITS) if header else it.pull(BY_DIGITS)
            await pull.run()
            assert pull.state.fingerprint == WANTED.hex()

    with TemporaryDirectory() as folder:
        run(main(Path(folder)))


@pytest.mark.parametrize("header", [False, True], ids=["whole", "header"])
@pytest.mark.parametrize("first", [True, False], ids=["liar first", "honest first"])
async def test_a_name_with_another_number_of_files(tmp_path: Path, first: bool, header: bool) -> None:
    """It is no other content for which to ask the user: the member does not give any."""
    async with scene(tmp_path) as it:
        index = PieceIndex((SIZE - 5, 5), bytes(HASH_BYTES * 6))
        liar = Member(large(), (), index=index, why_no_pieces="not now")
        speaking(it, liar, first=first)
        pull = pull_of(it) if header else it.pull(NAME)
        await pull.run()
        assert pull.state.fingerprint == WANTED.hex()


@pytest.mark.parametrize("header", [False, True], ids=["whole", "header"])
async def test_a_wrong_fingerprint_of_right_bytes_harms_its_teller_alone(
    tmp_path: Path, header: bool
) -> None:
    """The other member has not read its model yet, and tells none."""
    async with scene(tmp_path) as it:
        Member(large(), hashes_of(large()), b"x" * 32).speaks_for(it.mute("liar"))
        Member(large(), hashes_of(large())).speaks_for(it.mute("honest"))
        pull = pull_of(it) if header else it.pull(NAME)
        await pull.run()
        assert pull.state.fingerprint == WANTED.hex()


async def test_other_pieces_than_were_told_of_are_not_fetched(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        Member(other(), hashes_of(other()), content=WANTED).speaks_for(it.mute("liar"))
        pull = it.pull(BY_DIGITS)
        error = await failed(pull)
        assert isinstance(error, HoldersLost) and "other pieces than were told of" in error.what
        assert not list((tmp_path / "taker/models").glob(".parts/*"))


@pytest.mark.parametrize("first", [True, False], ids=["liar first", "honest first"])
async def test_a_model_for_which_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    free = disk.RESERVED_BYTES + 2 * SIZE
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(0, 0, free))

    async with scene(tmp_path) as it:
        liar = Member(large(), (), WANTED, gives=False, index=of_zeros(10 * SIZE))
        liar.speaks_for(it.mute("alone"))
        error = await failed(it.pull(BY_DIGITS))
        assert "not enough space" in error.what, "for all that there is"
    async with scene(tmp_path) as it:
        speaking(it, liar, first=first)
        pull = it.pull(BY_DIGITS)
        await pull.run()
        assert pull.state.fingerprint == WANTED.hex()


@pytest.mark.parametrize("first", [True, False], ids=["liar first", "honest first"])
@pytest.mark.parametrize("name", [NAME, BY_DIGITS])
@pytest.mark.parametrize("slow", [0, 3])
async def test_one_that_stalls_keeps_no_header_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, first: bool, slow: int
) -> None:
    """It always says something before its time is over: it gives a byte, or reads on. The honest one reads
    its file first, and has read it when it is asked for the last time.
    """
    monkeypatch.setattr(fetch, "_SILENT_SECONDS", 1e6)
    monkeypatch.setattr(offers, "_WORDLESS_SECONDS", 1e6)
    monkeypatch.setattr(pulling, "_READY_SECONDS", 0.1)

    async with scene(tmp_path) as it:
        speaking(it, replace(HONEST, stalls=True), first=first, honest=replace(HONEST, slow=slow))
        pull = pull_of(it, name)
        await pull.run()
        assert pull.state.fingerprint == WANTED.hex()


@pytest.mark.parametrize("count", [1, 3])
async def test_those_that_read_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """If none knows the hashes at once."""
    monkeypatch.setattr(pulling, "_READY_SECONDS", 1e-4)

    async with scene(tmp_path) as it:
        for number in range(count):
            HONEST.speaks_for(it.mute(str(number)))
        pull = pull_of(it)
        await pull.run()
        assert pull.state.fingerprint == WANTED.hex()


async def test_a_disk_that_is_full_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are not asked for what there is no room for, and what they lack does not hide it."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(0, 0, disk.RESERVED_BYTES))

    async with scene(tmp_path) as it:
        HONEST.speaks_for(it.mute("honest"))
        Member(large(), (), WANTED, gives=False, index=of_zeros(1)).speaks_for(it.mute("smaller"))
        error = await failed(it.pull(BY_DIGITS))
        assert isinstance(error, UserError) and "not enough space" in error.what


async def test_when_all_lie_it_is_said(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        for number in range(3):
            Member(other(), hashes_of(other()), WANTED).speaks_for(it.mute(f"liar {number}"))
        error = await failed(it.pull(BY_DIGITS))
        assert isinstance(error, NobodyHasIt) and "was something else" in error.what


async def test_a_header_comes_from_the_member_that_gives_it(tmp_path: Path) -> None:
    """More members say that they have it, in two files, and give none."""
    async with scene(tmp_path) as it:
        for number in range(2):
            Member(large(), (), WANTED, gives=False, index=of_zeros(SIZE, 5)).speaks_for(
                it.mute(f"two {number}")
            )
        alone = await failed(pull_of(it, BY_DIGITS))
        assert "no member gives" in alone.what and "two 0: " in alone.what and "two 1: " in alone.what
        HONEST.speaks_for(it.mute("one"))
        pull = pull_of(it, BY_DIGITS)
        await pull.run()
        assert pull.state.fingerprint == WANTED.hex()
        assert index_of(large()).content.hex().startswith(pull.state.paths[0].parent.name[7:])
