"""The keys of two mesh-servers that seal what they exchange."""

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from meshd.base.errors import LocalProtocolError
from meshd.identity.push_keys import PUSH_SECRET_BYTES, PushKeys

SECRET, TAG = bytes(range(32)), b"a tag of 16 byte"


def test_each_direction_and_each_connection_has_keys_of_its_own() -> None:
    keys = PushKeys.derive(SECRET, TAG)
    others = [PushKeys.derive(SECRET, bytes(16)), PushKeys.derive(bytes(32), TAG)]
    found = {key for one in (keys, *others) for key in (one.opener, one.other)}
    assert len(found) == 6 and {len(key) for key in found} == {32}
    assert keys == PushKeys.derive(SECRET, TAG)


def test_they_are_those_of_the_standard() -> None:
    keys = PushKeys.derive(SECRET, TAG)
    for key, what in ((keys.opener, b"from opener "), (keys.other, b"to opener ")):
        assert key == HKDF(SHA256(), 32, salt=b"meshd push v1", info=what + TAG).derive(SECRET)


def test_no_log_shows_them() -> None:
    assert repr(PushKeys.derive(SECRET, TAG)) == "PushKeys()"


@pytest.mark.parametrize("size", [0, PUSH_SECRET_BYTES - 1, PUSH_SECRET_BYTES + 1])
def test_a_secret_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(LocalProtocolError):
        PushKeys.derive(bytes(size), TAG)
