"""The three tools that the recorded libraries offer; a program may load this file by its path."""

import subprocess
from pathlib import Path


def bash(command: str) -> str:
    """Run a shell command and return its output."""
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=False).stdout


def read_file(path: str) -> str:
    """Return the text of a file."""
    return Path(path).read_text()


def write_file(path: str, content: str) -> str:
    """Write a text file."""
    Path(path).write_text(content)
    return "written"
