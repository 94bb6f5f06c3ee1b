"""Forward traffic between nodes that cannot connect directly, until you stop it. Needs a public address.

Prints the relay's URL, with its public key, on standard output. Start nodes with --relay URL. The relay
cannot read the traffic, which the nodes encrypt, and cannot admit anyone to a mesh. Without --mesh or --open
it serves any mesh, with low limits for each node.
"""

import argparse

from meshd.base.errors import UsageError
from meshd.cli.options import Arguments, rate
from meshd.cli.output import Output
from meshd.config.tree import home_here

DEFAULT_PORT = 17443


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where to listen, for whom, how much."""
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=f":{DEFAULT_PORT}",
        help=f"TCP and UDP port (default: {DEFAULT_PORT} on all addresses; 443 passes most firewalls)",
    )
    parser.add_argument(
        "--public-host",
        metavar="NAME",
        default="",
        help="name or address of this host to put into the URL (default: its public address)",
    )
    parser.add_argument(
        "--second-host",
        metavar="ADDRESS",
        default="",
        help="second public address of this host, which shows nodes their kind of NAT (default: detected)",
    )
    parser.add_argument(
        "--mesh",
        metavar="ID",
        action="extend",
        nargs="+",
        default=[],
        help="serve only these meshes (`mesh.id` of `meshd status --json`) (default: any)",
    )
    parser.add_argument(
        "--open", action="store_true", help="serve any mesh without the low limits for each node"
    )
    parser.add_argument(
        "--rate",
        metavar="RATE",
        help="at most so much a second for each node, such as 20Mbit or 2.5MB; 0: no limit (default: 1 MiB; "
        "with --mesh or --open, no limit)",
    )
    parser.add_argument(
        "--metrics", metavar="HOST:PORT", help="serve metrics for Prometheus over HTTP, on loopback only"
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        metavar="text|json",
        help="log format (default: text)",
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        metavar="LEVEL",
        help="lowest level to log: debug, info, warning or error (default: info)",
    )


def run(args: Arguments, out: Output) -> int:
    """Run the relay itself; return its exit code."""
    from meshd.identity.keys import MeshId
    from meshd.relay.run import RelaySettings
    from meshd.relay.run import run as run_relay

    host, port = _place("--listen", args.listen)
    settings = RelaySettings(
        home=home_here() / "relay",
        host=host,
        port=port,
        public_host=args.public_host,
        second_host=args.second_host.strip("[]"),
        meshes=frozenset(MeshId.parse(mesh) for mesh in args.mesh),
        open=args.open,
        rate=_rate(args.rate),
        metrics=_place("--metrics", args.metrics) if args.metrics else None,
        log_level=args.log_level,
        log_format=args.log_format,
    )
    return run_relay(settings, out.line)


def _place(option: str, text: str) -> tuple[str, int]:
    from meshd.config.forms import ADDRESS, parse_address

    try:
        found = parse_address(text)
    except ValueError:
        raise UsageError(f"cannot use `{option} {text}`: expected {ADDRESS.expected}") from None
    return found.host, found.port


def _rate(text: str | None) -> int | None:
    if text is None:
        return None
    return 0 if text.strip() == "0" else rate("--rate", text)
