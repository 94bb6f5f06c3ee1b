"""Formats lengths of time."""


def in_time(seconds: float) -> str:
    """Return `4 s`, `3 min`, `2 h 10 min`, `5 d 3 h`."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    if whole < 2 * 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
