"""Parse names of models, as `--model` accepts them, before any store is asked.

`hf:ORG/REPO[:CHOICE]` is a repository on Hugging Face; CHOICE is a quantisation or a file in it.
`ollama:NAME[:TAG]` is an Ollama model, with its namespace or registry before NAME if it has one.
`mesh:NAME` is a model that members of the mesh have, by its file's name or the beginning of its fingerprint.
Ten or more hexadecimal digits are never a name there: a member could give its file any name. A text that can
only be a path is one. Anything else is a bare name, which every store is asked for.
"""

import re
from dataclasses import dataclass

from meshd.base.errors import MeshdError, UserError
from meshd.model.gguf_names import GGUF_SUFFIX

HUB, OLLAMA, MESH = "hf:", "ollama:", "mesh:"
_SCHEMES = (HUB, OLLAMA, MESH)
_ADDRESS = re.compile(r"(?:https?|ftp|s3)://(.*)", re.IGNORECASE | re.DOTALL)
_HUB_PAGE = re.compile(  # also the link of a file there
    r"(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+)/([\w.-]+)"
    r"(?:/(?:tree|blob|resolve)/[\w.-]+)?(?:/([\w./+-]+\.gguf))?/?(?:\?\S*)?",
    re.ASCII,
)
MAX_MODEL_NAME_CHARS = 512
FINGERPRINT_DIGITS = 64
# 128 bits. With 12 digits, a graphics card finds another model with the same beginning within hours.
LEAST_FINGERPRINT_DIGITS = 32
OLLAMA_REGISTRY, OLLAMA_NAMESPACE, OLLAMA_TAG = "registry.ollama.ai", "library", "latest"
_REPO_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_FILE_PART = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9._+ -]{0,250}")
_OLLAMA_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,79}")
# Room for suffixes: `-00001-of-00002.gguf`, `.renamed` while it is pulled; a file's name has 255 bytes.
_MESH_NAME = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9._+ -]{0,199}")
_DIGITS = re.compile(rf"[0-9a-f]{{10,{FINGERPRINT_DIGITS}}}")
_OLLAMA_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,349}(?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository on Hugging Face; `choice` is a quantisation (`Q4_K_M`), a file, or empty."""

    org: str
    repo: str
    choice: str = ""

    @property
    def repository(self) -> str:
        return f"{self.org}/{self.repo}"

    def __str__(self) -> str:
        return f"{HUB}{self.repository}" + (f":{self.choice}" if self.choice else "")


@dataclass(frozen=True, slots=True)
class OllamaName:
    """An Ollama model with all parts of its name."""

    host: str
    namespace: str
    model: str
    tag: str

    @property
    def short(self) -> str:
        """The name as `ollama ls` shows it, but without `latest`."""
        parts = [self.host, self.namespace, self.model]
        if self.host == OLLAMA_REGISTRY:
            parts = parts[1:] if self.namespace != OLLAMA_NAMESPACE else parts[2:]
        return "/".join(parts) + (f":{self.tag}" if self.tag != OLLAMA_TAG else "")

    def __str__(self) -> str:
        return OLLAMA + self.short


@dataclass(frozen=True, slots=True)
class MeshName:
    """A model of members: a file's name with or without `.gguf`, or at least 32 digits of a fingerprint."""

    text: str

    @property
    def fingerprint(self) -> str:
        """The digits in lower case; empty if the text can only be a name."""
        return self.text.lower() if is_digits(self.text) else ""

    def __str__(self) -> str:
        return MESH + self.text


@dataclass(frozen=True, slots=True)
class BareName:
    """One word that a store may know: a short name, or a file's name with or without `.gguf`."""

    text: str

    def __str__(self) -> str:
        return self.text


ModelName = HubName | OllamaName | MeshName | BareName


def hint_for_name(text: str) -> str:
    """Return what to give instead of an address, or of too few digits; empty for any other text."""
    if address := _ADDRESS.fullmatch(text):
        if found := _HUB_PAGE.fullmatch(address[1]):
            file = f":{found[3]}" if found[3] else ""
            return f"give the model's name: `{HUB}{found[1]}/{found[2]}{file}`"
        return "download the file first, then give its path; models of Hugging Face have names: `hf:ORG/REPO`"
    if not text.startswith(MESH) or not is_digits(text.removeprefix(MESH)):
        return ""
    least, whole = LEAST_FINGERPRINT_DIGITS, FINGERPRINT_DIGITS
    return f"give at least {least} digits: `meshd model ls --json` shows all {whole}"


def is_path(text: str) -> bool:
    """Say whether the text can only be a path: no scheme, but a slash, or `~` or `.` in front."""
    if text.startswith(_SCHEMES) or _ADDRESS.fullmatch(text):
        return False
    return "/" in text or text.startswith(("~", "."))


def parse_model_name(text: str) -> ModelName:
    """Parse a model's name. Raises ValueError with the reason, also for a text that `is_path`."""
    if not text or len(text) > MAX_MODEL_NAME_CHARS or not text.isprintable():
        raise ValueError(f"expected one line of up to {MAX_MODEL_NAME_CHARS} characters")
    if text.startswith(HUB):
        return _hub(text.removeprefix(HUB))
    if text.startswith(OLLAMA):
        return _ollama(text.removeprefix(OLLAMA))
    if text.startswith(MESH):
        return _mesh(text.removeprefix(MESH))
    if _ADDRESS.fullmatch(text):
        raise ValueError("expected a name or a path, not an address")
    if is_path(text):
        raise ValueError("expected a name, not a path")
    return BareName(text)


def _hub(rest: str) -> HubName:
    repository, colon, choice = rest.partition(":")
    org, slash, repo = repository.partition("/")
    if not slash or not all(_is_repo_part(part) for part in (org, repo)):
        raise ValueError("expected hf:ORG/REPO or hf:ORG/REPO:QUANT")
    if colon and not all(_FILE_PART.fullmatch(part) and ".." not in part for part in choice.split("/")):
        raise ValueError("expected a quantisation such as Q4_K_M, or a file of the repository, at the end")
    return HubName(org, repo, choice)


def _is_repo_part(part: str) -> bool:
    # `--` stands between organisation and repository in the cache's folders
    return _REPO_PART.fullmatch(part) is not None and "--" not in part and ".." not in part


def _ollama(rest: str) -> OllamaName:
    *before, last = rest.split("/")
    model, colon, tag = last.partition(":")
    if len(before) == 2:
        host, namespace = before
    elif len(before) == 1:
        host, namespace = OLLAMA_REGISTRY, before[0]
    else:
        host, namespace = OLLAMA_REGISTRY, OLLAMA_NAMESPACE
    parts = (namespace, model, tag if colon else OLLAMA_TAG)
    if len(before) > 2 or not all(map(_is_ollama_part, parts)) or not _OLLAMA_HOST.fullmatch(host):
        raise ValueError("expected ollama:NAME or ollama:NAME:TAG, as `ollama ls` shows them")
    return OllamaName(host, namespace, model, parts[2])


def _is_ollama_part(part: str) -> bool:
    return _OLLAMA_PART.fullmatch(part) is not None and ".." not in part


def _mesh(rest: str) -> MeshName:
    if is_digits(rest):
        if len(rest) < LEAST_FINGERPRINT_DIGITS:
            raise ValueError(
                f"expected at least {LEAST_FINGERPRINT_DIGITS} of the {FINGERPRINT_DIGITS} digits of a "
                f"fingerprint, not {len(rest)}: other models can be made that begin with fewer"
            )
    elif not is_file_name(rest[: -len(GGUF_SUFFIX)] if rest.lower().endswith(GGUF_SUFFIX) else rest):
        raise ValueError("expected mesh:NAME, a model's file name, or mesh:FINGERPRINT")
    return MeshName(rest)


def is_digits(text: str) -> bool:
    """Say whether the text can only mean a fingerprint, or the beginning of one."""
    return _DIGITS.fullmatch(text.lower()) is not None


def is_file_name(text: str) -> bool:
    """Say whether a member's name for a model is safe as a file name: one part, not hidden, not digits.

    `text` excludes the suffix, for which there is room.
    """
    return _MESH_NAME.fullmatch(text) is not None and ".." not in text and not is_digits(text)


def stem_of_ollama(name: str) -> str:
    """Return the file name for an Ollama model elsewhere: its blobs have no names."""
    return name.removeprefix(OLLAMA).replace("/", "-").replace(":", "-")


def split_models(text: str) -> list[str]:
    """Split a variable's value, `A:B:C`, into models: a colon within a name with a scheme splits nothing.

    After `hf:ORG/REPO` or `ollama:NAME`, one more word without a slash belongs to the name.
    """
    pieces = text.split(":")
    found: list[str] = []
    while pieces:
        piece = pieces.pop(0)
        if (scheme := f"{piece}:") in _SCHEMES and pieces:
            piece += ":" + pieces.pop(0)
            more = pieces[0] if pieces and scheme != MESH else ""
            if more and f"{more}:" not in _SCHEMES and not is_path(more):
                piece += ":" + pieces.pop(0)
        found.append(piece)
    return found


DEMO = "smollm2"  # the model of `meshd demo`, which comes from the Python package index
DEMO_STEM = "SmolLM2-135M-Instruct.Q4_1"
DEMO_FINGERPRINT = "570760e3492da2f0e896dcdde144711f48d754472738e2c21394a4e685763c29"


def check_no_file(given: str, error: MeshdError) -> None:
    """Raise UserError for a name that ends in `.gguf`: it means a file here, most likely mistyped.

    So nobody else is asked, and an invite keeps its place.
    """
    if given.lower().endswith(GGUF_SUFFIX) and isinstance(parse_model_name(given), BareName):
        mesh_name = f"{MESH}{given[: -len(GGUF_SUFFIX)]}"
        raise UserError(error.what, hint=f"check the path; for a model of members use `{mesh_name}`")
