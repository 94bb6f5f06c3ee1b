"""Build the command lines and environments of native children, and parse the lines that they report. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshd.base.wakeful_loop import Waiting
from meshd.model.drafts import Drafts

NO_WARMUP = "--no-warmup"
NO_DRAFTS = Drafts()
_PROJECTOR_DEVICES = {"-mmdev", "--mmproj-device", "--mmproj-offload"}
# By default OpenMP's threads spin on every core while a token is under way to another machine, and the daemon
# that carries the token has to wait. Without any spinning, each part of a matrix waits for threads to wake
# up. The values are libgomp's number of spins and libomp's milliseconds.
CALM_THREADS = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
# This variable says how threads of mesh-server (on GPUs) and of our module wait for a message that is
# expected soon (docs/decisions/0066).
WAITING = "GGML_MESH_WAITING"
# Weights and caches of llama-server go into pages of 2 MiB where the kernel grants them on
# request; glibc 2.35 and later requests them.
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def mesh_server(
    program: str,
    *,
    devices: Sequence[str],
    threads: int,
    memory: Sequence[int],
    head: int,
    weights: int,
    neighbours: int,
    report: int,
) -> list[str]:
    """Return the command line of a mesh-server. `memory` has bytes for each of `devices`.

    The others are inherited descriptors; `weights` may be -1 for none (docs/native-backend.md).
    """
    argv = [program, "--fd", str(head), "--threads", str(threads)]
    for device in devices:
        argv += ["--device", device]
    argv += ["--memory", ",".join(str(count) for count in memory)]
    if weights >= 0:
        argv += ["--weights-fd", str(weights)]
    return [*argv, "--neighbours-fd", str(neighbours), "--report-fd", str(report)]


def trial(program: str, device: str, operations: Sequence[str]) -> list[str]:
    """Return the command line of a mesh-server that tries these operations once on one device, and exits."""
    return [program, "--try-device", device, "--try", ",".join(operations)]


def timing(program: str, device: str, threads: int, kinds: Sequence[str]) -> list[str]:
    """Return the command line of a mesh-server that times layers on one device, and exits."""
    argv = [program, "--time-device", device, "--threads", str(threads)]
    return [*argv, *(word for kind in kinds for word in ("--time", kind))]


@dataclass(frozen=True, slots=True)
class Head:
    """The arguments of llama-server. `plan` holds the options of the split (plan/by_memory.py)."""

    model: str
    socket: str
    alias: str
    endpoints: tuple[str, ...]
    plan: tuple[str, ...]
    load_mode: str
    llama_args: tuple[str, ...]
    mmproj: str = ""  # of a multimodal model
    drafts: Drafts = NO_DRAFTS
    draft_model: str = ""
    threads: int = 0  # 0: llama.cpp's default


def llama_server(program: str, head: Head) -> list[str]:
    """Return the command line of the serving process. The user's options after `--` come last, so they win.

    `-nr` (no repacking) keeps a split's text equal to one node's: repacked kernels of the head round
    differently from a worker's. `--cache-ram 0`: the prompt cache in RAM aborts a head with RPC in some
    builds, and takes 8 GiB by default. `--no-warmup`: it is one more pass through the whole model, and the
    first token is requested anyway before the model is reported ready (head/run.py).
    """
    argv = [program, "-m", head.model, "--host", head.socket, "--alias", head.alias, "--no-webui", NO_WARMUP]
    # Where the layers are computed.
    if head.endpoints:
        argv += ["--rpc", ",".join(head.endpoints)]
    argv += [*head.plan, "-lm", head.load_mode, "--cache-ram", "0", "-nr"]
    if head.threads:
        argv += ["--threads", str(head.threads)]
    # Images: on the head unless the user says otherwise.
    if head.mmproj:
        argv += ["--mmproj", head.mmproj]
        if not _PROJECTOR_DEVICES & set(head.llama_args):
            argv += ["--no-mmproj-offload"]  # the default is the first device of the plan, usually a worker's
    return [*argv, *drafting(head.drafts, head.draft_model), *head.llama_args]


def drafting(drafts: Drafts, model: str) -> list[str]:
    """Return the options for drafting. Without `-devd` the workers would compute the draft model."""
    kinds: list[str] = []
    argv: list[str] = []
    if drafts.free:
        kinds.append("ngram-map-k")
        argv += ["--spec-ngram-map-k-size-m", str(drafts.free)]
    if drafts.model:
        kinds.append("draft-simple")
        argv += ["--spec-draft-model", model, "--spec-draft-n-max", str(drafts.model), "-devd", "none"]
    return ["--spec-type", ",".join(kinds), *argv] if kinds else []


def without_overridden(plan: Sequence[str], llama_args: Sequence[str]) -> tuple[str, ...]:
    """Return the plan without its `-ot` if the user gives one: llama.cpp takes the first match."""
    if not {"-ot", "--override-tensor"} & set(llama_args) or "-ot" not in plan:
        return tuple(plan)
    at = list(plan).index("-ot")
    return (*plan[:at], *plan[at + 2 :])


def mesh_trial_environment(*, module: str, report: int) -> Mapping[str, str]:
    """Return the variables of a llama-server that only shows whether it loads our module."""
    return {"GGML_BACKEND_PATH": module, "GGML_MESH_REPORT_FD": str(report)}


def mesh_server_environment(waiting: Waiting) -> Mapping[str, str]:
    """Return the variables of a mesh-server; `waiting` says how its threads wait."""
    return CALM_THREADS | {WAITING: waiting.value}


def mesh_head_environment(
    *,
    module: str,
    sockets: Sequence[int],
    lent: Sequence[Sequence[int]],
    weights: int,
    report: int,
    waiting: Waiting = Waiting.SLEEP,
    activations: str = "f32",
    grace: float = 0.0,
) -> Mapping[str, str]:
    """Return the variables of a llama-server that loads our module.

    `sockets` are descriptors, in the order of the workers. `lent`: the bytes that each worker has reserved on
    each of its devices. A worker that has another number of devices is lost, and so is a worker that refuses
    a buffer for which its devices have room. `activations`: the format of transmitted hidden states and of
    the values of sums, f32 or f16. `grace`: for so many seconds a path may be silent.

    If preloaded, the module also keeps the loader from reading the workers' weights ahead; the linker accepts
    no blank or colon in the path of the module.
    """
    preloaded = {} if set(module) & set(" :") else {"LD_PRELOAD": module}
    return {
        **mesh_server_environment(waiting),
        **LARGE_PAGES,
        **preloaded,
        "GGML_BACKEND_PATH": module,
        "GGML_MESH_FDS": ",".join(map(str, sockets)),
        "GGML_MESH_DEVICES": ",".join(str(len(counts)) for counts in lent),
        "GGML_MESH_MEMORY": ",".join(str(count) for counts in lent for count in counts),
        "GGML_MESH_WEIGHTS_FD": str(weights),
        "GGML_MESH_REPORT_FD": str(report),
        "GGML_MESH_ACTIVATIONS": activations,
        "GGML_MESH_SUMS": activations,
        "GGML_MESH_GRACE": str(math.ceil(grace)),
    }


def count_of(text: str) -> int | None:
    """Return a byte count as a child reports it, or None if invalid (`isdigit` alone accepts `²`)."""
    return int(text) if len(text) < 20 and text.isascii() and text.isdigit() else None


def totals_of(texts: Sequence[str]) -> tuple[int, int, int] | None:
    """Return a neighbour's number, messages and bytes as a child reports them, None for anything else."""
    match [count_of(text) for text in texts]:
        case [int(number), int(messages), int(size)]:
            return number, messages, size
        case _:
            return None
