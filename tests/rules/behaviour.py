"""Rules about what code does: tasks, queues, caught errors, purity, clocks, processes.

Each list of exceptions says why. A longer list is a weaker rule: move the code before you add to it.
"""

import ast
import functools
from collections.abc import Iterator

from tests.rules import purity
from tests.rules.source import Fault, Source, dotted, last_part

TASK_MAKERS = frozenset({"create_task", "ensure_future", "gather", "run_coroutine_threadsafe"})
TASKS_ALLOWED = frozenset({"meshd/base/tasks.py"})  # the Owner

TIMERS = frozenset({"call_later", "call_at"})
TIMERS_ALLOWED = frozenset(
    {
        "meshd/link/quic/pipe.py",  # the timers of QUIC are the library's: it says when, for each connection
        "meshd/base/tasks.py",  # a session moves its timeout with nearly every message
        "meshd/process/output.py",  # holds a child back that prints too much
        "meshd/link/webrtc/sctp_association.py",  # probes, late acknowledgements: a task for each costs more
    }
)

QUEUES = frozenset({"Queue", "LifoQueue", "PriorityQueue"})

CATCH_ALL = frozenset({"", "Exception", "BaseException"})  # the first: a bare `except:`
DYNAMIC = frozenset({"eval", "exec", "__import__", "compile"})
DYNAMIC_MODULES = frozenset({"pickle", "marshal", "shelve", "runpy"})

# Tasks that begin later than their owner's block and are the daemon's own work all the same:
# (file, beginning of the task's name). All others are `start_for`.
OWN_WORK = frozenset(
    {
        ("meshd/base/tasks.py", ""),  # `start_for` itself
        # the life of one of several models, from a request on (head/model.py holds the boundary)
        ("meshd/head/model_pool.py", "model"),
        # parts of one life of the model, which ends as a whole (head/model.py holds the boundary)
        ("meshd/head/leases.py", "grants"),
        ("meshd/head/leases.py", "tunnel"),
        ("meshd/head/leases.py", "lease"),
        ("meshd/head/llama_server.py", "llama-server"),
        ("meshd/head/llama_server.py", "llama-server report"),
        ("meshd/head/llama_server.py", "llama-server suspended"),
        ("meshd/head/llama_server.py", "llama-server load"),
        # a part of a lease, which ends as a whole (the handler of its stream is inside the boundary)
        ("meshd/worker/lending.py", "neighbour"),
        ("meshd/worker/lending.py", "neighbours"),
        ("meshd/relay/stun.py", "relay stun"),  # closes its sockets at the end
    }
)
OWN_PACKAGES = ("meshd/bench/", "meshd/demo.py", "meshd/fleet/", "meshd/build/", "meshd/cli/")  # no daemons

PROCESS_MAKERS = frozenset(
    {"create_subprocess_exec", "create_subprocess_shell", "posix_spawn", "fork", "system"}
)
PROCESSES_ALLOWED = frozenset(
    {
        "meshd/process/run.py",  # children of the daemon
        "meshd/process/orphans.py",  # the guard that outlives a killed daemon
        "meshd/base/socket_owners.py",  # lsof names who holds a port
        "meshd/base/processes.py",  # ps tells on macOS whether a process is suspended
        "meshd/build/run.py",  # compilers, in the foreground
        "meshd/cli/service.py",  # useradd, journalctl
        "meshd/service/control.py",  # systemctl, launchctl
        "meshd/cli/upgrade.py",  # installers, on the user's terminal
        "tests/bench/tunnel.py",  # the far end of a measured pump
        "tests/bench/hop.py",  # both daemons of a measured step, and what stands for a mesh-server
        "meshd/bench/transport.py",  # both ends of a measured link, and the line between
        "meshd/portmap/mapper.py",  # netstat names the default gateway where there is no /proc
    }
)

WALL_CLOCK = frozenset({"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"})
WALL_CLOCK_ALLOWED = frozenset(
    {
        # unix seconds in invites, certificates and bans, and what people read
        "tests/bench/gpu.py",
        "tests/bench/networks.py",  # to be compared with the times in nodes' logs
        "tests/bench/performance.py",
        "tests/bench/readiness.py",
        "meshd/cli/logs.py",
        "meshd/doctor/examine.py",  # a clock that is wrong, and the age of what was left behind
        "meshd/cli/members.py",
        "meshd/cli/report.py",
        "meshd/cli/service.py",
        "meshd/daemon/native.py",  # the age of a file that an earlier process wrote
        "meshd/daemon/control.py",
        "meshd/daemon/transports.py",
        "meshd/daemon/member_node.py",
        "meshd/peer/node.py",
        "meshd/process/output.py",
    }
)


def owned_tasks(source: Source) -> Iterator[Fault]:
    """A task has an owner that waits for it."""
    for node, name in source.calls():
        end = last_part(name)
        if end in TASK_MAKERS and source.path not in TASKS_ALLOWED:
            yield source.fault(node, "tasks", f"`{end}`: start it with an Owner (meshd.base.tasks)")
        if end in TIMERS and source.path not in TIMERS_ALLOWED:
            yield source.fault(node, "timers", f"`{end}`: sleep in an owned task")


def contained_tasks(source: Source) -> Iterator[Fault]:
    """Require that what somebody else causes is work of its own, which ends alone: `Owner.start_for`.

    A task that an `async with Owner()` block starts on its straight way is a part of the block: its failure
    is the block's. One that is started later (by a stored or a passed owner, from a nested function, in an
    endless loop) is started because something has happened, and that is most often a peer's doing.
    """
    if source.path.startswith(OWN_PACKAGES):
        return
    straight = set(_started_straight(source.tree, frozenset()))
    for call, name in source.calls():
        if last_part(name) != "start" or call in straight:
            continue
        given = next((word.value for word in call.keywords if word.arg == "name"), None)
        if given is None or (source.path, _beginning(given)) in OWN_WORK:
            continue
        yield source.fault(call, "boundary", f"`{name}`: work for somebody else is started by `start_for`")


def _started_straight(node: ast.AST, owners: frozenset[str]) -> Iterator[ast.Call]:
    """Calls of `OWNER.start` in the block of that owner, in its own function and in no endless loop."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.While):
        owners = frozenset()
    if isinstance(node, ast.AsyncWith):
        owners |= {
            item.optional_vars.id
            for item in node.items
            if isinstance(item.optional_vars, ast.Name) and _is_owner(item.context_expr)
        }
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        of = node.func.value
        if isinstance(of, ast.Name) and of.id in owners:
            yield node
    for child in ast.iter_child_nodes(node):
        yield from _started_straight(child, owners)


def _is_owner(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_part(dotted(node.func)) == "Owner"


def _beginning(name: ast.expr) -> str:
    """The part of a task's name that is always the same."""
    first = name.values[0] if isinstance(name, ast.JoinedStr) and name.values else name
    return str(first.value).strip() if isinstance(first, ast.Constant) else ""


def bounded_queues(source: Source) -> Iterator[Fault]:
    """A queue without a size grows until the machine dies."""
    for node, name in source.calls():
        if last_part(name) not in QUEUES:
            continue
        sizes = [*node.args, *(word.value for word in node.keywords if word.arg == "maxsize")]
        if not sizes or getattr(sizes[0], "value", None) == 0:
            yield source.fault(node, "queue", f"`{name}` without a size")


def caught_errors(source: Source) -> Iterator[Fault]:
    """Who catches everything, or a cancellation, raises it again."""
    for node in source.nodes:
        if not isinstance(node, ast.ExceptHandler) or isinstance(node.body[-1], ast.Raise):
            continue
        names = _caught(node)
        if any(last_part(name) == "CancelledError" for name in names):
            yield source.fault(node, "except", "a cancellation is swallowed")
        elif names & CATCH_ALL:
            yield source.fault(node, "except", "everything is caught and not raised again")
    for call, name in source.calls():
        if last_part(name) == "suppress":
            for given in call.args:
                if last_part(dotted(given)) in CATCH_ALL | {"CancelledError"}:
                    yield source.fault(call, "except", f"`suppress({dotted(given)})`")


def _caught(node: ast.ExceptHandler) -> set[str]:
    if node.type is None:
        return {""}
    kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return {dotted(kind) for kind in kinds}


def pure(source: Source) -> Iterator[Fault]:
    """Decisions are functions of bytes and `now`: no loop, clock, file, chance. Who says so keeps it."""
    if not purity.is_pure(source):
        return
    impure = _impure()
    for node in source.nodes:
        if isinstance(node, ast.AsyncFunctionDef | ast.Await):
            yield source.fault(node, "pure", "`async` in a pure module")
    for call, name in source.calls():
        if name in ("open", "print", "input"):
            yield source.fault(call, "pure", f"`{name}` in a pure module")
    for node, module in _imports(source):
        if module.partition(".")[0] in impure:
            yield source.fault(node, "pure", f"`{module}` is imported in a pure module")


@functools.cache
def _impure() -> frozenset[str]:
    return purity.forbidden_modules()


def prints(source: Source) -> Iterator[Fault]:
    """Only cli/output.py talks to people, and it writes to the streams it was given."""
    for call, name in source.calls():
        if name == "print":
            yield source.fault(call, "print", "print: results go through cli/output.py, the rest to the log")


def dynamic(source: Source) -> Iterator[Fault]:
    """Require that what runs can be read in the source."""
    for call, name in source.calls():
        if name in DYNAMIC:
            yield source.fault(call, "dynamic", f"`{name}`")
    for node, module in _imports(source):
        first = module.partition(".")[0]
        if first not in DYNAMIC_MODULES:
            continue
        yield source.fault(node, "dynamic", f"`{module}` is imported")


def processes(source: Source) -> Iterator[Fault]:
    """Children are started where somebody owns them."""
    if source.path in PROCESSES_ALLOWED:
        return
    for call, name in source.calls():
        if last_part(name) in PROCESS_MAKERS and name != "platform.system":
            yield source.fault(call, "process", f"`{name}`: children go through meshd.process")
    for node, module in _imports(source):
        if module == "subprocess":
            yield source.fault(node, "process", "`subprocess` is imported")


def wall_clock(source: Source) -> Iterator[Fault]:
    """Clocks of machines lie: only expiry and what people read may look at them."""
    if source.path in WALL_CLOCK_ALLOWED:
        return
    for call, name in source.calls():
        if any(name == clock or name.endswith(f".{clock}") for clock in WALL_CLOCK):
            yield source.fault(call, "clock", f"`{name}`: take `now` as a parameter, or the loop's time")
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            names = {alias.name for alias in node.names}
            if names & {"time", "time_ns"}:
                yield source.fault(node, "clock", "`time` is imported from time")


def _imports(source: Source) -> Iterator[tuple[ast.AST, str]]:
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node, node.module
