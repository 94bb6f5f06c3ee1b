"""Images and sounds that a request names by an address, from which llama-server would fetch them. Pure.

Whoever may ask for answers may not thereby look into the head's network.
"""

from collections.abc import Mapping

# Parts of messages, in the dialects of OpenAI, its Responses API, llama.cpp and Anthropic; and where each may
# have an address: by itself, or as `url` or `data` of an object.
_PARTS = ("image_url", "input_image", "input_audio", "input_video", "video_url", "image")
_HOLDERS = ("image_url", "input_audio", "input_video", "video_url", "source")
_ADDRESSES = ("url", "data")


def has_remote_media(asked: Mapping[str, object]) -> bool:
    """Whether a part of this request is media that is neither a data URL nor base64."""
    unseen: list[list[object] | dict[str, object]] = [dict(asked)]
    while unseen:
        value = unseen.pop()
        if isinstance(value, dict):
            if value.get("type") in _PARTS and any(_is_remote(value.get(name)) for name in _HOLDERS):
                return True
            value = list(value.values())
        # the tokens of a long prompt are left out at once
        unseen += [one for one in value if isinstance(one, list | dict)]
    return False


def _is_remote(holder: object) -> bool:
    if isinstance(holder, dict):
        return any(_is_text_remote(holder.get(name)) for name in _ADDRESSES)
    return _is_text_remote(holder)


def _is_text_remote(text: object) -> bool:
    if not isinstance(text, str) or text.startswith("data:"):
        return False
    # base64 has no colon; what begins with `http`, llama-server takes for an address
    return ":" in text[:64] or text.startswith("http")
