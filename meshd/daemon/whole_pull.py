"""Get a model by its name for the user, as `meshd model pull` does: from members, else by a download.

What members have is compared with the hash that Hugging Face publishes, if the name is one of its; what is
downloaded always is. Both are the functions that the verb calls.
"""

import asyncio

from meshd.base import log
from meshd.base.errors import LocalProtocolError, MeshdError, UserError
from meshd.base.tasks import in_thread
from meshd.base.units import in_bytes
from meshd.daemon.own_thread import in_own_thread
from meshd.library.disk import DiskFault
from meshd.library.interface import ASKING_SECONDS, NotHere, ReportProgress, StoredModel, TransferProgress
from meshd.library.members.fetch import Fetch
from meshd.library.members.offers import MemberOffer
from meshd.library.members.pull import ModelPull, NobodyHasIt, PullStep
from meshd.library.pulled_models import keep_pulled
from meshd.library.resolve import Resolver
from meshd.library.stores import Stores
from meshd.model.model_name import MeshName, check_no_file
from meshd.model.short_names import is_published
from meshd.model.weights_index import PieceIndex

LOG = log.get("library")


class WholePull(ModelPull):
    """Get the model `name`: `run` it once. What has arrived stays when it is stopped.

    The rate limits what members give; a download has no limit.
    """

    _asking: asyncio.Timeout

    async def run(self) -> None:
        """Find the model here, else pull it from members, else download it. Raises MeshdError."""
        # Whatever takes long reports itself; stores are read in a moment.
        self._stores = Stores.here(self._place.folder.parent)
        if (here := await in_thread(self._local)) is not None:
            self.state.was_here = True
            self._found(here)
            return
        if (kept := await self._from_members()) is not None:
            self._found(kept)
            return
        self._begin_download()
        self._found(await in_own_thread(self._download, self._show_download))

    def _local(self) -> StoredModel | None:
        """Return the model if all of it is on this machine. Raises UserError for a mistyped file."""
        try:
            found = Resolver(self._stores, _unseen).local(str(self._name))
        except UserError as error:
            if isinstance(error, NotHere):
                check_no_file(str(self._name), error)
            return None  # several of that name: members may have the one that is meant
        return found if found.complete else None

    async def _from_members(self) -> StoredModel | None:
        """Return the model in its final place; None if it is to be downloaded.

        Members that cannot give it, or lie, keep nobody from what is published elsewhere.
        """
        name = str(self._name)
        may_wait = ASKING_SECONDS if is_published(name) else None
        try:
            async with asyncio.timeout(may_wait) as self._asking:
                await super().run()
        except TimeoutError:
            if not self._asking.expired():
                raise
            self._note(f"no member gives `{name}` soon")
            return None
        except (LocalProtocolError, DiskFault):
            raise
        except NobodyHasIt as error:
            if isinstance(self._name, MeshName):
                raise
            if self._excluded:  # somebody gave something else
                self._note(error.what)
            return None
        except MeshdError as error:
            if not is_published(name):
                raise
            self._note(error.what)
            return None
        # It is not done yet: nobody has yielded since the members' part was.
        self._begin(PullStep.CHECKING)
        return await in_own_thread(self._kept, self._show_check)

    async def _find(self, failed: UserError | None) -> list[MemberOffer]:
        """Find members, which may take a while to read their files."""
        if is_published(str(self._name)):
            self._asking.reschedule(asyncio.get_running_loop().time() + ASKING_SECONDS)
        return await super()._find(failed)

    async def _fetch(self, fetch: Fetch, index: PieceIndex, offer: MemberOffer) -> bool:
        """Take what members give, for as long as they do."""
        self._asking.reschedule(None)
        return await super()._fetch(fetch, index, offer)

    def _kept(self, report: ReportProgress) -> StoredModel | None:
        """Put what came from members where it belongs. Raises UserError. Blocks."""
        stores = self._stores
        cache, paths = self._place.folder.parent, self.state.paths
        kept = keep_pulled(str(self._name), paths, stores.hub, cache, report, self._note)
        return None if kept is None else Resolver(stores, report).local(kept)

    def _download(self, report: ReportProgress) -> StoredModel:
        """Return the model from where its name says. Raises UserError. Blocks."""
        return Resolver(self._stores, report).get(str(self._name))

    def _note(self, text: str) -> None:
        """Add what the user should know of it besides."""
        self.state.note = f"{self.state.note}; {text}" if self.state.note else text
        LOG.info("model_fetching", model=str(self._name), what=text)

    def _begin_download(self) -> None:
        """Forget what members had: the download is another file."""
        state = self.state
        state.source, state.holders, state.paths, state.fingerprint = "download", {}, (), ""
        if state.name:  # one that exists
            state.name = str(self._name)
        if self._rate and is_published(str(self._name)):
            self._note(f"a download is not limited to {in_bytes(self._rate)}/s, as copies from members are")
        self._begin(PullStep.ASKING)

    def _begin(self, step: PullStep) -> None:
        state = self.state
        state.step, state.activity = step, ""
        state.done = state.total = state.before = 0
        state.rate = 0.0

    def _show_check(self, progress: TransferProgress) -> None:
        self._show(PullStep.CHECKING, progress)

    def _show_download(self, progress: TransferProgress) -> None:
        if not progress.is_asking:
            self.state.name = str(self._name)  # it is one that exists
        self._show(PullStep.ASKING if progress.is_asking else PullStep.FETCHING, progress)

    def _show(self, step: PullStep, progress: TransferProgress) -> None:
        state = self.state
        if state.step in (PullStep.DONE, PullStep.FAILED):
            return  # its thread was stopped, and had one more to say
        state.step, state.activity, state.rate = step, progress.activity, progress.rate
        state.done, state.total = progress.done, progress.total

    def _found(self, model: StoredModel) -> None:
        state = self.state
        state.paths, state.name = model.paths, state.name or model.stem or model.name
        state.done = state.total = model.size
        state.step, state.activity, state.rate = PullStep.DONE, "", 0.0


def _unseen(progress: TransferProgress) -> None:
    """Report to nobody: what is looked for on this machine is found in a moment."""
