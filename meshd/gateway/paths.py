"""Which paths the API passes on. Pure.

An allow-list: paths that write files, change slots, adapters or properties, show other users' prompts
or fetch from elsewhere are not in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from meshd.gateway.events import StreamForm
from meshd.gateway.props import PROPS_PATH


@dataclass(frozen=True, slots=True)
class Route:
    """A path that is passed on. `counts`: its answers hold generated tokens; `computes`: they take one of
    llama-server's slots, for which requests wait. `form`: of its streams. `is_form`: its body is a form,
    which may hold a file.
    """

    method: str
    counts: bool = False
    computes: bool = False
    form: StreamForm = StreamForm.OPENAI
    is_form: bool = False


_GENERATE = Route("POST", counts=True, computes=True)
_COMPUTE = Route("POST", computes=True)
_ASK = Route("POST")
_LOOK = Route("GET")
_TRANSCRIBE = Route("POST", counts=True, computes=True, form=StreamForm.TRANSCRIPT, is_form=True)
_RESPOND = Route("POST", counts=True, computes=True, form=StreamForm.RESPONSES)

ROUTES: Mapping[str, Route] = {
    "/v1/chat/completions": _GENERATE,
    "/v1/completions": _GENERATE,
    "/v1/responses": _RESPOND,
    "/v1/messages": Route("POST", counts=True, computes=True, form=StreamForm.ANTHROPIC),
    "/v1/chat/completions/input_tokens": _ASK,
    "/v1/responses/input_tokens": _ASK,
    "/v1/messages/count_tokens": _ASK,
    "/v1/audio/transcriptions": _TRANSCRIBE,
    "/v1/embeddings": _COMPUTE,
    "/v1/rerank": _COMPUTE,
    "/v1/reranking": _COMPUTE,
    # llama.cpp's own
    "/chat/completions": _GENERATE,
    "/chat/completions/input_tokens": _ASK,
    "/responses": _RESPOND,
    "/responses/input_tokens": _ASK,
    "/completion": _GENERATE,
    "/completions": _GENERATE,
    "/infill": _GENERATE,
    "/audio/transcriptions": _TRANSCRIBE,
    "/embedding": _COMPUTE,
    "/embeddings": _COMPUTE,
    "/rerank": _COMPUTE,
    "/reranking": _COMPUTE,
    "/tokenize": _ASK,
    "/detokenize": _ASK,
    "/apply-template": _ASK,
    PROPS_PATH: _LOOK,
    "/metrics": _LOOK,
}
