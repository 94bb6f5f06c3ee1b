"""Requests never make the head fetch an address."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.remote_media import has_remote_media

URL = "http://192.0.2.1/secret.png"
DATA = "data:image/png;base64,iVBORw0KGgo="


def parts(url: str) -> list[dict[str, object]]:
    return [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_image", "image_url": url},
        {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
        {"type": "input_audio", "input_audio": {"url": url}},
        {"type": "input_video", "input_video": {"data": url}},
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "image", "source": {"type": "url", "url": url}},
    ]


@pytest.mark.parametrize("url", [URL, "https://192.0.2.1/x", "file:///etc/passwd", "httpfoo:x", "HTTP://x"])
@pytest.mark.parametrize("number", range(len(parts(URL))))
def test_addresses_are_found_in_every_dialect(number: int, url: str) -> None:
    part = parts(url)[number]
    in_result = {"type": "tool_result", "content": [part]}
    for body in (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]},
        {"messages": [{"role": "user", "content": [in_result]}]},
        {"input": [{"role": "user", "content": [part]}]},
        {"input": {"content": [part]}},
    ):
        assert has_remote_media(body)


@pytest.mark.parametrize("number", range(len(parts(DATA))))
def test_data_and_base64_pass(number: int) -> None:
    for data in (DATA, "iVBORw0KGgo="):
        assert not has_remote_media({"messages": [{"content": [parts(data)[number]]}]})


def test_addresses_in_text_and_tools_pass() -> None:
    schema = {"type": "object", "properties": {"url": {"type": "string"}, "image_url": {"type": "string"}}}
    assert not has_remote_media(
        {
            "messages": [
                {"role": "user", "content": f"what is at {URL}?"},
                {"role": "user", "content": [{"type": "text", "text": URL}]},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "name": "fetch", "input": {"url": URL}}],
                },
                {"role": "assistant", "tool_calls": [{"function": {"arguments": json.dumps({"url": URL})}}]},
            ],
            "tools": [{"type": "function", "function": {"name": "fetch", "parameters": schema}}],
        }
    )


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["type", "image_url", "url"]), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), VALUES))
def test_any_object_can_be_looked_at(body: dict[str, object]) -> None:
    assert has_remote_media({**body, "messages": [parts(URL)[0]]})
    has_remote_media(body)
