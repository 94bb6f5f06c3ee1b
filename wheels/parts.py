"""List what is linked into the programs: names, versions, licences; make a bill of materials of it."""

import hashlib
import json
import re
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.build.pin import Pin

_LLVM = "Apache-2.0 WITH LLVM-exception"
_NAMESPACE = uuid.UUID(
    "6f0a2f6e-2c0b-5c53-8a38-52d0c1f2b7a4"
)  # of serial numbers: the same bill has the same


@dataclass(frozen=True, slots=True)
class Part:
    """Others' code in the wheel. `licence` is an SPDX expression, `text` what has to go along."""

    name: str
    version: str
    licence: str
    text: str
    purl: str = ""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a source tree has a part: a file with its licence (between two marks), one with its version."""

    name: str
    licence: str
    file: str
    marks: tuple[str, str] = ("", "")
    version: tuple[str, str] = ("", "")  # a file, and an expression whose groups are joined with dots
    purl: str = ""


_VENDORED = (
    _Place(
        "cpp-httplib",
        "MIT",
        "vendor/cpp-httplib/LICENSE",
        version=("vendor/cpp-httplib/httplib.h", r'CPPHTTPLIB_VERSION "([\d.]+)"'),
        purl="pkg:github/yhirose/cpp-httplib@v{}",
    ),
    _Place(
        "nlohmann-json",
        "MIT",
        "licenses/LICENSE-jsonhpp",
        version=(
            "vendor/nlohmann/json.hpp",
            r"VERSION_MAJOR (\d+)[^#]*#define NLOHMANN_JSON_VERSION_MINOR (\d+)[^#]*"
            r"#define NLOHMANN_JSON_VERSION_PATCH (\d+)",
        ),
        purl="pkg:github/nlohmann/json@v{}",
    ),
    _Place(
        "miniaudio",
        "Unlicense OR MIT-0",
        "vendor/miniaudio/miniaudio.h",
        ("This software is available as a choice", "*/"),
        ("vendor/miniaudio/miniaudio.h", r"miniaudio - v([\d.]+)"),
        "pkg:github/mackron/miniaudio@{}",
    ),
    _Place(
        "stb_image",
        "MIT OR Unlicense",
        "vendor/stb/stb_image.h",
        ("This software is available under 2 licenses", "*/"),
        ("vendor/stb/stb_image.h", r"stb_image - v([\d.]+)"),
    ),
    _Place(
        "subprocess.h",
        "Unlicense",
        "vendor/sheredom/subprocess.h",
        ("This is free and unencumbered software", "*/"),
        purl="pkg:github/sheredom/subprocess.h",
    ),
    _Place("xxhash", "BSD-2-Clause", "vendor/hash/xxhash/LICENSE", purl="pkg:github/Cyan4973/xxHash"),
    _Place("sha256", "LicenseRef-public-domain", "vendor/hash/sha256/LICENSE"),
    _Place("rotate-bits", "MIT", "vendor/hash/rotate-bits/LICENSE.md"),
    _Place("sha1", "LicenseRef-public-domain", "vendor/hash/sha1/sha1.h", ("SHA-1 in C", "*/")),
    _Place(
        "llamafile",
        "MIT",
        "ggml/src/ggml-cpu/llamafile/sgemm.cpp",
        ("// Copyright", "\n\n"),
        purl="pkg:github/mozilla-ocho/llamafile",
    ),
)
_OF_ZIG = (
    _Place("libc++", _LLVM, "lib/libcxx/LICENSE.TXT"),
    _Place("libc++abi", _LLVM, "lib/libcxxabi/LICENSE.TXT"),
    _Place("libunwind", _LLVM, "lib/libunwind/LICENSE.TXT"),
    _Place("compiler-rt", "MIT", "LICENSE"),
    _Place("glibc-start-files", "LGPL-2.1-or-later WITH GCC-exception-2.0", "lib/libc/glibc/LICENSES"),
)
_OF_VULKAN = (
    _Place("vulkan-loader", "Apache-2.0", "LICENSE.txt", purl="pkg:github/KhronosGroup/Vulkan-Loader@v{}"),
    _Place(
        "vulkan-headers",
        "Apache-2.0 OR MIT",
        "vulkan-headers/LICENSES/MIT.txt",
        purl="pkg:github/KhronosGroup/Vulkan-Headers@v{}",
    ),
)


def upstream_parts(source: Path, pin: Pin) -> list[Part]:
    """Return llama.cpp and what its tree carries of others. Raises OSError or ValueError if one is gone."""
    text = (source / "LICENSE").read_text("utf-8")
    purl = f"pkg:github/ggml-org/llama.cpp@{pin.commit}"
    return [Part("llama.cpp", pin.release, pin.license, text, purl), *_parts(source, _VENDORED, "")]


def compiler_parts(zig: Path, version: str) -> list[Part]:
    """Return what the compiler links into each program, from the folder of its package."""
    return _parts(zig, _OF_ZIG, version)


def vulkan_parts(loader: Path, version: str) -> list[Part]:
    """Return what comes along with Vulkan, from the source of its loader."""
    return _parts(loader, _OF_VULKAN, version)


def _parts(folder: Path, places: Sequence[_Place], version: str) -> list[Part]:
    return [
        Part(place.name, found, place.licence, _licence(folder, place), place.purl.format(found))
        for place in places
        for found in (_version(folder, place) if place.version[0] else version,)
    ]


def _version(folder: Path, place: _Place) -> str:
    file, expression = place.version
    found = re.search(expression, (folder / file).read_text("utf-8"))
    if found is None:
        raise ValueError(f"{file} does not say its version any more")
    return ".".join(found.groups())


def _licence(folder: Path, place: _Place) -> str:
    text = (folder / place.file).read_text("utf-8")
    begin, end = place.marks
    if not begin:
        return text
    _, mark, rest = text.rpartition(begin)
    if not mark:
        raise ValueError(f"{place.file} has no licence any more")
    return begin + rest.partition(end)[0].rstrip() + "\n"


def bill(name: str, version: str, parts: Sequence[Part], files: Mapping[str, bytes], pin: Pin) -> str:
    """Return the bill of materials: CycloneDX 1.6 as JSON, without the time at which it was made."""
    components: list[dict[str, object]] = []
    names = Counter(part.name for part in parts)
    refs = [part.name if names[part.name] == 1 else f"{part.name}@{part.version}" for part in parts]
    for part, ref in zip(parts, refs, strict=True):
        component: dict[str, object] = {"type": "library", "bom-ref": ref, "name": part.name}
        if part.version:
            component["version"] = part.version
        component["licenses"] = [{"expression": part.licence}]
        if part.purl:
            component["purl"] = part.purl
        if part.name == pin.name:
            component["externalReferences"] = [
                {
                    "type": "source-distribution",
                    "url": f"pkg:pypi/{pin.sdist.requirement.replace('==', '@')}",
                    "hashes": [{"alg": "SHA-256", "content": pin.sdist.sha256}],
                }
            ]
        components.append(component)
    for path, content in sorted(files.items()):
        digest = hashlib.sha256(content).hexdigest()
        hashes = [{"alg": "SHA-256", "content": digest}]
        components.append({"type": "file", "bom-ref": path, "name": path, "hashes": hashes})
    product = f"{name}@{version}"
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": product,
                "name": name,
                "version": version,
                "purl": f"pkg:pypi/{product}",
                "properties": [{"name": "meshd:sources", "value": pin.sources_sha256}],
            }
        },
        "components": components,
        "dependencies": [{"ref": product, "dependsOn": sorted(refs)}],
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(document, sort_keys=True))
    return json.dumps({**document, "serialNumber": f"urn:uuid:{serial}"}, indent=1, sort_keys=True) + "\n"
