"""Report this process's state to the service manager that started it: the protocol of sd_notify(3).

systemd names a datagram socket in NOTIFY_SOCKET. Without that variable nothing is sent. Until the service is
ready each report extends the time that it may take to start; from then on each resets the watchdog. Both come
from the event loop, so that a daemon whose loop hangs is restarted. A start that fails takes at least
PACE_SECONDS: a limit of starts is for those that crash, not for those that wait for a network or a disk.
"""

import os
from collections.abc import MutableMapping
from contextlib import suppress
from functools import cache
from typing import Self

PACE_SECONDS = 25
FINAL_EXIT_CODE = 78  # EX_CONFIG of sysexits.h: units name it in RestartPreventExitStatus
_REPORT_SECONDS = 10.0
_START_SECONDS = 60  # by which each report extends the start: far more than a busy loop is late
_MOST_STATUS_CHARS = 400


class ServiceManager:
    """The connection to systemd; `address` is empty if it did not start this process."""

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        self._address = address
        self._report_seconds = min(_REPORT_SECONDS, watchdog_seconds / 3 or _REPORT_SECONDS)
        self._is_ready = False

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Self:
        """Read the variables, and remove them: they are not meant for children."""
        address = environ.pop("NOTIFY_SOCKET", "")
        pid, period = environ.pop("WATCHDOG_PID", ""), environ.pop("WATCHDOG_USEC", "")
        is_ours = pid in ("", str(os.getpid())) and period.isdecimal()
        return cls(address, int(period) / 1e6 if is_ours else 0.0)

    @property
    def is_there(self) -> bool:
        """True if a service manager started this process."""
        return bool(self._address)

    @property
    def is_starting(self) -> bool:
        """True if a service manager waits for this process to be ready."""
        return self.is_there and not self._is_ready

    def ready(self) -> None:
        """Report that the service is ready."""
        self._is_ready = True
        self._send("READY=1")

    def failed(self, text: str) -> None:
        """Report why this process is about to end; `systemctl status` and `meshd service status` show it."""
        self._send("STATUS=" + " ".join(text.split())[:_MOST_STATUS_CHARS])

    async def keep_informed(self) -> None:
        """Send reports until cancelled."""
        import asyncio  # a verb that starts no daemon does without

        while self.is_there:
            self._send(
                "WATCHDOG=1" if self._is_ready else f"EXTEND_TIMEOUT_USEC={_START_SECONDS * 1_000_000}"
            )
            await asyncio.sleep(self._report_seconds)

    def _send(self, text: str) -> None:
        if not self._address:
            return
        import socket  # a verb that no service manager starts does without

        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with (
            suppress(OSError, ValueError),  # a daemon runs as well without
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        ):
            sender.setblocking(False)
            sender.sendto(text.encode(errors="replace"), address)


@cache
def service_manager() -> ServiceManager:
    """Return the manager of this process. Call it before the first child starts."""
    return ServiceManager.take(os.environ)
