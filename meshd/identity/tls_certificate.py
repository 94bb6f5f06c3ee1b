"""The TLS certificate of a link's listener: self-signed, random, new at each start.

It does not identify the listener: that is done inside the link by the proof, which both ends
bind to this certificate's hash. So it needs no name that means anything and no authority.

It is the only certificate that meshd makes, and nobody reads its fields. So it is encoded here (RFC 5280,
4.1): cryptography.x509, which only QUIC loads, is 1.3 MB of a node's memory.
"""

import hashlib
import secrets
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

# Tags of DER (X.690, 8.1.2); `_VERSION` is the explicit tag [0].
_INTEGER, _BIT_STRING, _OID, _UTF8, _UTC_TIME, _TIME = 0x02, 0x03, 0x06, 0x0C, 0x17, 0x18
_SEQUENCE, _SET, _VERSION = 0x30, 0x31, 0xA0
_COMMON_NAME = bytes.fromhex("550403")  # 2.5.4.3
_ECDSA_WITH_SHA256 = bytes.fromhex("2a8648ce3d040302")  # 1.2.840.10045.4.3.2 (RFC 5758, 3.2)
_V3 = b"\x02"
_SERIAL_BYTES = 16


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
    algorithm = _der(_SEQUENCE, _der(_OID, _ECDSA_WITH_SHA256))
    common_name = _der(_SEQUENCE, _der(_OID, _COMMON_NAME), _der(_UTF8, secrets.token_hex(8).encode()))
    name = _der(_SEQUENCE, _der(_SET, common_name))
    # 4.1.2.5: years up to 2049 have two digits; the end is "no well-defined expiry". Nobody checks the dates,
    # as a clock that lies must not matter.
    validity = _der(_SEQUENCE, _der(_UTC_TIME, b"000101000000Z"), _der(_TIME, b"99991231235959Z"))
    signed = _der(
        _SEQUENCE,
        _der(_VERSION, _der(_INTEGER, _V3)),
        _der(_INTEGER, b"\x01" + secrets.token_bytes(_SERIAL_BYTES)),  # positive, without a leading zero
        algorithm,
        name,
        validity,
        name,
        key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    )
    signature = b"\0" + key.sign(signed, ec.ECDSA(hashes.SHA256()))  # no bits unused
    der = _der(_SEQUENCE, signed, algorithm, _der(_BIT_STRING, signature))
    return LinkCertificate(
        cert_pem=ssl.DER_cert_to_PEM_cert(der).encode(),
        key_pem=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        der=der,
        sha256=hashlib.sha256(der).digest(),
    )


def unpack_link_certificate(made: LinkCertificate) -> tuple["Certificate", ec.EllipticCurvePrivateKey]:
    """Return certificate and key as the library's objects, for callers that take no PEM."""
    from cryptography.x509 import load_der_x509_certificate

    key = load_pem_private_key(made.key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return load_der_x509_certificate(made.der), key


def certificate_hash(certificate: "Certificate") -> bytes:
    """Return the SHA-256 of its DER form, as `LinkCertificate.sha256`."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).digest()


def _der(tag: int, *parts: bytes) -> bytes:
    """Return tag, length and content (X.690, 8.1.3), of less than 64 KiB."""
    content = b"".join(parts)
    length = len(content).to_bytes(1 if len(content) < 0x100 else 2)
    if len(content) >= 0x80:
        length = bytes([0x80 + len(length)]) + length
    return bytes([tag]) + length + content
