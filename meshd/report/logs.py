"""Take from logs what a report shows: the last lines, and of other programs only lines that are known.

meshd's own log has neither prompts nor answers, but what a library said may repeat a request, and llama.cpp
prints metadata of models, and with some options whole prompts. So lines of libraries lose their text, and of
llama.cpp's programs only those are shown that say how a load went, or why a program failed.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.base.files import open_regular
from meshd.report.fields import in_line

OWN_BYTES, CHILD_BYTES = 256 << 10, 64 << 10
MOST_CHILDREN = 6
_READ_TIMES = 8  # of the bytes that are shown at most: most lines of llama.cpp are left out
MOST_LINE_CHARS = 2000
_OWN = "meshd"
_UNREADABLE = "cannot be read: "
_LIBRARY = re.compile(r"library\"?[=:] ?[\"']?([\w.-]{1,64})")
_DATE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]{8,20}Z")
_TIME = re.compile(r"(?:\d{4}-\d\d-\d\dT[\d:.]{8,20}Z ?)?(?:\d+(?:\.\d+){1,4} )?(?:[IWED] )?")
# What programs say of a load or of their end: names of functions, with values that nobody else words.
_KNOWN = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:ggml_(?:cuda|vulkan|metal|hip|sycl|backend|gallocr|aligned|mesh)\w*|register_backend|load_backend)\b.*",
        r"(?:CUDA|HIP|ROCm|Vulkan|Metal)\d* (?:error|\w+ buffer size).*",
        r"  Device \d+: .*",
        r"(?:system_info|build(?:_info)?|common_memory_breakdown_print|llama_memory_breakdown_print): .*",
        r"print_info: (?:arch|file format|file type|file size|model type|model params|n_\w+|rope \w+)"
        r" *+[=:][\w. ()/,+-]*",
        r"load_tensors: .*(?:buffer size|offload\w*|layers).*",
        r"(?:llama_kv_cache\w*|sched_reserve|llama_context|graph_reserve): "
        r".*(?:size|seq|n_ctx|n_batch|fail\w*).*",
        r"(?:srv +)?load_model: (?:loading model|initializing|failed|error|exiting).{0,300}",
        r"srv +llama_server: (?:initializing|model loaded|listening on|exiting).{0,300}",
        r"cmn +init: llama threadpool init.*",
        r"(?:mesh|mesh-server|mesh_\w+|rpc-server|\[meshd\])(?:: | ).*",
        r"\S{0,300} ?(?:GGML_ASSERT|ggml_abort|terminate called|Segmentation fault).{0,300}",
        r"\S{0,300} (?:error while loading shared libraries|out of memory|failed to allocate).{0,300}",
        r"#\d{1,3} .{0,200}",
    )
)
# A program that logs requests: llama-server with a higher verbosity than its own.
_VERBOSE = re.compile(r"verbosity = (?:[4-9]|\d\d)|\"(?:prompt|messages|content)\"")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The lines of one log that are shown, how many were left out of what was read, and the file's bytes."""

    name: str
    lines: tuple[str, ...]
    left_out: int
    size: int


def excerpts(folder: Path) -> Iterator[Excerpt]:
    """Yield what is shown of the logs of a node, its own first, then those of programs, the newest first.

    Raises OSError if the folder cannot be read.
    """
    paths = [path for path in folder.iterdir() if path.suffix == ".log"]
    own = [path for path in paths if path.stem == _OWN]
    others = sorted((path for path in paths if path.stem != _OWN), key=_age)
    for path in (*own, *others[:MOST_CHILDREN]):
        yield _excerpt(path)


def _age(path: Path) -> float:
    try:
        return -path.lstat().st_mtime
    except OSError:
        return 0.0


def _excerpt(path: Path) -> Excerpt:
    is_own = path.stem == _OWN
    most = OWN_BYTES if is_own else CHILD_BYTES
    before, now = _end_of(path.with_name(f"{path.name}.1"), most), _end_of(path, most * _READ_TIMES)
    read = [*before[0], *now[0]]
    if is_own:
        shown = [_own_line(text) for text in read]
    elif any(_VERBOSE.search(text) for text in read):
        shown = []
    else:
        shown = [in_line(text, MOST_LINE_CHARS) for text in read if _is_known(text)]
    kept: list[str] = []
    room = most
    for line in reversed(shown):
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    kept.reverse()
    return Excerpt(path.stem, tuple(kept), len(read) - len(kept), before[1] + now[1])


def _end_of(path: Path, most: int) -> tuple[Sequence[str], int]:
    """Return the last whole lines of a file, and its size; nothing if there is none.

    A file of another user than its folder's is not read: its name may be a link, which root would follow.
    """
    try:
        with open(open_regular(path), "rb") as file:  # noqa: PTH123 - of a descriptor
            if os.fstat(file.fileno()).st_uid != path.parent.lstat().st_uid:
                return (f"{_UNREADABLE}it belongs to another user than its directory",), 0
            size = file.seek(0, 2)
            start = max(0, size - most)
            file.seek(start)
            data = file.read(most)
    except OSError as error:
        return () if isinstance(error, FileNotFoundError) else (f"{_UNREADABLE}{error.strerror}",), 0
    if start:  # what comes first is a piece of a line
        data = data.partition(b"\n")[2]
    return data.decode(errors="replace").split("\n")[: None if not data.endswith(b"\n") else -1], size


def _own_line(text: str) -> str:
    """Return a line of meshd's log, without the words of a library."""
    if "library_said" not in text:
        return in_line(text, MOST_LINE_CHARS)
    date, library = _DATE.search(text[:1000]), _LIBRARY.search(text[:1000])
    words = [date[0]] if date else []
    return " ".join(
        [*words, "library_said", f"library={library[1] if library else '?'}", "(its text is left out)"]
    )


def _is_known(text: str) -> bool:
    """Return True for a line of another program that is one of those that are shown."""
    begin = _TIME.match(text)
    words = text[len(begin[0]) :] if begin is not None else text
    return text.startswith(_UNREADABLE) or any(pattern.fullmatch(words) for pattern in _KNOWN)
