"""The ranges of pyproject.toml allow no version of a library with a known vulnerability."""

import tomllib
from dataclasses import dataclass
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.lower_bounds import ROOT, USES, lowest, required

ADVISORIES = ROOT / "tests" / "advisories.toml"


@dataclass(frozen=True, slots=True)
class Advisory:
    """`affected`: exact versions (`==1.2.3`), or ranges with one or two ends (`<1.2.4`, `>=1.0,<1.2.4`)."""

    library: str
    id: str
    affected: tuple[SpecifierSet, ...]


def advisories() -> list[Advisory]:
    listed = tomllib.loads(ADVISORIES.read_text(encoding="utf-8"))["advisory"]
    return [Advisory(one["library"], one["id"], tuple(map(SpecifierSet, one["affected"]))) for one in listed]


def ranges_of(library: str) -> SpecifierSet:
    wanted = canonicalize_name(library)
    [found] = [one for one in required(extras=True) if canonicalize_name(one.name) == wanted]
    return found.specifier


def allowed_of(ranges: SpecifierSet, affected: SpecifierSet) -> list[str]:
    """Return versions at the ends of either that `ranges` allow and `affected` covers.

    Two ranges that overlap do so at an end of one of them. Where an end is open, `.dev0` of it stands for the
    version before; PEP 440 leaves that out of `<`, so only the other one is asked about it.
    """
    found = set[str]()
    for own, other in ((ranges, affected), (affected, ranges)):
        for one in own:
            end = f"{one.version}.dev0" if one.operator == "<" else one.version
            inside = one.operator == "<" or own.contains(end, prereleases=True)
            if inside and other.contains(end, prereleases=True):
                found.add(end)
    return sorted(found, key=Version)


@pytest.mark.parametrize("advisory", advisories(), ids=lambda one: one.id)
def test_no_vulnerable_version_is_allowed(advisory: Advisory) -> None:
    ranges = ranges_of(advisory.library)
    assert [allowed_of(ranges, affected) for affected in advisory.affected] == [[]] * len(advisory.affected)


@pytest.mark.parametrize("advisory", advisories(), ids=lambda one: one.id)
def test_no_vulnerable_version_is_installed(advisory: Advisory) -> None:
    assert not any(affected.contains(version(advisory.library)) for affected in advisory.affected)


@pytest.mark.parametrize(
    ("ranges", "affected", "allowed"),
    [
        (">=3.14", "==3.14.1", ["3.14.1"]),
        (">=3.14.3", "==3.14.1", []),
        (">=3.14,!=3.14.1", "==3.14.1", []),
        (">=1.7", ">=1.0,<1.7", []),
        (">=1.7", "<1.7", []),
        (">=1.6", ">=1.0,<1.7", ["1.6", "1.7.dev0"]),
        (">=1.6", "<=1.7", ["1.6", "1.7"]),
        (">=2,<3", "<5", ["2", "3.dev0"]),
        (">=2,<3", ">=2.5,<5", ["2.5", "3.dev0"]),
        (">=2,<3", ">=3,<5", []),
        ("==2.5", "<5", ["2.5"]),
    ],
)
def test_what_a_range_allows(ranges: str, affected: str, allowed: list[str]) -> None:
    assert allowed_of(SpecifierSet(ranges), SpecifierSet(affected)) == allowed


def test_every_dependency_has_a_lower_bound() -> None:
    """tests/lower_bounds.py runs the tests with these."""
    assert len(lowest(required(extras=True))) == len(required(extras=True)) > 20


def test_the_lowest_version_is_the_bound() -> None:
    assert lowest([Requirement("a>=2.0,<3"), Requirement("b==1.5; sys_platform == 'linux'")]) == [
        "a==2.0",
        "b==1.5",
    ]
    with pytest.raises(ValueError, match="`c<3` has no lower bound"):
        lowest([Requirement("c<3")])


def test_each_library_has_tests_that_its_lowest_version_must_pass() -> None:
    assert sorted(USES) == sorted(one.name for one in required(extras=False))
    missing = [path for paths in USES.values() for path in paths if not (ROOT / path).exists()]
    assert not missing and all(USES.values())
