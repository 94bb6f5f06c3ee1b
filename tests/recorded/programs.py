"""The programs whose sessions are recorded: where each comes from, and how it is run without a person.

Each program is installed into its own folder: `npm install PACKAGE`, or a venv with `pip install
PACKAGES`. In the texts below, `{url}` is the API's address without `/v1`, `{home}` and `{work}` are
folders of the run, `{here}` is where the program is installed, and `{node}` is Node.js 22.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

QUESTION = "List the files and write made.txt."
KEY, MODEL = "sk-dummy", "local-model"


@dataclass(frozen=True)
class Program:
    """One program. `files`: its configuration, by path. `commands` run one after another.

    `listing`: its command that lists the server's models, if it has one.
    """

    name: str
    source: Literal["npm", "pypi"]
    packages: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    listing: tuple[str, ...] = ()

    @property
    def package(self) -> str:
        """The package whose version is the program's."""
        return self.packages[0]


def _npm(name: str) -> str:
    return f"{{here}}/node_modules/{name}"


def _library(name: str, *packages: str) -> Program:
    command = ("{here}/bin/python", "-m", "tests.recorded.libraries", name, "{url}/v1")
    paths = {"PYTHONPATH": "{repository}"}
    return Program(name, "pypi", packages, (command,), paths, listing=(*command, "list"))


def _opencode(name: str, provider: Mapping[str, object], id: str) -> Program:
    models = {MODEL: {"tool_call": True, "limit": {"context": 65536, "output": 4096}}}
    options = {"baseURL": "{url}/v1", "apiKey": KEY}
    config = {
        "model": f"{id}/{MODEL}",
        "small_model": f"{id}/{MODEL}",
        "autoupdate": False,
        "share": "disabled",
        "provider": {id: {**provider, "options": options, "models": models}},
    }
    return Program(
        name,
        "npm",
        ("opencode-ai",),
        ((_npm("opencode-linux-x64/bin/opencode"), "run", QUESTION),),
        {"OPENCODE_DISABLE_MODELS_FETCH": "1"},
        {"{work}/opencode.json": json.dumps(config)},
    )


_CODEX_CONFIG = f"""\
model = "{MODEL}"
model_provider = "local"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.local]
name = "local"
base_url = "{{url}}/v1"
wire_api = "responses"
env_key = "LOCAL_KEY"
"""

_PI_MODELS = {
    "providers": {
        "local": {
            "baseUrl": "{url}/v1",
            "api": "openai-completions",
            "apiKey": KEY,
            "models": [{"id": MODEL, "contextWindow": 65536, "maxTokens": 4096}],
        }
    }
}

_CONTINUE_CONFIG = f"""\
name: local
version: 1.0.0
schema: v1
models:
  - name: local
    provider: openai
    model: {MODEL}
    apiBase: {{url}}/v1
    apiKey: {KEY}
    roles: [chat]
    capabilities: [tool_use]
"""

_LLM_MODELS = f"""\
- model_id: local
  model_name: {MODEL}
  api_base: {{url}}/v1
  api_key_name: openai
  supports_tools: true
"""

_CLINE = _npm("@cline/cli-linux-x64/bin/cline")
_AIDER = (
    "{here}/bin/aider",
    *("--model", f"openai/{MODEL}", "--openai-api-base", "{url}/v1", "--openai-api-key", KEY),
    *("--no-git", "--yes-always", "--no-check-update", "--no-analytics", "--no-show-model-warnings"),
    *("--restore-chat-history", "--message", QUESTION, "notes.txt"),
)

PROGRAMS = (
    Program(
        "codex",
        "npm",
        ("@openai/codex",),
        (("{node}", _npm("@openai/codex/bin/codex.js"), "exec", "--skip-git-repo-check", QUESTION),),
        {"LOCAL_KEY": KEY},
        {"{home}/.codex/config.toml": _CODEX_CONFIG},
    ),
    Program(
        "claude-code",
        "npm",
        ("@anthropic-ai/claude-code",),
        (
            (
                _npm("@anthropic-ai/claude-code-linux-x64/claude"),
                *("-p", QUESTION, "--permission-mode", "bypassPermissions"),
            ),
        ),
        {
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",
        },
    ),
    _opencode("opencode", {}, "openai"),
    _opencode("opencode-chat", {"npm": "@ai-sdk/openai-compatible", "name": "local"}, "local"),
    Program(
        "qwen-code",
        "npm",
        ("@qwen-code/qwen-code",),
        (("{node}", _npm("@qwen-code/qwen-code/cli.js"), "--yolo", "-p", QUESTION),),
        {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "{url}/v1", "OPENAI_MODEL": MODEL},
        {
            "{home}/.qwen/settings.json": json.dumps(
                {
                    "security": {"auth": {"selectedType": "openai"}},
                    "privacy": {"usageStatisticsEnabled": False},
                }
            )
        },
    ),
    Program(
        "pi",
        "npm",
        ("@earendil-works/pi-coding-agent",),
        (
            (
                *("{node}", _npm("@earendil-works/pi-coding-agent/dist/cli.js")),
                *("--provider", "local", "--model", MODEL, "-p", QUESTION),
            ),
        ),
        {"PI_OFFLINE": "1"},
        {"{home}/.pi/agent/models.json": json.dumps(_PI_MODELS)},
    ),
    Program(
        "cline",
        "npm",
        ("cline",),
        (
            (_CLINE, "auth", "-p", "openai-compatible", "-k", KEY, "-m", MODEL, "-b", "{url}/v1"),
            (_CLINE, "-P", "openai-compatible", "-m", MODEL, "--json", QUESTION),
        ),
        {"CLINE_TELEMETRY_DISABLED": "1"},
    ),
    Program(
        "continue",
        "npm",
        ("@continuedev/cli",),
        (
            (
                *("{node}", _npm("@continuedev/cli/dist/cn.js"), "--config", "{home}/.continue/config.yaml"),
                *("--auto", "-p", QUESTION),
            ),
        ),
        {"CONTINUE_TELEMETRY_ENABLED": "0"},
        {"{home}/.continue/config.yaml": _CONTINUE_CONFIG},
    ),
    Program("aider", "pypi", ("aider-chat",), (_AIDER,) * 3),
    Program(
        "gptme",
        "pypi",
        ("gptme",),
        (
            (
                *("{here}/bin/gptme", "--non-interactive", "--no-confirm", "--tool-format", "tool"),
                *("-m", f"local/{MODEL}", QUESTION),
            ),
        ),
        {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "{url}/v1"},
        listing=("{here}/bin/gptme-util", "models", "list", "--simple", "--provider", "local"),
    ),
    Program(
        "llm",
        "pypi",
        ("llm",),
        (
            (
                *("{here}/bin/llm", "-m", "local"),
                *("--functions", "{repository}/tests/recorded/tools.py", QUESTION),
            ),
        ),
        {"LLM_USER_PATH": "{home}/llm", "OPENAI_API_KEY": KEY},
        {"{home}/llm/extra-openai-models.yaml": _LLM_MODELS},
        ("{here}/bin/llm", "openai", "endpoint", "{url}/v1", "--models", "--key", KEY),
    ),
    _library("pydantic-ai", "pydantic-ai-slim", "openai"),
    _library("pydantic-ai-responses", "pydantic-ai-slim", "openai"),
    _library("openai-agents", "openai-agents"),
    _library("langchain", "langchain-openai", "langgraph"),
    _library("litellm", "litellm"),
)
