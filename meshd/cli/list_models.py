"""`meshd model ls`: the models of this machine, and those of members of the mesh beside them.

With `--fits`: the models with short names, and where they fit.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.admin.api import (
    FilesInUseRequest,
    MemberModelsReply,
    MemberModelsRequest,
    MemberModelView,
    PullReply,
)
from meshd.admin.client import Client, NotRunning
from meshd.admin.plan_api import FitsReply, FitsRequest, ShortModelFit, StoredFile
from meshd.base.errors import MeshdError
from meshd.base.units import in_bytes
from meshd.cli.output import Json, Output
from meshd.config.tree import Config
from meshd.model.gguf_names import GGUF_SUFFIX, HEADER_SUFFIX
from meshd.model.model_name import LEAST_FINGERPRINT_DIGITS, MESH, is_digits

if TYPE_CHECKING:
    from meshd.library.facts import ModelFacts
    from meshd.library.interface import StoredModel
    from meshd.library.resolve import Resolver
    from meshd.library.stores import Stores
    from meshd.model.short_names import ShortModel

MEMBERS_SECONDS = 40.0  # members have 15 s, and those without a session 10 s more
_NOWHERE = "not on this machine"


@dataclass(slots=True)
class ListedModel:
    """One line: a model of this machine (`stored`, `facts`), of members (`views`), or of both."""

    stored: "StoredModel | None" = None
    facts: "ModelFacts | None" = None
    views: list[MemberModelView] = field(default_factory=list)
    pull: PullReply | None = None

    @property
    def nodes(self) -> list[str]:
        """The members that have it."""
        return list(self.names)

    @property
    def names(self) -> dict[str, list[str]]:
        """The names of a member's files of this model, by member."""
        found: dict[str, list[str]] = {}
        for view in self.views:
            names = found.setdefault(view.node, [])
            if view.name not in names:
                names.append(view.name)
        return found

    @property
    def nodes_as_text(self) -> list[str]:
        """The members, with those names that differ from the listed one."""
        own = self.stored.stem if self.stored is not None else self.views[0].name if self.views else ""
        return [_as_text(node, names, own.lower()) for node, names in self.names.items()]

    def is_here(self, name: str) -> bool:
        """Return True if all of it is on this machine, as a file of that name."""
        return self.stored is not None and self.stored.complete and self.stored.stem == name

    def is_pulled_by(self, pull: PullReply) -> bool:
        return self.stored is None and any(
            view.name == pull.name and view.bytes == pull.total_bytes for view in self.views
        )

    def is_also(self, view: MemberModelView) -> bool:
        """Return True if it is the member's model: same fingerprint if both are known, else same name and
        size.
        """
        fingerprint, stem, size = self._identity()
        if fingerprint and view.fingerprint:
            return fingerprint == view.fingerprint
        return size == view.bytes and stem.lower() == view.name.lower()

    def _identity(self) -> tuple[str | None, str, int]:
        if self.stored is not None and self.facts is not None:
            complete = self.stored.complete and not self.facts.problem
            return self.facts.fingerprint, self.stored.stem, self.stored.size if complete else -1
        known = next((view for view in self.views if view.fingerprint), self.views[0])
        return known.fingerprint, known.name, known.bytes


def _as_text(node: str, names: Sequence[str], own: str) -> str:
    others = [name for name in names if name.lower() != own]
    also = "also " if len(others) < len(names) else ""
    return f"{node} ({also}{', '.join(others)})" if others else node


def meant_views(text: str, views: Sequence[MemberModelView]) -> list[MemberModelView]:
    """Return the views that a name or ten or more digits of a fingerprint mean."""
    low = text.lower().removeprefix(MESH).removesuffix(GGUF_SUFFIX)
    if is_digits(low):
        return [
            view
            for view in views
            if any((of or "").startswith(low) for of in (view.fingerprint, view.content))
        ]
    return [view for view in views if low in {name.lower() for name in view.names}]


def members_models(home: Path, out: Output) -> MemberModelsReply | None:
    """Return what members have; None without a daemon that could ask them."""
    try:
        with Client(home) as client:
            return client.ask(MemberModelsRequest(), seconds=MEMBERS_SECONDS)
    except NotRunning:
        return None
    except MeshdError as error:
        out.note(f"members of the mesh are not listed: {error.what}")
        return None


def list_models(config: Config, stores: "Stores", out: Output, *, as_json: bool) -> int:
    """List all of them, on the terminal or as JSON."""
    listed = _local(config, stores, out)
    reply = members_models(config.paths.home, out)
    for view in reply.models if reply is not None else ():
        same = next((model for model in listed if model.is_also(view)), None)
        if same is None:
            listed.append(ListedModel(views=[view]))
        else:
            same.views.append(view)
    for pull in reply.pulls if reply is not None else ():
        if pull.name and not (pull.step == "failed" and any(model.is_here(pull.name) for model in listed)):
            _add_pull(listed, pull)
    for left in reply.left_out if reply is not None else ():
        out.note(f"{left.node} did not say which models it has: {left.why}")
    if as_json:
        out.json_list([_to_json(model, config, listed) for model in listed])
    elif listed:
        _show(listed, config, out, members=reply is not None)
    else:
        out.note("no models on this machine; download one: `meshd model pull hf:ORG/REPO:QUANT`")
    return 0


def _add_pull(listed: list[ListedModel], pull: PullReply) -> None:
    """Add a pull to its model; members that have it may be gone by now."""
    same = next((model for model in listed if model.is_pulled_by(pull)), None)
    if same is not None:
        same.pull = pull
    else:
        listed.append(ListedModel(pull=pull))


def _local(config: Config, stores: "Stores", out: Output) -> list[ListedModel]:
    from meshd.library.facts import facts_of

    unreadable: list[Path] = []
    models = stores.listed(unreadable.append)
    models += _in_use(config.paths.home, models)
    hashes = config.paths.cache / "weights"
    rows = []
    for number, model in enumerate(models):
        if out.draws_progress:
            out.progress(f"reading {number + 1} of {len(models)} models", number / len(models))
        rows.append(ListedModel(model, facts_of(model, hashes)))
    for place in unreadable:
        out.note(f"not allowed to read `{place}`")
    return rows


def _in_use(home: Path, listed: Sequence["StoredModel"]) -> list["StoredModel"]:
    """Return the models that the daemon of `home` uses by a path which no store knows."""
    from meshd.library.stores import of_path

    try:
        with Client(home) as client:
            paths = [Path(path) for path in client.ask(FilesInUseRequest()).paths]
    except MeshdError:  # why it does not answer is told where members are asked
        return []
    known = {path.resolve() for model in listed for path in model.paths}
    others = [path for path in paths if path.resolve() not in known and not path.name.endswith(HEADER_SUFFIX)]
    return [of_path(path) for path in others]


def _show(listed: Sequence[ListedModel], config: Config, out: Output, *, members: bool) -> None:
    headers = ["NAME", "SIZE", "QUANT", "ARCHITECTURE", "SOURCE", "STATE"]
    rows = []
    for model in listed:
        if model.stored is not None and model.facts is not None:
            m, f = model.stored, model.facts
            quant = f.quant or m.quant
            row = [m.name, in_bytes(m.size), quant, f.architecture, str(m.source), _state(m, f)]
        else:
            quant, architecture = next(((v.quant or "", v.architecture or "") for v in model.views), ("", ""))
            state = _NOWHERE if model.pull is None else _pull_state(model.pull)
            row = [_name_of(model, listed), in_bytes(_bytes_of(model)), quant, architecture, "mesh", state]
        nodes = [config.node.name] if model.stored is not None else []
        rows.append([*row, ", ".join([*nodes, *model.nodes_as_text])] if members else row)
    out.table([*headers, "NODES"] if members else headers, rows)


def _name_of(model: ListedModel, listed: Sequence[ListedModel]) -> str:
    """Return the name to pull it by: its file's name, unless members have different models of that name."""
    if not model.views:
        return f"{MESH}{model.pull.name}" if model.pull is not None else ""
    view = model.views[0]
    same = [other for other in listed if any(v.name.lower() == view.name.lower() for v in other.views)]
    digits = next((known for v in model.views if (known := v.fingerprint or v.content)), None)
    return MESH + (view.name if len(same) == 1 or digits is None else digits[:LEAST_FINGERPRINT_DIGITS])


def _bytes_of(model: ListedModel) -> int:
    """Return the bytes of a model that is not on this machine."""
    return model.views[0].bytes if model.views else model.pull.total_bytes if model.pull is not None else 0


def _pull_state(pull: PullReply) -> str:
    share = f" {pull.done_bytes / pull.total_bytes:.0%}" if pull.total_bytes else ""
    rate = f", {in_bytes(pull.rate)}/s" if pull.step == "fetching" and pull.rate else ""
    return f"pull: {pull.step}{share}{rate}" + (f": {pull.error}" if pull.error else "")


def _pull_json(pull: PullReply | None) -> Json:
    if pull is None:
        return None
    return {
        "step": pull.step,
        "done_bytes": pull.done_bytes,
        "bytes": pull.total_bytes,
        "bytes_s": pull.rate or None,
        "error": pull.error or None,
    }


def _state(model: "StoredModel", facts: "ModelFacts") -> str:
    if problem := facts.problem or model.problem:
        return problem
    return "ok" if facts.supported else "unknown architecture"


def _to_json(one: ListedModel, config: Config, listed: Sequence[ListedModel]) -> Json:
    """Return the fields of docs/json.md: `nodes` are those that have the model, this one first."""
    others = members_json(one)
    # A model of members only.
    if one.stored is None or one.facts is None:
        return {
            "name": _name_of(one, listed),
            "bytes": _bytes_of(one),
            "fingerprint": next((v.fingerprint for v in one.views if v.fingerprint), None),
            "source": "mesh",
            "quant": next((v.quant for v in one.views), None),
            "architecture": next((v.architecture for v in one.views), None),
            "problem": None,
            "pull": _pull_json(one.pull),
            "nodes": others,
        }
    # A model of this machine.
    model, facts = one.stored, one.facts
    complete = model.complete and not facts.problem
    path = str(model.paths[0]) if model.paths else None
    return {
        "name": model.name,
        "bytes": model.size,
        "fingerprint": facts.fingerprint,
        "source": str(model.source),
        "quant": facts.quant or model.quant or None,
        "architecture": facts.architecture or None,
        "problem": facts.problem or model.problem or None,
        "pull": None,
        "nodes": [
            {"node": config.node.name, "names": [model.stem], "path": path, "complete": complete},
            *others,
        ],
    }


def members_json(model: ListedModel) -> list[Mapping[str, Json]]:
    """Return the members that have it; they tell no path."""
    return [
        {"node": node, "names": list(names), "path": None, "complete": True}
        for node, names in model.names.items()
    ]


_FITS = {"gpu": "yes", "partly_cpu": "slow: partly on a CPU", "cpu": "slow: on a CPU", "no": "no"}
_ESTIMATES = (
    "sizes marked ~ and all fits are estimates, for one request of 8192 tokens; `meshd plan --model NAME` "
    "reads the model's header"
)
_ALONE = (
    "no node runs here, so other machines are not counted: start one with `meshd worker` or `meshd serve`"
)


def list_fits(config: Config, resolver: "Resolver", out: Output, *, as_json: bool) -> int:
    """List the models with short names: their size, and whether they fit. Downloads nothing."""
    from meshd.model.short_names import SHORT_MODELS

    sizes = {model.name: size for model in SHORT_MODELS if (size := _size_here(model.name, resolver))}
    known = (StoredFile(name=name, bytes=size, fingerprint=None) for name, size in sizes.items())
    reply, is_alone = _fits_of(config, FitsRequest(known=tuple(known)), out)
    models = {model.name: model for model in SHORT_MODELS}
    # A daemon of another version may list other models.
    rows = [(models[fit.name], fit) for fit in reply.models if fit.name in models]
    if as_json:
        out.json_list([_fit_json(model, fit, sizes, is_alone=is_alone) for model, fit in rows])
        return 0
    out.table(
        ("NAME", "SIZE", "HERE", "IN THE MESH", "MODEL"),
        [
            (
                model.name,
                in_bytes(sizes[model.name]) if model.name in sizes else f"~{in_bytes(model.bytes)}",
                _FITS.get(fit.here, fit.here),
                "not known" if is_alone else _FITS.get(fit.mesh, fit.mesh),
                str(model.hub or "from the Python package index"),
            )
            for model, fit in rows
        ],
    )
    out.note(_ESTIMATES)
    if is_alone:
        out.note(_ALONE)
    for left in reply.left_out:
        out.note(f"{left.node} is not counted: {left.why}")
    return 0


def _size_here(name: str, resolver: "Resolver") -> int:
    """Return the real size of a model that is on this machine, else 0."""
    try:
        model = resolver.local(name)
    except MeshdError:
        return 0
    return model.size if model.complete else 0


def _fits_of(config: Config, request: FitsRequest, out: Output) -> tuple[FitsReply, bool]:
    """Return what the daemon says; without one, what is true of this machine alone. Raises MeshdError."""
    out.progress("looking at the devices")
    try:
        with Client(config.paths.home) as client:
            return client.ask(request, seconds=MEMBERS_SECONDS), False
    except NotRunning:
        from meshd.daemon.planning import fits_alone

        return asyncio.run(fits_alone(config, request)), True


def _fit_json(
    model: "ShortModel", fit: ShortModelFit, sizes: Mapping[str, int], *, is_alone: bool
) -> Mapping[str, Json]:
    """Return the fields of docs/json.md."""
    return {
        "name": model.name,
        "model": str(model.hub) if model.hub is not None else None,
        "bytes": sizes.get(model.name, model.bytes),
        "estimated": model.name not in sizes,
        "here": fit.here,
        "mesh": None if is_alone else fit.mesh,
    }
