"""The settings of a client: the part of keys.py on `client`."""

from dataclasses import replace

from meshd.config import forms
from meshd.config.forms import listed, whole
from meshd.config.key import Key
from meshd.config.serve_keys import serve_key

CLIENT_KEYS: tuple[Key, ...] = (
    Key(
        section="client",
        field="port",
        form=whole(0, 65535),
        option="--port",
        metavar="PORT",
        help="port of the API, on 127.0.0.1 alone; 0 picks a free one",
    ),
    Key(
        section="client",
        field="heads",
        form=listed(forms.WORD),
        option="--heads",
        metavar="A,B,…",
        list_separator=",",
        help="use only these serving nodes, by name or the beginning of an id",
        default="all of the mesh",
        example='["desk", "attic"]',
        more="Without it, any member with the role `use` may say that it serves a model, and get requests.",
    ),
    replace(serve_key("allowed_origins"), section="client"),
    replace(
        serve_key("continue_answers"),
        section="client",
        help="how long an answer whose serving node was lost waits for another one that loads the model, and "
        "then goes on there; 0: it goes on only where the model is ready",
        more="",
    ),
)
