"""A real home router's daemon in the bench: miniupnpd (PCP, NAT-PMP and UPnP) with nftables."""

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.netns.world import Router

HOW_TO_GET = "apt-get install -y miniupnpd-nftables"
READY_SECONDS = 10.0
_CONFIG = """ext_ifname=wan
listening_ip=lan
port=5555
enable_natpmp={binary}
enable_upnp={upnp}
secure_mode=yes
min_lifetime={shortest}
max_lifetime=86400
lease_file=
uuid=c44b4e98-be1a-4eaf-95b7-5ab5ba25d91b
allow 1024-65535 0.0.0.0/0 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
upnp_table_name=miniupnpd
upnp_nat_table_name=miniupnpd
"""
_RULES = """
table inet miniupnpd {
  chain forward { type filter hook forward priority -25; policy accept; jump miniupnpd; }
  chain miniupnpd { }
  chain prerouting { type nat hook prerouting priority dstnat; policy accept; jump prerouting_miniupnpd; }
  chain prerouting_miniupnpd { }
  chain postrouting { type nat hook postrouting priority srcnat; policy accept; jump postrouting_miniupnpd; }
  chain postrouting_miniupnpd { }
}
"""


def skip_reason() -> str:
    """Why there is none here; empty if there is."""
    return "" if shutil.which("miniupnpd") else f"no `miniupnpd`: {HOW_TO_GET}"


@contextmanager
def miniupnpd(
    router: Router, *, binary: bool = True, upnp: bool = True, shortest: int = 60
) -> Iterator[None]:
    """Serve the router's LAN. `binary`: PCP and NAT-PMP; `shortest`: seconds that a mapping lasts.

    Its mappings go with it, as after a restart.
    """
    router.space.nft(_RULES)
    words = {True: "yes", False: "no"}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "miniupnpd.conf")
        config.write_text(_CONFIG.format(binary=words[binary], upnp=words[upnp], shortest=shortest))
        process = subprocess.Popen(
            [*router.space.prefix, "miniupnpd", "-d", "-f", config, "-P", str(Path(folder, "pid"))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        ready = threading.Event()
        listens = b"NAT-PMP/PCP traffic" if binary else b"HTTP listening"
        reader = threading.Thread(target=_read, args=(process, listens, ready), name="miniupnpd's words")
        reader.start()
        try:
            if not ready.wait(READY_SECONDS):
                raise RuntimeError("miniupnpd is not ready")
            yield
        finally:
            process.kill()
            process.wait()
            reader.join()
            router.space.nft("delete table inet miniupnpd")
            router.space.forget_flows()


def _read(process: "subprocess.Popen[bytes]", listens: bytes, ready: threading.Event) -> None:
    """Read all that it says, so that it never waits for us; `ready` when it has said that it listens."""
    assert process.stderr is not None
    with process.stderr as lines:
        for line in lines:
            if listens in line:
                ready.set()
