"""Parse names of GGUF files: shards of one model, its quantisation, and the choice among several."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

GGUF_SUFFIX = ".gguf"
HEADER_SUFFIX = ".header"  # suffix of a model of which only the header is here (store/header_file.py)
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.IGNORECASE)
_QUANT = re.compile(
    r"(?:^|[-._/ ])((?:UD-)?(?:I?Q[0-9](?:_[0-9A-Z]+)*|TQ[0-9]_[0-9]|BF16|F16|F32|FP16|MXFP4(?:_MOE)?|NVFP4))"
    r"(?=$|[-._/ ])",
    re.IGNORECASE,
)
# Parts of a model that cannot be served alone: projectors of images, importance matrices.
_PARTS = re.compile(r"(?:^|[-._/])(?:mmproj|imatrix)(?:$|[-._/])", re.IGNORECASE)
# The order of choice without a wish: the usual one, then those of similar size, larger first.
_USUAL = """
    Q4_K_M UD-Q4_K_XL Q4_K_L Q4_K_S Q4_K MXFP4 MXFP4_MOE Q4_1 IQ4_NL Q4_0 IQ4_XS Q5_K_M Q5_K_S Q6_K Q8_0
    Q3_K_L Q3_K_M Q3_K_S Q2_K BF16 F16 F32
"""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A file of a repository or a folder: `path` has slashes and is relative to it."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class GgufModel:
    """One model: its file, or all its existing shards, in order."""

    name: str  # its path without the shard's number and `.gguf`
    quant: str  # as in the file's name, in capitals; empty if the name has none
    files: tuple[GgufFile, ...]
    shards: int = 1  # the full number of shards

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def complete(self) -> bool:
        return len(self.files) == self.shards

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the missing shards."""
        if self.complete:
            return ()
        there = {int(match["number"]) for file in self.files if (match := SHARD.fullmatch(file.path))}
        numbers = (number for number in range(1, self.shards + 1) if number not in there)
        return tuple(f"{self.name}-{number:05d}-of-{self.shards:05d}{GGUF_SUFFIX}" for number in numbers)


def file_names(stem: str, count: int, suffix: str = GGUF_SUFFIX) -> list[str]:
    """Return the file names of a model with `count` files."""
    if count == 1:
        return [stem + suffix]
    return [f"{stem}-{number:05d}-of-{count:05d}{suffix}" for number in range(1, count + 1)]


def header_stem(name: str) -> str:
    """Return the model's name, given the name of a file with its header or of a part of it."""
    match = SHARD.fullmatch(name.removesuffix(HEADER_SUFFIX) + GGUF_SUFFIX)
    return match["stem"] if match is not None else name.removesuffix(HEADER_SUFFIX)


def quant_of(path: str) -> str:
    """Return the quantisation in a file's name, or else in its folder's; empty if there is none."""
    plain = path[: -len(GGUF_SUFFIX)] if path.lower().endswith(GGUF_SUFFIX) else path
    found = _QUANT.findall(plain.rpartition("/")[2]) or _QUANT.findall(plain)
    return str(found[-1]).upper() if found else ""


def is_model(path: str) -> bool:
    """Say whether the name is that of a model's file, not of a projector, a matrix, or anything else."""
    return path.lower().endswith(GGUF_SUFFIX) and not _PARTS.search(path.rpartition("/")[2])


def models_in(files: Iterable[GgufFile]) -> list[GgufModel]:
    """Return the models among these files, sorted by name; the shards of a model are one."""
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
    """Return the models that `wish` means best: a quantisation, or a file's name. Empty: none fits.

    Without a wish, return one model of the most usual quantisation.
    """
    if not wish:
        return usual(models)
    low = wish.lower()
    stem = low.removesuffix(GGUF_SUFFIX)
    tests: Sequence[Mapping[int, bool]] = (
        {at: low in {file.path.lower() for file in model.files} for at, model in enumerate(models)},
        {at: model.name.lower() == stem for at, model in enumerate(models)},
        {at: model.quant.lower() == low for at, model in enumerate(models)},
        {at: model.quant.lower() == f"ud-{low}" for at, model in enumerate(models)},
        {at: model.name.lower().rpartition("/")[2] == stem for at, model in enumerate(models)},
    )
    for test in tests:
        if found := [models[at] for at, fits in test.items() if fits]:
            return found
    return []


def usual(models: Sequence[GgufModel]) -> list[GgufModel]:
    """Return the first model of the most usual quantisation, or the first of all if no name has one."""
    for quant in _USUAL.split():
        if found := [model for model in models if model.quant == quant]:
            return found[:1]
    return list(models[:1])
