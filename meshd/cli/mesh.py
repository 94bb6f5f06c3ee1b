"""Back up or restore the mesh's root key. Its holder can admit and ban any node.

`export` writes it to FILE (0600) or to standard output; `import` reads it from FILE, or from `-`.
"""

import argparse
import os
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.home_folder import expanded
from meshd.cli.options import Arguments, Parser, read_text
from meshd.cli.output import Output
from meshd.config import home_here

MAX_BACKUP_CHARS = 16 << 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `export [FILE]`, `import FILE`."""
    below = parser.add_subparsers(
        dest="action", metavar="export | import", required=True, parser_class=Parser
    )
    exporting = below.add_parser("export", description="Write the mesh's root key, a secret.")
    exporting.add_argument(
        "file", metavar="FILE", nargs="?", help="file to create (default: -, standard output)"
    )
    importing = below.add_parser("import", description="Restore a mesh's root key to this node.")
    importing.add_argument("file", metavar="FILE", help="file that `export` wrote; - for standard input")


def run(args: Arguments, out: Output) -> int:
    """Work on the files: the root key never goes through the control socket."""
    home = home_here()
    return _export(home, args.file, out) if args.action == "export" else _import(home, args.file, out)


def _export(home: Path, file: str | None, out: Output) -> int:
    from meshd.identity.keystore import Home

    if not home.is_dir():
        raise UserError(
            f"there is no node in `{home}`",
            hint="set MESHD_HOME to the directory of the node that founded the mesh",
        )
    text = Home(home).export_root().strip()
    if file in (None, "-"):  # a secret must not end up in a file of that name
        out.line(text)
        return 0
    path = expanded(file)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UserError(
            f"cannot write `{path}`: {error.strerror}", hint="name a new file in a directory you can write to"
        ) from None
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    out.line(str(path))
    out.note("keep it where only you can read it: anyone who has it controls the mesh")
    return 0


def _import(home: Path, file: str, out: Output) -> int:
    import secrets
    import time

    from meshd.identity.keystore import Home

    text = read_text(file, "the backup", MAX_BACKUP_CHARS)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = Home(home)
    with store.lock():
        membership = store.import_root(text, now=int(time.time()), random=secrets.token_bytes)
    out.line(f"this node now holds the root key of mesh {membership.mesh.short}")
    return 0
