"""meshd.build.patch: exact application of unified diffs."""

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.build.patch import apply_patch, parse_patch

LINES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=8), max_size=40)


def _diff(old: list[str], new: list[str], *, context: int = 3, path: str = "a.txt") -> str:
    parts = difflib.unified_diff(
        old, new, "/dev/null" if not old else f"a/{path}", f"b/{path}", lineterm="", n=context
    )
    return "why and what\n---\n" + f"diff --git a/{path} b/{path}\n" + "".join(f"{line}\n" for line in parts)


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


@given(LINES, LINES, st.integers(0, 3))
def test_applies_what_difflib_writes(old: list[str], new: list[str], context: int) -> None:
    if old == new or not new:
        return
    (change,) = parse_patch(_diff(old, new, context=context), name="p")
    assert change.is_new == (not old)
    assert apply_patch(_text(old) if old else None, change) == _text(new)


@given(LINES, LINES, LINES)
def test_applies_to_nothing_else(old: list[str], new: list[str], other: list[str]) -> None:
    if old == new or not new or not old:
        return
    (change,) = parse_patch(_diff(old, new, context=1000), name="p")  # whole files
    if other[: len(old)] == old:  # what follows the last hunk is not the patch's business
        return
    with pytest.raises(UserError):
        apply_patch(_text(other), change)


@given(st.text())
def test_garbage_raises_nothing_but_user_errors(text: str) -> None:
    with pytest.raises(UserError):
        parse_patch(text, name="p")


@given(st.integers(0, 400), st.text(max_size=3))
def test_damaged_patches_raise_nothing_but_user_errors(at: int, put: str) -> None:
    text = _diff([str(number) for number in range(20)], [str(number) for number in range(1, 20)])
    damaged = text[:at] + put + text[at + len(put) :]
    try:
        for change in parse_patch(damaged, name="p"):
            apply_patch(_text([str(number) for number in range(20)]), change)
    except UserError:
        pass


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a//b", "./a", "a\\b", ""])
def test_paths_outside_the_tree_are_refused(path: str) -> None:
    with pytest.raises(UserError, match="outside the tree"):
        parse_patch(_diff([], ["x"], path=path), name="p")


def test_several_files_in_one_patch() -> None:
    text = _diff(["a"], ["b"], path="one") + _diff([], ["c"], path="dir/two")
    one, two = parse_patch(text, name="p")
    assert (one.path, one.is_new) == ("one", False)
    assert (two.path, two.is_new) == ("dir/two", True)


def test_a_new_file_that_exists_and_a_changed_one_that_does_not() -> None:
    (new,) = parse_patch(_diff([], ["x"]), name="p")
    with pytest.raises(UserError, match="exists already"):
        apply_patch("x\n", new)
    (changed,) = parse_patch(_diff(["x"], ["y"]), name="p")
    with pytest.raises(UserError, match="does not exist"):
        apply_patch(None, changed)


def test_no_offset_is_taken() -> None:
    (change,) = parse_patch(_diff(["a", "b"], ["a", "c"]), name="p")
    with pytest.raises(UserError, match="differs from the expected content at line 1"):
        apply_patch("\na\nb\n", change)
