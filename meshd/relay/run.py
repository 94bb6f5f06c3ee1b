"""`meshd relay` as a process: its key, its ports, its end."""

import asyncio
import contextlib
import ipaddress
import secrets
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from meshd.base import log
from meshd.base.errors import UserError
from meshd.base.fault_boundary import watch_loop
from meshd.base.metrics_port import MetricsPort, listen_for_scrapers
from meshd.base.processes import raise_limit
from meshd.base.service_manager import service_manager
from meshd.base.tasks import Owner, first_error
from meshd.identity.invite import parse_relay_url, relay_url
from meshd.identity.keys import KeyPair, MeshId
from meshd.identity.keystore import Home
from meshd.identity.proof import Credentials
from meshd.link.net import local_addresses
from meshd.relay.server import RelayServer
from meshd.relay.switchboard import SMALL, WIDE, Limits

SPARE_FILES = 64  # descriptors that are not connections
LOG = log.get("relay")


def metrics(relay: RelayServer) -> str:
    """Return all metrics, without any node's name or address."""
    from meshd.base.metrics import counter, exposition, gauge  # megabytes that most relays do without

    board = relay.board
    counts = board.counts
    now = (
        ("connections", relay.connections, "Connections."),
        ("clients", board.clients, "Nodes that are connected with a proven key."),
        ("circuits", board.circuits, "Circuits between two nodes."),
        ("boxes", board.boxes, "Mailboxes."),
        ("mail_bytes", board.mail_bytes, "Letters that wait."),
        ("resting", relay.resting, "Ends of circuits that are not read now, as their nodes send too fast."),
    )
    so_far = (
        ("carried_bytes", relay.carried_bytes, "Bytes that were forwarded."),
        ("circuits", counts["circuits"], "Circuits that were opened."),
        ("mail", counts["mail"], "Letters that were accepted."),
        ("mail_dropped", board.mail_dropped + counts["mail_dropped"], "Letters that were dropped."),
        ("clients_refused", counts["clients_refused"], "Nodes that were refused."),
        ("connections_refused", counts["connections_refused"], "Connections that were refused."),
        ("tickets_refused", counts["tickets_refused"], "Circuits that were refused."),
        ("rests", counts["rests"], "Times that an end of a circuit was not read for a while."),
        ("stun_answers", counts["stun_answers"], "STUN requests that were answered."),
        ("stun_refused", counts["stun_refused"], "STUN requests that were not answered."),
        (
            "unproven_sent_away",
            relay.sent_away,
            "Connections without a proven key that made room.",
        ),
    )
    families = [gauge(f"meshd_relay_{name}", meaning, value) for name, value, meaning in now]
    families += [counter(f"meshd_relay_{name}", meaning, value) for name, value, meaning in so_far]
    return exposition(families)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """As the command line gives them. `rate`: bytes a second of one key, None for the default.

    `home` is the relay's own folder: only its key lies there.
    """

    home: Path
    host: str = ""
    port: int = 0
    public_host: str = ""
    second_host: str = ""
    meshes: frozenset[MeshId] = frozenset()
    open: bool = False
    rate: int | None = None
    metrics: tuple[str, int] | None = None
    log_level: str = "info"
    log_format: str = "text"


def limits_for(settings: RelaySettings, *, files: int) -> Limits:
    """Return the limits; `--mesh` and `--open` lift the quota of a key. `files`: descriptors that the process
    may have. Pure.
    """
    limits = WIDE if settings.open or settings.meshes else SMALL
    if settings.rate is not None:
        limits = replace(limits, rate=settings.rate, burst=max(4 * settings.rate, 64 << 10))
    most = max(64, files - SPARE_FILES)
    return replace(
        limits,
        connections=min(limits.connections, most),
        clients=min(limits.clients, most // 2),
        circuits=min(limits.circuits, most // 4),
        unproven=min(limits.unproven, most // 4),
    )


def run(settings: RelaySettings, out: Callable[[str], None]) -> int:
    """Relay until stopped; return the exit code. `out` gets the URL. Raises MeshdError."""
    log.set_up(level=settings.log_level, form=settings.log_format)
    try:
        settings.home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"`{settings.home.parent}` cannot be created: {(error.strerror or '').lower()}",
            hint="free space, or set MESHD_HOME to another directory",
        ) from None
    home = Home(settings.home)
    with home.lock(), log.in_background() as note:
        key = home.load_or_create_identity(secrets.token_bytes)
        try:
            return asyncio.run(_Relay(settings, key, out, note).main())
        except ExceptionGroup as group:
            raise first_error(group) from None


class _Relay:
    def __init__(
        self,
        settings: RelaySettings,
        key: KeyPair,
        out: Callable[[str], None],
        note: Callable[[str], object],
    ) -> None:
        self._settings = settings
        self._key = key
        self._out = out
        self._note = note
        self._stopping = asyncio.Event()
        self._exit_code = 0

    async def main(self) -> int:
        """Relay until a signal; return the exit code."""
        loop = asyncio.get_running_loop()
        watch_loop(loop)
        loop.add_signal_handler(signal.SIGTERM, self._stop, 0)
        loop.add_signal_handler(signal.SIGINT, self._stop, 130)
        settings = self._settings
        first, second = stun_hosts(settings.host, settings.second_host, local_addresses.hosts())
        relay = RelayServer(
            Credentials(self._key, None),
            host=settings.host,
            port=settings.port,
            meshes=settings.meshes,
            limits=limits_for(settings, files=raise_limit()),
            first_host=first,
            second_host=second,
        )
        with contextlib.ExitStack() as opened:
            relay.open()
            opened.callback(relay.close)
            metrics = self._metrics(relay, opened)
            async with Owner() as owner:
                owner.start(service_manager().keep_informed(), name="service manager")
                owner.start(relay.serve(), name="relay")
                if metrics is not None:
                    owner.start(metrics.serve(), name="metrics")
                self._announce(relay)
                service_manager().ready()
                await self._stopping.wait()
                owner.cancel()
        return self._exit_code

    def _stop(self, exit_code: int) -> None:
        LOG.info("stopping")
        self._exit_code = exit_code
        self._stopping.set()

    def _metrics(self, relay: RelayServer, opened: contextlib.ExitStack) -> MetricsPort | None:
        if self._settings.metrics is None:
            return None
        host, port = self._settings.metrics
        sock = listen_for_scrapers(host, port, setting="`--metrics 127.0.0.1:9440`")
        opened.callback(sock.close)

        async def shown() -> str:
            return metrics(relay)

        served = MetricsPort(sock, shown)
        self._note(f"metrics: {served.url}")
        return served

    def _announce(self, relay: RelayServer) -> None:
        settings = self._settings
        host = settings.public_host.strip("[]") or public_host(settings.host, local_addresses.hosts())
        if not settings.public_host and not _is_global(host):
            self._note(
                f"`{host}` can only be reached from its own network; "
                "if this host has a public name or address, give it: --public-host NAME"
            )
        url = relay_url(relay.hint(host))
        parse_relay_url(url)  # what cannot be read must not be printed
        self._out(url)
        LOG.info("relay_ready", listen=f"{settings.host or '*'}:{relay.port}")


def public_host(bound: str, hosts: tuple[str, ...]) -> str:
    """Return the host under which others reach this one: where it listens, else a public address, else any.
    Pure.
    """
    if bound not in ("", "::", "0.0.0.0"):
        return bound
    public = [host for host in hosts if _is_global(host)]
    four = [host for host in public if ":" not in host]
    return (four or public or list(hosts) or ["127.0.0.1"])[0]


def stun_hosts(bound: str, second: str, hosts: tuple[str, ...]) -> tuple[str, str]:
    """Return two IPv4 addresses of this host for RFC 5780, or two empty words. Pure.

    `second` is the user's choice; without it two public addresses are needed.
    """
    fours = [host for host in hosts if ":" not in host]
    if bound not in ("", "::", "0.0.0.0"):
        return (bound, second) if second and second != bound else ("", "")
    public = [host for host in fours if _is_global(host)]
    if second:
        others = [host for host in public or fours if host != second]
        return (others[0], second) if others else ("", "")
    return (public[0], public[1]) if len(public) > 1 else ("", "")


def _is_global(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return True  # a name
