"""Checks before a daemon of a role starts, so that errors are reported early and clearly."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from meshd.base.errors import UsageError, UserError
from meshd.base.files import open_regular, read_regular
from meshd.base.home_folder import expanded
from meshd.base.hosts import is_loopback
from meshd.config.serve_settings import ModelConfig, ServeConfig
from meshd.config.tree import Config
from meshd.identity import naming
from meshd.library.disk import hint_for_missing, is_folder
from meshd.model.model_name import MESH

MAX_TOKEN_BYTES = 4096
# Options of llama-server by which the head reads weights of layers.
_READS_LAYERS = frozenset(
    {
        *("-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe"),
        *("--no-mmap", "--mlock", "-dio", "--direct-io", "--check-tensors"),
    }
)


def check_node(config: Config) -> None:
    """Check what holds for every role. Raises UserError when this node cannot be what it is told to be."""
    name = config.node.name
    if naming.looks_like_id(name):
        raise UserError(
            f"`{name}` cannot be a node's name: it looks like a node's id, or the beginning of one",
            hint=f"add a hyphen, a dot or one of the digits 0, 1, 8 and 9, such as `--name {name[:60]}-1`",
        )


def check_worker(config: Config) -> None:
    """Check the configuration of a worker like `check_node`."""
    check_node(config)
    for model in config.worker.models:
        _check_model(model)
    if "none" in config.worker.devices:
        raise UserError(
            "a worker without a device has nothing to lend", hint="name a device, or omit --device"
        )


def check_serve(config: Config) -> None:
    """Check the configuration of a node that serves like `check_node`. Raises UsageError without a model."""
    check_node(config)
    serve = config.serve
    if config.models and serve.model is not None:
        raise UserError(
            "`--model` cannot be combined with `[models.NAME]` tables",
            hint=f"write a table for `{serve.model}` in the file as well, or serve it without that file",
        )
    if serve.model is None and not config.models:
        raise UsageError(
            "`meshd serve` needs a model",
            hint="name a GGUF file or a model: `--model FILE|NAME`, or several in `--config FILE`",
        )
    _check_models(config.models)
    if not config.models:
        _check_served(serve, config.node.name)
    for model in config.models:
        try:
            _check_served(model.serve, config.node.name)
        except UserError as error:
            raise UserError(f"`[models.{model.name}]`: {error.what}", hint=error.hint) from None
    if serve.api_key_file is not None:
        _check_file(serve.api_key_file, "API key file")
    elif not is_loopback(serve.host):
        raise UserError(
            f"the API on `{serve.host}` would answer anyone who can reach it",
            hint="require API keys with `--api-key-file FILE`, or listen on 127.0.0.1",
        )


def _check_models(models: Sequence[ModelConfig]) -> None:
    """Check the models of a node that serves several. Raises UserError."""
    for model in models:
        if model.serve.model is None:
            raise UserError(
                f"`[models.{model.name}]` names no model", hint="write `model = FILE|NAME` in that table"
            )
        if model.serve.rpc:
            raise UserError(
                "plain rpc-servers cannot be used with `[models.NAME]` tables: each serves one head",
                hint="remove `rpc`, or serve one model with `--model`",
            )
    first = [model for model in models if model.preload]
    if apart := [
        preloaded for preloaded in first[1:] if not preloaded.group or preloaded.group != first[0].group
    ]:
        raise UserError(
            f"`{first[0].name}` and `{apart[0].name}` cannot both be loaded at the start: they are not of "
            "one group",
            hint='give both tables the same `group = "NAME"`, or remove `preload` from one of them',
        )


def _check_served(serve: ServeConfig, node: str) -> None:
    # Files exist.
    assert serve.model is not None
    _check_model(serve.model)
    if serve.header_only:
        _check_header_only(serve, node)
    if serve.mmproj is not None:
        _check_file(serve.mmproj, "mmproj file")
    if serve.draft_model is not None:
        _check_model(serve.draft_model)
        if serve.speculate == "off":
            raise UserError(
                "`--draft-model` cannot be combined with `--speculate off`", hint="leave one of them out"
            )
    for fallback in serve.fallback_models:
        _check_model(fallback)
    # Options fit together.
    if serve.tensor_split and not any(serve.tensor_split):
        raise UserError("`--tensor-split` gives no device a share", hint="give at least one share above 0")
    if serve.tensor_split and serve.layers:
        raise UserError("`--layers` cannot be combined with `--tensor-split`", hint="give one of them")
    if serve.standby and serve.layers:
        raise UserError(
            "`--standby` cannot be combined with `--layers`, which already names the workers",
            hint="give one of them",
        )
    if both := sorted(set(serve.standby) & set(serve.workers)):
        raise UserError(
            f"`{both[0]}` is named by `--standby` and by `--workers`",
            hint="a standby worker computes nothing until another one is lost: leave it out of `--workers`",
        )
    if "none" in serve.devices and len(serve.devices) > 1:
        raise UserError(
            "`--device none` cannot be combined with other devices", hint="give either `none` or devices"
        )


def _check_header_only(serve: ServeConfig, node: str) -> None:
    """Refuse whatever makes this node, of that name, read layers, which it lacks. Raises UserError."""
    if not (isinstance(serve.model, str) and serve.model.startswith(MESH)):
        raise UserError(
            f"`--header-only` takes a model of members, not `{serve.model}`",
            hint=f"name it `{MESH}NAME`, as `meshd model ls` shows it, or omit `--header-only`",
        )
    combined = [
        (f"--device {','.join(serve.devices)}", serve.devices not in ((), ("none",))),
        (f"--load-mode {serve.load_mode}", serve.load_mode != "mmap"),
        ("--rpc", bool(serve.rpc)),
        *((f"--layers {layers}", layers.node == node) for layers in serve.layers),
    ]
    read = [word for word in serve.llama_args if word.replace("_", "-") in _READS_LAYERS]
    for option, is_given in (*combined, *((f"-- {word}", True) for word in read)):
        if is_given:
            raise UserError(
                f"`--header-only` cannot be combined with `{option}`, which makes this node read layers",
                hint="omit one of them; without `--header-only`, the whole model is copied first",
            )


def _check_model(model: Path | str) -> None:
    """Check a path; a name is looked up after all other checks, as that may take a download."""
    if isinstance(model, Path) and not is_folder(model):
        _check_file(model, "model file", hint_for_missing(model))


def _check_file(path: Path, what: str, hint: str = "check the path and its permissions") -> None:
    try:
        os.close(open_regular(path))
    except IsADirectoryError:
        raise UserError(f"{what} `{path}` is a directory", hint="give the path of the file in it") from None
    except OSError as error:
        raise UserError(f"cannot read {what} `{path}`: {error.strerror}", hint=hint) from None


def read_join(config: Config) -> Config:
    """Return the tree with `node.join` replaced by the invite itself: `@FILE` and `-` are read here.

    Not done when loading, so that `config show` neither waits for standard input nor reads a secret.
    """
    given = config.node.join.strip()
    if given == "-":
        token = sys.stdin.read(MAX_TOKEN_BYTES)
    elif given.startswith("@"):
        file = expanded(given[1:])
        try:
            token = read_regular(file, MAX_TOKEN_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not text"
            raise UserError(
                f"cannot read the invite from `{file}`: {why}", hint="put only the invite into that file"
            ) from None
    else:
        token = given
    if given and not token.strip():
        raise UserError("the invite is empty", hint="run `meshd invite` on the node that founded the mesh")
    if given:
        _check_token(token, given)
    return replace(config, node=replace(config.node, join=token.strip()))


def _check_token(token: str, given: str) -> None:
    """Check the invite's form before a model is downloaded or a port is bound for nothing. Raises
    UserError.
    """
    from meshd.identity.invite import parse_token  # cryptography, which `--help` does without

    try:
        parse_token(token)
    except UserError:
        if given.upper() in ("INVITE", "TOKEN"):
            raise UserError(
                f"put the invite in place of `{given}`",
                hint="it is the line that `meshd worker` or `meshd serve` printed on the other machine",
            ) from None
        if _is_file(given):
            raise UserError(
                f"`{given}` is a file, not an invite", hint=f"did you mean `--join @{given}`?"
            ) from None
        raise


def _is_file(text: str) -> bool:
    try:
        return expanded(text).is_file()
    except (OSError, UserError, ValueError):  # too long, no such user, a NUL
        return False
