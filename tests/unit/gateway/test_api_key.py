"""Lines of a key file: keys, names, limits; what is wrong is told without repeating a line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.gateway.api_key import LIMIT_NAMES, ApiKey, KeyLimits, parse_keys


def test_a_key_may_have_a_name_and_limits() -> None:
    text = "sk-desk-1234\nsk-anna-1234  name=anna tokens_per_day=1000\tconcurrent=2 requests_per_minute=60\n"
    first, second = parse_keys(text, label="keys")
    assert first == ApiKey("sk-desk-1234", "key-1", KeyLimits())
    assert second == ApiKey("sk-anna-1234", "anna", KeyLimits(2, 60, 1000))


@pytest.mark.parametrize(
    ("rest", "what"),
    [
        ("sk-another-secret", "something else"),
        ("name=anna name=bob", "something else"),
        ("colour=red-secret", "something else"),
        ("name=", "not a name"),
        ("name=-secret", "not a name"),
        (f"name={'a' * 64}", "not a name"),
        ("concurrent=0", "not a number"),
        ("concurrent=two-secret", "not a number"),
        ("tokens_per_day=-1", "not a number"),
        ("tokens_per_day=99999999999999", "not a number"),
        ("requests_per_minute=1e3", "not a number"),
    ],
)
def test_a_bad_option_is_told_without_the_line(rest: str, what: str) -> None:
    with pytest.raises(UserError, match=what) as caught:
        parse_keys(f"# first\nsk-12345678 {rest}", label="keys")
    told = caught.value.what + caught.value.hint
    assert "line 2" in told and "secret" not in told and "sk-1" not in told


def test_names_are_unique() -> None:
    with pytest.raises(UserError, match="`anna`"):
        parse_keys("sk-12345678 name=anna\nsk-87654321 name=anna", label="keys")
    with pytest.raises(UserError, match="`key-2`"):
        parse_keys("sk-12345678 name=key-2\nsk-87654321", label="keys")


def test_a_secret_is_not_in_what_is_printed_of_a_key() -> None:
    assert "sk-12345678" not in repr(ApiKey("sk-12345678"))


@given(
    st.lists(st.tuples(st.sampled_from(LIMIT_NAMES), st.integers(1, 10**12)), unique_by=lambda one: one[0])
)
def test_all_limits_are_read(limits: list[tuple[str, int]]) -> None:
    line = " ".join(["sk-12345678", *(f"{name}={value}" for name, value in limits)])
    (key,) = parse_keys(line, label="keys")
    assert {name: getattr(key.limits, name) for name in LIMIT_NAMES} == dict.fromkeys(LIMIT_NAMES) | dict(
        limits
    )


@given(st.text())
def test_any_text_is_keys_or_an_error(text: str) -> None:
    try:
        keys = parse_keys(text, label="keys")
    except UserError as error:
        assert error.what and error.hint
    else:
        assert len({key.name for key in keys}) == len(keys)
