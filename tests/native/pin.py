"""Move the pin to another release of llama.cpp: `python -m tests.native.pin ARCHIVE --commit COMMIT`.

ARCHIVE is a source archive of llama-cpp-python, and COMMIT the 40 digits of the commit of llama.cpp in it, of
which its changelog has the first. Rewrites native/UPSTREAM.toml, and says what a review has to look at
(native/FOLLOW.md). Nothing else changes; `git checkout native/UPSTREAM.toml` undoes it.
"""

import argparse
import asyncio
import difflib
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from meshd.base.errors import UserError
from meshd.build.fetch import fetch
from meshd.build.pin import Pin, native_folder, read_pin
from meshd.config.tree import find_cache

from tests.native.build import told
from tests.native.upstream import Upstream, read_upstream

WATCHED = {  # in the order in which native/FOLLOW.md has them
    "ggml/src/ggml-backend-impl.h": "the tables of functions that client_*.cpp fill in",
    "ggml/include/ggml-backend.h": "what a device says of itself",
    "ggml/src/ggml-impl.h": "ggml_cgraph, which client_graph.cpp reads and graphs.cpp makes",
    "ggml/src/ggml-alloc.c": "which layouts are taken again: set_aside.cpp",
    "ggml/include/ggml.h": "operations, types, ggml_tensor",
    "ggml/src/ggml.c": "shapes of results, and where parameters are: shapes_*.cpp",
    "ggml/src/ggml-cpu/ops.cpp": "what kernels read and assert: shapes_*.cpp, release.cpp",
    "ggml/src/ggml-cpu/ggml-cpu.cpp": "supports_op of the CPU",
    "ggml/src/ggml-backend.cpp": "how the scheduler splits, copies and waits",
    "ggml/src/ggml-backend-reg.cpp": "GGML_BACKEND_PATH",
    "src/llama-model-loader.cpp": "how weights come to set_tensor: head_weights.cpp",
    "src/llama-context.cpp": "which graphs are computed, and with which uid",
    "src/llama-arch.cpp": "architectures: meshd/model/architectures.py and layers.py",
    "common/arg.cpp": "options of llama-server",
}
_GGML, _ARCHITECTURES, _OPTIONS = "ggml/src/ggml.c", "src/llama-arch.cpp", "common/arg.cpp"


def names_of(text: str, array: str) -> list[str]:
    """Return one of ggml.c's arrays of names; "TYPE" for those of types, "ARCH" for llama-arch.cpp's."""
    if array == "ARCH":
        return re.findall(r'\{\s*LLM_ARCH_\w+,\s*"([^"]+)"', text)
    if array == "TYPE":
        return re.findall(r'\.type_name\s*=\s*"([^"]+)"', text)
    body = re.search(rf"GGML_{array}_NAME\[GGML_{array}_COUNT\] = \{{(.*?)\n\}};", text, re.DOTALL)
    return re.findall(r'"([^"]+)"', body[1]) if body else []


def options_of(text: str) -> list[str]:
    """Return llama-server's options, in arg.cpp."""
    return re.findall(r'"(--?[a-zA-Z][\w-]*)"', text)


def changed_lines(old: str, new: str) -> int:
    """Return the lines that are only in one of the two."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    return sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in lines)


def rewritten(text: str, pin: Pin, new: Upstream, commit: str) -> str:
    """native/UPSTREAM.toml for the new release. Raises UserError where a value is not where it was."""
    changes = [
        (f'version = "{pin.version}"', f'version = "{new.version}"'),
        (f'release = "{pin.release}"', f'release = "{new.release}"'),
        (f'commit = "{pin.commit}"', f'commit = "{commit}"'),
        (f'rpc_protocol = "{pin.rpc_protocol}"', f'rpc_protocol = "{new.rpc_protocol}"'),
        (f'"{pin.sdist.requirement}"', f'"llama-cpp-python=={new.package}"'),
        (f'file = "{pin.sdist.file}"', f'file = "{new.file}"'),
        (f'"{pin.sdist.sha256}"', f'"{new.sha256}"'),
        (f'"{pin.sdist.folder}"', f'"{new.folder}"'),
    ]
    for path, digest in pin.files.items():
        if path not in new.texts:
            raise UserError(f"`{path}` is not there any more", hint="name another file in UPSTREAM.toml")
        changes.append(
            (f'"{path}" = "{digest}"', f'"{path}" = "{hashlib.sha256(new.texts[path]).hexdigest()}"')
        )
    for old, value in changes:
        if text.count(old) != 1:
            raise UserError(f"UPSTREAM.toml does not have `{old}` once")
        text = text.replace(old, value)
    return text


def review(old: Upstream, new: Upstream) -> Iterator[str]:
    """Return what to look at, a line each."""
    for path, why in WATCHED.items():
        count = changed_lines(old.text(path), new.text(path))
        state = f"{count} lines differ" if path in new.texts else "GONE"
        yield f"{path}: {state} ({why})"
    for array in ("OP", "UNARY_OP", "GLU_OP", "TYPE"):
        yield from _moved(
            f"names of {array}", names_of(old.text(_GGML), array), names_of(new.text(_GGML), array)
        )
    architectures = (names_of(one.text(_ARCHITECTURES), "ARCH") for one in (old, new))
    yield from _moved("architectures", *architectures)
    gone = sorted({*options_of(old.text(_OPTIONS))} - {*options_of(new.text(_OPTIONS))})
    yield f"options of llama-server that are gone: {', '.join(gone) or 'none'}"


def _moved(what: str, old: list[str], new: list[str]) -> Iterator[str]:
    if not new:
        yield f"{what}: not found, they are written in another way"
    for how, some in (("new", [n for n in new if n not in old]), ("gone", [n for n in old if n not in new])):
        if some and new:
            yield f"{what}, {how}: {', '.join(some)}"


async def _archive_of(pin: Pin) -> Path:
    return await fetch(pin.sdist, find_cache(os.environ) / "downloads", told)


def move(pin: Pin, place: Path, old_archive: Path, archive: Path, commit: str) -> list[str]:
    """Rewrites the file `place`; returns what to look at. Raises UserError."""
    wanted = {*WATCHED, *pin.files}
    new = read_upstream(archive, wanted)
    if re.fullmatch("[0-9a-f]{40}", commit) is None or not commit.startswith(new.commit):
        raise UserError(
            f"`{commit}` is not the commit of `{archive.name}`: that is {new.commit or 'not known'}…"
        )
    place.write_text(rewritten(place.read_text("utf-8"), pin, new, commit), "utf-8")
    return [
        f"ggml {pin.version} to {new.version}, RPC {pin.rpc_protocol} to {new.rpc_protocol}",
        *review(read_upstream(old_archive, wanted), new),
    ]


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.native.pin", description=__doc__)
    parser.add_argument("archive", type=Path, metavar="ARCHIVE")
    parser.add_argument("--commit", required=True)
    args = parser.parse_args()
    try:
        pin = read_pin()
        place = native_folder() / "UPSTREAM.toml"
        lines = move(pin, place, asyncio.run(_archive_of(pin)), args.archive, args.commit)
    except UserError as error:
        sys.stderr.write(f"error: {error}\nhint: {error.hint or 'nothing was changed'}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
