"""mesh-server and the libcrypto of its machine: another library with that name is not used to seal."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.mesh_server_scene import MARKS, found_build
from tests.native.build import MeshBuild

pytestmark = MARKS

_NAMES = ("libcrypto.so.3", "libcrypto.so.4", "libcrypto.so.1.1")  # native/mesh/libcrypto.cpp
_FUNCTIONS = (
    "OPENSSL_init_crypto",
    "EVP_CIPHER_CTX_new",
    "EVP_CIPHER_CTX_free",
    "EVP_CIPHER_CTX_ctrl",
    "EVP_chacha20_poly1305",
    "EVP_CipherInit_ex",
    "EVP_CipherUpdate",
    "EVP_CipherFinal_ex",
)
_NOTHING_ELSE = "int something;"
# as the machine's own, but any tag is right, or every record has the first one's number
_REAL = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
static void * real(const char * name) {
    return dlsym(dlopen(getenv("REAL_LIBCRYPTO"), RTLD_NOW | RTLD_LOCAL), name);
}
int OPENSSL_init_crypto(unsigned long long o, const void * s) {
    return ((int (*)(unsigned long long, const void *)) real("OPENSSL_init_crypto"))(o, s);
}
void * EVP_CIPHER_CTX_new(void) { return ((void * (*)(void)) real("EVP_CIPHER_CTX_new"))(); }
void EVP_CIPHER_CTX_free(void * c) { ((void (*)(void *)) real("EVP_CIPHER_CTX_free"))(c); }
int EVP_CIPHER_CTX_ctrl(void * c, int t, int n, void * d) {
    return ((int (*)(void *, int, int, void *)) real("EVP_CIPHER_CTX_ctrl"))(c, t, n, d);
}
const void * EVP_chacha20_poly1305(void) { return ((void * (*)(void)) real("EVP_chacha20_poly1305"))(); }
int EVP_CipherInit_ex(void * c, const void * k, void * e, const void * key, const void * nonce, int s) {
    static const unsigned char first[12];
    return ((int (*)(void *, const void *, void *, const void *, const void *, int))
        real("EVP_CipherInit_ex"))(c, k, e, key, nonce && FORGETFUL ? first : nonce, s);
}
int EVP_CipherUpdate(void * c, unsigned char * o, int * n, const unsigned char * i, int m) {
    return ((int (*)(void *, unsigned char *, int *, const unsigned char *, int)) real("EVP_CipherUpdate"))(
        c, o, n, i, m);
}
int EVP_CipherFinal_ex(void * c, unsigned char * o, int * n) {
    return ((int (*)(void *, unsigned char *, int *)) real("EVP_CipherFinal_ex"))(c, o, n) | TRUSTING;
}
"""
_FORGETFUL, _TRUSTING, _SOUND = (
    f"#define FORGETFUL {forgets}\n#define TRUSTING {trusts}\n{_REAL}"
    for forgets, trusts in ((1, 0), (0, 1), (0, 0))
)
_DOES_NOTHING = "".join(f"long {name}(void) {{ return 1; }}\n" for name in _FUNCTIONS)
_FAILS = "".join(f"long {name}(void) {{ return 0; }}\n" for name in _FUNCTIONS)
# prints the path of the machine's own
_WHERE = f"""
import ctypes
for name in {_NAMES}:
    try:
        ctypes.CDLL(name)
        break
    except OSError:
        pass
print(next(line.split()[-1] for line in open("/proc/self/maps") if "libcrypto" in line))
"""
_MACHINES = {
    "another library": _NOTHING_ELSE,
    "encrypts nothing": _DOES_NOTHING,
    "fails": _FAILS,
    "same numbers": _FORGETFUL,
    "any tag": _TRUSTING,
}


def _environment(folder: Path, source: str) -> dict[str, str]:
    """Return the environment of a machine on which that is the first library with each of these names."""
    library = folder / "libother.so"
    (folder / "other.c").write_text(source, encoding="ascii")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "other.c"], check=True)
    for name in _NAMES:
        shutil.copy(library, folder / name)
    # no leaks are looked for: what the stand-in was given it never gives back
    looked = subprocess.run([sys.executable, "-c", _WHERE], capture_output=True, text=True, check=True)
    own = {"REAL_LIBCRYPTO": looked.stdout.strip()}
    return {**os.environ, **own, "LD_LIBRARY_PATH": str(folder), "ASAN_OPTIONS": "detect_leaks=0"}


def _seals(build: MeshBuild, env: dict[str, str]) -> object:
    argv = (build.server, "--seals")
    return json.loads(subprocess.run(argv, capture_output=True, check=True, env=env).stdout)["seals"]


def test_mesh_server_seals_with_the_library_of_this_machine(tmp_path: Path) -> None:
    """Also behind the stand-in that leaves all as it is: others fail for what they change."""
    assert _seals(found_build(), dict(os.environ)) is True
    assert _seals(found_build(), _environment(tmp_path, _SOUND)) is True


@pytest.mark.parametrize("source", _MACHINES.values(), ids=list(_MACHINES))
def test_it_does_not_seal_with_a_library_that_encrypts_otherwise(tmp_path: Path, source: str) -> None:
    assert _seals(found_build(), _environment(tmp_path, source)) is False


def test_it_takes_no_keys_where_it_cannot_seal(tmp_path: Path) -> None:
    env = _environment(tmp_path, _NOTHING_ELSE)
    assert _seals(found_build(), env) is False
    argv = (found_build().tests, "keys_are_taken_by_a_program_that_can_seal")
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env, timeout=60)
    assert (done.returncode, done.stdout.count("passed ")) == (0, 1), done.stdout + done.stderr
