"""`meshd completion` and `meshd man`; tests/process/test_completion.py runs the shells."""

import re
from pathlib import Path

import pytest
from meshd.cli.main import VERBS, Verb
from meshd.cli.options import option_strings
from meshd.cli.shell import SHELLS, first_page, page, script

from tests.unit.cli.shell import meshd

SERVE = next(verb for verb in VERBS if verb.name == "serve")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_every_verb_and_its_options(shell: str) -> None:
    done = meshd("completion", shell)
    assert (done.code, done.out) == (0, script(shell))
    for verb in VERBS:
        assert re.search(rf"\b{verb.name}\b", done.out)
    options = [option.lstrip("-") for action in SERVE.parser().own for option in action.option_strings]
    assert len(options) > 20
    assert not [option for option in options if option not in done.out]


def test_another_shell_is_refused() -> None:
    done = meshd("completion", "zhs")
    assert done.code == 2
    assert "did you mean `meshd completion zsh`?" in done.err


def test_a_page_for_each_verb_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "man/man1"
    done = meshd("man", str(folder))
    assert (done.code, done.out) == (0, f"{len(VERBS) + 1} man pages in {folder}\n")
    assert {path.name for path in folder.iterdir()} == {
        "meshd.1",
        *(f"meshd-{verb.name}.1" for verb in VERBS),
    }


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = meshd("man", str(tmp_path / "file/man1"))
    assert done.code == 1
    assert f"cannot write man pages into `{tmp_path}/file/man1`" in done.err
    assert "hint: name a directory" in done.err


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_page_has_the_options_of_all_actions(verb: Verb) -> None:
    text = page(verb).replace(r"\-", "-")
    parser = verb.parser()
    assert all(option in text for option in option_strings(parser) if option not in ("-h", "--help"))


def test_the_first_page_lists_the_verbs() -> None:
    assert [verb.name for verb in VERBS] == re.findall(r"^\\fBmeshd\\-(\w+)", first_page(), re.MULTILINE)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_page_is_ascii(verb: Verb) -> None:
    """Man has no other characters where the locale is C, and warns."""
    assert page(verb).isascii()


def test_roff_does_not_interpret_our_text() -> None:
    lines = page(SERVE).splitlines()
    requests = {line.split()[0] for line in lines if line.startswith((".", "'"))}
    assert requests <= {".TH", ".SH", ".SS", ".TP", ".PP", ".nf", ".fi"}
    escapes = set(re.findall(r"\\(\(..|.)", page(SERVE)))
    assert escapes <= {"-", "e", "`", "(aq", "f", "&"}
