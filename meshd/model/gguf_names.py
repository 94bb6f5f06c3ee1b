"""What names of GGUF files say: shards of one model, its quantisation, and which of several to take."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

GGUF_SUFFIX = ".gguf"
HEADER_SUFFIX = ".header"  # of a model of which only that is here (store/header_file.py)
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.IGNORECASE)
_QUANT = re.compile(
    r"(?:^|[-._/ ])((?:UD-)?(?:I?Q[0-9](?:_[0-9A-Z]+)*|TQ[0-9]_[0-9]|BF16|F16|F32|FP16|MXFP4(?:_MOE)?|NVFP4))"
    r"(?=$|[-._/ ])",
    re.IGNORECASE,
)
# parts of a model that are none by themselves: projectors of images, importance matrices
_PARTS = re.compile(r"(?:^|[-._/])(?:mmproj|imatrix)(?:$|[-._/])", re.IGNORECASE)
# without a wish: the usual one, then what is near it in size, larger first
_USUAL = """
    Q4_K_M UD-Q4_K_XL Q4_K_L Q4_K_S Q4_K MXFP4 MXFP4_MOE Q4_1 IQ4_NL Q4_0 IQ4_XS Q5_K_M Q5_K_S Q6_K Q8_0
    Q3_K_L Q3_K_M Q3_K_S Q2_K BF16 F16 F32
"""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A file of a repository or a folder: `path` has slashes, relative to it."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class GgufModel:
    """One model: its file, or all its shards that are there, in order."""

    name: str  # its path without the shard's number and `.gguf`
    quant: str  # as its file has it, in capitals; empty if the name has none
    files: tuple[GgufFile, ...]
    shards: int = 1  # how many there should be

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def complete(self) -> bool:
        return len(self.files) == self.shards

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the shards that are not there."""
        if self.complete:
            return ()
        there = {int(match["number"]) for file in self.files if (match := SHARD.fullmatch(file.path))}
        numbers = (number for number in range(1, self.shards + 1) if number not in there)
        return tuple(f"{self.name}-{number:05d}-of-{self.shards:05d}{GGUF_SUFFIX}" for number in numbers)


def file_names(stem: str, count: int, suffix: str = GGUF_SUFFIX) -> list[str]:
    """Of a model in so many files."""
    if count == 1:
        return [stem + suffix]
    return [f"{stem}-{number:05d}-of-{count:05d}{suffix}" for number in range(1, count + 1)]


def header_stem(name: str) -> str:
    """The model's name, of that of a file with its header or a part of it."""
    match = SHARD.fullmatch(name.removesuffix(HEADER_SUFFIX) + GGUF_SUFFIX)
    return match["stem"] if match is not None else name.removesuffix(HEADER_SUFFIX)


def quant_of(path: str) -> str:
    """The quantisation that a file's name, or its folder's, says; empty if none does."""
    plain = path[: -len(GGUF_SUFFIX)] if path.lower().endswith(GGUF_SUFFIX) else path
    found = _QUANT.findall(plain.rpartition("/")[2]) or _QUANT.findall(plain)
    return str(found[-1]).upper() if found else ""


def is_model(path: str) -> bool:
    """Whether the name is one of a model's file: not of a projector, a matrix, or anything else."""
    return path.lower().endswith(GGUF_SUFFIX) and not _PARTS.search(path.rpartition("/")[2])


def models_in(files: Iterable[GgufFile]) -> list[GgufModel]:
    """The models that these files are, by name; shards are one."""
    whole: list[GgufModel] = []
    parts: dict[tuple[str, int], dict[int, GgufFile]] = {}
    for file in files:
        if not is_model(file.path):
            continue
        match = SHARD.fullmatch(file.path)
        if match is None:
            stem = file.path[: -len(GGUF_SUFFIX)]
            whole.append(GgufModel(stem, quant_of(file.path), (file,)))
        elif 0 < int(match["number"]) <= int(match["count"]):
            parts.setdefault((match["stem"], int(match["count"])), {})[int(match["number"])] = file
    for (stem, count), numbered in parts.items():
        shards = tuple(numbered[number] for number in sorted(numbered))
        whole.append(GgufModel(stem, quant_of(stem), shards, count))
    return sorted(whole, key=lambda model: model.name)


def choose(models: Sequence[GgufModel], wish: str) -> list[GgufModel]:
    """Those that `wish` means: a quantisation, or a file's name; all that fit it best. Empty: none does.

    Without a wish, one: of the most usual quantisation there is.
    """
    if not wish:
        return usual(models)
    low = wish.lower()
    stem = low.removesuffix(GGUF_SUFFIX)
    tests: Sequence[Mapping[int, bool]] = (
        {at: low in {file.path.lower() for file in one.files} for at, one in enumerate(models)},
        {at: one.name.lower() == stem for at, one in enumerate(models)},
        {at: one.quant.lower() == low for at, one in enumerate(models)},
        {at: one.quant.lower() == f"ud-{low}" for at, one in enumerate(models)},
        {at: one.name.lower().rpartition("/")[2] == stem for at, one in enumerate(models)},
    )
    for test in tests:
        if found := [models[at] for at, fits in test.items() if fits]:
            return found
    return []


def usual(models: Sequence[GgufModel]) -> list[GgufModel]:
    """The first of the most usual quantisation; the first of all if no name says one."""
    for quant in _USUAL.split():
        if found := [model for model in models if model.quant == quant]:
            return found[:1]
    return list(models[:1])
