"""Which trials were passed: kept over a restart, and never in the way."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from meshd.devices.trial_cache import MAX_TRIALS, TrialCache, trial_key


def test_it_is_kept_and_shared(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "trials"
    first, second = TrialCache(path), TrialCache(path)
    keys = [trial_key([str(number)]) for number in range(3)]
    first.add(keys[0])
    second.add(keys[1])
    first.add(keys[2])
    assert all(key in TrialCache(path) for key in keys)
    assert trial_key(["other"]) not in TrialCache(path)


def test_the_oldest_go(tmp_path: Path) -> None:
    kept = TrialCache(tmp_path / "trials")
    keys = [trial_key([str(number)]) for number in range(MAX_TRIALS + 2)]
    for key in keys:
        kept.add(key)
    again = TrialCache(tmp_path / "trials")
    assert keys[0] not in again and keys[1] not in again and all(key in again for key in keys[2:])


def test_one_that_is_used_outlives_many_that_are_not(tmp_path: Path) -> None:
    path = tmp_path / "trials"
    kept, used = TrialCache(path), trial_key(["used"])
    kept.add(used)
    for number in range(3 * MAX_TRIALS):
        kept.add(trial_key([str(number)]))
        assert kept.use(used)
    assert used in TrialCache(path), "after a restart as well"
    assert not kept.use(trial_key(["0"])) and trial_key(["0"]) not in kept


def test_one_that_is_used_all_the_time_is_not_written_each_time(tmp_path: Path) -> None:
    path = tmp_path / "trials"
    kept, used = TrialCache(path), trial_key(["used"])
    kept.add(used)
    path.unlink()
    assert kept.use(used) and not path.exists()


def test_without_a_file_or_with_a_damaged_one(tmp_path: Path) -> None:
    key = trial_key(["a"])
    nowhere = TrialCache(None)
    nowhere.add(key)
    assert key in nowhere
    damaged = tmp_path / "trials"
    damaged.write_bytes(b"\xff\x00 nothing\n" + b"a" * 100_000)
    kept = TrialCache(damaged)
    kept.add(key)
    assert key in TrialCache(damaged)
    folder = tmp_path / "folder"
    folder.mkdir()
    kept = TrialCache(folder)
    kept.add(key)  # cannot be written
    assert key in kept and list(folder.iterdir()) == []
    assert sorted(item.name for item in tmp_path.iterdir()) == ["folder", "trials"]


@given(st.lists(st.text(max_size=20), max_size=5), st.lists(st.text(max_size=20), max_size=5))
def test_other_parts_are_another_key(one: list[str], two: list[str]) -> None:
    assert (trial_key(one) == trial_key(two)) == (one == two)
