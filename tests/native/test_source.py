"""native/mesh keeps the project's rules, as far as they can be seen in its text."""

import re

from meshd.build.pin import mesh_sources

from tests.native.cpp_functions import functions
from tests.native.suite import count_tests

OURS = sorted(
    path for path in mesh_sources().rglob("*") if path.suffix in (".cpp", ".h") and path.name != "protocol.h"
)
MOST_LINES = 50  # of a function


def test_files_are_short() -> None:
    assert len(OURS) > 30
    assert [path.name for path in OURS if len(path.read_text(encoding="utf-8").splitlines()) > 350] == []


def test_functions_are_short() -> None:
    fuzzers = sorted((mesh_sources().parent / "fuzz").glob("*.[ch]*"))
    found = [(path.name, one) for path in [*OURS, *fuzzers] for one in functions(path.read_text("utf-8"))]
    tests = [one for _, one in found if one.signature.startswith("TEST(")]
    assert len(tests) == count_tests()
    assert len(found) > 1000
    assert {"mesh_graph.cpp", "session.cpp", "wire.h"} <= {name for name, _ in found}
    assert [f"{name}: {one.signature}" for name, one in found if one.lines > MOST_LINES] == []


def test_headers_say_what_they_are_for() -> None:
    headers = [path for path in OURS if path.suffix == ".h"]
    assert [path.name for path in headers if not path.read_text(encoding="utf-8").startswith("//")] == []


def test_no_two_classes_of_the_tests_have_one_name() -> None:
    """They are linked into one program, which takes one of them for both, and memory of the wrong size."""
    names = [
        name
        for path in OURS
        for name in re.findall(
            r"^(?:class|struct) (\w+)[^;]*\{$", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    assert len(names) > 50
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_releases_are_told_apart_without_the_preprocessor() -> None:
    """Test that only differences of systems are left for the preprocessor."""
    conditions = [
        line
        for path in OURS
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*#\s*(if|elif)", line)
    ]
    orders = "__BYTE_ORDER__|__ORDER_LITTLE_ENDIAN__"
    systems = rf"MSG_NOSIGNAL|SO_NOSIGPIPE|{orders}|__APPLE__|__linux__|__LP64__|RUSAGE_THREAD"
    left = [
        re.sub(rf"#|\b(ifn?def|if|elif|defined)\b|{systems}|//.*|[\s()&|!=]", "", line) for line in conditions
    ]
    assert conditions
    assert [line for line, rest in zip(conditions, left, strict=True) if rest] == []


def test_each_file_says_what_it_is_for() -> None:
    """A file begins with a comment, or includes one of our headers that does."""

    def begins_with_comment(name: str) -> bool:
        text = (mesh_sources() / name).read_text(encoding="utf-8")
        return text.removeprefix("#pragma once").lstrip().startswith("//")

    files = [path.name for path in mesh_sources().glob("*") if path.suffix in (".cpp", ".h")]
    assert len(files) > 80
    for name in files:
        included = re.findall(
            r'^#include "([\w.]+)"', (mesh_sources() / name).read_text("utf-8"), re.MULTILINE
        )
        assert begins_with_comment(name) or (
            name.endswith(".cpp") and any(map(begins_with_comment, included))
        ), name
