"""Dockerfile and compose file: what they name exists, nobody is root, no secret lies where others see it."""

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import cast

import pytest
import yaml
from meshd.cli.main import VERBS
from meshd.cli.options import Parser
from meshd.cli.roles import DEFAULT_PORT as RELAY_PORT
from meshd.config.serve_settings import ServeConfig
from meshd.config.tree import DEFAULT_MESH_PORT, SETTINGS

from tests import image as builder
from tests.dockerfile import Stage, read, stages
from tests.rules.source import ROOT

Service = Mapping[str, object]

VARIABLES = {key.variable for key in SETTINGS}
ALL_PORTS = {
    *(f"{DEFAULT_MESH_PORT}/{kind}" for kind in ("tcp", "udp")),
    *(f"{RELAY_PORT}/{kind}" for kind in ("tcp", "udp")),
    f"{ServeConfig().port}/tcp",
}
REDIRECTED = re.compile(r"exec (meshd .*?) > (\S+)$", re.DOTALL)


@pytest.fixture(scope="module")
def image() -> Stage:
    """The stage that is kept."""
    return read()[-1]


@pytest.fixture(scope="module")
def services() -> Mapping[str, Service]:
    return _services_of_a_mesh()


def _services_of_a_mesh() -> Mapping[str, Service]:
    return cast(Mapping[str, Service], _compose()["services"])


def _compose() -> Mapping[str, object]:
    text = (ROOT / "configs/compose.yaml").read_text(encoding="utf-8")
    return cast(Mapping[str, object], yaml.safe_load(text))


def _words(service: Service, name: str) -> list[str]:
    found = service.get(name, [])
    assert isinstance(found, list)
    return [str(one) for one in found]


def _called(command: str) -> None:
    """Raises UsageError for what meshd would not take."""
    _, verb, *rest = shlex.split(command)
    (module,) = (one.load() for one in VERBS if one.name == verb)
    parser = Parser(prog=verb)
    module.add_arguments(parser)
    parser.parse_args(rest)


def test_a_dockerfile_is_read_by_stages() -> None:
    first, last = stages(
        "# why\nFROM a AS b\nRUN x \\\n# note\n && y\nFROM c\nENV A=1 \\\n  B='2 3'\nUSER d\n"
    )
    assert (first.base, first.name, last.base, last.name) == ("a", "b", "c", "1")
    assert first.texts("RUN")[0].split() == ["x", "&&", "y"]
    assert last.env() == {"A": "1", "B": "2 3"}


def test_the_image_does_not_run_as_root(image: Stage) -> None:
    (user,) = image.texts("USER")
    assert user == "meshd"
    (made,) = (text for text in image.texts("RUN") if "useradd" in text)
    assert re.search(r"useradd .*--uid [1-9]\d+ .* meshd\b", made)
    after = [word for word, _ in image.steps[image.steps.index(("USER", user)) + 1 :]]
    assert set(after) <= {"VOLUME", "HEALTHCHECK", "EXPOSE", "ENTRYPOINT", "CMD"}


def test_the_image_has_a_health_check_that_meshd_takes(image: Stage) -> None:
    (check,) = image.texts("HEALTHCHECK")
    found = re.fullmatch(r"--interval=30s --timeout=10s --start-period=2m CMD (.*)", check)
    assert found
    _called(shlex.join(yaml.safe_load(found[1])))


@pytest.mark.parametrize(
    ("gpu", "kept"),
    [("vulkan", {"meshd-1.whl", "meshd_native-1.whl"}), ("cuda", None), ("rocm", None)],
)
def test_the_kind_of_gpu_chooses_the_wheels(gpu: str, kept: set[str] | None, tmp_path: Path) -> None:
    first = read()[0]
    assert first.texts("ARG") == ["GPU=vulkan"]
    (choice,) = (text for text in first.texts("RUN") if text.startswith("case"))
    names = {"meshd-1.whl", "meshd_native-1.whl", "meshd_native_cuda12-1.whl"}
    for name in names:
        (tmp_path / name).touch()
    script = choice.replace("/wheels/", f"{tmp_path}/")
    done = subprocess.run(["sh", "-c", script], env={"GPU": gpu, "PATH": "/usr/bin:/bin"}, check=False)
    left = {path.name for path in tmp_path.iterdir()}
    assert (done.returncode, left) == ((0, kept) if kept is not None else (done.returncode or 99, names))


def test_cuda_takes_the_wheel_for_cuda(tmp_path: Path) -> None:
    (choice,) = (text for text in read()[0].texts("RUN") if text.startswith("case"))
    (tmp_path / "meshd_native_cuda13-1.whl").touch()
    script = choice.replace("/wheels/", f"{tmp_path}/")
    subprocess.run(["sh", "-c", script], env={"GPU": "cuda", "PATH": "/usr/bin:/bin"}, check=True)
    assert (tmp_path / "meshd_native_cuda13-1.whl").exists()


def test_the_image_names_the_ports_and_settings_of_the_code(image: Stage) -> None:
    assert set(" ".join(image.texts("EXPOSE")).split()) == ALL_PORTS
    env = image.env()
    assert {"MESHD_HOME", "MESHD_CACHE"} <= env.keys()
    assert {name for name in env if name != "PATH" and not name.startswith("NVIDIA_")} <= VARIABLES
    (volumes,) = image.texts("VOLUME")
    assert {env["MESHD_HOME"], env["MESHD_CACHE"]} <= set(yaml.safe_load(volumes))
    assert image.texts("ENTRYPOINT") == ['["meshd"]']


def test_the_user_owns_the_volumes_alone(image: Stage) -> None:
    (made,) = (text for text in image.texts("RUN") if "install -d" in text)
    folders = made.split("install -d -o meshd -g meshd -m 0700", 1)[1].split()
    assert folders == yaml.safe_load(image.texts("VOLUME")[0])


def test_what_is_installed_in_the_first_stage_is_copied_to_the_second(image: Stage) -> None:
    first = read()[0]
    assert first.base == image.base, "the virtual environment is for this Python"
    assert first.texts("COPY") == ["*.whl /wheels/"]
    (installed,) = (text for text in first.texts("RUN") if "pip " in text)
    (copied,) = image.texts("COPY")
    folder = copied.split()[-1]
    assert copied == f"--from={first.name} {folder} {folder}", "scripts have the path in their first line"
    assert f"--python {folder} install" in installed and f"-q {folder}/lib" in installed
    assert image.env()["PATH"].split(":")[0] == f"{folder}/bin"


def test_compose_builds_it_from_the_wheels(services: Mapping[str, Service]) -> None:
    for service in services.values():
        build = cast(Mapping[str, str], service["build"])
        assert (ROOT / "configs" / build["context"]).resolve() == ROOT / "dist"
        # relative to the context
        assert (ROOT / "dist" / build["dockerfile"]).resolve() == ROOT / "Dockerfile"


def test_a_relay_two_workers_and_a_head(services: Mapping[str, Service]) -> None:
    verbs = {name: _call(service)[0].split()[1] for name, service in services.items()}
    assert verbs == {"relay": "relay", "worker-1": "worker", "worker-2": "worker", "head": "serve"}


def _call(service: Service) -> tuple[str, str]:
    """The call of meshd in a service's script, and where its standard output goes."""
    (script,) = _words(service, "command")
    assert _words(service, "entrypoint")[0] == "sh"
    found = REDIRECTED.search(script.replace("\\\n", " ").strip())
    assert found, script
    return found[1], found[2]


def test_every_call_is_taken_and_tells_no_secret(services: Mapping[str, Service]) -> None:
    for name, service in services.items():
        call, told_to = _call(service)
        _called(call.replace('"$$(cat /run/meshd/relay)"', "relay://KEY@relay:17443"))
        assert told_to.startswith(("/run/meshd/", "/dev/null")), f"{name}: its token would be in a log"
        assert "meshd1" not in str(service), "a token"
        for join in re.findall(r"--join (\S+)", call):
            assert join.startswith("@/run/meshd/")
        assert cast(Mapping[str, str], service.get("environment", {})).keys() <= VARIABLES - {"MESHD_JOIN"}


def test_a_file_with_a_secret_is_made_for_its_owner_alone(services: Mapping[str, Service]) -> None:
    for name, secret in (("worker-1", "/run/meshd/token"), ("head", "/var/lib/meshd/api-keys")):
        before, _, after = _words(services[name], "command")[0].partition("umask 077\n")
        assert secret in after and secret not in before


def test_a_service_may_do_no_more_than_it_must(services: Mapping[str, Service]) -> None:
    for service in services.values():
        assert service["read_only"] is True
        assert service["init"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"user", "privileged", "cap_add", "network_mode"} & service.keys()


def test_ports_and_volumes_are_those_of_the_image(services: Mapping[str, Service], image: Stage) -> None:
    named = cast(Mapping[str, object], _compose()["volumes"])
    folders = {*yaml.safe_load(image.texts("VOLUME")[0]), "/models"}
    homes = []
    for service in services.values():
        for port in _words(service, "ports"):
            inside, _, kind = port.rpartition(":")[2].partition("/")
            assert f"{inside}/{kind or 'tcp'}" in ALL_PORTS
        for volume in _words(service, "volumes"):
            source, target = re.findall(r"^(\$\{.*\}|[\w-]+):(/[\w/]+)", volume)[0]
            assert source in named or source.startswith("${MODELS")
            assert PurePosixPath(target).as_posix() in folders
            homes += [source] if target == "/var/lib/meshd" else []
    assert len(homes) == len(set(homes)) == len(services), "each node has a home of its own"


def test_the_api_is_open_to_this_machine_and_asks_for_a_key(services: Mapping[str, Service]) -> None:
    call, _ = _call(services["head"])
    assert "--api-key-file" in call
    assert all(port.startswith("127.0.0.1:") for port in _words(services["head"], "ports"))


def test_who_waits_for_a_file_waits_for_its_writer(services: Mapping[str, Service]) -> None:
    checks = {
        name: _words(cast(Service, service["healthcheck"]), "test")[-1]
        for name, service in services.items()
        if "healthcheck" in service
    }
    assert checks.keys() == {"relay", "worker-1", "head"}
    assert checks["relay"].startswith("test -s /run/meshd/relay && ")
    assert checks["worker-1"] == "test -s /run/meshd/token && meshd status > /dev/null"
    assert f"http://127.0.0.1:{ServeConfig().port}/health" in checks["head"]
    assert services["worker-1"]["depends_on"] == {"relay": {"condition": "service_healthy"}}
    for name in ("worker-2", "head"):
        assert services[name]["depends_on"] == {"worker-1": {"condition": "service_healthy"}}


def test_a_worker_elsewhere_has_its_secrets_from_files() -> None:
    text = (ROOT / "configs/compose.worker.yaml").read_text(encoding="utf-8")
    file = cast(Mapping[str, Mapping[str, object]], yaml.safe_load(text))
    worker = cast(Service, file["services"]["worker"])
    environment = cast(Mapping[str, str], worker["environment"])
    assert environment == {"MESHD_JOIN": "@/run/secrets/invite", "HF_TOKEN_PATH": "/run/secrets/hf-token"}
    assert set(_words(worker, "secrets")) == {"invite", "hf-token"} == file["secrets"].keys()
    assert all(cast(Mapping[str, str], secret).keys() == {"file"} for secret in file["secrets"].values())
    assert _words(worker, "entrypoint") == ["sh", "-euc", 'exec meshd "$$@" > /dev/null', "meshd"]
    _called(shlex.join(["meshd", *_words(worker, "command")]))
    limits = ("read_only", "init", "cap_drop", "security_opt")
    assert [worker[name] for name in limits] == [_services_of_a_mesh()["head"][name] for name in limits]


def test_what_the_builder_needs_is_named_before_it_starts() -> None:
    assert builder.lacking(["sh"]) == ""
    assert "no-such-builder" in builder.lacking(["sh", "no-such-builder"])
