"""Command lines and environment of the native children. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshd.base.listening_socket import LOOPBACK_HOST

NO_WARMUP = "--no-warmup"


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Inherited descriptors of an rpc-server; `weights` may be -1 for none (docs/native.md)."""

    listen: int
    secret: int
    weights: int
    report: int
    peers: int

    @property
    def all(self) -> tuple[int, ...]:
        return self.listen, self.secret, self.weights, self.report, self.peers


def rpc_server(
    program: str,
    *,
    devices: Sequence[str],
    threads: int | None,
    memory: Sequence[int],
    descriptors: Descriptors,
) -> list[str]:
    """A patched rpc-server. `memory` has bytes for each of `devices`; no `threads`: it chooses."""
    argv = [program, *_threads(threads), "--listen-fd", str(descriptors.listen)]
    argv += ["--auth-fd", str(descriptors.secret)]
    argv += ["--device", ",".join(devices), "--memory", ",".join(str(count) for count in memory)]
    if descriptors.weights >= 0:
        argv += ["--weights-fd", str(descriptors.weights)]
    return [*argv, "--peers-fd", str(descriptors.peers), "--report-fd", str(descriptors.report)]


def stock_rpc_server(program: str, *, devices: Sequence[str], threads: int | None, port: int) -> list[str]:
    """Upstream's: it takes no descriptors, knows no secret and no limit of memory."""
    place = ("--host", LOOPBACK_HOST, "--port", str(port))
    return [program, *_threads(threads), *place, "--device", ",".join(devices)]


@dataclass(frozen=True, slots=True)
class MeshDescriptors:
    """Inherited descriptors of a mesh-server; `weights` may be -1 for none (docs/native-backend.md)."""

    head: int
    weights: int
    neighbours: int
    report: int


def mesh_server(
    program: str,
    *,
    devices: Sequence[str],
    threads: int,
    memory: Sequence[int],
    descriptors: MeshDescriptors,
) -> list[str]:
    """`memory` has bytes for each of `devices`."""
    argv = [program, "--fd", str(descriptors.head), "--threads", str(threads)]
    for device in devices:
        argv += ["--device", device]
    argv += ["--memory", ",".join(str(count) for count in memory)]
    if descriptors.weights >= 0:
        argv += ["--weights-fd", str(descriptors.weights)]
    return [*argv, "--neighbours-fd", str(descriptors.neighbours), "--report-fd", str(descriptors.report)]


def _threads(count: int | None) -> tuple[str, ...]:
    return () if count is None else ("--threads", str(count))


def trial(program: str, device: str, operations: Sequence[str]) -> list[str]:
    """A patched rpc-server, or a mesh-server, that computes these once on one device, and ends."""
    return [program, "--try-device", device, "--try", ",".join(operations)]


@dataclass(frozen=True, slots=True)
class Head:
    """What llama-server is started with. `plan` are the options of the split (model/split_planner.py)."""

    model: str
    socket: str
    alias: str
    endpoints: tuple[str, ...]
    plan: tuple[str, ...]
    load_mode: str
    llama_args: tuple[str, ...]


def llama_server(program: str, head: Head) -> list[str]:
    """The serving process. What the user gave after `--` comes last, so that it wins.

    `-nr` (no repacking) keeps a split's text equal to one node's: repacked kernels of the head round
    otherwise than a worker's. `--cache-ram 0`: the prompt cache in RAM aborts a head with RPC in some
    builds, and takes 8 GiB by default. `--no-warmup`: it is one more pass through the whole model, and the
    first token is asked for before anybody is told that the model is ready (role/head/model_run.py).
    """
    argv = [program, "-m", head.model, "--host", head.socket, "--alias", head.alias, "--no-webui", NO_WARMUP]
    if head.endpoints:
        argv += ["--rpc", ",".join(head.endpoints)]
    argv += [*head.plan, "-lm", head.load_mode, "--cache-ram", "0", "-nr"]
    return [*argv, *head.llama_args]


def without_overridden(plan: Sequence[str], llama_args: Sequence[str]) -> tuple[str, ...]:
    """The plan without its `-ot` where the user gives one: llama.cpp takes the first that matches."""
    if not {"-ot", "--override-tensor"} & set(llama_args) or "-ot" not in plan:
        return tuple(plan)
    at = list(plan).index("-ot")
    return (*plan[:at], *plan[at + 2 :])


# By default OpenMP's threads spin on every core for as long as a token is under way to another machine, and
# the daemon that carries it waits; without any spinning, each part of a matrix waits for threads to wake up.
# libgomp's number of looks, and libomp's milliseconds.
CALM_THREADS = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
# While messages follow each other closely, mesh-server (on GPUs) and our module look for the next one for so
# many milliseconds instead of sleeping (docs/decisions/0040).
LOOKOUT = {"GGML_MESH_LOOKOUT": "10"}
# Weights and caches of llama-server in pages of 2 MiB, where the kernel gives them to who asks, as glibc does
# since 2.35. A patched rpc-server lays its weights together after the load: before it, that may hold it up.
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
REPORT_VARIABLE = "GGML_RPC_REPORT_FD"
SOCKETS = "GGML_RPC_SOCKETS"  # the folder of endpoints `unix:NAME`


def rpc_server_environment(sockets: str) -> Mapping[str, str]:
    """For a patched rpc-server; `sockets` is the folder of those that lead to its neighbours."""
    return CALM_THREADS | {SOCKETS: sockets}


def head_environment(
    *, weights: int, secrets: int, peers: int, report: int, sockets: str, activations: str = "f32"
) -> Mapping[str, str]:
    """For llama-server: descriptors for a patched one, -1 for none; never argv, which everybody may read.

    `sockets` is the folder of those that lead to workers, `activations` how hidden states cross, f32 or f16;
    a stock one reads neither.
    """
    given = {
        "GGML_RPC_WEIGHTS_FD": weights,
        "GGML_RPC_SECRETS_FD": secrets,
        "GGML_RPC_PEERS_FD": peers,
        REPORT_VARIABLE: report,
    }
    fixed = CALM_THREADS | LARGE_PAGES | {"GGML_RPC_ACTIVATIONS": activations, SOCKETS: sockets}
    return fixed | {name: str(descriptor) for name, descriptor in given.items() if descriptor >= 0}


def mesh_trial_environment(*, module: str, report: int) -> Mapping[str, str]:
    """For a llama-server that only shows whether it loads our module."""
    return {"GGML_BACKEND_PATH": module, "GGML_MESH_REPORT_FD": str(report)}


def mesh_server_environment(*, looks_out: bool) -> Mapping[str, str]:
    """`looks_out`: there are processors to spare for threads that wait."""
    return CALM_THREADS | (LOOKOUT if looks_out else {})


def mesh_head_environment(
    *,
    module: str,
    sockets: Sequence[int],
    lent: Sequence[Sequence[int]],
    weights: int,
    report: int,
    looks_out: bool = False,
    activations: str = "f32",
    grace: float = 0.0,
) -> Mapping[str, str]:
    """For a llama-server that loads our module: descriptors, `sockets` in the order of the workers.

    `lent`: the bytes that each of those has reserved of each of its devices. One that has another number of
    devices is lost, and so is one that refuses a buffer that they have room for. `activations`: how hidden
    states cross, f32 or f16. `grace`: for so many seconds a path may be silent.
    Preloaded, the module also keeps the loader from reading the workers' weights ahead; the linker takes no
    blank or colon in its path.
    """
    preloaded = {} if set(module) & set(" :") else {"LD_PRELOAD": module}
    return {
        **mesh_server_environment(looks_out=looks_out),
        **LARGE_PAGES,
        **preloaded,
        "GGML_BACKEND_PATH": module,
        "GGML_MESH_FDS": ",".join(map(str, sockets)),
        "GGML_MESH_DEVICES": ",".join(str(len(counts)) for counts in lent),
        "GGML_MESH_MEMORY": ",".join(str(count) for counts in lent for count in counts),
        "GGML_MESH_WEIGHTS_FD": str(weights),
        "GGML_MESH_REPORT_FD": str(report),
        "GGML_MESH_ACTIVATIONS": activations,
        "GGML_MESH_GRACE": str(math.ceil(grace)),
    }


def neighbour_reached(number: int, endpoint: str, secret: bytes) -> str:
    """Line of `--peers-fd`: where a neighbour is reached, and what to send there first."""
    return f"peer {number} {endpoint} {secret.hex()}"


def neighbour_unreachable(number: int) -> str:
    """Line of `--peers-fd`: a neighbour cannot be reached, or not any more."""
    return f"no {number}"


def peers_text(routes: Sequence[tuple[str, str, int]]) -> bytes:
    """Lines `from to number` for GGML_RPC_PEERS_FD: endpoints, and what the one calls the other."""
    return "".join(f"{source} {target} {number}\n" for source, target, number in routes).encode()


def secrets_text(secrets: Mapping[str, bytes]) -> bytes:
    """Lines `endpoint hex` for GGML_RPC_SECRETS_FD."""
    return "".join(f"{endpoint} {secret.hex()}\n" for endpoint, secret in secrets.items()).encode()
