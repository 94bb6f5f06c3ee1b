"""Takes from members only the headers of a model's files, for a plan; whoever asked removes them.

Nothing is computed with them, so they need not be proven to be of the model that members say: a wrong header
makes a wrong plan. Each pull has a folder of its own: two plans of one model remove each their own.
"""

import secrets

from meshd.base.tasks import cancel_and_wait, in_thread
from meshd.library.members.offers import MemberOffer
from meshd.library.members.part_files import PartFiles
from meshd.library.members.plan_folders import PLAN_KIND
from meshd.library.members.pull_header import HeaderPull
from meshd.library.members.pull_model import HolderTasks
from meshd.model.gguf_names import HEADER_SUFFIX, file_names
from meshd.model.piece_index import PieceIndex


class PlanPull(HeaderPull):
    """One pull of the headers of a model; `run` it once, and `state` is as of the pull of a model."""

    _by_content = True

    async def _fetch(self, index: PieceIndex, offer: MemberOffer, holders: HolderTasks) -> bool:
        names = file_names(offer.stem, len(index.sizes), HEADER_SUFFIX)
        files = PartFiles(self._place.folder, index, names, kind=f"{PLAN_KIND}-{secrets.token_hex(4)}")
        try:
            await self._headers(files, index, await self._present(files, index), names)
            await in_thread(files.lengthen)
            await in_thread(files.finish)
            self.state.paths = files.final_paths
            return True
        finally:
            try:
                await cancel_and_wait(*holders)  # they write to these files
            finally:
                files.close()
                files.leave_nothing()
