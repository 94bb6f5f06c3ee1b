"""The daemon: the only place where the parts are built and joined (composition root)."""

from meshd.daemon.run import run

__all__ = ["run"]
