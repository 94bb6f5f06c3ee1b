"""README and docs: links lead somewhere, commands exist as they are written, decisions are listed."""

import re
import shlex
from collections.abc import Iterator, Set
from pathlib import Path

import pytest
from meshd.base.errors import UsageError
from meshd.cli.main import VERBS
from meshd.cli.options import Parser, split_rest

from tests.rules.source import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# decisions speak of their time, and the protocol has signed texts that look like commands
OF_USERS = [page for page in PAGES if "decisions" not in page.parts and not page.name.startswith("protocol")]
DECISIONS = [page for page in PAGES if "decisions" in page.parts and page.name != "index.md"]
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:MESHD_\w+=\S+ )*meshd [^`]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FILE = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.py)`|`((?:native|meshd|tests|docs|configs)/[\w./-]+\.\w+)`")
_VARIABLE = re.compile(r"[A-Z_]+=\S*")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def commands(text: str) -> Iterator[str]:
    """Every call of `meshd` or `make` that a reader could copy: lines of plain blocks, and code in a text."""
    for language, block in _FENCED.findall(text):
        if language in ("", "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                yield from _calls(line)
    plain = _FENCED.sub("", text)
    for quoted in _INLINE.findall(plain):
        yield from _calls(quoted.replace("\n", " "))
    for quoted in re.findall(r"`(make [a-z-]+)`", plain):
        yield quoted


def _calls(line: str) -> Iterator[str]:
    line = re.sub(r"(^|\s)#.*", "", line.strip().removeprefix("$ "))
    for part in re.split(r"&&|\|\||(?<=\s)\||;|>|(?<=\s)&", line):
        words = part.split()
        while words and _VARIABLE.fullmatch(words[0]):
            del words[0]
        if words and (words[0] == "make" or Path(words[0]).name == "meshd"):
            yield " ".join(["make" if words[0] == "make" else "meshd", *words[1:]])


def check(command: str, targets: set[str]) -> None:
    """Raises UsageError, or fails an assertion, for a command that meshd would not take."""
    if command.startswith("make "):
        assert command.split()[1] in targets, f"no target `{command}`"
        return
    if any(mark in command for mark in ("…", "...", "[", "VERB", "ROLE", "|")):
        return  # a form, not a command
    verb, *rest = shlex.split(command)[1:] or [""]
    if verb in ("--help", "--version", "version"):
        return
    known = {one.name: one for one in VERBS}
    assert verb in known, f"no verb `{verb}`"
    module = known[verb].load()
    parser = Parser(prog=f"meshd {verb}")
    module.add_arguments(parser)
    if known[verb].rest:
        rest, _ = split_rest(rest)
    if rest and rest[-1] != "--help":
        parser.parse_args(rest)


@pytest.fixture(scope="module")
def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))


@pytest.mark.parametrize("page", OF_USERS, ids=name)
def test_commands_are_taken(page: Path, targets: set[str]) -> None:
    for command in commands(page.read_text(encoding="utf-8")):
        try:
            check(command, targets)
        except UsageError as error:
            pytest.fail(f"`{command}`: {error.what}")


def test_the_readme_has_the_commands_that_matter() -> None:
    for page, wanted in (
        ("README.md", ("meshd demo", "meshd worker", "meshd serve", "meshd status", "meshd model ls --fits")),
        ("CONTRIBUTING.md", ("make build", "make demo", "make check test")),
    ):
        found = " ".join(commands((ROOT / page).read_text(encoding="utf-8")))
        assert [command for command in wanted if command not in found] == []


_INSTALLS = re.compile(r"\b(?:pip|pipx|uv tool|uv pip) (?:install|download|run|upgrade)((?: +[^\s`|&]+)+)")


def asked_by_name(text: str) -> list[str]:
    """Return the names of meshd's packages that a command of the text asks an index for."""
    words = [word.strip("'\"") for found in _INSTALLS.findall(text) for word in found.split()]
    return [word for word in words if re.fullmatch(r"meshd(?:[-_]native\w*)?(?:\[.*\])?(?:[=<>].*)?", word)]


@pytest.mark.parametrize("page", OF_USERS, ids=name)
def test_no_page_asks_an_index_for_meshd(page: Path) -> None:
    """There, `meshd` is somebody else's project: pip, pipx and uv are given files."""
    assert asked_by_name(page.read_text(encoding="utf-8")) == []


def test_a_page_that_asks_an_index_is_found() -> None:
    text = "`pip install --find-links DIR meshd meshd-native==0.1.0`, `uv tool install 'meshd[build]'`"
    assert asked_by_name(text) == ["meshd", "meshd-native==0.1.0", "meshd[build]"]
    assert (
        asked_by_name("`pipx install ./meshd-*.whl`, `pipx inject meshd ninja`, `pipx uninstall meshd`") == []
    )


@pytest.mark.parametrize(
    "line",
    [
        "MESHD_HOME=a .venv/bin/meshd srve",
        "meshd status --jsn # why",
        "$ meshd serve --port",
        "cd meshd && make everything",
        "meshd invite --uses",
    ],
)
def test_a_wrong_command_is_found(line: str, targets: set[str]) -> None:
    (found,) = commands(f"Do\n\n```\n{line}\n```\n")
    with pytest.raises((UsageError, AssertionError)):
        check(found, targets)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, part = link.partition("#")
        file = page if not target else page.parent / target
        assert file.exists(), f"`{link}` in {name(page)}"
        if part and file.suffix == ".md":
            assert part in anchors(file), f"`{link}` in {name(page)}"


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_pages_that_the_source_names_are_there() -> None:
    for path in [*(ROOT / "meshd").rglob("*.py"), *(ROOT / "configs").iterdir(), ROOT / "pyproject.toml"]:
        for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
            if (
                "ggml" not in path.read_text(encoding="utf-8").split(page)[1][:20]
            ):  # upstream has a docs/gguf.md
                assert (ROOT / page).is_file(), f"`{page}` in {name(path)}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    for page in sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/lab").glob("*.md")]):
        link = page.relative_to(ROOT / "docs").as_posix()
        assert link == "index.md" or f"({link})" in index, link
    decisions = (ROOT / "docs/decisions/index.md").read_text(encoding="utf-8")
    pages = sorted(page.name for page in (ROOT / "docs/decisions").glob("0*.md"))
    assert re.findall(r"\]\((0\d{3}-[^)]*)\)", decisions) == pages, "each once, in order"
    assert len({page[:4] for page in pages}) == len(pages), "a number has one page"


def test_decisions_that_are_named_exist() -> None:
    numbers = {page.name[:4] for page in (ROOT / "docs/decisions").glob("0*.md")}
    for path in [*(ROOT / "meshd").rglob("*.py"), *(ROOT / "native" / "mesh").rglob("*.[ch]*"), *PAGES]:
        for number in re.findall(r"\b[Dd]ecisions?[ /](0\d{3})\b", path.read_text(encoding="utf-8")):
            assert number in numbers, f"decision {number} in {name(path)}"


def missing_files(text: str, present: Set[str]) -> list[str]:
    """Files that a decision names, with some of their folders, and that are gone; none if it is replaced."""
    if re.search(r"^Status: replaced\b", text, re.MULTILINE):
        return []
    return sorted({found for pair in _FILE.findall(text) for found in pair if found and found not in present})


@pytest.fixture(scope="module")
def present() -> set[str]:
    """Files of the tree, by their whole paths and by all ends of them."""
    names = set()
    for top in ("meshd", "native", "tests", "docs", "configs", "wheels"):
        for path in (ROOT / top).rglob("*.*"):
            parts = path.relative_to(ROOT).parts
            names |= {"/".join(parts[at:]) for at in range(len(parts))}
    return names


@pytest.mark.parametrize("page", DECISIONS, ids=name)
def test_files_that_decisions_name_exist(page: Path, present: set[str]) -> None:
    assert missing_files(page.read_text(encoding="utf-8"), present) == []


def test_a_file_that_is_gone_is_found_unless_the_decision_is_replaced() -> None:
    text = "Status: {}.\n\n`rpc/gone.py`, `gone.py`, `native/mesh/gone.h`, `ggml/ggml.c`, `rpc/there.py`"
    gone = ["gone.py", "native/mesh/gone.h", "rpc/gone.py"]
    assert missing_files(text.format("accepted; parts are replaced"), {"rpc/there.py"}) == gone
    assert missing_files(text.format("replaced by 0001"), set()) == []


def test_the_changelog_is_open() -> None:
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
