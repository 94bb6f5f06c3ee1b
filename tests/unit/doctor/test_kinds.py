"""The words of findings: each kind is whole, and takes exactly the values that its words name."""

import pytest
from meshd.doctor.gpu_kinds import GpuKind
from meshd.doctor.kinds import Kind, Kinds, Wording
from meshd.doctor.services import ServiceKind

KINDS: tuple[Kinds, ...] = (*Kind, *GpuKind, *ServiceKind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_each_kind_says_what_it_means_and_what_to_do(kind: Kinds) -> None:
    wording: Wording = kind.value
    texts = [wording.what, wording.meaning, wording.hint]
    assert all(bool(text) for text in texts) or wording.state == "ok"
    for text in filter(None, texts):
        assert not text.endswith(".") and text == text.strip()
        assert text.count("`") % 2 == 0
    assert len(wording.name) <= 12


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in KINDS]
    assert len(set(codes)) == len(codes) and len(KINDS) >= 40


def test_a_finding_has_the_values_of_its_kind() -> None:
    found = Kind.HOME_READABLE.found(path="/h", mode="0755")
    assert (found.code, found.state, found.path) == ("home_readable", "warning", "/h")
    assert found.what == "other users can enter `/h` (mode 0755)"
    assert found.hint == "run `chmod 700 /h`, or `meshd doctor --fix`"
    for values in ({}, {"path": "/h"}, {"path": "/h", "mode": "0755", "owner": "root"}):
        with pytest.raises(ValueError, match="HOME_READABLE needs"):
            Kind.HOME_READABLE.found(**values)


def test_values_are_not_read_as_words() -> None:
    assert Kind.PROGRAM_FAILS.found(why="{remedy} {x}", remedy="do it").what == "{remedy} {x}"
