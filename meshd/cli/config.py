"""Show the effective configuration and the origin of each value, or write an example file.

Precedence: option, environment, file of --config, value kept from an earlier start (the name), default.
"""

import argparse
import os
from pathlib import Path

from meshd.base.errors import UserError
from meshd.cli.options import Arguments, Parser, add_config_file, config_file
from meshd.cli.output import Json, Output
from meshd.config import Setting, load
from meshd.config.shown import plain, toml

DEFAULT_FILE = "meshd.toml"
EXAMPLE = "meshd.example.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`show`, `init [FILE]`."""
    below = parser.add_subparsers(dest="action", metavar="show | init", required=True, parser_class=Parser)
    showing = below.add_parser("show", description="Show the effective values as TOML, each with its origin.")
    add_config_file(showing)
    showing.add_argument("--json", action="store_true", help="print JSON, for scripts")
    beginning = below.add_parser(
        "init", description="Write an example configuration that explains every key."
    )
    beginning.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default=DEFAULT_FILE,
        help=f"file to create (default: {DEFAULT_FILE})",
    )


def run(args: Arguments, out: Output) -> int:
    """Nothing of it needs a daemon."""
    if args.action == "init":
        return _init(Path(args.file).expanduser(), out)
    from meshd.config.kept_name import with_kept_name  # cryptography, which `config init` does without

    settings = with_kept_name(load(file=config_file(args))).settings
    if args.json:
        out.json({"settings": {s.key.name: _entry(s) for s in settings}})
        return 0
    section = ""
    for setting in settings:
        if setting.key.section != section:
            if section:
                out.line()
            section = setting.key.section
            out.line(f"[{section}]")
        out.line(_toml_line(setting))
    return 0


def _entry(setting: Setting) -> Json:
    return {"value": _plain(setting), "origin": setting.origin}


def _plain(setting: Setting) -> Json:
    if setting.key.secret:
        return "[hidden]" if setting.value else ""
    return plain(setting.value)


def _toml_line(setting: Setting) -> str:
    """A line that can be put in a file again; what cannot be written there stands as a comment."""
    value = _plain(setting)
    name = setting.key.field
    if value is None or setting.key.secret or not setting.key.in_file:
        shown = "not set" if value in (None, "") else str(value)
        return f"# {name}: {shown}  # {setting.origin}"
    return f"{name} = {toml(setting.key.form.write(setting.value))}  # {setting.origin}"


def _init(file: Path, out: Output) -> int:
    text = example_text()
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # it may come to hold a token
    except FileExistsError:
        raise UserError(
            f"`{file}` already exists", hint="choose another name: `meshd config init FILE`"
        ) from None
    except OSError as error:
        raise UserError(
            f"cannot write `{file}`: {error.strerror}", hint="create its directory, or choose another path"
        ) from None
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    out.line(str(file))
    out.note(f"edit it, then pass --config {file} or set MESHD_CONFIG")
    return 0


def example_text() -> str:
    """The example configuration, from the checkout or from the installed package."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / EXAMPLE).is_file():
            return (folder / EXAMPLE).read_text(encoding="utf-8")
    raise UserError(f"`{EXAMPLE}` is missing from this installation", hint="reinstall meshd")
