"""Count the small faults that the unit tests find: `python -m tests.bench.mutants --count 400 --seed 1`.

Each mutant is a copy of the tree in which one operator, condition, constant, result or call of a function is
changed. First all unit tests run once and note which functions they reach (reached.py); then, for each
mutant, those that reach its function, until one fails. A mutant that no test reaches survives. Some mutants
change nothing that anyone could see, so the share that is killed is to be compared with the same command on
another commit (`--tree`), not with 100 %. `--package head` draws in one package, and runs its tests alone.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

PACKAGES = ("gateway", "head", "worker", "devices", "client", "model", "plan", "peer", "library", "wire")
_TESTS = "tests/unit"
_MOST_TESTS = 150  # of one function that everything reaches
_SECONDS = 120.0  # for one mutant; one that hangs is killed, as it would be noticed
_HERE = Path(__file__).parents[2]

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A function (`place`: path and first line, as in reached.py) with the text of its file changed."""

    path: str
    place: str
    line: int
    was: str
    now: str
    start: int  # of the changed part, in bytes of the file
    end: int

    def write(self, tree: Path) -> None:
        """Change the file in `tree`."""
        text = (tree / self.path).read_bytes()
        (tree / self.path).write_bytes(text[: self.start] + self.now.encode() + text[self.end :])


def mutants_of(path: str, source: bytes) -> Iterator[Mutant]:
    """Yield each mutant of the functions in a file."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def visit(node: ast.AST, function: ast.AST | None) -> Iterator[Mutant]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from visit_body(child)
            elif isinstance(child, ast.Lambda):
                yield from visit(child, function)
            else:
                if function is not None and isinstance(child, ast.expr | ast.stmt):
                    yield from changes(child, function)
                yield from visit(child, function)

    def visit_body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Mutant]:
        for number, statement in enumerate(function.body):
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if number or not is_text:
                holder = ast.Module([statement], [])
                yield from visit(holder, function)

    def changes(node: ast.expr | ast.stmt, function: ast.AST) -> Iterator[Mutant]:
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        first = min([function.lineno, *(one.lineno for one in function.decorator_list)])
        for other in _changed(node):
            assert node.end_lineno is not None and node.end_col_offset is not None
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            text = ast.unparse(other)
            now = text if isinstance(node, ast.stmt) else f"({text})"
            was = source[start:end].decode()
            yield Mutant(path, f"{path}:{first}", node.lineno, was, now, start, end)

    yield from visit(ast.parse(source), None)


def _changed(node: ast.expr | ast.stmt) -> Iterator[ast.expr | ast.stmt]:
    """Yield the node with one thing changed, for each that can be."""
    other = copy.deepcopy(node)
    match other:
        case ast.Compare(ops=[op]) if type(op) in _COMPARE:
            other.ops = [_COMPARE[type(op)]()]
            yield other
        case ast.BoolOp():
            other.op = ast.And() if isinstance(other.op, ast.Or) else ast.Or()
            yield other
        case ast.UnaryOp(op=ast.Not()):
            yield other.operand
        case ast.BinOp() if type(other.op) in _BINARY and not isinstance(
            other.left, ast.Constant | ast.JoinedStr
        ):
            other.op = _BINARY[type(other.op)]()
            yield other
        case ast.Constant(value=bool()):
            yield ast.Constant(not other.value)
        case ast.Constant(value=int() | float() as number):
            yield ast.Constant(number + 1)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.Pass()
        case ast.If() if other.body:
            pass  # its condition is an expression, changed as such
        case ast.IfExp():
            other.body, other.orelse = other.orelse, other.body
            yield other
        case _:
            pass


def _copied(tree: Path, to: Path) -> Path:
    """Copy what git knows of a checkout."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=tree, check=True, capture_output=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (tree / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, to / name)
    for name in ("reached.py", "__init__.py"):  # an older tree may lack them
        if not (to / "tests/bench" / name).exists():
            (to / "tests/bench").mkdir(parents=True, exist_ok=True)
            shutil.copy2(_HERE / "tests/bench" / name, to / "tests/bench" / name)
    return to


def _pytest(tree: Path, words: Sequence[str], seconds: float, **variables: str) -> int:
    """Run pytest in a tree; its exit status, 1 for one that did not end."""
    environ = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *words]
    try:
        return subprocess.run(
            words, cwd=tree, env=environ, timeout=seconds, check=False, capture_output=True
        ).returncode
    except subprocess.TimeoutExpired:
        return 1


def _is_killed(mutant: Mutant, tree: Path, tests: Sequence[str]) -> bool:
    """Run the tests that reach the mutant's function."""
    if not tests:
        return False
    kept = (tree / mutant.path).read_bytes()
    mutant.write(tree)
    try:
        return _pytest(tree, ["-x", "-n", "0", *tests], _SECONDS) != 0
    finally:
        (tree / mutant.path).write_bytes(kept)


@dataclass(slots=True)
class Sample:
    """Copies of one checkout, one for each job, and what its tests reach."""

    trees: SimpleQueue[Path]
    reached: dict[str, list[str]]
    seed: int

    def judge(self, mutant: Mutant) -> tuple[Mutant, int, bool]:
        """Return how many tests the mutant got, and whether one of them failed."""
        tests = self.reached.get(mutant.place, [])
        if len(tests) > _MOST_TESTS:
            tests = random.Random(self.seed).sample(tests, _MOST_TESTS)
        tree = self.trees.get()
        try:
            return mutant, len(tests), _is_killed(mutant, tree, tests)
        finally:
            self.trees.put(tree)


def _reached(tree: Path, noted: Path, tests: Sequence[str]) -> dict[str, list[str]]:
    """Run the tests once, unless `noted` has what they reach."""
    if not noted.exists():
        code = _pytest(
            tree, ["-n", "0", "-p", "tests.bench.reached", *tests], 7200.0, MESHD_REACHED=str(noted)
        )
        _say(f"the unit tests ended with {code}")
    found: dict[str, list[str]] = json.loads(noted.read_text())
    return found


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Draw the mutants, run their tests, and print the shares."""
    parser = argparse.ArgumentParser(description="small faults, and whether the unit tests find them")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--tree", type=Path, default=_HERE, help="the checkout to change a copy of")
    parser.add_argument("--package", action="append", help="one of meshd's; else those that decide most")
    parser.add_argument("--reached", type=Path, help="keep and reuse what tests reach in this file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    _say(f"seed {given.seed}")
    drawn: Counter[str] = Counter()
    killed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="meshd-mutants-") as name:
        copies = [_copied(given.tree, Path(name) / str(number)) for number in range(given.jobs)]
        tests = [f"{_TESTS}/{package}" for package in given.package or ()] or [_TESTS]
        reached = _reached(copies[0], (given.reached or Path(name) / "reached.json").absolute(), tests)
        found = [
            mutant
            for package in given.package or PACKAGES
            for path in sorted((copies[0] / "meshd" / package).rglob("*.py"))
            for mutant in mutants_of(str(path.relative_to(copies[0])), path.read_bytes())
        ]
        chosen = random.Random(given.seed).sample(found, min(given.count, len(found)))
        _say(f"{len(chosen)} of {len(found)} mutants")
        sample = Sample(SimpleQueue(), reached, given.seed)
        for one in copies:
            sample.trees.put(one)
        with ThreadPoolExecutor(given.jobs) as pool:
            for mutant, count, is_dead in pool.map(sample.judge, chosen):
                package = mutant.path.split("/")[1]
                drawn[package] += 1
                killed[package] += is_dead
                if not is_dead:
                    was, now = (" ".join(text.split())[:50] for text in (mutant.was, mutant.now))
                    _say(f"survives ({count} tests) {mutant.path}:{mutant.line} `{was}` -> `{now}`")
    for package in drawn:
        _say(f"{package:<10} {killed[package]:>4} of {drawn[package]:>4} killed")
    share = killed.total() / max(drawn.total(), 1)
    _say(f"{'all':<10} {killed.total():>4} of {drawn.total():>4} killed, {share:.1%}")


if __name__ == "__main__":
    main()
