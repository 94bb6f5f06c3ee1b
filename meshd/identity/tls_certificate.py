"""The TLS certificate of a link's listener: self-signed, random, new at each start.

It does not identify the listener: that is done inside the link by the proof, which both ends
bind to this certificate's hash. So it needs no name that means anything and no authority.
"""

import datetime
import hashlib
import secrets
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

# RFC 5280 4.1.2.5: "no well-defined expiry". Nobody checks the dates; a clock that lies must not matter.
_NOT_BEFORE = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class LinkCertificate:
    """`sha256` (of `der`) is the binding of the proof."""

    cert_pem: bytes
    key_pem: bytes = field(repr=False)
    der: bytes = field(repr=False)
    sha256: bytes


def make_link_certificate() -> LinkCertificate:
    """Make a fresh ECDSA P-256 key with a self-signed certificate under a random name."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, secrets.token_hex(8))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .sign(key, hashes.SHA256())
    )
    der = certificate.public_bytes(Encoding.DER)
    return LinkCertificate(
        cert_pem=certificate.public_bytes(Encoding.PEM),
        key_pem=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        der=der,
        sha256=hashlib.sha256(der).digest(),
    )


def unpack_link_certificate(made: LinkCertificate) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return certificate and key as the library's objects, for callers that take no PEM."""
    key = load_pem_private_key(made.key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return x509.load_der_x509_certificate(made.der), key


def certificate_hash(certificate: x509.Certificate) -> bytes:
    """Return the SHA-256 of its DER form, as `LinkCertificate.sha256`."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).digest()
