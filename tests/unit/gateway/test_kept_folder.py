"""Files of answers: bounded in number, bytes and age, one user at a time, and nobody else reads them."""

import asyncio
import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.peer_limits import Share
from meshd.gateway import kept_folder
from meshd.gateway.failure import HttpRefusal
from meshd.gateway.kept_folder import KEPT_SECONDS, KeptFolder, kept_name

ANNA, BERT = b"a" * 32, b"b" * 32


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


def play(check: Callable[[], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(20):
            await check()

    asyncio.run(scenario())


async def keep(folder: KeptFolder, name: str, data: bytes = b"x") -> bool:
    async with folder.use(name, lambda: None) as file:
        return file.append(data)


def names(path: Path) -> set[str]:
    return {one.name for one in path.iterdir()} if path.exists() else set()


def sizes(path: Path) -> dict[str, int]:
    return {one.name: one.stat().st_size for one in path.iterdir()}


def test_names_tell_nothing_and_each_key_has_its_own() -> None:
    secret = "my-secret-request"
    assert kept_name(ANNA, secret) == kept_name(ANNA, secret) != kept_name(BERT, secret)
    assert kept_name(ANNA, secret)[:16] == kept_name(ANNA, "other-one")[:16] != kept_name(BERT, secret)[:16]
    assert secret not in kept_name(b"", secret) and ANNA.hex()[:16] not in kept_name(ANNA, secret)


def test_only_its_user_can_read_it(tmp_path: Path) -> None:
    async def check() -> None:
        folder = KeptFolder(tmp_path / "kept", wall=Clock())
        await keep(folder, kept_name(ANNA, "1"))
        [file] = (tmp_path / "kept").iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700

    play(check)


def test_what_nobody_comes_back_for_is_removed(tmp_path: Path) -> None:
    old, new, used = (kept_name(ANNA, text) for text in ("old", "new", "used"))

    async def check() -> None:
        clock = Clock()
        folder = KeptFolder(tmp_path, wall=clock)
        for name in (old, new):
            await keep(folder, name)
        clock.now += KEPT_SECONDS - 1
        assert folder.touch(new) and not folder.touch(used)
        async with folder.use(used, lambda: None) as file:
            assert file.append(b"x")
            clock.now += 2
            folder._sweep()
            assert names(tmp_path) == {new, used}
            clock.now += KEPT_SECONDS + 1
            folder._sweep()
            assert names(tmp_path) == {used}, "it is in use"
        clock.now -= 3 * KEPT_SECONDS
        folder._sweep()
        assert names(tmp_path) == set(), "a clock that was put back keeps nothing for ever"

    play(check)


def test_the_next_daemon_finds_them(tmp_path: Path) -> None:
    fresh, old = kept_name(ANNA, "fresh"), kept_name(ANNA, "old")

    async def check() -> None:
        clock = Clock()
        folder = KeptFolder(tmp_path, wall=clock)
        for name, age in ((fresh, KEPT_SECONDS - 5), (old, KEPT_SECONDS + 5)):
            await keep(folder, name, b"12345")
            os.utime(tmp_path / name, (clock.now - age, clock.now - age))
        (tmp_path / "something-else").write_text("")
        (tmp_path / kept_name(ANNA, "link")).symlink_to(tmp_path / "something-else")
        found = KeptFolder(tmp_path, wall=clock)
        await found.open()
        assert found.touch(fresh) and not found.touch(old)
        assert not found.touch(kept_name(ANNA, "link"))
        assert (tmp_path / "something-else").exists()
        assert found._bytes.total == 5
        async with found.use(fresh, lambda: None) as file:
            with file.reading() as read:
                assert read(99) == b"12345"
            assert file.cut(3) and file.append(b"x") and found._bytes.total == 4
        assert (tmp_path / fresh).read_bytes() == b"123x"

    play(check)


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    async def check() -> None:
        folder = KeptFolder(tmp_path / "none", wall=Clock())
        await folder.open()
        assert not (tmp_path / "none").exists(), "nothing is made before there is an answer"
        async with folder.use(kept_name(ANNA, "1"), lambda: None) as file:
            with file.reading() as read:
                assert read(99) == b""

    play(check)


def test_whoever_has_most_loses_the_oldest(tmp_path: Path) -> None:
    async def check() -> None:
        clock = Clock()
        folder = KeptFolder(tmp_path, wall=clock)
        wanted = kept_name(BERT, "0")
        with mock.patch.object(kept_folder, "KEPT_ANSWERS", Share("", 3, "node", "")):
            for text in (wanted, *(kept_name(ANNA, str(number)) for number in range(4))):
                clock.now += 1
                assert await keep(folder, text)
        assert names(tmp_path) == {wanted, kept_name(ANNA, "2"), kept_name(ANNA, "3")}

    play(check)


def test_bytes_are_bounded_and_what_is_in_use_stays(tmp_path: Path) -> None:
    first, second, third = (kept_name(ANNA, text) for text in "123")

    async def check() -> None:
        folder = KeptFolder(tmp_path, wall=Clock())
        with mock.patch.multiple(kept_folder, _MOST_KEPT_BYTES=10, _MOST_KEPT_OF_KEY=10, _MOST_KEPT_OF_ONE=8):
            async with folder.use(first, lambda: None) as one, folder.use(second, lambda: None) as two:
                assert one.append(b"x" * 4) and two.append(b"x" * 4)
                assert not await keep(folder, third, b"xxx"), "all that is there is in use"
                assert two.append(b"xx") and names(tmp_path) == {first, second}
                assert not two.append(b"x"), "no room"
                assert names(tmp_path) == {first}
                assert one.append(b"x" * 4)
                assert not one.append(b"x"), "one has a limit of its own"
            assert names(tmp_path) == set() and folder._bytes.total == 0
            assert await keep(folder, first, b"x" * 8)
            assert await keep(folder, second, b"x" * 3)
            assert names(tmp_path) == {second}

    play(check)


def test_many_small_answers_of_one_key_displace_no_large_one_of_another(tmp_path: Path) -> None:
    async def check() -> None:
        clock = Clock()
        folder = KeptFolder(tmp_path, wall=clock)
        wanted = kept_name(BERT, "0")
        assert await keep(folder, wanted, b"x" * 200_000)
        with mock.patch.multiple(
            kept_folder, KEPT_ANSWERS=Share("", 8, "node", ""), KEPT_ANSWERS_OF_KEY=Share("", 7, "key", "")
        ):
            for number in range(20):
                clock.now += 1
                assert await keep(folder, kept_name(ANNA, str(number)))
                await keep(folder, kept_name(b"c" * 32, str(number % 2)))
        assert wanted in names(tmp_path) and len(names(tmp_path)) == 8
        assert kept_name(ANNA, "19") in names(tmp_path), "its oldest goes"

    play(check)


def test_what_one_key_has_in_use_leaves_room_for_others(tmp_path: Path) -> None:
    async def check() -> None:
        folder = KeptFolder(tmp_path, wall=Clock())
        with mock.patch.multiple(kept_folder, _MOST_KEPT_BYTES=100, _MOST_KEPT_OF_KEY=75):
            async with contextlib.AsyncExitStack() as held:
                kept = []
                for number in range(10):
                    name = kept_name(ANNA, str(number))
                    file = await held.enter_async_context(folder.use(name, lambda: None))
                    kept.append(file.append(b"x" * 10))
                assert kept == [True] * 7 + [False] * 3
                assert await keep(folder, kept_name(BERT, "0"), b"x" * 30)
            assert await keep(folder, kept_name(ANNA, "new"), b"x" * 10), "in place of its oldest"
            assert kept_name(BERT, "0") in names(tmp_path) and len(names(tmp_path)) == 8

    play(check)


def test_the_number_of_one_key_s_answers_in_use_is_bounded_too(tmp_path: Path) -> None:
    async def check() -> None:
        folder = KeptFolder(tmp_path, wall=Clock())
        with mock.patch.object(kept_folder, "KEPT_ANSWERS_OF_KEY", Share("", 2, "key", "")):
            async with contextlib.AsyncExitStack() as held:
                for number in range(3):
                    name = kept_name(ANNA, str(number))
                    file = await held.enter_async_context(folder.use(name, lambda: None))
                    assert file.append(b"x") == (number < 2)
                assert await keep(folder, kept_name(BERT, "0"))

    play(check)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 40)), max_size=40))
def test_what_is_counted_is_what_is_there(asked: list[tuple[str, int, int]]) -> None:
    async def check() -> None:
        with tempfile.TemporaryDirectory() as place:
            folder = KeptFolder(Path(place), wall=Clock())
            for key, number, size in asked:
                name = kept_name(key.encode() * 32, str(number))
                async with folder.use(name, lambda: None) as file:
                    assert file.append(b"x" * size) or not (Path(place) / name).exists()
                    if size % 7 == 0 and (Path(place) / name).exists():
                        assert file.cut(0)
            there = sizes(Path(place))
            assert {name: one.size for name, one in folder._known.items()} == there
            for tally, counted in ((folder._answers, dict.fromkeys(there, 1)), (folder._bytes, there)):
                of: Counter[str] = Counter()
                for name, count in counted.items():
                    of[name[:16]] += count
                assert tally.total == of.total() <= 100 and tally.of == +of
                assert all(count <= 75 for count in of.values())

    with mock.patch.multiple(kept_folder, _MOST_KEPT_BYTES=100, _MOST_KEPT_OF_KEY=75):
        play(check)


def test_a_later_request_takes_a_file_over(tmp_path: Path) -> None:
    name = kept_name(ANNA, "1")

    async def check() -> None:
        folder = KeptFolder(tmp_path, wall=Clock())
        began, ends = asyncio.Event(), []

        async def polite() -> None:
            async with folder.use(name, lambda: ends.append("aborted")) as file:
                file.append(b"1")
                began.set()
                with pytest.raises(HttpRefusal) as refused:
                    async with file.until_taken():
                        await asyncio.Event().wait()
                assert refused.value.failure.code == "answer_taken_over"
                with pytest.raises(HttpRefusal):  # whatever it begins now
                    async with file.until_taken():
                        await asyncio.Event().wait()
                ends.append("told")

        async with asyncio.TaskGroup() as group:
            group.create_task(polite())
            await began.wait()
            async with folder.use(name, lambda: None) as file:
                assert ends == ["told"]
                assert file.append(b"2")
        assert (tmp_path / name).read_bytes() == b"12"

    play(check)


def test_one_that_does_not_listen_is_cut_off(tmp_path: Path) -> None:
    name = kept_name(ANNA, "1")

    async def check() -> None:
        folder = KeptFolder(tmp_path, wall=Clock())
        began, cut = asyncio.Event(), asyncio.Event()

        async def deaf() -> None:
            async with folder.use(name, cut.set):
                began.set()
                await cut.wait()

        with mock.patch.object(kept_folder, "_GIVE_UP_SECONDS", 0.01):
            async with asyncio.TaskGroup() as group:
                group.create_task(deaf())
                await began.wait()
                async with folder.use(name, lambda: None):
                    assert cut.is_set()

    play(check)
