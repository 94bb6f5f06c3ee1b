"""The settings of a node that serves: of each model, and of the API. Each row declares one in full."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from meshd.config import forms
from meshd.config.forms import HostPort, choice, listed, whole, whole_or
from meshd.config.setting import Setting
from meshd.model.layer_range import LayerRange

DEFAULT_API_PORT = 8090
MAX_CONTINUE = 3600  # seconds
MAX_TTL = 10 * 86400  # seconds
LOAD_MODES = ("auto", "mmap", "mmap+mlock")  # llama.cpp's in which a head knows its weights by their places

AllowedOrigins = Annotated[
    tuple[str, ...],
    Setting(
        form=listed(forms.WORD),
        env="MESHD_ALLOWED_ORIGIN",
        help="websites and programs that may call the API, such as https://chat.example",
        more="Scheme, host and port, as the browser shows them. `https://*.example.com` means every name "
        "below example.com, `http://box.lan:*` any port, `app://*` every origin of that scheme.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The user's wishes for one model: in `[serve]`, and in each table `[models.NAME]`.

    `model`, `draft_model` and `fallback_models` are paths of files that are here, or names (text) of models
    that are not: the daemon fetches those, and puts their paths in (daemon/fetching.py). With `header_only`,
    `model` is the path of the header. `devices` ("none",): the head computes nothing;
    empty: all that the backend finds. `ctx_size` 0: the longest context that fits; None: meshd decides.
    """

    model: Annotated[
        Path | str | None,
        Setting(
            form=forms.MODEL,
            metavar="FILE|NAME",
            help="model to serve: a GGUF file (if split, any part), its directory, or a name such as "
            "hf:ORG/REPO:QUANT, ollama:NAME or glm",
            needed=True,
            example='"models/SmolLM2.gguf"',
            more="`meshd serve` needs one. A model that is not on this machine is copied from a member, or "
            "downloaded from Hugging Face. Names: docs/models.md.",
            names_models=True,
        ),
    ] = None
    header_only: Annotated[
        bool,
        Setting(
            form=forms.BOOLEAN,
            help="download only the header of `--model mesh:NAME`, and the tensors outside the layers",
            more="Workers have the rest, and this node computes no layers: docs/models.md.",
        ),
    ] = False
    mmproj: Annotated[
        Path | None,
        Setting(
            form=forms.PATH,
            metavar="FILE",
            help="a multimodal model's mmproj file, for images or audio",
            default="none: text only",
            example='"models/mmproj-SmolVLM2.gguf"',
            more="Only this node needs it, and computes it on its CPU; `-- -mmdev DEV` selects a GPU of this "
            "node. Its memory is not part of the plan.",
        ),
    ] = None
    min_workers: Annotated[
        int | None,
        Setting(
            form=whole(0, 64),
            metavar="N",
            help="wait for this many workers before loading; 0 waits for none",
            default="0 if the model fits on this node and is predicted to be fastest there; otherwise 1",
            example="2",
            more="From 0 to 64.",
        ),
    ] = None
    workers: Annotated[
        tuple[str, ...],
        Setting(
            form=listed(forms.WORD),
            metavar="A,B,…",
            help="use only these workers, by name or the beginning of an id",
            default="all that are connected",
            example='["garage", "attic"]',
        ),
    ] = ()
    standby: Annotated[
        tuple[str, ...],
        Setting(
            form=listed(forms.WORD),
            metavar="PEER",
            repeat=True,
            help="a worker that holds weights in memory, and computes nothing until another is lost",
            example='["barn"]',
            more="By name or the beginning of an id. It computes too if the model does not fit without it.",
        ),
    ] = ()
    tensor_split: Annotated[
        tuple[float, ...],
        Setting(
            form=listed(forms.WEIGHT),
            metavar="A,B,…",
            help="share of the layers per device: the workers' in the order of their names, then this node's",
            default="as --split decides",
        ),
    ] = ()
    split: Annotated[
        str,
        Setting(
            form=choice("auto", "always", "layers", "tensor"),
            metavar="auto|always|layers|tensor",
            help="workers to use. auto, layers: those predicted to be fastest, at least --min-workers (auto "
            "may choose tensor); always: all, with layers by free memory; tensor (experimental): all, each "
            "with a part of every layer",
            more="`meshd plan` shows the prediction. tensor is faster only for slow machines on one cable; "
            "where it is impossible, the split is by layers. auto chooses it where it is predicted to be "
            "clearly faster, and no draft model is used (between machines: with OpenSSL on each); layers "
            "never does. --tensor-split replaces auto and always; with tensor, it sets the shares.",
        ),
    ] = "auto"
    layers: Annotated[
        tuple[LayerRange, ...],
        Setting(
            form=listed(forms.LAYER_RANGE),
            metavar="NODE=FIRST-LAST",
            repeat=True,
            help="layers of one node, counted from 0; repeat until every layer has a node",
            default="as --split decides",
            example='["desk=0-9", "garage=10-29"]',
            more="The serving node's CPU computes the first layers, its GPUs the last. The model waits for "
            "all named workers, and no others take part.",
        ),
    ] = ()
    ctx_size: Annotated[
        int | None,
        Setting(
            form=whole_or("max", 1, 1 << 24),
            metavar="N|max",
            help="context length per request, in tokens; max: the longest that fits, up to the length the "
            "model was trained for",
            default="8192 or the model's, whichever is less; more where memory is plentiful",
            example="8192",
            more="With a larger context the KV cache may not fit; with max there may be fewer slots.",
        ),
    ] = None
    slots: Annotated[
        int,
        Setting(
            form=whole(1, 64),
            metavar="N",
            help="how many requests to process at once, or fewer if memory is short; further requests wait",
            more="`-- -np N` demands N.",
        ),
    ] = 4
    devices: Annotated[
        tuple[str, ...],
        Setting(
            form=listed(forms.WORD),
            option="--device",
            metavar="DEV",
            repeat=True,
            help="devices of this node to compute on; `none` leaves all layers to the workers",
            default="all GPUs; the CPU if no node has one, or for layers that fit nowhere else",
            more="The names are those of `meshd doctor`.",
        ),
    ] = ()
    load_mode: Annotated[
        str,
        Setting(
            form=choice(*LOAD_MODES),
            metavar="MODE",
            help="how llama-server reads the model file: mmap, mmap+mlock, or auto (mmap where the devices "
            "allow it)",
        ),
    ] = "mmap"  # nobody reads the weights of the workers then
    no_push: Annotated[
        bool,
        Setting(
            form=forms.BOOLEAN,
            env="MESHD_NO_PUSH",
            help="send all activations through this node, never directly between workers",
            more="This is slower over a distance.",
        ),
    ] = False
    activations: Annotated[
        str,
        Setting(
            form=choice("f32", "f16"),
            env="MESHD_ACTIVATIONS",
            help="format of activations on the network; f16 halves them, and rounds",
            more="With f16 the text may differ.",
        ),
    ] = "f32"
    output: Annotated[
        str,
        Setting(
            form=choice("auto", "head", "worker"),
            env="MESHD_OUTPUT_ON",
            help="where to compute the output layer: head, worker, or auto, whichever is faster",
            more='"auto" estimates this from the path; "worker" is the last worker.',
        ),
    ] = "auto"
    speculate: Annotated[
        str,
        Setting(
            form=choice("auto", "off"),
            metavar="auto|off",
            help="draft several tokens and check them in one round: auto, while that is faster; or off",
            more="The model checks each token. llama-server's own draft options, after `--`, replace this.",
        ),
    ] = "auto"
    draft_model: Annotated[
        Path | str | None,
        Setting(
            form=forms.MODEL,
            metavar="FILE|NAME",
            help="a small model with the same vocabulary that drafts tokens on this node's CPU if that is "
            "faster",
            example='"models/SmolLM2.gguf"',
            names_models=True,
        ),
    ] = None
    fallback_models: Annotated[
        tuple[Path | str, ...],
        Setting(
            form=listed(forms.MODEL, comma=False),
            env="MESHD_FALLBACK_MODEL",
            help="smaller quantisations to load when the model no longer fits after the loss of a worker",
            default="none: wait for the lost worker",
            example='["models/SmolLM2-Q2_K.gguf"]',
            more="The first that fits is served, under the model's name, until the worker is back.",
            names_models=True,
        ),
    ] = ()
    llama_args: Annotated[
        tuple[str, ...],
        Setting(
            form=listed(forms.TEXT, comma=False),
            option="",
            help="further arguments for llama-server (after -- on the command line)",
            more="Passed on unchanged, except that relative paths of existing files become absolute, because "
            "llama-server runs in another directory.",
            names_files=True,
        ),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig(ModelSettings):
    """The section `[serve]`: a model, and the address and the users of the API."""

    host: Annotated[
        str,
        Setting(
            form=forms.WORD,
            metavar="HOST",
            help="address of the API; beyond loopback, --api-key-file is required",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        Setting(form=whole(0, 65535), metavar="PORT", help="port of the API; 0 picks a free one"),
    ] = DEFAULT_API_PORT
    rpc: Annotated[
        tuple[HostPort, ...],
        Setting(
            form=listed(forms.PEER_ADDRESS),
            metavar="HOST:PORT",
            repeat=True,
            help="plain llama.cpp rpc-servers to add: neither encrypted nor authenticated",
            more="Only for networks that you trust.",
        ),
    ] = ()
    api_key_file: Annotated[
        Path | None,
        Setting(
            form=forms.PATH,
            metavar="FILE",
            help="file of API keys, one per line; without it, the API needs no key",
            example='"api-keys.txt"',
            more="Requests send one of them as a bearer token.",
        ),
    ] = None
    no_members: Annotated[
        bool,
        Setting(
            form=forms.BOOLEAN,
            env="MESHD_NO_MEMBERS",
            help="do not let other members call the API (`meshd client`)",
            more="Otherwise members with the role `use` may; if there are API keys, they need one.",
        ),
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        Setting(
            form=listed(forms.WORD),
            env="MESHD_ALLOWED_HOST",
            help="additional host names under which clients may call the API",
            more="Omit the port. Loopback, this machine's own names and plain addresses are always allowed.",
        ),
    ] = ()
    allowed_origins: AllowedOrigins = ()
    continue_answers: Annotated[
        int,
        Setting(
            form=whole(0, MAX_CONTINUE),
            env="MESHD_CONTINUE_ANSWERS",
            help="how long an interrupted request waits for the model before it ends with an error; 0: it "
            "ends at once",
            more="A request is interrupted when a worker or llama-server is lost while it runs.",
        ),
    ] = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """The API of other nodes on this one: its address, and the heads used; all, if `heads` is empty."""

    port: Annotated[
        int,
        Setting(
            form=whole(0, 65535),
            metavar="PORT",
            help="port of the API, on 127.0.0.1 only; 0 picks a free one",
        ),
    ] = DEFAULT_API_PORT
    heads: Annotated[
        tuple[str, ...],
        Setting(
            form=listed(forms.WORD),
            env="MESHD_HEADS",
            help="use only these serving nodes, by name or the beginning of an id",
            default="all",
            example='["desk", "attic"]',
            more="Without it, any member with the role `use` may claim to serve a model, and get requests.",
        ),
    ] = ()
    allowed_origins: AllowedOrigins = ()
    continue_answers: Annotated[
        int,
        Setting(
            form=whole(0, MAX_CONTINUE),
            env="MESHD_CONTINUE_ANSWERS",
            help="how long a request whose serving node was lost waits for another node to load the model; "
            "0: it continues only where the model is ready",
        ),
    ] = 300  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One of several models of a serving node: a table `[models.NAME]`.

    `serve` is the section of that name, with what the table says otherwise for its model.
    """

    name: str
    aliases: Annotated[
        tuple[str, ...],
        Setting(
            form=listed(forms.WORD),
            option="",
            help="further names of the model in requests",
            example='["small", "gpt-4o-mini"]',
        ),
    ] = ()
    ttl: Annotated[
        int,
        Setting(
            form=whole(0, MAX_TTL),
            option="",
            help="seconds without requests until the model is unloaded; 0: never",
            example="600",
        ),
    ] = 0
    group: Annotated[
        str,
        Setting(
            form=forms.NODE_NAME,
            option="",
            help="models of one group stay loaded together if they fit; others take turns",
            default="none: the model is loaded alone",
            example='"small"',
        ),
    ] = ""
    preload: Annotated[
        bool,
        Setting(
            form=forms.BOOLEAN,
            option="",
            help="load the model at the start, not at its first request",
            example="true",
        ),
    ] = False
    serve: ServeConfig = field(default_factory=ServeConfig)
