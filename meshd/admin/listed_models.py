"""List the models of this machine and of members, each once, for `meshd model ls` and for pages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.admin.api import MemberModelsReply, MemberModelView, PullReply
from meshd.admin.request import Json
from meshd.model.gguf_names import HEADER_SUFFIX
from meshd.model.model_name import LEAST_FINGERPRINT_DIGITS, MESH

if TYPE_CHECKING:
    from meshd.library.facts import ModelFacts
    from meshd.library.interface import StoredModel
    from meshd.library.stores import Stores


@dataclass(slots=True)
class ListedModel:
    """One line: a model of this machine (`stored`, `facts`), of members (`views`), or of both."""

    stored: "StoredModel | None" = None
    facts: "ModelFacts | None" = None
    views: list[MemberModelView] = field(default_factory=list)
    pull: PullReply | None = None

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


def models_here(
    stores: "Stores",
    hashes: Path,
    in_use: Iterable[str],
    *,
    unreadable: Callable[[Path], None],
    progress: Callable[[int, int], object] = lambda _read, _of: None,
) -> list[ListedModel]:
    """Return the models of this machine. `hashes`: the folder of their known hashes.

    `in_use`: paths of files that a daemon uses, which no store may know. `unreadable` gets places that this
    user may not read; `progress` gets how many models have been read, of how many.
    """
    from meshd.library.facts import facts_of

    models = stores.listed(unreadable)
    models += _in_use(in_use, models)
    rows = []
    for number, model in enumerate(models):
        progress(number, len(models))
        rows.append(ListedModel(model, facts_of(model, hashes)))
    return rows


def _in_use(paths: Iterable[str], listed: Sequence["StoredModel"]) -> list["StoredModel"]:
    """Return the models that a daemon uses by a path which no store knows."""
    from meshd.library.stores import of_path

    known = {path.resolve() for model in listed for path in model.paths}
    others = [
        path
        for path in map(Path, paths)
        if path.resolve() not in known and not path.name.endswith(HEADER_SUFFIX)
    ]
    return [of_path(path) for path in others]


def add_members(listed: list[ListedModel], reply: MemberModelsReply) -> None:
    """Add what members have, and pulls, to the models of this machine."""
    for view in reply.models:
        same = next((model for model in listed if model.is_also(view)), None)
        if same is None:
            listed.append(ListedModel(views=[view]))
        else:
            same.views.append(view)
    for pull in reply.pulls:
        if pull.name and not (pull.step == "failed" and any(model.is_here(pull.name) for model in listed)):
            _add_pull(listed, pull)


def _add_pull(listed: list[ListedModel], pull: PullReply) -> None:
    """Add a pull to its model; members that have it may be gone by now."""
    same = next((model for model in listed if model.is_pulled_by(pull)), None)
    if same is not None:
        same.pull = pull
    else:
        listed.append(ListedModel(pull=pull))


def name_of(model: ListedModel, listed: Sequence[ListedModel]) -> str:
    """Return the name to pull it by: its file's name, unless members have different models of that name.

    A pull keeps the name that it was asked for by: by another one, what comes may not be compared with a hash
    that was published.
    """
    if model.pull is not None:
        return model.pull.asked
    if not model.views:
        return ""
    view = model.views[0]
    same = [other for other in listed if any(v.name.lower() == view.name.lower() for v in other.views)]
    digits = next((known for v in model.views if (known := v.fingerprint or v.content)), None)
    return MESH + (view.name if len(same) == 1 or digits is None else digits[:LEAST_FINGERPRINT_DIGITS])


def bytes_of(model: ListedModel) -> int:
    """Return the bytes of a model that is not on this machine."""
    return model.views[0].bytes if model.views else model.pull.total_bytes if model.pull is not None else 0


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


def listed_json(listed_model: ListedModel, node: str, listed: Sequence[ListedModel]) -> Mapping[str, Json]:
    """Return the fields of docs/json.md: `nodes` are those that have the model, this one (`node`) first."""
    others: list[Mapping[str, Json]] = [  # they tell no path
        {"node": other, "names": list(names), "path": None, "complete": True}
        for other, names in listed_model.names.items()
    ]
    # A model of members only.
    if listed_model.stored is None or listed_model.facts is None:
        return {
            "name": name_of(listed_model, listed),
            "bytes": bytes_of(listed_model),
            "fingerprint": next((v.fingerprint for v in listed_model.views if v.fingerprint), None),
            "source": "mesh",
            "quant": next((v.quant for v in listed_model.views), None),
            "architecture": next((v.architecture for v in listed_model.views), None),
            "problem": None,
            "pull": _pull_json(listed_model.pull),
            "nodes": others,
        }
    # A model of this machine.
    model, facts = listed_model.stored, listed_model.facts
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
            {"node": node, "names": [model.stem], "path": path, "complete": complete},
            *others,
        ],
    }
