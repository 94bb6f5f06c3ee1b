"""A real journald, in a mount namespace of its own, has the lines of a real daemon with their fields."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

JOURNALD = Path("/lib/systemd/systemd-journald")
# As systemd starts a service: stderr is a stream to the journal, and JOURNAL_STREAM says so.
AS_A_SERVICE = """
import os, signal, socket, subprocess, sys
stream = socket.socket(socket.AF_UNIX)
stream.connect("/run/systemd/journal/stdout")
stream.sendall(b"meshd-relay\\n\\n6\\n0\\n0\\n0\\n0\\n")  # name, no unit, info, four switches
found = os.fstat(stream.fileno())
environ = {**os.environ, "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
# its last lines are written by threads, for which it would wait but half a second
patient = "import sys; from meshd.base import log; log.FLUSH_SECONDS = 60.0; "
patient += "from meshd.cli.main import main; sys.exit(main())"
relay = subprocess.Popen(
    [sys.executable, "-c", patient, "relay", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"],
    env=environ, stdout=subprocess.PIPE, stderr=stream.fileno(), text=True,
)
relay.stdout.readline()
relay.send_signal(signal.SIGTERM)
sys.exit(relay.wait())
"""
SCRIPT = """
set -eu
mount -t tmpfs none /run
mount -t tmpfs none /var/log
mkdir -p /run/systemd/journal
/lib/systemd/systemd-journald & journald=$!
trap 'kill $journald' EXIT
until [ -S /run/systemd/journal/stdout ]; do sleep 0.05; done
"$1" -c "$2"
journalctl --sync
journalctl -D /run/log/journal -o json
"""


@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0 or not JOURNALD.exists() or shutil.which("unshare") is None,
    reason="needs root on Linux, and Debian's package systemd",
)
def test_a_daemon_of_systemd_is_found_by_its_fields(tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", sys.executable, AS_A_SERVICE],
        env={**os.environ, "MESHD_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    ours = [one for one in entries if "MESHD_EVENT" in one]
    events = {one["MESHD_EVENT"]: one for one in ours}
    assert {"relay_ready", "stopping"} <= events.keys()
    ready = events["relay_ready"]
    assert ready["PRIORITY"] == "6" and ready["SYSLOG_IDENTIFIER"] == "meshd"
    assert ready["MESHD_AREA"] == "relay" and ready["MESHD_LISTEN"] in ready["MESSAGE"]
    assert {one["_TRANSPORT"] for one in ours} == {"journal"}
    # what is said to people stays on stderr, and no line is there twice
    said = [one["MESSAGE"] for one in entries if one["_TRANSPORT"] == "stdout"]
    assert any(text.startswith("metrics: http://") for text in said)
    assert not any("relay_ready" in text for text in said)
