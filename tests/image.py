"""Build the image with a real builder, and run its containers: a relay, two workers, a head, a late worker.

    python -m tests.image --wheels dist [--gpu cuda]    # root, Debian; only the build uses the Internet

It needs `apt-get install buildah podman crun netavark aardvark-dns mmdebstrap`. The base image is made of
Debian's packages, as a registry may be out of reach; the containers run in a network namespace. Each service
of configs/compose.yaml becomes a container with the same limits, in the order of `depends_on`; its health
check is run as Docker would run it. Exit code 1 unless all of them become healthy and the head answers.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import yaml

from tests.dockerfile import read
from tests.e2e.models import smollm2
from tests.netns.space import Namespace, skip_reason
from tests.rules.source import ROOT

Service = Mapping[str, object]

IMAGE = "meshd"
PROGRAMS = ("buildah", "podman", "crun", "mmdebstrap", "unshare", "nsenter")
HEALTHY_SECONDS = 180.0
LIMITS = (
    "--ulimit=nofile=16384:16384",
    "--ulimit=nproc=4096:4096",
)  # podman's own take a right that root may lack
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_UNIFIED = Path("/sys/fs/cgroup/unified")  # where a kernel has both kinds of control groups, crun wants one
QUESTION = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}


def lacking(programs: Sequence[str]) -> str:
    """Return which of the programs are not installed; empty if all are."""
    missing = [name for name in programs if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def build(wheels: Path, gpu: str) -> None:
    """Build the image from the Dockerfile and these wheels."""
    [base] = {stage.base for stage in read()}
    if subprocess.run(["podman", "image", "exists", base], check=False).returncode != 0:
        suite = base.removeprefix("debian:").removesuffix("-slim")
        made = subprocess.Popen(["mmdebstrap", "--variant=minbase", suite, "-"], stdout=subprocess.PIPE)
        subprocess.run(["podman", "import", "-", f"docker.io/library/{base}"], stdin=made.stdout, check=True)
        if made.wait() != 0:
            raise SystemExit(f"mmdebstrap has failed for {suite}")
    with tempfile.TemporaryDirectory() as folder:
        pip = Path(folder, "pip.conf")  # how this machine reaches PyPI
        pip.write_text("[global]\ncert = /run/certificates.crt\n")
        volumes = [f"{pip}:/etc/pip.conf:ro", f"{_CERTIFICATES}:/run/certificates.crt:ro"]
        subprocess.run(
            # the other format has no health checks
            ["buildah", "bud", "--isolation=chroot", "--pull-never", "--format=docker"]
            + [f"--volume={volume}" for volume in volumes]
            + [f"--build-arg=GPU={gpu}", "--tag", IMAGE, "--file", str(ROOT / "Dockerfile"), str(wheels)],
            check=True,
        )


class Host:
    """Context manager for a host of containers: podman in namespaces of its own, for network and mounts."""

    def __init__(self, space: Namespace) -> None:
        self._space = space

    def __enter__(self) -> Self:
        hide = f"umount {_UNIFIED} && " if _UNIFIED.is_mount() else ""
        argv = [
            "unshare",
            "--mount",
            "--propagation=private",
            "sh",
            "-c",
            f"{hide}echo && exec sleep infinity",
        ]
        self._holder = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        self._holder.stdout.readline()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.kill()
        self._holder.communicate()

    def podman(self, *words: str) -> str:
        """Run podman; returns what it prints. Raises SystemExit for an exit code that is not 0."""
        done = self._run(words)
        if done.returncode != 0:
            raise SystemExit(f"podman {shlex.join(words)}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout.strip()

    def _run(self, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        inside = ["nsenter", f"--net={self._space.path}", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--"]
        argv = [*inside, "podman", "--cgroup-manager=cgroupfs", *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    @contextmanager
    def running(self, name: str, words: Sequence[str]) -> Iterator[None]:
        """Run a container until the end of the block, then stop it. Its log is shown if the block fails."""
        self.podman("run", "--detach", f"--name={name}", "--log-driver=k8s-file", *words)
        try:
            yield
            began = time.monotonic()
            self.podman("stop", "--time=30", name)
            code = self.podman("inspect", "--format={{.State.ExitCode}}", name)
            _say(f"{name} has stopped in {time.monotonic() - began:.1f} s, exit code {code}")
        except BaseException:
            log = self._run(["logs", name])
            print(f"--- {name}\n{log.stdout}{log.stderr}", file=sys.stderr)  # noqa: T201
            raise
        finally:
            self._run(["rm", "--force", "--volumes", name])

    def until_healthy(self, name: str) -> None:
        """Run the container's health check until it passes. Raises SystemExit after a while."""
        began = time.monotonic()
        while self._run(["healthcheck", "run", name]).returncode != 0:
            state = self.podman("inspect", "--format={{.State.Status}}", name)
            if state != "running" or time.monotonic() - began > HEALTHY_SECONDS:
                raise SystemExit(f"{name} is {state}, and not healthy")
            time.sleep(0.5)
        _say(f"{name} is healthy after {time.monotonic() - began:.1f} s")


def words_of(service: Service, variables: Mapping[str, str], secrets: Mapping[str, str]) -> list[str]:
    """Return what `podman run` is given for a service of a compose file."""

    def filled(text: str) -> str:
        for name, value in variables.items():
            text = text.replace(name, value)
        return text.replace("$$", "$")

    def many(key: str) -> list[str]:
        return [filled(str(word)) for word in cast(Sequence[object], service.get(key, ()))]

    words = [f"--volume={volume}" for volume in many("volumes")]
    words += [f"--tmpfs={place}" for place in many("tmpfs")]
    words += [f"--cap-drop={name}" for name in many("cap_drop")]
    words += [f"--security-opt={option.replace(':true', '')}" for option in many("security_opt")]
    words += [f"--publish={port}" for port in many("ports")]
    words += [f"--secret={secrets[name]},target={name}" for name in many("secrets")]
    environment = cast(Mapping[str, str], service.get("environment", {}))
    words += [f"--env={name}={filled(value)}" for name, value in environment.items()]
    words += ["--init"] * bool(service.get("init")) + ["--read-only"] * bool(service.get("read_only"))
    check = cast(Mapping[str, object], service.get("healthcheck", {}))
    if test := cast(Sequence[str], check.get("test", ())):
        # podman 4.3 splits a list that begins with CMD at its spaces
        words.append(f"--health-cmd={json.dumps([word for word in test if word != 'CMD'])}")
    words += LIMITS
    entrypoint = many("entrypoint")
    words += [f"--entrypoint={json.dumps(entrypoint)}"] if entrypoint else []
    return [*words, str(service["image"]), *many("command")]


def mesh(host: Host, folder: Path) -> None:
    """Start the services of configs/compose.yaml, ask the head, let another worker join by its secrets."""
    services = _services("compose.yaml")
    model = smollm2()
    variables = {"${MODEL:?set MODEL to the name of a GGUF file in MODELS}": model.name}
    variables |= {"${MODELS:-../models}": str(model.parent), "- :/models": ""}
    host.podman("network", "create", "mesh")
    with ExitStack() as stack:
        stack.callback(host.podman, "network", "rm", "--force", "mesh")
        for name in ("relay", "worker-1", "worker-2", "head"):
            words = ["--network=mesh", f"--hostname={name}", *words_of(services[name], variables, {})]
            stack.enter_context(host.running(name, words))
            host.until_healthy(name)
        key = host.podman("exec", "head", "cat", "/var/lib/meshd/api-keys")
        _say(f"answer: {_ask(host, key)}")
        secrets = {"invite": host.podman("exec", "worker-1", "meshd", "invite"), "hf-token": "hf_none"}
        names = {}
        for name, text in secrets.items():
            file = folder / name
            file.write_text(text)
            names[name] = f"meshd-{name}"
            host.podman("secret", "create", names[name], str(file))
            stack.callback(host.podman, "secret", "rm", names[name])
        late = _services("compose.worker.yaml")["worker"]
        words = words_of({**late, "ports": ()}, variables, names)
        stack.enter_context(host.running("late", ["--network=mesh", "--hostname=late", *words]))
        host.until_healthy("late")
        _say(host.podman("exec", "head", "meshd", "peers"))
        _say(host.podman("exec", "head", "meshd", "status"))


def _ask(host: Host, key: str) -> str:
    program = (
        "import json, sys, urllib.request as web\n"
        "key, body = sys.argv[1:]\n"
        "headers = {'Authorization': f'Bearer {key}', 'Content-Type': 'application/json'}\n"
        "url = 'http://127.0.0.1:8090/v1/chat/completions'\n"
        "reply = web.urlopen(web.Request(url, body.encode(), headers), timeout=60)\n"
        "print(json.load(reply)['choices'][0]['message']['content'])\n"
    )
    return host.podman("exec", "head", "python3", "-c", program, key, json.dumps(QUESTION))


def _services(file: str) -> Mapping[str, Service]:
    text = (ROOT / "configs" / file).read_text(encoding="utf-8")
    return cast(Mapping[str, Service], yaml.safe_load(text)["services"])


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def main() -> None:
    """Build and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="those of meshd and meshd-native")
    parser.add_argument("--gpu", choices=("vulkan", "cuda"), default="vulkan")
    args = parser.parse_args()
    if reason := skip_reason() or lacking(PROGRAMS):
        raise SystemExit(reason)
    build(args.wheels, args.gpu)
    _say(subprocess.run(["podman", "images"], capture_output=True, text=True, check=True).stdout)
    with Namespace("image") as space, Host(space) as host, tempfile.TemporaryDirectory() as folder:
        mesh(host, Path(folder))


if __name__ == "__main__":
    main()
