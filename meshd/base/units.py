"""Words for amounts: bytes of traffic in powers of 1000, of memory in powers of 1024, and time. Pure."""

import re

MIB = 1 << 20
_GIB = 1 << 30
_MANY_BYTES = 1_000_000  # fewer are told one by one
_DIGITS = re.compile(r"\d+")


def in_number(number: int, thing: str) -> str:
    """Return `1 worker`, `2 workers`."""
    return f"{number} {thing}" + ("" if number == 1 else "s")


def in_bytes(count: float) -> str:
    """Return `12.3 MB`, in powers of 1000, as disks and networks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def in_exact_bytes(count: int) -> str:
    """Return `10 bytes`, or `12.3 MB` above the size where single bytes stop mattering."""
    return in_bytes(count) if count >= _MANY_BYTES else f"{count} bytes"


def in_memory(count: int) -> str:
    """Return `1.5 GiB` or `300 MiB`, in powers of 1024, as devices report memory."""
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / MIB:.0f} MiB"


def in_time(seconds: float) -> str:
    """Return `4 s`, `3 min`, `2 h 10 min`, `5 d 3 h`, `24 h`."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    if whole < 2 * 86400:
        hours, minutes = whole // 3600, whole % 3600 // 60
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = whole // 86400, whole % 86400 // 3600
    return f"{days} d {hours} h" if hours else f"{days} d"


def without_numbers(text: str) -> str:
    """Return the text without its numbers: the subject, which stays the same while they count on."""
    return _DIGITS.sub("", text)
