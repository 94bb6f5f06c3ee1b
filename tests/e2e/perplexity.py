"""Measure what half floats do to a model: `python -m tests.e2e.perplexity [--write docs/lab/native.md]`.

llama-perplexity of upstream's tree (built the first time) reads the documentation of Python's own language,
10 times 512 tokens, with SmolLM2: with `GGML_MESH_ACTIVATIONS=f32`, and compared with that, token by token,
with `f16` on 1, 2 and 4 workers. To show what such a difference is worth, the first is compared with itself
as well, and with f32 and attention computed by other kernels. No times: any machine will do. Some minutes.
"""

import argparse
import asyncio
import hashlib
import platform
import pydoc_data.topics
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from meshd.build import cache as builds
from meshd.build.compile import compile_tree
from meshd.build.interface import LLAMA_SERVER, MESH_PROGRAM, BuildProgress
from meshd.build.native import fill
from meshd.build.pin import read_pin
from meshd.process.run import environment

from tests.e2e.models import cache_folder, native, smollm2
from tests.e2e.native_rig import index_of
from tests.native.bench_places import Place, Programs, mesh_workers

BEGIN, END = "<!-- perplexity -->\n", "<!-- end of perplexity -->\n"
TARGET = "llama-perplexity"
CONTEXT, CHUNKS = 512, 10
TEXT_CHARACTERS = 60_000  # more than CHUNKS * CONTEXT tokens
TIMEOUT = 1500.0  # seconds
WHAT = ("Mean PPL(Q)", "Mean ln(PPL(Q)/PPL(base))", "Mean    KLD", "Same top p")
_NUMBER = r"\s*[:=]\s*(-?[\d.]+)\s*±\s*(-?(?:[\d.]+|nan))"


@dataclass(frozen=True, slots=True)
class Effect:
    """Each a mean and its standard error, compared with f32; `same` in per cent of tokens.

    `ratio` is the logarithm of the perplexities', its error that of the differences token by token.
    """

    perplexity: tuple[float, float]
    ratio: tuple[float, float]
    divergence: tuple[float, float]
    same: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Way:
    """One way of computing that is compared: states cross to the first worker, between workers, and back."""

    name: str
    workers: int
    activations: str
    options: tuple[str, ...] = ()


WAYS = (
    Way("f32 again", 1, "f32"),
    Way("f32, `-fa off`", 1, "f32", ("-fa", "off")),
    Way("f16, 1 worker: 2 crossings", 1, "f16"),
    Way("f16, 2 workers: 3 crossings", 2, "f16"),
    Way("f16, 4 workers: 5 crossings", 4, "f16"),
)


def _silent(progress: BuildProgress) -> None:
    """The log of the build has it."""


def build() -> Path:
    """llama-perplexity, in the tree in which our programs are compiled."""
    native()
    return asyncio.run(_build())


async def _build() -> Path:
    cache = cache_folder()
    async with builds.locked(cache / "native" / "lock", _silent):
        tree = builds.tree_of(cache)
        await fill(tree, read_pin(), cache, None, _silent)
        await compile_tree(tree, backend="cpu", targets=[TARGET], progress=_silent)
        return tree.build / "bin" / TARGET


def text(characters: int = TEXT_CHARACTERS) -> str:
    """Real prose, which every machine with Python has."""
    topics = pydoc_data.topics.topics
    return "\n".join(topics[name] for name in sorted(topics))[:characters]


def our_programs() -> Programs:
    """Where mesh-server and upstream's programs are."""
    own = native().binaries
    return Programs(mesh=own[MESH_PROGRAM].parent, stock=own[LLAMA_SERVER].parent)


def _run(program: Path, workers: int, activations: str, options: Sequence[str], log: IO[bytes]) -> str:
    with mesh_workers(our_programs(), ["CPU"] * workers, smollm2(), index_of([smollm2()]), log) as place:
        argv = ["--chunks", str(CHUNKS), "-ot", "token_embd.weight=CPU", "-ts", ",".join("1" * workers)]
        env = {"GGML_MESH_ACTIVATIONS": activations}
        return output_of(program, place, smollm2(), [*argv, *options], env)


def output_of(
    program: Path, place: Place, model: Path, options: Sequence[str], env: Mapping[str, str]
) -> str:
    """What llama-perplexity says that computes `model` there."""
    argv = [str(program), "-m", str(model), "-c", str(CONTEXT), "-b", str(CONTEXT), "-t", "1"]
    argv += ["-ngl", "999", "-fit", "off", "-nr", *place.device_option(","), *place.options]
    done = subprocess.run(
        [*argv, *options],
        env=environment({**place.env, **env}),
        pass_fds=place.descriptors,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode:
        raise ChildProcessError(f"{TARGET} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def _find(output: str, what: str) -> tuple[float, float]:
    found = re.search(re.escape(what) + _NUMBER, output)
    if found is None:
        raise ValueError(f"no `{what}` in:\n{output[-3000:]}")
    # The root of a variance that is 0 but for rounding, which may be negative
    error = 0.0 if found[2].endswith("nan") else float(found[2])
    return float(found[1]), error


def read_first(program: Path, folder: Path, log: IO[bytes]) -> None:
    """With f32, on one worker: leaves what it makes of each token in `folder`."""
    prose = folder / "text.txt"
    prose.write_text(text(), encoding="utf-8")
    base = ["-f", str(prose), "--kl-divergence-base", str(folder / "logits")]
    _run(program, 1, "f32", base, log)


def compare(program: Path, folder: Path, way: Way, log: IO[bytes]) -> tuple[tuple[float, float], Effect]:
    """The perplexity of the first, and what `way` does to it."""
    options = ["--kl-divergence-base", str(folder / "logits"), "--kl-divergence", *way.options]
    return read_output(_run(program, way.workers, way.activations, options, log))


def read_output(output: str) -> tuple[tuple[float, float], Effect]:
    """The perplexity of what is compared with, and the effect."""
    found = (_find(output, what) for what in WHAT)
    return _find(output, "Mean PPL(base)"), Effect(*found)


def measure(folder: Path) -> str:
    """All ways, as a table."""
    program = build()
    with (folder / "workers.log").open("wb") as log:
        read_first(program, folder, log)
        done = {way.name: compare(program, folder, way, log) for way in WAYS}
    lines = table("f32", done[WAYS[0].name][0], {name: effect for name, (_, effect) in done.items()})
    return "\n".join([*lines, "", source_of(text(), CHUNKS), ""])


def _cell(value: tuple[float, float], digits: int) -> str:
    return f"{value[0]:.{digits}f} ± {value[1]:.{digits}f}"


def table(name: str, first: tuple[float, float], effects: Mapping[str, Effect]) -> list[str]:
    """Lines of Markdown: the first way by `name`, and what others do to it."""
    lines = [
        "| | perplexity | ln of its ratio | Kullback-Leibler divergence | same likeliest token |",
        "|---|---|---|---|---|",
        f"| {name} | {_cell(first, 3)} | | | |",
    ]
    for way, it in effects.items():
        cells = [_cell(it.perplexity, 3), _cell(it.ratio, 6), _cell(it.divergence, 6)]
        cells.append(f"{_cell(it.same, 1)} %")
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return lines


def source_of(prose: str, chunks: int) -> str:
    """Where, when and of what it was measured."""
    digest = hashlib.sha256(prose.encode()).hexdigest()[:16]
    where = f"{platform.system()}, {platform.machine()}, {datetime.now(tz=UTC):%Y-%m-%d}"
    source = f"documentation of Python {platform.python_version()} (SHA-256 of the text {digest}…)"
    return f"{where}: {source}, {chunks} × {CONTEXT} tokens."


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this page")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = measure(Path(folder))
    sys.stdout.write(made)
    if chosen.write is not None:
        page = chosen.write.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        _, after = rest.split(END)
        chosen.write.write_text(before + BEGIN + made + END + after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
