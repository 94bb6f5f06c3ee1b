"""Which addresses of this machine belong to a Wi-Fi adapter, as Linux and macOS tell it."""

import fcntl
import sys
from pathlib import Path

import pytest
from meshd.link.net import local_addresses, wireless
from meshd.link.net.local_addresses import InterfaceAddress


def _are(*names: str) -> list[bool]:
    return wireless.are_wireless([f"192.168.1.{number}:7447" for number, _ in enumerate(names)])


def _have(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    found = tuple(InterfaceAddress(name, f"192.168.1.{number}", 24) for number, name in enumerate(names))
    monkeypatch.setattr(local_addresses, "_getifaddrs", lambda: found)


def test_linux_marks_those_of_wifi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "wlan0" / "wireless").mkdir(parents=True)
    (tmp_path / "wlp2s0").mkdir()
    (tmp_path / "wlp2s0" / "phy80211").symlink_to(tmp_path)
    (tmp_path / "enp1s0").mkdir()
    names = ("wlan0", "wlp2s0", "enp1s0", "gone0")
    _have(monkeypatch, *names)
    monkeypatch.setattr(wireless, "IS_MACOS", False)
    monkeypatch.setattr(wireless, "LINUX_INTERFACES", tmp_path)
    assert _are(*names) == [True, True, False, False]
    assert wireless.are_wireless(["", "192.168.1.1:9", "relay", "192.168.1.0:9"]) == [
        False,
        True,
        False,
        True,
    ]


def test_macos_is_asked_for_the_functional_type(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {b"lo0": 1, b"en5": 2, b"en0": 3, b"awdl0": 4, b"pdp_ip0": 5}

    def ioctl(_handle: object, request: int, argument: bytes) -> bytes:
        name = argument[:16].rstrip(b"\0")
        if request != 0xC02069AD or argument[16:] != bytes(16) or name not in kinds:
            raise OSError(6, "Device not configured")
        return argument[:16] + kinds[name].to_bytes(4, sys.byteorder) + bytes(12)

    names = (*(name.decode() for name in kinds), "gone0")
    _have(monkeypatch, *names)
    monkeypatch.setattr(wireless, "IS_MACOS", True)
    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert _are(*names) == [False, False, True, True, False, False]
