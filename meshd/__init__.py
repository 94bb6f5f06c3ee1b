"""meshd: one GGUF model over several machines."""

__version__ = "0.1.0"
