"""TLS 1.3 over memory, sans-IO: bytes from the network in, bytes for the network out.

Python's own asyncio TLS copies each record several times; driving the engine by hand more than doubles
the throughput (docs/decisions/0008-tcp-link.md), shows every connection from its first byte on, and works
over anything that carries bytes. No authority is asked and no name checked: the proof inside the link
(handshake.py) shows who both ends are and binds itself to the certificate seen here.
"""

import hashlib
import os
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path

from meshd.base.errors import EndOfStream, RemoteProtocolError, UserError
from meshd.identity.tls_certificate import LinkCertificate

RECORD_BYTES = 16 << 10  # plain bytes of one TLS record at most (RFC 8446 5.1)
MAX_HANDSHAKE_BYTES = 8 << 10  # ours is under 2 KiB, a post-quantum hello adds as much again


def listener_context(certificate: LinkCertificate) -> ssl.SSLContext:
    """Return a server context with `certificate`. Blocking: the standard library takes it from a file only.

    Raises UserError when no file can be made for it.
    """
    try:
        return _listener_context(certificate)
    except OSError as error:
        if isinstance(error, ssl.SSLError):
            raise
        raise UserError(
            f"cannot create a file in `{tempfile.gettempdir()}`: {(error.strerror or str(error)).lower()}",
            hint="free space on that disk, or set TMPDIR to another directory",
        ) from error


def _listener_context(certificate: LinkCertificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # resumption would skip the certificate, which the proof is bound to
    context.verify_mode = ssl.CERT_NONE
    with tempfile.TemporaryDirectory(prefix="meshd-tls-") as folder:  # made 0700
        file = Path(folder) / "link.pem"
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(certificate.cert_pem + certificate.key_pem)
        context.load_cert_chain(file)
    return context


def dialer_context() -> ssl.SSLContext:
    """Return a client context that takes any certificate: the proof decides, not an authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class TlsEngine:
    """One end of one TLS connection. After an error nothing but `outgoing` may be called."""

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None
    ) -> None:
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        # Nothing received is left to unseal, the other side's goodbye included; part of a record may wait.
        self.drained = False
        self._tls = context.wrap_bio(
            self._in, self._out, server_side=server_side, server_hostname=server_hostname
        )

    def feed(self, data: bytes | memoryview) -> None:
        """Take bytes from the network; `advance` or `unseal` must follow, or they pile up."""
        self._in.write(data)

    def outgoing(self) -> bytes:
        """Return the bytes for the network made since the last call."""
        return self._out.read() if self._out.pending else b""

    def advance(self) -> bool:
        """Continue the handshake; True when it is done. Raises RemoteProtocolError (code `tls`)."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise _broken(error) from error
        return True

    def binding(self) -> bytes:
        """Return the SHA-256 of the other side's certificate (DER); only the dialler sees one.

        Raises RemoteProtocolError (code `tls`).
        """
        certificate = self._tls.getpeercert(binary_form=True)
        if not certificate:
            raise RemoteProtocolError("the listener showed no certificate", code="tls")
        return hashlib.sha256(certificate).digest()

    def seal(self, pieces: Sequence[bytes | memoryview]) -> bytes:
        """Return the pieces, in order, as bytes for the network (with whatever else was waiting to go out).

        Every record but the last is full: one more costs more, at both ends, than copying what fills it.
        """
        if len(pieces) == 1 or sum(map(len, pieces)) <= RECORD_BYTES:
            self._write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            return self._out.read()
        rest: list[bytes | memoryview] = []  # of the pieces before: less than a record
        held = 0
        for piece in pieces:
            size = len(piece)
            if held + size < RECORD_BYTES:
                rest.append(piece)
                held += size
                continue
            view = memoryview(piece)
            start = RECORD_BYTES - held if held else 0
            if held:
                self._write(b"".join((*rest, view[:start])))
            held = (size - start) % RECORD_BYTES
            self._write(view[start : size - held])
            rest = [view[size - held :]]
        self._write(b"".join(rest))
        return self._out.read()

    def _write(self, data: bytes | memoryview) -> None:
        count = self._tls.write(data) if data else 0  # one record at each call
        if count < len(data):
            view = memoryview(data)
            while count < len(view):
                count += self._tls.write(view[count:])

    def unseal(self, space: memoryview) -> int:
        """Read plain bytes into `space` until it is full or no more are there; returns how many.

        Raises EndOfStream when the other side ended the connection cleanly and nothing was read before,
        RemoteProtocolError (code `tls`) when the bytes are not what the other side sent.
        """
        filled, size = 0, len(space)
        self.drained = False
        try:
            while filled < size:
                # the stubs say bytes for both of its forms; into a buffer it returns a count
                count: int = self._tls.read(size - filled, space[filled:])  # type: ignore[assignment]
                if not count:
                    raise ssl.SSLZeroReturnError
                filled += count
                # The last record is seldom a full one; and what is left of one would have filled the space.
                is_last = count < RECORD_BYTES and not self._in.pending
                if is_last and (filled < size or not self._tls.pending()):
                    self.drained = True
                    break  # asking once more would cost an exception to say so
        except ssl.SSLWantReadError:
            self.drained = True
        except ssl.SSLZeroReturnError:
            if not filled:
                raise EndOfStream("the other side ended the link") from None
        except ssl.SSLError as error:
            raise _broken(error) from error
        return filled

    def finish(self) -> None:
        """Say goodbye (close_notify); `outgoing` then has it."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # the other side's goodbye is not there yet, or the connection never came to be


def _broken(error: ssl.SSLError) -> RemoteProtocolError:
    reason = (error.reason or "error").lower().replace("_", " ")
    return RemoteProtocolError(f"TLS failed: {reason}", code="tls")
