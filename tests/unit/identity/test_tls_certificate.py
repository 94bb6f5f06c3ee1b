"""The link certificate: fresh each time, usable by ssl, its hash is of the DER form."""

import datetime
import hashlib
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from meshd.identity.tls_certificate import certificate_hash, make_link_certificate, unpack_link_certificate


def test_each_certificate_is_another() -> None:
    one, two = make_link_certificate(), make_link_certificate()
    assert one.sha256 != two.sha256
    assert one.key_pem != two.key_pem


def test_the_hash_is_of_what_the_other_side_sees() -> None:
    made = make_link_certificate()
    assert ssl.PEM_cert_to_DER_cert(made.cert_pem.decode()) == made.der
    assert hashlib.sha256(made.der).digest() == made.sha256


def test_ssl_takes_it(tmp_path: Path) -> None:
    made = make_link_certificate()
    (tmp_path / "pem").write_bytes(made.cert_pem + made.key_pem)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "pem")


def test_the_private_key_is_not_shown() -> None:
    assert "PRIVATE" not in repr(make_link_certificate())


def test_its_fields_are_those_of_rfc_5280() -> None:
    made = make_link_certificate()
    certificate = x509.load_der_x509_certificate(made.der)
    key = load_pem_private_key(made.key_pem, password=None)
    assert certificate.version is x509.Version.v3
    assert 0 < certificate.serial_number < 1 << 159  # 20 octets at most
    assert certificate.issuer == certificate.subject
    assert [part.oid for part in certificate.subject] == [x509.NameOID.COMMON_NAME]
    assert certificate.not_valid_before_utc == datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
    assert certificate.not_valid_after_utc == datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
    assert certificate.public_key() == key.public_key()
    certificate.verify_directly_issued_by(certificate)  # its signature is of this key


def test_unpacked_it_is_the_same() -> None:
    made = make_link_certificate()
    certificate, key = unpack_link_certificate(made)
    assert certificate_hash(certificate) == made.sha256
    assert key.public_key() == certificate.public_key()
