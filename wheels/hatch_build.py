"""The step of hatchling that puts the chat page's bill of materials into the wheel, if the page was built."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# wheels/chat_page.py writes it; `sbom-files` of pyproject.toml would demand it of those without the page
_BILL = "meshd/gateway/chat/meshd.cdx.json"
_INDEX = "meshd/gateway/chat/index.json"


class BillHook(BuildHookInterface[Any]):
    """Hatchling finds it by its base class."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the bill to hatchling (PEP 770: `.dist-info/sboms`). Raises OSError for a page without one."""
        has_page, has_bill = ((Path(self.root) / name).is_file() for name in (_INDEX, _BILL))
        if version != "editable" and has_page and not has_bill:
            raise OSError(f"the chat page has no {_BILL}: run `make chat` again")
        if version != "editable" and has_bill:
            build_data["sbom_files"].append(_BILL)
