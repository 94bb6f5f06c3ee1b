"""Moving the pin: an archive's values take the places of the old ones, and a review is told what moved."""

import io
import re
import tarfile
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build.pin import native_folder, read_pin

from tests.native.pin import WATCHED, changed_lines, move, names_of, options_of
from tests.native.schema import ROOT

OLD, NEW = "a" * 40, "b" * 40
UPDATED = "- feat: update llama.cpp to ggml-org/llama.cpp@"
NAMES = "GGML_OP_NAME[GGML_OP_COUNT] = {{\n    {}\n}};\n"


def _archive(folder: Path, package: str, minor: int, commit: str, operations: str, options: str) -> Path:
    top = f"llama_cpp_python-{package}"
    inner = f"{top}/vendor/llama.cpp"
    changes = f"## [{package}]\n\n{UPDATED}{commit[:9]}\n\n## [0.0.1]\n\n{UPDATED}{'c' * 9}\n"
    files = {
        f"{top}/CHANGELOG.md": changes,
        f"{inner}/ggml/CMakeLists.txt": "".join(
            f"set(GGML_VERSION_{part} {value})\n"
            for part, value in (("MAJOR", 0), ("MINOR", minor), ("PATCH", 1))
        ),
        f"{inner}/CMakeLists.txt": "".join(
            f"set(LLAMA_VERSION_{part} {minor})\n" for part in ("MAJOR", "MINOR", "PATCH")
        ),
        f"{inner}/ggml/include/ggml-rpc.h": "".join(
            f"#define RPC_PROTO_{part}_VERSION    {minor}\n" for part in ("MAJOR", "MINOR", "PATCH")
        ),
        f"{inner}/ggml/src/ggml.c": f"first {minor}\n{NAMES.format(operations)}",
        f"{inner}/common/arg.cpp": options,
        f"{inner}/told.cpp": package,
    }
    path = folder / f"{top}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def archives(tmp_path: Path) -> tuple[Path, Path]:
    return (
        _archive(tmp_path, "0.1.0", 7, OLD, '"NONE", "GONE"', '{"-a", "--all"}\n'),
        _archive(tmp_path, "0.2.0", 8, NEW, '"NONE", "NEW"', '{"--all", "--none"}\n'),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a pin of the first archive, and its comments."""
    made = tmp_path / "native"
    (made / "mesh").mkdir(parents=True)
    (made / "mesh" / "inject.cmake").touch()
    (made / "UPSTREAM.toml").write_text(
        f'name = "llama.cpp"\nversion = "0.7.1"  # of ggml\nrelease = "7.7.7"\ncommit = "{OLD}"\n'
        'rpc_protocol = "7.7.7"\n'
        'license = "MIT"\n[sdist]\nrequirement = "llama-cpp-python==0.1.0"\n'
        f'file = "llama_cpp_python-0.1.0.tar.gz"\nsha256 = "{"1" * 64}"\n'
        f'folder = "llama_cpp_python-0.1.0/vendor/llama.cpp"\n[files]\n"told.cpp" = "{"2" * 64}"\n'
    )
    return made


def _move(folder: Path, archives: tuple[Path, Path], commit: str) -> list[str]:
    return move(read_pin(folder), folder / "UPSTREAM.toml", *archives, commit)


def test_the_pin_gets_what_the_archive_says(folder: Path, archives: tuple[Path, Path]) -> None:
    _move(folder, archives, NEW)
    text = (folder / "UPSTREAM.toml").read_text()
    assert "# of ggml" in text
    pin = read_pin(folder)
    assert (pin.version, pin.release, pin.commit, pin.rpc_protocol) == ("0.8.1", "8.8.8", NEW, "8.8.8")
    assert pin.sdist.requirement == "llama-cpp-python==0.2.0"
    assert pin.sdist.folder == "llama_cpp_python-0.2.0/vendor/llama.cpp"
    assert "1" * 64 not in text
    assert "2" * 64 not in text


def test_a_review_is_told_what_moved(folder: Path, archives: tuple[Path, Path]) -> None:
    lines = _move(folder, archives, NEW)
    assert lines[0] == "ggml 0.7.1 to 0.8.1, RPC 7.7.7 to 8.8.8"
    assert (
        "ggml/src/ggml.c: 4 lines differ (shapes of results, and where parameters are: shapes_*.cpp)" in lines
    )
    assert (
        "ggml/src/ggml-impl.h: GONE (ggml_cgraph, which client_graph.cpp reads and graphs.cpp makes)" in lines
    )
    assert "names of OP, new: NEW" in lines
    assert "names of OP, gone: GONE" in lines
    assert "names of GLU_OP: not found, they are written in another way" in lines
    assert lines[-1] == "options of llama-server that are gone: -a"


@pytest.mark.parametrize("commit", [OLD, NEW[:9], NEW.upper(), "c" * 40])
def test_another_commit_is_refused_and_changes_nothing(
    commit: str, folder: Path, archives: tuple[Path, Path]
) -> None:
    before = (folder / "UPSTREAM.toml").read_text()
    with pytest.raises(
        UserError, match=r"is not the commit of `llama_cpp_python-0\.2\.0\.tar\.gz`: that is b{9}…"
    ):
        _move(folder, archives, commit)
    assert (folder / "UPSTREAM.toml").read_text() == before


def test_something_else_than_an_archive_is_refused(
    folder: Path, tmp_path: Path, archives: tuple[Path, Path]
) -> None:
    broken = tmp_path / "llama_cpp_python-0.3.0.tar.gz"
    for path in (broken, tmp_path / "other.tar.gz"):
        path.write_bytes(b"nothing")
        with pytest.raises(UserError, match=re.escape(path.name)):
            _move(folder, (archives[0], path), NEW)


def test_the_real_pin_has_every_value_once(tmp_path: Path) -> None:
    """So that each can be replaced."""
    text = (native_folder() / "UPSTREAM.toml").read_text(encoding="utf-8")
    pin = read_pin()
    for value in (
        f'version = "{pin.version}"',
        f'release = "{pin.release}"',
        pin.commit,
        pin.sdist.requirement,
        pin.sdist.sha256,
        pin.sdist.folder,
    ):
        assert text.count(value) == 1
    assert all(text.count(digest) == 1 for digest in pin.files.values())


def test_names_and_options_are_found_in_upstreams_way() -> None:
    ggml = 'X GGML_OP_NAME[GGML_OP_COUNT] = {\n    "NONE",\n\n    "DUP", // two\n};\n .type_name  = "f32",'
    assert names_of(ggml, "OP") == ["NONE", "DUP"]
    assert names_of(ggml, "GLU_OP") == []
    assert names_of(ggml, "TYPE") == ["f32"]
    assert names_of('    { LLM_ARCH_LLAMA,       "llama"  },\n    { LLM_ARCH_X, "x-1" },', "ARCH") == [
        "llama",
        "x-1",
    ]
    assert options_of('{"-lm", "--load-mode"}, "MODE", "- none: no", "-1"') == ["-lm", "--load-mode"]
    assert changed_lines("a\nb\nc\n", "a\nB\nc\nd\n") == 3


def test_the_guide_has_the_watched_files_in_their_order() -> None:
    guide = (ROOT / "native" / "FOLLOW.md").read_text(encoding="utf-8")
    places = [guide.find(f"`{path}`") for path in WATCHED]
    assert -1 not in places
    assert places == sorted(places)
