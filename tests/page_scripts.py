"""The page's TypeScript, run by Node.js: pure modules of wheels/mesh/src, as the page itself runs them.

Types are removed by the TypeScript compiler that builds the page (`make chat`, or `npm ci` in wheels/mesh).
"""

import functools
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.rules.source import ROOT

SOURCE = ROOT / "wheels/mesh/src"
_FOLDERS = ("build/mesh-page", "wheels/mesh")
NODE = shutil.which("node")
_LIMIT_S = 60
_TRANSPILE = """
import { createRequire } from 'node:module';
import { mkdirSync, readFileSync, readdirSync, copyFileSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
const [compiler, source, out] = process.argv.slice(2);
const ts = createRequire(import.meta.url)(compiler);
writeFileSync(`${out}/package.json`, '{"type": "module"}');
const options = { module: 'ESNext', target: 'ES2022', rewriteRelativeImportExtensions: true };
for (const name of readdirSync(source, { recursive: true })) {
    mkdirSync(dirname(`${out}/${name}`), { recursive: true });
    if (name.endsWith('.json')) copyFileSync(`${source}/${name}`, `${out}/${name}`);
    if (!name.endsWith('.ts') || name.endsWith('.svelte.ts')) continue;
    const compilerOptions = { ...options, module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022 };
    const made = ts.transpileModule(readFileSync(`${source}/${name}`, 'utf-8'), { compilerOptions });
    writeFileSync(`${out}/${name.slice(0, -3)}.js`, made.outputText);
}
"""


def compiler() -> Path | None:
    """Return the folder of the TypeScript compiler; None if the page was never built here."""
    places = (ROOT / folder / "node_modules/typescript" for folder in _FOLDERS)
    return next((place for place in places if place.exists()), None)


needs_typescript = pytest.mark.skipif(
    NODE is None or compiler() is None, reason="needs Node.js and the page's packages: `make chat`"
)


def page_script(script: str, given: object) -> Any:
    """Return what an ES module prints as JSON; it reads `given` as JSON from standard input.

    It imports the page's modules from `./NAME.js`.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".mjs", dir=modules(), encoding="utf-8") as module:
        module.write(script)
        module.flush()
        return json.loads(_node(module.name, given=json.dumps(given)))


def modules() -> str:
    """Return a folder with the page's modules as JavaScript, which goes when this process ends."""
    return _modules().name


@functools.cache
def _modules() -> "tempfile.TemporaryDirectory[str]":
    folder = tempfile.TemporaryDirectory(prefix="meshd-page-")
    transpiler = Path(folder.name, "transpile.mjs")
    transpiler.write_text(_TRANSPILE, encoding="utf-8")
    found = compiler()
    assert found is not None
    _node(str(transpiler), str(found), str(SOURCE), folder.name)
    Path(folder.name, "node_modules").symlink_to(found.parent)
    return folder


def _node(*arguments: str, given: str = "") -> str:
    assert NODE is not None
    done = subprocess.run(
        [NODE, *arguments], input=given, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def package_file(name: str) -> Path | None:
    """Return a file of one of the page's packages; None if they were never installed here."""
    places = (ROOT / folder / "node_modules" / name for folder in _FOLDERS)
    return next((place for place in places if place.exists()), None)
