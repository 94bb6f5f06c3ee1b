"""Build llama-quantize and llama-batched-bench of upstream beside the node's own programs, for benchmarks.

python -m tests.native.upstream_tools [BACKEND]
"""

import asyncio
import os
import sys

from meshd.build.native import build
from meshd.config.tree import find_cache


def main(argv: list[str]) -> int:
    """Build, and print the folder of the programs."""
    backend = argv[0] if argv else "auto"
    info = asyncio.run(
        build(find_cache(os.environ), backend=backend, tools=True, progress=lambda _step: None)
    )
    print(info.bin_dir)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
