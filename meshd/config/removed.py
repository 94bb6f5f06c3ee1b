"""Options, keys and variables of earlier development versions, and what to do without them.

Whoever still uses one is told so: what silently has no effect is found late.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from meshd.base.errors import UserError

IS_GONE = "is gone"


@dataclass(frozen=True, slots=True)
class RemovedSetting:
    """A setting that does not exist any more: the names that it had, and what happens `instead`."""

    key: str
    option: str
    instead: str

    @property
    def variable(self) -> str:
        """The name in the environment: the option's in capitals."""
        return "MESHD_" + self.option.removeprefix("--").replace("-", "_").upper()

    @property
    def section(self) -> str:
        """The section of its key."""
        return self.key.partition(".")[0]


REMOVED_SETTINGS = (
    RemovedSetting(
        "serve.sample",
        "--sample-on",
        "a worker chooses the candidates for the next token wherever the text stays the same; a request with "
        '`"backend_sampling": false` gets them from all logits',
    ),
    RemovedSetting("serve.max_wait", "--max-wait", "a request waits for its turn for 600 s at most"),
    RemovedSetting(
        "worker.fetch_rate",
        "--fetch-rate",
        "to limit downloads, start the nodes that send the weights with `--max-upload RATE`",
    ),
)

# Options whose settings are in the file, in the environment and under `--set`, by verb where it matters.
NOW_KEYS: Mapping[str, tuple[str, ...]] = {
    "--activations": ("serve.activations",),
    "--allowed-host": ("serve.allowed_hosts",),
    "--allowed-origin": ("serve.allowed_origins", "client.allowed_origins"),
    "--compress": ("links.compress",),
    "--continue-answers": ("serve.continue_answers", "client.continue_answers"),
    "--fallback-model": ("serve.fallback_models",),
    "--give-models": ("node.give_models",),
    "--heads": ("client.heads",),
    "--no-members": ("serve.no_members",),
    "--no-push": ("serve.no_push",),
    "--no-relaying": ("links.no_relaying",),
    "--output-on": ("serve.output",),
}

# Options of verbs that are no roles, by verb and option.
REMOVED_OPTIONS: Mapping[tuple[str, str], str] = {
    ("bench", "--compute-only"): "`--rtt` delays every message, as a wire does",
    ("bench", "--count-rpc"): "the figures with `--json` say how many bytes crossed",
    ("bench", "--ms"): "`--rtt` puts the nodes at a distance",
    ("bench", "--proxy"): "`--rtt`, and `meshd demo --latency`, put the nodes at a distance",
    ("bench", "--svg"): "from a checkout: `make bench` draws the speed by distance",
    ("bench", "--without"): "from a checkout: `python -m tests.bench.performance` measures that as well",
    ("demo", "--keep"): "`meshd logs` shows those of nodes that you start yourself",
    ("demo", "--prompt"): "the demo has one question; ask your own on the page of `meshd serve`",
    ("native", "--tools"): "from a checkout: `python -m tests.native.upstream_tools`",
    ("netcheck", "--cached"): "each check is a new one, and takes a few seconds",
    ("plan", "--ctx"): "use `--ctx-size`",
}

# Values that settings no longer take, by key.
_START_WITH_IT = "start the node with the models that it is to give: `--model`, or `meshd model pull`"
REMOVED_VALUES: Mapping[tuple[str, str], str] = {
    ("node.give_models", "caches"): _START_WITH_IT,
    ("node.give_models", "all"): _START_WITH_IT,
}


def instead_of_value(key: str, value: object) -> str:
    """Return what to do instead of a value that a setting took; empty for any other."""
    instead = REMOVED_VALUES.get((key, str(value)), "")
    return f"`{value}` {IS_GONE}: {instead}" if instead else ""


def instead_of_option(verb: str, option: str) -> str:
    """Return what to do instead of an option that `meshd VERB` had; empty for any other."""
    for setting in REMOVED_SETTINGS:
        if setting.option == option and setting.section in (verb, "links", "node"):
            return setting.instead
    keys = [key for key in NOW_KEYS.get(option, ()) if key.partition(".")[0] in (verb, "links", "node")]
    if keys:
        section, _, field = keys[0].partition(".")
        variable = "MESHD_" + option.removeprefix("--").replace("-", "_").upper()
        value = "true" if option.startswith("--no-") else "VALUE"
        return (
            f"use `--set {keys[0]}={value}`, the variable {variable}, or `{field}` in `[{section}]` of the "
            "configuration file"
        )
    return REMOVED_OPTIONS.get((verb, option), "")


def check_variables(environ: Mapping[str, str], role: str) -> None:
    """Raise UserError for a variable of a removed setting; with a `role`, of one that the role had."""
    for setting in REMOVED_SETTINGS:
        if environ.get(setting.variable) and (not role or setting.section == role):
            raise UserError(
                f"the variable `{setting.variable}` {IS_GONE}", hint=f"unset it: {setting.instead}"
            )


def removed_key(name: str, shown: str) -> UserError | None:
    """Return the error for the key `section.field` of a file, `shown` there; None if there never was one."""
    for setting in REMOVED_SETTINGS:
        if setting.key == name:
            return UserError(f"{shown} {IS_GONE}", hint=f"remove the line: {setting.instead}")
    return None
