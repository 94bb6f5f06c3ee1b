"""The daemon: the only place where the parts are built and connected (composition root)."""
