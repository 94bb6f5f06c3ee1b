"""Show the effective configuration and the origin of each value, or write an example file.

Precedence: option, environment, file of --config, value kept from an earlier start (the name), default.
"""

import argparse
import os
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.files import expanded
from meshd.cli.options import Arguments, Parser, add_config_file, config_file, note_unknown_variables
from meshd.cli.output import Json, Output
from meshd.config.load import EffectiveValue, load, with_kept_name
from meshd.config.setting import plain, toml

DEFAULT_FILE = "meshd.toml"
EXAMPLE = "meshd.example.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `show`, `init [FILE]`."""
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
    """Show or write the configuration, without a daemon."""
    if args.action == "init":
        return _init(expanded(args.file), out)
    note_unknown_variables(out)
    values = with_kept_name(load(file=config_file(args))).values
    if args.json:
        out.json({"settings": {value.setting.name: _entry(value) for value in values}})
        return 0
    section = ""
    for value in values:
        if value.setting.section != section:
            if section:
                out.line()
            section = value.setting.section
            out.line(f"[{section}]")
        out.line(_toml_line(value))
    return 0


def _entry(effective: EffectiveValue) -> Json:
    return {"value": _plain(effective), "origin": effective.origin}


def _plain(effective: EffectiveValue) -> Json:
    if effective.setting.secret:
        return "[hidden]" if effective.value else ""
    return plain(effective.value)


def _toml_line(effective: EffectiveValue) -> str:
    """Return a line that can be put in a file again; a value that cannot be written there becomes a
    comment.
    """
    value, setting = _plain(effective), effective.setting
    if value is None or setting.secret or not setting.in_file:
        shown = "not set" if value in (None, "") else str(value)
        return f"# {setting.field}: {shown}  # {effective.origin}"
    return f"{setting.field} = {toml(setting.form.write(effective.value))}  # {effective.origin}"


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
    """Return the example configuration, from the checkout or from the installed package. Raises UserError."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / EXAMPLE).is_file():
            return (folder / EXAMPLE).read_text(encoding="utf-8")
    raise UserError(f"`{EXAMPLE}` is missing from this installation", hint="reinstall meshd")
