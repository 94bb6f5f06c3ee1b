"""Import from aiortc what meshd uses, without PyAV. Import this module on demand.

aiortc imports PyAV (104 MB of FFmpeg) for sound and pictures, which meshd does not send, and names its
classes in annotations alone. Empty classes take their place until aiortc is imported; afterwards nothing is
left of them. So PyAV need not be installed (docs/decisions/0078).
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_MEDIA = "av"


class _Empty(ModuleType):
    """A module that has every class it is asked for; each is empty."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__module__": self.__name__})


class _Finder(MetaPathFinder, Loader):
    """Finds PyAV and all modules below it, and makes them up."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != _MEDIA:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: it is complete."""


@contextmanager
def without_media() -> Iterator[None]:
    """Make up PyAV in this block, unless somebody has imported it."""
    if _MEDIA in sys.modules:
        yield
        return
    finder = _Finder()
    sys.meta_path = [finder, *sys.meta_path]  # another list: other threads may be reading this one
    try:
        yield
    finally:
        sys.meta_path = [other for other in sys.meta_path if other is not finder]
        for name in list(sys.modules):
            if name.partition(".")[0] == _MEDIA:
                del sys.modules[name]


with without_media():
    from aiortc import (
        RTCCertificate,
        RTCDtlsFingerprint,
        RTCDtlsParameters,
        RTCDtlsTransport,
        RTCSctpCapabilities,
        RTCSctpTransport,
    )
    from aiortc.rtcdtlstransport import State
    from aiortc.rtcsctptransport import Chunk

__all__ = (
    "Chunk",
    "RTCCertificate",
    "RTCDtlsFingerprint",
    "RTCDtlsParameters",
    "RTCDtlsTransport",
    "RTCSctpCapabilities",
    "RTCSctpTransport",
    "State",
)
