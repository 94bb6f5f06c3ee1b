"""How long devices took: kept over a restart, shared, bounded, and never in the way."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.devices.speed_cache import _MOST_SPEEDS, SpeedCache, with_kind
from meshd.devices.trial_cache import trial_key
from meshd.wire.capacity import TimedLayer

POINTS = ((1, 190_656), (128, 25_746_603))
LONGEST = tuple((4096 - number, 10**12) for number in range(8))


def key(number: int) -> str:
    return trial_key([str(number)])


def test_it_is_kept_and_shared(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "speeds"
    first, second = SpeedCache(path), SpeedCache(path)
    first.add(key(1), POINTS)
    second.add(key(2), ())
    again = SpeedCache(path)
    assert again.find(key(1)) == POINTS
    assert again.find(key(2)) == (), "there is no time for it, and nobody need look again"
    assert again.find(key(3)) is None


def test_the_oldest_go(tmp_path: Path) -> None:
    kept = SpeedCache(tmp_path / "speeds")
    for number in range(_MOST_SPEEDS + 1):
        kept.add(key(number), POINTS)
    again = SpeedCache(tmp_path / "speeds")
    assert again.find(key(0)) is None and again.find(key(1)) == POINTS == again.find(key(_MOST_SPEEDS))


def test_times_for_others_displace_neither_those_of_this_node_nor_of_each_other(tmp_path: Path) -> None:
    kept = SpeedCache(tmp_path / "speeds")
    own, head = range(20), range(100, 130)
    for number in own:
        kept.add(key(number), POINTS)
    for number in head:
        kept.add(key(number), POINTS, "the invite of a head")
    many = range(1000, 1000 + _MOST_SPEEDS)
    for number in many:
        kept.add(key(number), LONGEST, "another invite")
    again = SpeedCache(tmp_path / "speeds")
    assert all(again.find(key(number)) == POINTS for number in (*own, *head))
    left = [number for number in many if again.find(key(number)) is not None]
    assert left == list(many[-(_MOST_SPEEDS - len(own) - len(head)) :])


def test_what_this_node_has_measured_without_end_leaves_room_for_others(tmp_path: Path) -> None:
    kept = SpeedCache(tmp_path / "speeds")
    for number in range(_MOST_SPEEDS):
        kept.add(key(number), POINTS)
    for number in range(1000, 1010):
        kept.add(key(number), POINTS, "an invite")
    assert all(kept.find(key(number)) for number in range(1000, 1010))


def test_the_newest_time_counts(tmp_path: Path) -> None:
    kept = SpeedCache(tmp_path / "speeds")
    kept.add(key(1), POINTS)
    kept.add(key(1), ((1, 5),))
    assert SpeedCache(tmp_path / "speeds").find(key(1)) == ((1, 5),)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "short 1:2",
        f"{'g' * 64} 1:2",
        f"{'a' * 64} 1:0",
        f"{'a' * 64} 0:1",
        f"{'a' * 64} 1",
        f"{'a' * 64}",
        f"{'a' * 64} 1:2,",
        f"{'a' * 64} 1:2 ",
        f"{'a' * 64} 1:2 {'g' * 32}",
        f"{'a' * 64} 1:2 {'a' * 31}",
        f"{'a' * 64} 9999:1",
        f"{'a' * 64} 1:2,4:5,1:3",
        f"{'a' * 64} " + ",".join(["1:1"] * 9),
    ],
)
def test_a_damaged_line_is_none(tmp_path: Path, line: str) -> None:
    path = tmp_path / "speeds"
    path.write_text(f"{line}\n{key(1)} 1:2\n")
    assert SpeedCache(path).find("a" * 64) is None
    assert SpeedCache(path).find(key(1)) == ((1, 2),)


@given(st.binary(max_size=300))
def test_a_damaged_file_costs_a_measurement(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("speeds") / "speeds"
    path.write_bytes(data)
    kept = SpeedCache(path)
    kept.add(key(1), POINTS)
    assert SpeedCache(path).find(key(1)) == POINTS


def test_without_a_file_or_where_none_can_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (None, folder):
        kept = SpeedCache(path)
        kept.add(key(1), POINTS)
        assert kept.find(key(1)) == POINTS
    assert list(folder.iterdir()) == []


def test_they_are_told_with_the_place_of_what_was_asked() -> None:
    assert with_kind(3, ((1, 5), (4, 6))) == (TimedLayer(3, 1, 5), TimedLayer(3, 4, 6))


def test_what_another_daemon_measures_or_forgets_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "speeds"
    first, second = SpeedCache(path), SpeedCache(path)
    first.add(key(1), POINTS)
    assert second.find(key(1)) == POINTS
    second.add(key(1), ((1, 5),))
    assert first.find(key(1)) == ((1, 5),)
    second.clear()
    assert first.find(key(1)) is None
    first.add(key(2), POINTS)
    assert second.find(key(2)) == POINTS and SpeedCache(path).find(key(1)) is None
