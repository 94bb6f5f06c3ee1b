"""`meshd --version`: meshd's version, the wire protocol's, the native pin with the hash of our sources."""

from meshd import __version__
from meshd.cli.output import Output


def run(out: Output) -> int:
    """Print three lines; nothing has to be built for them."""
    from meshd.build.pin import read_pin
    from meshd.wire.hello import WIRE_VERSION

    out.line(f"meshd {__version__}")
    out.line(f"wire protocol {WIRE_VERSION}")
    pin = read_pin()
    out.line(f"native {pin.name} {pin.commit} sources {pin.sources_sha256[:12]}")
    return 0
