"""Report what auditwheel says of a wheel: the oldest systems on which its programs can start."""

import re
import subprocess
import sys
from pathlib import Path

from meshd.base.errors import UserError

_FITS = re.compile(r'platform\s+tag:\s+"manylinux_(\d+)_(\d+)_(\w+)"')
_CLAIMS = re.compile(r"-manylinux_(\d+)_(\d+)_(\w+)\.whl$")


def audit(wheel: Path) -> str:
    """Return auditwheel's report of the wheel. Raises UserError if its name claims more."""
    asked = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"auditwheel cannot read `{wheel}`: {done.stderr.strip()}", hint="see above")
    if not bears_out(wheel.name, done.stdout):
        raise UserError(
            f"`{wheel.name}` needs newer or other systems than it says:\n{done.stdout}", hint="build it anew"
        )
    return done.stdout


def bears_out(name: str, report: str) -> bool:
    """Return True if by auditwheel's report a wheel needs its name's machine, and no newer glibc."""
    fits, claims = _FITS.search(report), _CLAIMS.search(name)
    if fits is None or claims is None:
        return False
    return fits[3] == claims[3] and (int(fits[1]), int(fits[2])) <= (int(claims[1]), int(claims[2]))
