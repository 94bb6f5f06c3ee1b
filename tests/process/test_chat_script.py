"""The chat page's script, run by Node.js: what it makes of a stream, however its bytes are cut."""

import asyncio
import base64
import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from aiohttp import web
from meshd.gateway.pages import small_page

from tests.process.gateway_fake import DONE, FakeServer, begin_stream, chunk, die, event, last_chunk, world

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(
    NODE is None, reason="no `node` in PATH, which runs the chat page's script: apt-get install -y nodejs"
)

# Reads a stream that comes in the given pieces as the page does; gives the answer, its end and the comments.
READ = """
  const read = async (pieces) => {
    let cancelled = 0;
    const reader = {
      read: async () => (pieces.length ? { value: Buffer.from(pieces.shift(), "base64") } : { done: true }),
      cancel: async () => { cancelled += 1; },
    };
    const answer = newAnswer(), comments = [], shown = { text: "", thought: "" };
    let failed = "";
    try {
      for await (const item of streamItems(reader)) {
        if (item.comment !== undefined) comments.push(item.comment);
        else {
          const piece = take(answer, item.data);
          shown.text += piece.text;
          shown.thought += piece.thought;
        }
      }
    } catch (error) {
      failed = error.message;
    }
    return { answer, shown, comments, failed, cancelled, ...ending(answer, 2) };
  };
"""


def run(code: str, given: object) -> Any:
    """Return what `code` returns after the script of the page was loaded."""
    assert NODE is not None
    script = small_page()["/chat.js"].place.read_text("utf-8")
    call = f"(async (given) => {{ {READ} {code} }})({json.dumps(given)})"
    done = subprocess.run(
        [NODE, "-"],
        input=f"{script}\n{call}.then((it) => console.log(JSON.stringify(it)));",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def read(*streams: Iterable[bytes]) -> list[Mapping[str, Any]]:
    """Return what the page makes of each stream, given in the pieces in which it arrives."""
    encoded = [[base64.b64encode(piece).decode() for piece in pieces] for pieces in streams]
    made: list[Mapping[str, Any]] = run(
        "const out = []; for (const pieces of given) out.push(await read(pieces)); return out;", encoded
    )
    return made


def delta(**fields: str) -> bytes:
    """As llama-server writes it: UTF-8, whose characters may be cut too."""
    return f"data: {json.dumps({'choices': [{'delta': fields}]}, ensure_ascii=False)}\n\n".encode()


USAGE = event({"choices": [], "usage": {"completion_tokens": 6}})


WHOLE = (
    b": keep-alive\n\n"
    + delta(reasoning_content="höre")
    + delta(content="añ")
    + b": no connection to worker anna for 10 s\n\n"
    + delta(content="🙂\r\n: no comment\n\ndata: x")
    + b'event: x\ndata: {"choices": [{"delta":\ndata:{"content": "!"}}]}\n\n'
    + last_chunk(7)
    + USAGE
    + DONE
)
CRLF = WHOLE.replace(b"\n", b"\r\n")
CR = WHOLE.replace(b"\n", b"\r") + b"\n"


@pytest.mark.parametrize(
    "cuts",
    [
        [[WHOLE[:at], WHOLE[at:]] for at in range(len(WHOLE) + 1)],
        [[CRLF[:at], CRLF[at:]] for at in range(len(CRLF) + 1)],
        [[CR[:at], CR[at:]] for at in range(len(CR) + 1)],
        [[bytes([one]) for one in whole] for whole in (WHOLE, CRLF, CR)],
    ],
    ids=["lf", "crlf", "cr", "bytes"],
)
def test_a_stream_reads_the_same_wherever_it_is_cut(cuts: list[list[bytes]]) -> None:
    found = read(*cuts)
    assert len(found) == len(cuts)
    for it in found:
        assert it["answer"]["text"] == it["shown"]["text"] == "añ🙂\r\n: no comment\n\ndata: x!"
        assert it["answer"]["thought"] == it["shown"]["thought"] == "höre"
        assert it["comments"] == ["keep-alive", "no connection to worker anna for 10 s"]
        assert (it["bad"], it["note"], it["failed"]) == (False, "6 tokens · 3.0 tokens/s", "")
        assert it["cancelled"] == 1, "the connection is let go"


def test_an_answer_without_its_end_is_said_to_be_cut() -> None:
    for pieces in (
        [chunk("a")],
        [chunk("a"), b"data: [DONE]\n"],
        [chunk("a"), b'data: {"choices": [{"del'],
        [],
    ):
        (it,) = read(pieces)
        assert (it["bad"], it["note"].partition(":")[0]) == (True, "The answer was cut")


def test_an_error_event_is_told_also_after_an_event_that_broke_off() -> None:
    lost = event({"error": {"message": "worker garage is lost: no link for 20 s", "code": "upstream_lost"}})
    for pieces in ([chunk("a"), lost], [chunk("a"), b'data: {"choices": [{"delta"\n\n', lost]):
        (it,) = read(pieces)
        assert it["answer"]["text"] == "a"
        assert it["note"] == "The answer ended with an error: worker garage is lost: no link for 20 s"
    for odd in ("text", {"message": 7}, {}, True):
        (it,) = read([event({"error": odd}), DONE])
        assert it["note"] == "The answer ended with an error: no reason given"


def test_an_event_of_any_shape_is_survived() -> None:
    odd: list[object] = [
        None,
        5,
        "x",
        [],
        {},
        {"choices": None},
        {"choices": "x"},
        {"choices": [None]},
        {"choices": [5]},
    ]
    odd += [{"choices": [{"delta": delta}]} for delta in (None, 5, {"content": {"a": 1}}, {"content": None})]
    odd += [{"choices": [{"finish_reason": 7}]}, {"timings": 5}, {"timings": {"predicted_n": "9"}}]
    odd += [{"timings": {"predicted_per_second": -1}}, {"usage": {"completion_tokens": None}}]
    (it,) = read([*(event(one) for one in odd), b"data: \n\ndata\n\nid: 1\n\n\n\n", chunk("a"), DONE])
    assert (it["answer"]["text"], it["bad"], it["note"], it["failed"]) == ("a", False, "", "")


def test_an_event_without_end_is_not_held() -> None:
    piece = b"x" * (1 << 19)
    for pieces in ([b"data: ", piece, piece, piece], [b"data: " + piece + b"\n"] * 3):
        (it,) = read(pieces)
        assert (it["failed"], it["cancelled"]) == ("an event is too long", 1)


def test_speed_is_the_servers_where_it_says_it() -> None:
    timings = {"predicted_n": 120, "predicted_per_second": 12.345}
    last = {"choices": [{"delta": {}, "finish_reason": "length"}], "timings": timings}
    (it,) = read([chunk("a"), event(last), DONE])
    assert it["note"] == "Cut at the limit of tokens. · 120 tokens · 12.3 tokens/s"
    (it,) = read([delta(reasoning_content="a"), DONE])
    assert (it["bad"], it["note"]) == (False, "The model gave no answer.")


def test_a_loss_through_the_real_gateway_is_told_with_its_reason() -> None:
    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("a") + b'data: {"choices')
        die(request)
        return response

    async def scenario() -> bytes:
        async with world(answer) as here:
            here.upstream.knows = "worker garage is lost: no link for 20 s"
            reply = await here.chat(stream=True)
            return await reply.read()

    (it,) = read([asyncio.run(scenario())])
    assert it["answer"]["text"] == "a"
    assert it["note"] == "The answer ended with an error: worker garage is lost: no link for 20 s"


def test_a_refusal_says_what_the_api_said() -> None:
    said = {"error": {"message": "the model is not ready (loading): hashing"}}
    given = [
        [503, json.dumps(said)],
        [502, "<html>"],
        [500, "null"],
        [401, '{"error": {"message": 5}}'],
        [400, ""],
    ]
    assert run("return given.map(([status, body]) => refusal(status, body));", given) == [
        "the model is not ready (loading): hashing",
        *(f"HTTP status {status}" for status in (502, 500, 401, 400)),
    ]


def test_the_state_of_the_model_is_one_line() -> None:
    loading = {"status": "loading", "reason": "hashing m.gguf", "progress": 0.184, "model": "m"}
    waiting = {"status": "waiting", "reason": "no worker yet", "progress": None}
    assert run("return given.map(healthLine);", [{"status": "ok", "model": "m"}, loading, waiting]) == [
        "Ready: m",
        "loading: hashing m.gguf (18 %)",
        "waiting: no worker yet",
    ]


def test_the_states_of_several_models_are_one_line() -> None:
    said = {"status": "ok", "models": {"small": "ready", "big": "unloaded"}}
    assert run("return given.map(healthLine);", [said]) == ["small (ready), big (unloaded)"]


def turn(question: str, text: str, thought: str = "") -> dict[str, Any]:
    return {"question": question, "answer": {"text": text, "thought": thought}}


def test_the_model_hears_whole_turns_and_no_thoughts() -> None:
    turns = [turn("a", "b", "hm"), turn("failed", "", "hm"), turn("c", "d")]
    said = run("return messages(given, 'e');", turns)
    assert [one["content"] for one in said] == ["a", "b", "c", "d", "e"]
    assert [one["role"] for one in said] == ["user", "assistant"] * 2 + ["user"]


def test_the_oldest_turns_of_a_long_conversation_are_forgotten() -> None:
    short = [turn("q", "a")] * 105
    long = [turn("q", "x" * 400_000, "y" * 100_000)] * 4
    assert run("return given.map(excess);", [short[:100], short, long[:2], long, []]) == [0, 5, 0, 2, 0]


# Of the document, as much as a page needs whose question the API answers with 401.
ASKED_FOR_A_KEY = """
  const made = {};
  const element = () => ({
    hidden: true, value: "", textContent: "", classList: { toggle() {} },
    content: { cloneNode: () => ({ firstElementChild: element() }) },
    addEventListener() {}, append() {}, focus() {}, remove() {}, setAttribute() {}, querySelector: element,
  });
  globalThis.document = { getElementById: (id) => (made[id] ??= element()) };
  globalThis.Text = class { appendData() {} };
  globalThis.isSecureContext = given;
  globalThis.fetch = async (path) => path === "/health"
    ? { json: async () => ({ status: "ok", model: "m" }) }
    : { ok: false, status: 401, text: async () => "{}" };
  const page = new Page();
  const shown = () => [!made.keys.hidden, !made.exposed.hidden];
  const before = shown();
  await page.answer("hello");
  return [before, shown()];
"""


@pytest.mark.parametrize("secure", [True, False])
def test_a_key_is_asked_for_with_a_warning_where_others_could_read_it(secure: bool) -> None:
    assert run(ASKED_FOR_A_KEY, secure) == [[False, False], [True, not secure]]
