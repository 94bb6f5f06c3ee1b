"""Amounts of bytes in words."""

from meshd.base.units import in_bytes, in_memory


def test_what_is_sent_or_stored() -> None:
    assert [in_bytes(n) for n in (0, 999, 1000, 12_345_678, 5e9, 7e12, 2e15)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "12.3 MB",
        "5.0 GB",
        "7.0 TB",
        "2000.0 TB",
    ]


def test_memory() -> None:
    assert [in_memory(n) for n in (0, 300 << 20, (1 << 30) - 1, 1 << 30, 3 << 29)] == [
        "0 MiB",
        "300 MiB",
        "1024 MiB",
        "1.0 GiB",
        "1.5 GiB",
    ]
