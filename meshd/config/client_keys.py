"""The settings of a client: the part of keys.py on `client`."""

from meshd.config import forms
from meshd.config.forms import listed, whole
from meshd.config.key import Key
from meshd.config.serve_keys import MAX_CONTINUE

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
    Key(
        section="client",
        field="allowed_origins",
        form=listed(forms.WORD),
        option="--allowed-origin",
        metavar="ORIGIN",
        repeat=True,
        list_separator=",",
        help="websites whose pages may call the API, such as https://chat.example",
        more="Scheme, host and port, as the browser shows them.",
    ),
    Key(
        section="client",
        field="continue_answers",
        form=whole(0, MAX_CONTINUE),
        option="--continue-answers",
        metavar="SECONDS",
        help="how long an answer whose serving node was lost waits for another one that loads the model, and "
        "then goes on there; 0: it goes on only where the model is ready",
    ),
)
