"""The link certificate: fresh each time, usable by ssl, its hash is of the DER form."""

import hashlib
import ssl
from pathlib import Path

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


def test_unpacked_it_is_the_same() -> None:
    made = make_link_certificate()
    certificate, key = unpack_link_certificate(made)
    assert certificate_hash(certificate) == made.sha256
    assert key.public_key() == certificate.public_key()
