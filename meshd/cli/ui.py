"""Open the page of the mesh in your browser: machines, models, load, members, logs, and what can be done.

The link is valid once, for a minute. Without a display, or over SSH, it is printed. Only the user who runs
the node can ask for it.
"""

import argparse
import contextlib
import html
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from meshd.admin.api import UiLinkRequest, UiReply, UiRequest
from meshd.admin.client import Client
from meshd.base.errors import UserError
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.config.tree import home_here

_LOOK_SECONDS = 0.1
_PRINT = "run `meshd ui --print`, and open the link yourself"
_REDIRECT = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={url}">
<meta name="referrer" content="no-referrer">
<title>meshd</title>
<p><a href="{url}">Open the page of the mesh</a></p>
</html>
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --print."""
    parser.add_argument("--print", action="store_true", help="print the link instead of opening it")


def run(args: Arguments, out: Output) -> int:
    """Ask the daemon for a link; open or print it."""
    home = home_here()
    with Client(home) as client:
        link = client.ask(UiRequest())
        if args.print or not has_display(os.environ, sys.platform):
            out.line(link.url)
            out.note("this link is a secret: it opens the page once, within a minute")
            if link.lan_url:
                out.note(f"from other devices, with an API key: {link.lan_url}")
            return 0
        with redirecting(home, link.url) as file:
            _start_browser(file)
            _wait(client, link, out)
    out.line(f"opened {link.url.partition('/mesh')[0]}/mesh in your browser")
    return 0


def has_display(environ: Mapping[str, str], platform: str) -> bool:
    """Return True if a browser that is started here shows on the user's screen."""
    if environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"):
        return False
    return platform == "darwin" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


@contextlib.contextmanager
def redirecting(home: Path, url: str) -> Iterator[Path]:
    """Make a file, for this user alone, that leads a browser to `url`; it is gone when the block is left.

    Other users see the arguments of a browser's process, and so must not see the link there.
    """
    import tempfile

    try:
        handle, name = tempfile.mkstemp(prefix="ui-", suffix=".html", dir=home)  # 0600
    except OSError as error:
        what = f"cannot write in `{home}`: {(error.strerror or str(error)).lower()}"
        raise UserError(what, hint=_PRINT) from error
    file = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            opened.write(_REDIRECT.format(url=html.escape(url)))
        yield file
    finally:
        file.unlink(missing_ok=True)


def _start_browser(file: Path) -> None:
    """Have the system's browser open `file`. Raises UserError if there is none."""
    import webbrowser

    try:
        browser = webbrowser.get()
    except webbrowser.Error as error:
        raise UserError("no browser was found", hint=_PRINT) from error
    # some wait for the browser's end; the thread does not outlive us
    threading.Thread(target=browser.open, args=(file.as_uri(),), daemon=True).start()


def _wait(client: Client, link: UiReply, out: Output) -> None:
    """Wait until the browser has opened the link. Raises UserError if it does not."""
    out.progress("waiting for your browser to open the page")
    while (state := client.ask(UiLinkRequest(id=link.id)).state) == "waiting":
        time.sleep(_LOOK_SECONDS)
    if state != "opened":
        raise UserError("no browser has opened the page within a minute", hint=_PRINT)
