"""A real child for tests, obedient or not. Run as a program: `python child.py --ignore-term …`.

It says `ready` (flushed) when it is; then it waits for a signal. Kept free of imports that start slowly.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

GRANDCHILD = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


def say(text: str) -> None:
    """A line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ignore-term", action="store_true", help="do not end at TERM")
    parser.add_argument("--fork", action="store_true", help="start a grandchild that ignores TERM, then work")
    parser.add_argument(
        "--wrapper", action="store_true", help="start a grandchild and end at TERM without it"
    )
    parser.add_argument("--slow-start", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--die-after", type=float, metavar="SECONDS", help="end by itself after ready")
    parser.add_argument("--exit-code", type=int, default=0, help="for --die-after and for TERM")
    parser.add_argument("--die-by", type=int, metavar="SIGNAL", help="with --die-after: kill itself by it")
    parser.add_argument("--flood", type=int, default=0, metavar="BYTES", help="print so much before ready")
    parser.add_argument("--long-line", type=int, default=0, metavar="BYTES", help="one line of that length")
    parser.add_argument("--listen-fd", type=int, metavar="FD", help="accept on it, answer HTTP")
    parser.add_argument("--read-fd", type=int, metavar="FD", help="print what it holds")
    parser.add_argument("--report-fd", type=int, metavar="FD", help="write report lines to it")
    parser.add_argument("--show-fds", action="store_true", help="print the numbers of open descriptors")
    parser.add_argument("--show-env", action="store_true", help="print environment and directory")
    parser.add_argument("--marker", default="", help="shows in the list of processes")
    return parser.parse_args()


def _end(code: int) -> None:
    os.write(1, b"told to end\n")
    os._exit(code)


def _grandchild(marker: str) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", GRANDCHILD, marker])
    say(f"grandchild {process.pid}")


def _flood(count: int) -> None:
    line = b"x" * 99 + b"\n"
    block = line * 640
    while count > 0:
        os.write(1, block)
        count -= len(block)


def _serve(descriptor: int) -> None:
    listener = socket.socket(fileno=descriptor)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _show(options: argparse.Namespace) -> None:
    if options.show_fds:
        say("fds " + " ".join(str(number) for number in range(256) if _is_open(number)))
    if options.show_env:
        for name, value in sorted(os.environ.items()):
            say(f"env {name}={value}")
        say(f"in {Path.cwd()}")
    if options.read_fd is not None:
        with os.fdopen(options.read_fd, "rb") as source:
            say(f"read {len(source.read())} bytes")
    if options.report_fd is not None:
        with os.fdopen(options.report_fd, "w") as report:
            report.write("listening\nloaded 3 tensors\n")


def main() -> None:
    options = _arguments()
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: _end(options.exit_code))
    if options.fork or options.wrapper:
        _grandchild(options.marker)
    time.sleep(options.slow_start)
    _flood(options.flood)
    if options.long_line:
        say("y" * options.long_line)
    _show(options)
    say("ready")
    if options.die_after is not None:
        time.sleep(options.die_after)
        if options.die_by is not None:
            os.kill(os.getpid(), options.die_by)
        say("last words")
        os._exit(options.exit_code)
    if options.listen_fd is not None:
        _serve(options.listen_fd)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
