"""The clock since boot: it runs, and never behind monotonic time."""

import time

from meshd.base.machine_sleep import boot_seconds


def test_the_clock_since_boot_counts_at_least_what_monotonic_time_does() -> None:
    before, booted = time.monotonic(), boot_seconds()
    after, later = time.monotonic(), boot_seconds()
    assert later >= booted
    assert later - booted >= 0
    assert boot_seconds() - booted >= after - before - 0.01
