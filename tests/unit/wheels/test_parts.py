"""wheels.parts and wheels.__main__: licences, the bill of materials, and the files of the wheel."""

import asyncio
import json
import platform
from email import message_from_bytes
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build.pin import read_pin
from meshd.build.tree import Tree
from meshd.build.wheel import PACKAGE, read_wheel
from wheels.__main__ import PROGRAMS, build_folder, files_of, make, read_programs, tag_of
from wheels.archive import Name
from wheels.parts import Part, bill, compiler_parts, upstream_parts, vulkan_parts
from wheels.vulkan import LOADER, MODULE

NAME = Name(PACKAGE, "1.2.3", "py3-none-any")
PARTS = [
    Part("llama.cpp", "0.5.0", "MIT", "MIT License\n"),
    Part("sha1", "", "LicenseRef-public-domain", "none\n"),
]


def _source(folder: Path) -> Path:
    """A tree with what is read of upstream's."""
    texts = {
        "LICENSE": "MIT, upstream's\n",
        "licenses/LICENSE-jsonhpp": "MIT, json's\n",
        "vendor/cpp-httplib/LICENSE": "MIT, httplib's\n",
        "vendor/cpp-httplib/httplib.h": '#define CPPHTTPLIB_VERSION "0.58.0"\n',
        "vendor/nlohmann/json.hpp": "#define NLOHMANN_JSON_VERSION_MAJOR 3   // a\n"
        "#define NLOHMANN_JSON_VERSION_MINOR 12  // b\n#define NLOHMANN_JSON_VERSION_PATCH 0  // c\n",
        "vendor/miniaudio/miniaudio.h": "/* miniaudio - v0.11.25 */ code\n"
        "/*\nThis software is available as a choice of: A.\n*/\n",
        "vendor/stb/stb_image.h": "/* stb_image - v2.30 */ code\n"
        "/*\nThis software is available under 2 licenses: B.\n*/",
        "vendor/sheredom/subprocess.h": "/*\nThis is free and unencumbered software.\n*/ code",
        "vendor/hash/xxhash/LICENSE": "BSD\n",
        "vendor/hash/sha256/LICENSE": "none\n",
        "vendor/hash/rotate-bits/LICENSE.md": "MIT\n",
        "vendor/hash/sha1/sha1.h": "/*\n   SHA-1 in C\n   100% Public Domain\n */ code",
        "ggml/src/ggml-cpu/llamafile/sgemm.cpp": "// Copyright Mozilla\n// MIT\n\n// a picture\n",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_versions_and_licences_are_read_from_the_tree(tmp_path: Path) -> None:
    parts = {part.name: part for part in upstream_parts(_source(tmp_path), read_pin())}
    assert parts["llama.cpp"].version == read_pin().release
    assert parts["llama.cpp"].purl.endswith(read_pin().commit)
    assert parts["cpp-httplib"].purl == "pkg:github/yhirose/cpp-httplib@v0.58.0"
    versions = [parts[name].version for name in ("nlohmann-json", "miniaudio", "stb_image")]
    assert versions == ["3.12.0", "0.11.25", "2.30"]
    assert parts["miniaudio"].text == "This software is available as a choice of: A.\n"
    assert parts["llamafile"].text == "// Copyright Mozilla\n// MIT\n"
    assert all(part.text.strip() and "code" not in part.text for part in parts.values())


@pytest.mark.parametrize("gone", ["vendor/cpp-httplib/httplib.h", "vendor/miniaudio/miniaudio.h"])
def test_a_tree_that_carries_something_else_is_an_error(tmp_path: Path, gone: str) -> None:
    (_source(tmp_path) / gone).write_text("moved\n")
    with pytest.raises(ValueError, match=gone):
        upstream_parts(tmp_path, read_pin())


def test_what_the_compiler_links_has_its_version(tmp_path: Path) -> None:
    for name in (
        "LICENSE",
        "lib/libcxx/LICENSE.TXT",
        "lib/libcxxabi/LICENSE.TXT",
        "lib/libunwind/LICENSE.TXT",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text\n")
    with pytest.raises(FileNotFoundError):
        compiler_parts(tmp_path, "0.1")
    (tmp_path / "lib/libc/glibc").mkdir(parents=True)
    (tmp_path / "lib/libc/glibc/LICENSES").write_text("text\n")
    assert {part.version for part in compiler_parts(tmp_path, "0.1")} == {"0.1"}


def test_vulkan_has_two_licences_and_one_version(tmp_path: Path) -> None:
    for name in ("LICENSE.txt", "vulkan-headers/LICENSES/MIT.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text\n")
    parts = vulkan_parts(tmp_path, "1.4.309")
    assert [part.licence for part in parts] == ["Apache-2.0", "Apache-2.0 OR MIT"]
    assert all(part.purl.endswith("@v1.4.309") for part in parts)


def test_the_bill_is_cyclonedx_and_the_same_each_time() -> None:
    pin = read_pin()
    files = {"meshd_native/bin/b": b"b", "meshd_native/bin/a": b"a"}
    text = bill("meshd-native", "1.2.3", PARTS, files, pin)
    assert text == bill("meshd-native", "1.2.3", PARTS, dict(reversed(files.items())), pin)
    assert text != bill("meshd-native", "1.2.3", PARTS, {**files, "meshd_native/bin/b": b"c"}, pin)
    document = json.loads(text)
    assert (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.6", 1)
    assert document["serialNumber"].startswith("urn:uuid:")
    references = [component["bom-ref"] for component in document["components"]]
    assert references == ["llama.cpp", "sha1", "meshd_native/bin/a", "meshd_native/bin/b"]
    assert document["dependencies"][0]["dependsOn"] == ["llama.cpp", "sha1"]
    (source,) = document["components"][0]["externalReferences"]
    assert source["hashes"] == [{"alg": "SHA-256", "content": pin.sdist.sha256}]


def test_what_is_packed_is_what_meshd_takes(tmp_path: Path) -> None:
    """The stamp that is written and the one that is read, with the modes that the archive gives."""
    built = tmp_path / "built"
    built.mkdir()
    for name in (*PROGRAMS, "libggml-cpu-x64.so", "libggml-base.so", "unrelated.so"):
        (built / name).write_bytes(name.encode())
    files = files_of(read_programs(built), PARTS, read_pin(), NAME)
    for path, entry in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(entry.content)
        (tmp_path / path).chmod(0o755 if entry.executable else 0o644)
    wheel = read_wheel(tmp_path / PACKAGE)
    assert wheel.fault(read_pin()) is None
    assert wheel.programs.keys() == set(PROGRAMS)
    assert f"{PACKAGE}/bin/libggml-base.so" in files
    assert f"{PACKAGE}/bin/unrelated.so" not in files


def test_its_metadata_names_each_licence(tmp_path: Path) -> None:
    files = files_of({}, PARTS, read_pin(), NAME)
    metadata = message_from_bytes(files[f"{NAME.info}/METADATA"].content)
    named = metadata.get_all("License-File") or []
    assert named == sorted(named)
    assert {f"{NAME.info}/licenses/{name}" for name in named} == {
        path for path in files if "/licenses/" in path
    }
    assert (metadata["Name"], metadata["Version"]) == ("meshd-native", "1.2.3")


def test_programs_that_are_not_there_are_named(tmp_path: Path) -> None:
    for name in PROGRAMS[1:]:
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=PROGRAMS[0]):
        read_programs(tmp_path)


def test_vulkan_is_packed_where_it_is_asked_for(tmp_path: Path) -> None:
    """A folder in which it was compiled before does not decide."""
    for name in (*PROGRAMS, "libggml-base.so", MODULE, LOADER):
        (tmp_path / name).touch()
    assert read_programs(tmp_path).keys() == {*PROGRAMS, "libggml-base.so"}
    assert read_programs(tmp_path, vulkan=True).keys() == {*PROGRAMS, "libggml-base.so", MODULE, LOADER}
    (tmp_path / LOADER).unlink()
    with pytest.raises(UserError, match=f"lacks {LOADER}"):
        read_programs(tmp_path, vulkan=True)


def test_another_machine_has_a_tag_and_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert tag_of("aarch64") == "py3-none-manylinux_2_28_aarch64"
    assert build_folder("aarch64") == "build/native-wheel-aarch64"
    assert build_folder("x86_64") == "build/native-wheel"


def test_vulkan_is_not_compiled_for_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with pytest.raises(UserError, match="cannot compile Vulkan for aarch64 on x86_64") as caught:
        asyncio.run(make(Tree(tmp_path / "build"), tmp_path, "aarch64", None, tmp_path))
    assert "omit --vulkan" in (caught.value.hint or "")
    assert not list(tmp_path.iterdir())
