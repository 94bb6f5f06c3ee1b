"""A package of meshd on a fresh Debian: as services, over a reboot, until it is removed.

    python -m tests.boot.debian trixie meshd_….deb MODEL.gguf    # root, Debian, mmdebstrap

`MIRROR` names another mirror. What is made is removed again.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.boot.machine import Machine, skip_reason, switched_on
from tests.boot.scenes import (
    MODEL,
    answer_after_a_reboot,
    restarts_are_gentle,
    uninstall_leaves_what_it_names,
)

_WITH = "curl,dbus,libpam-systemd,passwd,procps,systemd-sysv"
_APT = "apt-get install --yes --quiet --no-install-recommends /meshd.deb > /dev/null"
_INSTALL = f'chroot "$1" {_APT}; rm "$1/meshd.deb"'


def make_root(suite: str, package: Path, root: Path) -> None:
    """Install a Debian with the package; no service of it runs."""
    hooks = [f"--customize-hook=upload '{package}' /meshd.deb", f"--customize-hook={_INSTALL}"]
    mirror = [os.environ["MIRROR"]] if "MIRROR" in os.environ else []
    words = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={_WITH}", *hooks, suite]
    subprocess.run([*words, str(root), *mirror], check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Run what the docstring of the module describes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite")
    parser.add_argument("package", type=Path)
    parser.add_argument("model", type=Path)
    args = parser.parse_args()
    if reason := skip_reason():
        sys.stderr.write(f"error: {reason}\n")
        return 1
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        root = Path(place, "root")
        make_root(args.suite, args.package.resolve(), root)
        machine = Machine(Path(place, "machine"), "/usr/bin/meshd", root, {args.model.resolve(): MODEL})
        machine.prepare()
        with switched_on(machine):
            sys.stdout.write(f"{answer_after_a_reboot(machine)}\n")
            restarts_are_gentle(machine)
            uninstall_leaves_what_it_names(machine, kept="usr/share/python3")
            machine.done("dpkg", "--remove", "meshd")
            assert machine.run("sh", "-c", "ls -d /opt/meshd /usr/bin/meshd").stdout == ""
    sys.stdout.write("restarted, uninstalled, removed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
