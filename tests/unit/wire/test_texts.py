"""Reasons and names of any kind get through: no message is refused for the words in it."""

from hypothesis import given
from hypothesis import strategies as st
from meshd.wire import hello, lease
from meshd.wire.limits import MAX_TEXT_BYTES
from meshd.wire.message import plain

texts = st.text(st.characters(), max_size=40) | st.text(max_size=4).map(lambda text: text * 400)


@given(texts, st.integers(0, 50) | st.just(MAX_TEXT_BYTES))
def test_plain_text_is_printable_and_short(text: str, most: int) -> None:
    made = plain(text, most)
    assert made.isprintable()
    assert len(made.encode()) <= most
    assert plain(made, most) == made


def test_good_text_stays() -> None:
    assert plain("cannot read `modèle.gguf`") == "cannot read `modèle.gguf`"
    assert plain("a\nb\x1b\ud800") == "a?b??"
    assert plain("ää", 3) == "ä"


@given(texts, texts)
def test_refusals_are_read_whatever_they_say(text: str, hint: str) -> None:
    assert isinstance(hello.decode(hello.Refusal("code", text, hint).encode()), hello.Refusal)
    assert isinstance(hello.decode_joining(hello.NotAdmitted("code", text, hint).encode()), hello.NotAdmitted)
    assert isinstance(lease.decode(lease.Lost("code", text, hint).encode()), lease.Lost)
    assert isinstance(lease.decode(lease.Progress(text).encode()), lease.Progress)


@given(texts)
def test_any_model_name_can_be_asked_for(name: str) -> None:
    asked = lease.Acquire(bytes(16), name, "f" * 64, "pin")
    assert isinstance(lease.decode(asked.encode()), lease.Acquire)
