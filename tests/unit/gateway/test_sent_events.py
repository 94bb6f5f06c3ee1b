"""Streams that are resumed after a loss."""

import json
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.peer_limits import ANSWER_EVENTS
from meshd.gateway.continuation import OtherAnswer
from meshd.gateway.events import EVENT_BYTES, MOST_AGAIN_SECONDS, KeptEvents, SentEvents, whole_events


def asked_again(made: SentEvents, asked: bytes, *prompts: str) -> tuple[bytes | None, int]:
    """The next request, if the template makes these prompts, and how many questions it was asked."""
    left, asking = list(prompts), made.next_request(asked)
    questions = 0
    try:
        next(asking)
        while True:
            questions += 1
            asking.send(left.pop(0) if left else "")
    except StopIteration as end:
        return end.value, questions


def next_request(made: SentEvents, asked: bytes, *prompts: str) -> bytes | None:
    return asked_again(made, asked, *prompts)[0]


@given(st.lists(st.binary(max_size=300_000), max_size=4))
def test_it_comes_back_in_pieces(parts: list[bytes]) -> None:
    kept = KeptEvents()
    assert all(kept.add(part) for part in parts)
    pieces = list(kept.read())
    assert b"".join(pieces) == b"".join(parts)
    assert all(len(piece) <= 64 << 10 for piece in pieces)


def test_what_compresses_badly_is_bounded_as_well_as_what_compresses_to_nothing() -> None:
    for piece, most in ((random.Random(1).randbytes(1 << 20), 5 << 20), (bytes(1 << 20), 65 << 20)):
        kept, sent = KeptEvents(), 0
        while kept.add(piece):
            sent += len(piece)
            assert sent < most


@pytest.mark.parametrize("event", [b":\n\n", b":\r\n\r\n", b":\r\r", b"data:1\n\n", b"\n\n\n"])
@pytest.mark.parametrize("at_once", [1, 5000])
def test_events_of_a_few_bytes_are_bounded_by_their_number(event: bytes, at_once: int) -> None:
    kept, added = KeptEvents(), b""
    while kept.add(event * at_once):
        added += event * at_once
    assert len(added) / len(event) <= ANSWER_EVENTS.most + at_once
    assert sum(1 for _ in whole_events(added)) <= ANSWER_EVENTS.most


@pytest.mark.parametrize("event", [b":\n\n", b"data:1\n\n"])
def test_a_million_events_are_not_looked_at(event: bytes) -> None:
    sent = SentEvents("/v1/chat/completions", own_seed=True)
    for _ in range(200):
        sent.unsent(event * 5000, 0.0)
    began = time.thread_time()
    assert next_request(sent, b'{"messages":[]}') is None
    assert time.thread_time() - began < 0.1


CHAT = "/v1/chat/completions"
TRANSCRIPT = "/v1/audio/transcriptions"  # not to be continued, only made again


def event(text: str | None, run: str, **more: object) -> bytes:
    delta = {"role": "assistant", "content": None} if text is None else {"content": text}
    fields = {"id": f"chatcmpl-{run}", "created": len(run), "choices": [{"index": 0, "delta": delta}]}
    return b"data: " + json.dumps(fields | more).encode() + b"\n\n"


def typed(kind: str, text: str, run: str) -> bytes:
    data = json.dumps({"type": kind, "delta": text, "id": f"msg_{run}{run}"})
    return f"event: {kind}\ndata: {data}\n\n".encode()


def body(**fields: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def sent(*events: bytes, path: str = CHAT, own_seed: bool = True) -> SentEvents:
    made = SentEvents(path, own_seed=own_seed)
    for one in events:
        assert made.unsent(one, 0.0) == one, "the first run is passed on as it is"
    return made


def test_the_rest_is_asked_for_and_goes_on_under_the_first_id() -> None:
    made = sent(event(None, "aaaaaaaa"), event("Once ", "aaaaaaaa"), event("upon", "aaaaaaaa"))
    request = next_request(made, body(max_tokens=10))
    assert request is not None
    asked = json.loads(request)
    assert asked["messages"][-1] == {"role": "assistant", "content": "Once upon"}
    assert asked["continue_final_message"] == "content" and asked["add_generation_prompt"] is False
    assert asked["max_tokens"] == 8
    assert made.unsent(event(None, "bbbbbbbbb"), 0.0) == b"", "it has a beginning"
    assert made.unsent(event(" a", "bbbbbbbbb"), 0.0) == event(" a", "aaaaaaaa")
    usage = {"completion_tokens": 3, "prompt_tokens": 20}
    whole = {"completion_tokens": 5, "prompt_tokens": 18}
    (line,) = made.unsent(event("", "bbbbbbbbb", usage=usage), 0.0).splitlines()[:1]
    assert json.loads(line.removeprefix(b"data: "))["usage"] == whole
    made.run_ended()
    again = next_request(made, body(max_tokens=10))
    assert again is not None and json.loads(again)["messages"][-1]["content"] == "Once upon a"


def test_the_same_again_is_compared_and_only_what_is_new_is_sent() -> None:
    first = [typed("response.output_text.delta", text, "aaaa") for text in ("x", "y")]
    made = sent(*first, path=TRANSCRIPT)
    asked = body(seed=3)
    assert next_request(made, asked) == asked
    assert made.unsent(typed("response.output_text.delta", "x", "bbbb"), 0.0) == b""
    with_new = typed("response.output_text.delta", "y", "bbbb") + typed("response.done", "z", "bbbb")
    assert made.unsent(with_new, 0.0) == typed("response.done", "z", "aaaa")
    made.run_ended()


@pytest.mark.parametrize("late", [False, True])
def test_a_greedy_answer_is_made_again_while_that_takes_seconds(late: bool) -> None:
    made = SentEvents(CHAT, own_seed=True)
    seconds = MOST_AGAIN_SECONDS + late
    for text, at in (("Once", 100.0), (" upon", 100.0 + seconds)):
        assert made.unsent(event(text, "aaaaaaaa"), at) == event(text, "aaaaaaaa")
    asked = body(temperature=0, max_tokens=10)
    request = next_request(made, asked)
    assert (request == asked) is not late
    if late:
        return
    assert made.unsent(event("Once", "bbbbbbbb"), 500.0) == b""
    assert next_request(made, asked) == asked, "a run that was lost sooner does not make it any shorter"
    assert made.unsent(event("Once", "cccccccc"), 600.0) == b""
    with pytest.raises(OtherAnswer):
        made.unsent(event(" again", "cccccccc"), 601.0)
    rest = next_request(made, asked)
    assert rest is not None and json.loads(rest)["messages"][-1]["content"] == "Once upon"


@pytest.mark.parametrize("how", ["differs", "shorter", "long event"])
def test_another_answer_is_not_joined(how: str) -> None:
    made = sent(typed("d", "x", "aaaa"), typed("d", "y", "aaaa"), path=TRANSCRIPT)
    assert next_request(made, body()) is not None
    assert made.unsent(typed("d", "x", "bbbb"), 0.0) == b""
    with pytest.raises(OtherAnswer):
        if how == "differs":
            made.unsent(typed("d", "z", "bbbb"), 0.0)
        elif how == "shorter":
            made.run_ended()
        else:
            made.in_pieces()
    assert next_request(made, body()) is None


def test_a_seed_that_the_client_gave_decides_unless_the_answer_differs() -> None:
    made = sent(event(None, "aaaaaaaa"), event("Once", "aaaaaaaa"), own_seed=False)
    asked = body(seed=5, temperature=1)
    assert next_request(made, asked) == asked, "the very same draws"
    made.unsent(event(None, "bbbbbbbb"), 0.0)
    with pytest.raises(OtherAnswer):
        made.unsent(event("Twice", "bbbbbbbb"), 0.0)
    rest = next_request(made, asked)
    assert rest is not None and json.loads(rest)["messages"][-1]["content"] == "Once"


def a_call(arguments: str, run: str, name: str = "") -> bytes:
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    one = {"index": 0, **({"id": f"call_{run}"} if name else {}), "function": function}
    fields = {"id": f"chatcmpl-{run}", "choices": [{"index": 0, "delta": {"tool_calls": [one]}}]}
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def begun_call(**asked: object) -> tuple[SentEvents, bytes]:
    made = sent(event(None, "aaaaaaaa"), a_call("{", "aaaaaaaa", "f"), a_call('"x', "aaaaaaaa"))
    return made, body(tools=[{"type": "function"}], max_tokens=9, **asked)


WRITTEN = '<call>f meshd-content{"meshd-arguments-0": 0}'


def test_a_call_goes_on_once_the_template_is_known() -> None:
    made, asked = begun_call()
    rest, questions = asked_again(made, asked, "<a>", WRITTEN)
    assert questions == 2
    assert rest is not None and json.loads(rest)["messages"][-1]["content"] == '{"x'
    again = event(None, "bbbbbbbb") + a_call('{"x', "bbbbbbbb", "f") + a_call('y"', "bbbbbbbb")
    fresh = made.unsent(again, 0.0)
    assert json.loads(fresh.removeprefix(b"data: ")) == json.loads(
        a_call('y"', "aaaaaaaa").removeprefix(b"data: ")
    )
    rest, questions = asked_again(made, asked, "<a>", WRITTEN)
    assert questions == 2, "of what is sent by now"
    assert rest is not None and json.loads(rest)["messages"][-1]["content"] == '{"xy"'


def test_the_template_is_asked_only_for_a_call_that_goes_on() -> None:
    made, asked = begun_call(temperature=0)
    assert asked_again(made, asked) == (asked, 0), "the same is asked for"
    with pytest.raises(OtherAnswer):
        made.unsent(event(None, "bbbbbbbb") + a_call("[", "bbbbbbbb", "f"), 0.0)
    assert asked_again(made, asked)[1] == 1
    for without in (sent(event("Once", "aaaaaaaa")), sent(typed("d", "x", "aaaa"), path=TRANSCRIPT)):
        assert asked_again(without, body())[1] == 0


@pytest.mark.parametrize("template", ["unknown", "otherwise"])
def test_a_call_that_cannot_be_written_is_made_again(template: str) -> None:
    made, asked = begun_call()
    request, questions = asked_again(made, asked, *(["<a>", WRITTEN] if template == "otherwise" else []))
    assert questions > 0
    if template == "otherwise":
        with pytest.raises(OtherAnswer):
            made.unsent(a_call('{ "x', "bbbbbbbb", "f"), 0.0)
        request, questions = asked_again(made, asked)
        assert questions == 0
    assert request == asked, "no event of the rest was sent"


def test_the_same_is_asked_for_where_llama_server_refuses_the_rest() -> None:
    made, asked = sent(event("{", "aaaaaaaa")), body(response_format={"type": "json_object"})
    rest = next_request(made, asked)
    assert rest is not None and rest != asked
    with pytest.raises(OtherAnswer, match="samplers"):
        made.rest_is_refused("Failed to initialize samplers")
    assert next_request(made, asked) == asked
    made.rest_is_refused("too long")  # of the same that is the answer


def test_what_went_on_once_is_not_made_again() -> None:
    made, asked = sent(event("{", "aaaaaaaa")), body()
    assert next_request(made, asked) not in (None, asked)
    assert made.unsent(event("}", "bbbbbbbb"), 0.0)
    assert next_request(made, asked) not in (None, asked)
    made.rest_is_refused("no")
    assert next_request(made, asked) not in (None, asked), "the client has more than the first run had"


def nested(levels: int) -> bytes:
    return b'data: {"choices":' + b"[" * levels + b"]" * levels + b"}\n\n"


@pytest.mark.parametrize("levels", [300, 600, 900, 1500, 9000])
def test_an_event_nested_too_deeply_is_passed_on_and_joined_to_nothing(levels: int) -> None:
    made = sent(event("Once", "aaaaaaaa"), nested(levels))
    assert made.unsent(event(" upon", "aaaaaaaa"), 0.0) == event(" upon", "aaaaaaaa")
    again = sent(typed("response.output_text.delta", "Once", "aaaa"), path=TRANSCRIPT)
    assert next_request(again, body()) == body()
    with pytest.raises(OtherAnswer):
        again.unsent(nested(levels), 0.0)


def test_long_events_are_joined_like_short_ones() -> None:
    long = "x" * EVENT_BYTES
    made = sent(event(long, "aaaaaaaa"), event("y", "aaaaaaaa"))
    rest = next_request(made, body())
    assert rest is not None and json.loads(rest)["messages"][-1]["content"] == long + "y"


def test_an_answer_that_is_too_long_is_passed_on_and_joined_to_nothing() -> None:
    piece = event("x" * 1_000_000, "aaaaaaaa")
    made = sent(*[piece] * 70)
    assert next_request(made, body()) is None


def test_blank_lines_end_events_however_they_are_written() -> None:
    one = event("a", "aaaaaaaa")
    for line in (b"\r\n\r\n", b"\n\r\n", b"\r\r"):
        made = sent(one.strip() + line + one)
        rest = next_request(made, body())
        assert rest is not None and json.loads(rest)["messages"][-1]["content"] == "aa"


def test_an_event_that_came_in_pieces_ends_it() -> None:
    made = SentEvents(CHAT, own_seed=True)
    made.in_pieces()
    assert made.unsent(b"data: {", 0.0) == b"data: {"
    assert next_request(made, body()) is None


def test_progress_and_comments_are_of_one_run() -> None:
    progress = b'data: {"prompt_progress": {"processed": 3}, "choices": []}\n\n'
    made = sent(progress, b": waiting\n\n", event("a", "aaaaaaaa"), event("b", "aaaaaaaa"), own_seed=False)
    assert next_request(made, body(seed=1)) == body(seed=1)
    assert made.unsent(progress + progress + event("a", "bbbbbbbb"), 0.0) == b""
    assert made.unsent(event("b", "bbbbbbbb") + event("c", "bbbbbbbb"), 0.0) == event("c", "aaaaaaaa")


def tool_calls(*ids: str) -> bytes:
    return b"data: " + json.dumps({"calls": [{"id": one} for one in ids]}).encode() + b"\n\n"


@given(st.text('{}[]"\\:,abu0. ', max_size=30), st.lists(st.text(max_size=20), max_size=4))
def test_arguments_of_any_shape_are_read(arguments: str, prompts: list[str]) -> None:
    made = sent(event(None, "aaaaaaaa"), a_call("{" + arguments, "aaaaaaaa", "f"))
    next_request(
        made, body(), "-", "meshd-content", *["meshd-content-meshd-value-0." + one for one in prompts]
    )
    assert next_request(made, body()) is not None


def test_ids_that_are_made_of_others_do_not_grow() -> None:
    """Test that nothing grows: each id of the first run is several times the next id of the second."""
    names = [letter * 8 for letter in "ABCDEFGH"]
    made = sent(*[tool_calls(name * 12) for name in names[1:]])
    asked = body(temperature=0)
    assert next_request(made, asked) == asked
    for name in names[:-1]:
        assert made.unsent(tool_calls(name), 0.0) == b""
    assert made.unsent(tool_calls(names[0]), 0.0) == tool_calls(names[1] * 12)


@given(st.lists(st.text("AB", min_size=8, max_size=100), min_size=1, max_size=8), st.data())
def test_an_id_becomes_the_one_that_had_its_place(first: list[str], draw: st.DataObject) -> None:
    first = list(dict.fromkeys(first))
    ids = st.text("AB", min_size=8, max_size=100)
    second = draw.draw(st.lists(ids, min_size=len(first), max_size=len(first), unique=True))
    made = sent(*map(tool_calls, first), event("a", "aaaaaaaa"), own_seed=False)
    assert next_request(made, body(seed=1)) == body(seed=1)
    for one in second:
        assert made.unsent(tool_calls(one), 0.0) == b""
    assert made.unsent(event("a", "aaaaaaaa") + tool_calls(*second), 0.0) == tool_calls(*first)


def in_response(kind: str, **fields: object) -> bytes:
    return b"data: " + json.dumps({"type": f"response.{kind}", **fields}).encode() + b"\n\n"


def test_a_number_of_many_digits_in_the_rest_is_passed_on() -> None:
    made = sent(event("a", "aaaaaaaa"))
    assert next_request(made, body()) is not None
    usage = {"completion_tokens": 10**4300 - 1}
    assert b"9" * 4300 in made.unsent(event("b", "aaaaaaaa", usage=usage), 0.0)


def test_text_is_never_taken_for_an_id() -> None:
    text = '"id":"chatcmpl-bbbbbbbb"'
    made = sent(event("a", "aaaaaaaa"))
    assert next_request(made, body()) is not None
    (line,) = made.unsent(event(text, "cccccccc"), 0.0).splitlines()[:1]
    assert json.loads(line.removeprefix(b"data: "))["choices"][0]["delta"]["content"] == text


@given(st.lists(st.binary(max_size=60), max_size=6), st.sampled_from([CHAT, TRANSCRIPT]))
def test_whatever_llama_server_sends_the_first_run_is_unchanged(parts: list[bytes], path: str) -> None:
    made = SentEvents(path, own_seed=True)
    for part in parts:
        assert made.unsent(part + b"\n\n", 0.0) == part + b"\n\n"
    next_request(made, body())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        *("choices", "delta", "content", "index", "tokens", "usage", "type", "id", "stop"),
                        *("tool_calls", "function", "arguments", "name", "content_block", "partial_json"),
                        *("item", "response", "thinking", "reasoning_content", "call_id"),
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    ),
    st.sampled_from([CHAT, "/completion", "/v1/completions", TRANSCRIPT]),
)
def test_events_of_any_shape_are_read(fields: object, path: str) -> None:
    one = b"data: " + json.dumps(fields).encode() + b"\n\n"
    made = SentEvents(path, own_seed=True)
    assert made.unsent(one, 0.0) == one
    asked = json.dumps({"prompt": "a", "input": "a", "messages": [{"role": "user"}]}).encode()
    if next_request(made, asked, *["meshd-content-<f>"] * 4) is not None:
        try:
            made.unsent(one, 0.0)
        except OtherAnswer:
            pytest.fail("the same event is the same")
