"""The native programs, played by scripts."""

from pathlib import Path

from meshd.build.pin import read_pin
from meshd.devices.interface import NativeBuild
from meshd.rpc.mesh_protocol import VERSION
from meshd.wire.versions import NativeVersion, mesh_protocol

PIN = read_pin()


def described(protocol: int = VERSION, ggml: str = PIN.version, more: str = "") -> str:
    """As mesh-server tells it."""
    return f'{{"program": "it", "protocol": {protocol}, "ggml": "{ggml}"{more}}}'


def says(release: str = f"{PIN.release}-dev", commit: str = "unknown") -> str:
    """As llama-server tells it."""
    return f"version: {release} (build 0, commit {commit})"


def named_programs(
    folder: Path,
    *,
    version: str,
    server: str | None = None,
    module: str | None = None,
    host: str = "unknown",
    pin: str = "unknown",
) -> NativeBuild:
    """`host`: the ggml that the module finds in llama-server; empty: it is not loaded."""
    reported = f"echo host {host} >&$GGML_MESH_REPORT_FD" if host else "echo cannot open shared object"
    llama = _script(
        folder / "llama-server", f'if [ $1 = --version ]; then echo "{version}"; else {reported}; fi'
    )
    mesh = _script(
        folder / "mesh-server",
        f"if [ $2 ]; then echo '{module or described()}'; else echo '{server or described()}'; fi",
    )
    return NativeBuild(
        llama_server=llama,
        mesh_server=mesh,
        module=folder / "libggml-mesh.so",
        version=NativeVersion(mesh_protocol(VERSION), pin, "unknown", "unknown"),
        plain_rpc=PIN.rpc_protocol,
    )


def _script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o700)
    return path
