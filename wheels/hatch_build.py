"""The step of hatchling that puts the bills of materials of the pages into the wheel, if they were built."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# chat_page.py and mesh_page.py write them; `sbom-files` of pyproject.toml would demand them of those without
_BILLS = {
    "meshd/gateway/chat/index.json": "meshd/gateway/chat/meshd.cdx.json",
    "meshd/gateway/mesh/index.json": "meshd/gateway/mesh/meshd-mesh.cdx.json",
}


class BillHook(BuildHookInterface[Any]):
    """Hatchling finds it by its base class."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the bills to hatchling (PEP 770: `.dist-info/sboms`). Raises OSError if a page has none."""
        if version == "editable":
            return
        for index, bill in _BILLS.items():
            has_page, has_bill = ((Path(self.root) / name).is_file() for name in (index, bill))
            if has_page and not has_bill:
                raise OSError(f"a page has no {bill}: run `make chat` again")
            if has_bill:
                build_data["sbom_files"].append(bill)
