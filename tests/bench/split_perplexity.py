"""Measure what a split by tensors does to a model: `python -m tests.bench.split_perplexity --chunks 40`.

llama-perplexity (tests/e2e/perplexity.py) reads the documentation of Python's own language in one process,
and then by layers and by tensors over mesh-servers on this machine, compared token by token. To show what
such a difference is worth, one process computes attention with other kernels as well. `--type F32` has
llama-quantize write the model's weights in another type first: activations are rounded to 8 bits only for
weights of fewer than 16. No times: any machine will do. A minute for a way and 10 chunks on two cores.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from meshd.build.interface import LLAMA_QUANTIZE

from tests.e2e.models import smollm2
from tests.e2e.native_rig import index_of
from tests.e2e.perplexity import build, our_programs, output_of, read_output, source_of, table, text
from tests.native.bench_places import Place, here, mesh_workers

CHARACTERS = 5_000  # more than one chunk's tokens
ONE_PROCESS = "one process"


@dataclass(frozen=True, slots=True)
class SplitWay:
    """`workers`: 0 for one process."""

    name: str
    workers: int = 0
    options: tuple[str, ...] = ("-fa", "on")
    env: Mapping[str, str] = field(default_factory=dict)


_LAYERS = ("-fa", "on", "-sm", "layer")
_TENSORS = ("-fa", "on", "-sm", "tensor")
FIRST = SplitWay(ONE_PROCESS)
WAYS = {
    "off": SplitWay(f"{ONE_PROCESS}, `-fa off`", options=("-fa", "off")),
    "layers": SplitWay("by layers, 2 workers", 2, _LAYERS),
    "tensors": SplitWay("by tensors, 2 workers", 2, _TENSORS),
    "three": SplitWay("by tensors, 3 workers", 3, _TENSORS),
    "f16": SplitWay("by tensors, 2 workers, sums in f16", 2, _TENSORS, {"GGML_MESH_SUMS": "f16"}),
    "q8": SplitWay("by tensors, 2 workers, sums in q8", 2, _TENSORS, {"GGML_MESH_SUMS": "q8"}),
}


@contextmanager
def _place(way: SplitWay, model: Path, log: IO[bytes]) -> Iterator[Place]:
    if not way.workers:
        with here(["CPU"]) as place:
            yield place
        return
    with mesh_workers(our_programs(), ["CPU"] * way.workers, model, index_of([model]), log) as place:
        yield place


def measure(model: Path, ways: Sequence[SplitWay], skip: int, chunks: int, folder: Path) -> str:
    """One process, and what these ways do to it, as a table."""
    program, prose = build(), text((skip + chunks) * CHARACTERS)[skip * CHARACTERS :]
    (folder / "text.txt").write_text(prose, encoding="utf-8")
    base = ["--chunks", str(chunks), "--kl-divergence-base", str(folder / "logits")]
    done = {}
    with (folder / "workers.log").open("wb") as log:
        with _place(FIRST, model, log) as place:
            output_of(program, place, model, ["-f", str(folder / "text.txt"), *base, *FIRST.options], {})
        for way in ways:
            with _place(way, model, log) as place:
                options = [*base, "--kl-divergence", *way.options]
                done[way.name] = read_output(output_of(program, place, model, options, way.env))
            sys.stderr.write(f"{way.name}: {done[way.name][1]}\n")
    first = next(iter(done.values()))[0]
    lines = table(ONE_PROCESS, first, {name: effect for name, (_, effect) in done.items()})
    return "\n".join([*lines, "", source_of(prose, chunks), ""])


def _in_type(model: Path, kind: str, folder: Path) -> Path:
    """The model with its weights in another type, made by llama-quantize."""
    made = folder / f"{model.stem}-{kind}.gguf"
    program = str(our_programs().stock / LLAMA_QUANTIZE)
    argv = [program, "--allow-requantize", "--pure", str(model), str(made), kind]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return made


def main(argv: Sequence[str]) -> int:
    """Measures, prints, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.split_perplexity", description=__doc__)
    parser.add_argument(
        "--ways", nargs="+", default=list(WAYS), choices=WAYS, help="beside one process; default: all"
    )
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="chunks, from the text's beginning")
    parser.add_argument("--chunks", type=int, default=40, metavar="N", help="of 512 tokens")
    parser.add_argument(
        "--type", default="", metavar="T", help="of weights: F32, F16, … (default: as they are)"
    )
    parser.add_argument("--model", type=Path, metavar="FILE", help="default: SmolLM2-135M-Instruct, Q4_1")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as folder:
        model = args.model or smollm2()
        if args.type:
            model = _in_type(model, args.type, Path(folder))
        ways = [WAYS[name] for name in args.ways]
        sys.stdout.write(measure(model, ways, args.skip, args.chunks, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
