"""A listener shows an odd TLS certificate: the proof decides, and what cannot be read ends one dial only.

Nodes show certificates without authority and look at neither dates nor names: only its hash counts, to which
the proof binds the link. So dates, names, curves and extensions must not matter, and no bytes do harm.
"""

import contextlib
import datetime
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID
from meshd.base.errors import MeshdError
from meshd.identity.tls_certificate import LinkCertificate, make_link_certificate
from meshd.link.interface import DialError, LinkKind
from meshd.link.quic.links import QuicDialer, QuicListener
from meshd.link.secure.tls import MAX_HANDSHAKE_BYTES
from meshd.link.tcp.links import TcpDialer, TcpListener
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted

from tests.conformance.links import serving
from tests.conformance.nodes import Node, TestMesh
from tests.conformance.run import DEADLINE

LOOPBACK = "127.0.0.1"
KINDS = (LinkKind.TCP, LinkKind.QUIC)
Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey
OID = x509.ObjectIdentifier("1.3.6.1.4.1.99999.1")


def year(number: int) -> datetime.datetime:
    return datetime.datetime(number, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """The difference of a certificate from one of meshd's own."""

    key: Callable[[], Key] = lambda: ec.generate_private_key(ec.SECP256R1())
    begins: int = 2000
    ends: int = 9999
    chained: int = 0  # so many certificates behind it
    extension: bytes | None = None  # of a critical extension that nobody knows
    name: str = "x"

    def make(self) -> LinkCertificate:
        """Return it with its key, self-signed."""
        key = self.key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)] if self.name else [])
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(year(self.begins))
            .not_valid_after(year(self.ends))
        )
        if self.extension is not None:
            builder = builder.add_extension(x509.UnrecognizedExtension(OID, self.extension), critical=True)
        digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
        made = builder.sign(key, digest)
        der, pem = made.public_bytes(Encoding.DER), made.public_bytes(Encoding.PEM)
        behind = b"".join(make_link_certificate().cert_pem for _ in range(self.chained))
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return LinkCertificate(pem + behind, key_pem, der, hashlib.sha256(der).digest())


HARMLESS = {
    "expired": Odd(begins=1999, ends=2001),
    "not yet valid": Odd(begins=9000),
    "without a name": Odd(name=""),
    "an unknown critical extension": Odd(extension=b"x" * 100),
    "another curve": Odd(key=lambda: ec.generate_private_key(ec.SECP384R1())),
    "Ed25519": Odd(key=ed25519.Ed25519PrivateKey.generate),
    "RSA": Odd(key=lambda: rsa.generate_private_key(65537, 2048)),
    "a chain": Odd(chained=3),
}
HUGE = Odd(extension=bytes(4 * MAX_HANDSHAKE_BYTES))


class Unreadable:
    """Bytes that aioquic sends in place of a certificate."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def public_bytes(self, encoding: Encoding) -> bytes:
        """Return the bytes, whatever the encoding."""
        return self._data


def unpacked(made: LinkCertificate) -> tuple[x509.Certificate, Key]:
    """Return certificate and key, of whatever kind, for aioquic."""
    return x509.load_der_x509_certificate(made.der), cast(Key, load_pem_private_key(made.key_pem, None))


@contextlib.asynccontextmanager
async def listening(kind: LinkKind, far: Node) -> AsyncIterator[Candidate]:
    """A listener of `far`; yields its address."""
    listener: TcpListener | QuicListener
    if kind is LinkKind.TCP:
        listener = TcpListener(far.now, host=LOOPBACK, proof_seconds=2 * DEADLINE)
    else:
        listener = QuicListener(far.now, host=LOOPBACK, proof_seconds=2 * DEADLINE)
    listener.open()
    try:
        async with serving(listener):
            yield Candidate(LOOPBACK, listener.port, "tcp" if kind is LinkKind.TCP else "udp")
    finally:
        if isinstance(listener, QuicListener):
            listener.close()


def dialer_of(kind: LinkKind, near: Node) -> TcpDialer | QuicDialer:
    return TcpDialer(near.now) if kind is LinkKind.TCP else QuicDialer(near.now)


def shown(monkeypatch: pytest.MonkeyPatch, made: LinkCertificate) -> None:
    """Listeners made from now on show this one."""
    monkeypatch.setattr("meshd.link.secure.entrance.make_link_certificate", lambda: made)
    monkeypatch.setattr("meshd.link.quic.engine.unpack_link_certificate", unpacked)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HARMLESS)
async def test_a_members_certificate_may_be_odd(
    kind: LinkKind, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clocks lie: what has expired, or begins in 7000 years, is as good as any other."""
    mesh = TestMesh()
    near, far, stranger = mesh.node(), mesh.node(), mesh.stranger()
    shown(monkeypatch, HARMLESS[name].make())

    async with listening(kind, far) as place:
        link = await dialer_of(kind, near).dial(far.peer, trusted([place]))
        assert link.info.peer == far.peer
        await link.aclose()
    async with listening(kind, stranger) as place:
        with pytest.raises(MeshdError):
            await dialer_of(kind, near).dial(far.peer, trusted([place]))


async def test_a_huge_certificate_ends_the_dial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test TCP; aioquic has no room for so large a one in what a listener sends."""
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()

    with monkeypatch.context() as patch:
        shown(patch, HUGE.make())
        async with listening(LinkKind.TCP, far) as place:
            with pytest.raises(DialError):
                await TcpDialer(near.now).dial(far.peer, trusted([place]))
    async with listening(LinkKind.TCP, far) as place:
        await (await TcpDialer(near.now).dial(far.peer, trusted([place]))).aclose()


@pytest.mark.parametrize("data", [b"", b"\x30", bytes(500), b"\x30\x82\xff\xff" + bytes(300)])
async def test_a_certificate_that_cannot_be_read_ends_a_quic_dial(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL refuses to send such bytes; a QUIC library is Python, and sends anything."""
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    key = ec.generate_private_key(ec.SECP256R1())

    with monkeypatch.context() as patch:
        patch.setattr("meshd.link.quic.engine.unpack_link_certificate", lambda _made: (Unreadable(data), key))
        async with listening(LinkKind.QUIC, far) as place:
            with pytest.raises(DialError):
                await QuicDialer(near.now).dial(far.peer, trusted([place]))
    async with listening(LinkKind.QUIC, far) as place:
        await (await QuicDialer(near.now).dial(far.peer, trusted([place]))).aclose()
