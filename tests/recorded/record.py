"""Record what real programs send: `.venv/bin/python -m tests.recorded.record --programs DIR [NAME …]`.

`DIR/PACKAGE` (the package's name without its scope) is where a program was installed, a venv for those of
PyPI. The programs run in a network namespace with loopback alone. Linux.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.recorded.programs import PROGRAMS
from tests.recorded.run import Installed, Run, leave_network
from tests.recorded.script import STEPS
from tests.recorded.server import FORMS, Server
from tests.recorded.sessions import Reducer, Request, Session, save

_MOST = 6  # requests of a session: gptme asks again after the end, others ask for a title


def record(installed: Installed, folder: Path) -> Session:
    """Run a program against the script; return what it sent. Raises RuntimeError if it did not finish."""
    server = Server(str(folder / "run" / "work"))
    with server.serving() as url:
        outcome = Run(installed, folder / "run", url).start()
    requests: list[Request] = []
    last = 0
    for note in server.notes:
        if note["path"].split("?")[0].endswith(tuple(FORMS)) and len(requests) < _MOST and last < STEPS:
            requests.append(Request(note["path"], note["headers"], note["body"]))
            last = note["step"]
    if outcome.status or len(requests) < 3:
        raise RuntimeError(f"{len(requests)} requests, status {outcome.status}: {outcome.output[-2000:]}")
    program = installed.program
    return Session(program.name, program.package, installed.version, "recorded", tuple(requests))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=Path, required=True, metavar="DIR")
    parser.add_argument("--node", default="/usr/bin/node", help="Node.js 22 or later")
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    leave_network()
    failed = 0
    for program in PROGRAMS:
        if given.names and program.name not in given.names:
            continue
        here = given.programs / program.package.rpartition("/")[2]
        with tempfile.TemporaryDirectory(prefix="recorded-") as folder:
            try:
                session = record(Installed(program, here, given.node), Path(folder))
            except (RuntimeError, OSError) as error:
                failed += 1
                print(f"{program.name}: {error}", file=sys.stderr)  # noqa: T201
                continue
            paths = {f"{folder}/run/work": "/home/user/project", f"{folder}/run/home": "/home/user"}
            save(session, Reducer({**paths, folder: "/tmp"}))
            print(f"{program.name} {session.version}: {len(session.requests)} requests")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
