"""The entrance for browsers: a pipe comes in, a browser proves an invite and its key, channels come of it.

The first two messages make the seal (identity/browser_seal.py); in it the browser shows its key, which the
invite admits as it admits a node's. Then it sends offers, which lead to a channel over WebRTC, or data: then
the pipe itself is the channel. A pipe may end once a channel over WebRTC stands.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from meshd.base.errors import Broken, Closed, EndOfStream, MeshdError, RemoteProtocolError
from meshd.base.log import get
from meshd.base.peer_limits import (
    BROWSER_SILENT_SECONDS,
    BROWSERS,
    BROWSERS_OF_KEY,
    BROWSERS_UNPROVEN,
    BROWSERS_UNPROVEN_OF_ADDRESS,
)
from meshd.base.tasks import Owner
from meshd.base.unproven_connections import UnprovenConnections
from meshd.identity.browser_seal import BROWSER_CONTEXT, answer
from meshd.identity.invite import JoinKeys
from meshd.identity.keys import KEY_BYTES, KeyPair, PeerId, verify
from meshd.identity.membership import Chain
from meshd.link.browser.channels import DirectChannel, SealedChannel, SealedPipe
from meshd.link.browser.direct import BrowserMeetings
from meshd.link.ice.links import IcePipe
from meshd.link.interface import Admit, BrowserChannel, BytePipe, LetIn, ServeBrowser, Signals
from meshd.wire.browser import (
    DATA,
    MAX_FIRST_BYTES,
    SIGNALLING,
    BrowserHello,
    BrowserRefused,
    BrowserSignal,
    BrowserWelcome,
    decode_browser,
)
from meshd.wire.hello import NotAdmitted
from meshd.wire.message import LengthParser, framed

PROOF_SECONDS = 5.0
_SIGNALS_WAITING = 16
_log = get("browsers")
# for a browser, which has no command line
_NEW_INVITE = "to return, get a new invite, press `Forget this invite`, and paste the new one"

MakeMeetings = Callable[[Signals], BrowserMeetings]


@dataclass(frozen=True, slots=True)
class Entry:
    """A browser that was let in. `chain` proves it, as a node's does."""

    peer: PeerId
    chain: Chain


class Browsers:
    """All browsers of this node. `welcome` runs the whole life of one pipe.

    `invites`: the keys of an invite for browsers, by its id. `why_banned`: of a chain. `random`: so many
    secret bytes. `meetings`: None without WebRTC. The daemon sets `serve_channel` and `on_ban`
    while its API runs; `on_ban` is called with the key of each browser that is banned while connected.
    """

    def __init__(
        self,
        *,
        key: KeyPair,
        name: str,
        invites: Callable[[bytes], JoinKeys | None],
        admit: Admit,
        why_banned: Callable[[Chain], str | None],
        stun: Callable[[], Sequence[str]],
        meetings: MakeMeetings | None,
        random: Callable[[int], bytes],
    ) -> None:
        self._key = key
        self._name = name
        self._invites = invites
        self._admit = admit
        self._why_banned = why_banned
        self._stun = stun
        self._meetings = meetings
        self._random = random
        self._unproven = UnprovenConnections(
            most=BROWSERS_UNPROVEN.most, most_of_one=BROWSERS_UNPROVEN_OF_ADDRESS.most
        )
        self._sessions: list[_Session] = []  # oldest first
        self.serve_channel: ServeBrowser | None = None
        self.on_ban: Callable[[bytes], None] | None = None

    @property
    def connected(self) -> frozenset[PeerId]:
        """The browsers that are here."""
        return frozenset(session.entry.peer for session in self._sessions)

    def bans_changed(self) -> None:
        """End what banned browsers have."""
        for session in list(self._sessions):
            why = self._why_banned(session.entry.chain)
            if why is not None:
                _log.warning("browser_banned", peer=session.entry.peer.short, why=why)
                session.end()
                if self.on_ban is not None:
                    self.on_ban(session.entry.peer.raw)

    async def welcome(self, pipe: BytePipe, place: str, let_in: LetIn = lambda _key: None) -> bool:
        """Run the whole life of a pipe from `place`; return False if its browser has proven nothing.

        `let_in` is called with the browser's key once it has.
        """
        entered: tuple[SealedPipe, Entry] | None = None
        try:
            try:
                async with asyncio.timeout(PROOF_SECONDS) as proving:
                    self._unproven.arrive(pipe, host=place, send_away=partial(_end_now, proving))
                    entered = await self._prove(pipe)
            finally:
                self._unproven.leave(pipe)
            if entered is not None:
                let_in(entered[1].peer.raw)
                await self._stay(*entered, place)
        except (MeshdError, TimeoutError) as error:
            _log.debug("browser_gone", remote=place, why=str(error) or "timed out")
            return entered is not None or isinstance(error, EndOfStream | Broken)
        finally:
            await pipe.aclose()
        return True

    async def _prove(self, pipe: BytePipe) -> tuple[SealedPipe, Entry] | None:
        """Make the seal and let the browser in; None: it was told why not. Raises MeshdError."""
        # The seal: one message of each side.
        parser = LengthParser(limit=MAX_FIRST_BYTES)
        while (first := parser.next()) is None:
            parser.feed(await pipe.receive())
        second, invite_id, seal = answer(
            first, key=self._key, invites=self._invites, ephemeral=self._random(KEY_BYTES)
        )
        await pipe.send([framed(second)])
        # In it the browser's key, and its signature over this very seal.
        sealed = SealedPipe(pipe, seal, parser.rest())
        kind, message = await sealed.receive()
        hello = decode_browser(message) if kind == SIGNALLING else None
        if not isinstance(hello, BrowserHello):
            raise RemoteProtocolError("a browser did not begin with hello", code="browser")
        peer = PeerId(hello.key)
        if not verify(peer, BROWSER_CONTEXT, seal.binding, hello.signature):
            raise RemoteProtocolError("a browser's signature is wrong", code="browser")
        # The invite decides.
        if self.serve_channel is None:
            decided = NotAdmitted("absent", "this node answers no browsers", "ask its owner")
        else:
            decided_by_invite = self._admit(peer, invite_id)
            if not isinstance(decided_by_invite, NotAdmitted):
                welcome = BrowserWelcome(self._name, tuple(self._stun()))
                await sealed.send(SIGNALLING, welcome.encode())
                return sealed, Entry(peer, Chain.decode(decided_by_invite.chain))
            decided = decided_by_invite
        _log.info("browser_refused", peer=peer.short, why=decided.text)
        hint = _NEW_INVITE if decided.code in ("banned", "revoked") else decided.hint
        refusal = BrowserRefused(decided.code, decided.text, hint)
        await sealed.send(SIGNALLING, refusal.encode())
        return None

    async def _stay(self, sealed: SealedPipe, entry: Entry, place: str) -> None:
        serve = self.serve_channel
        if serve is None:
            return
        if self._why_banned(entry.chain) is not None:  # while it was told that it is welcome
            return
        session = _Session(sealed, entry, serve, self._meetings)
        self._make_room(entry.peer)
        self._sessions.append(session)
        _log.info("browser_connected", peer=entry.peer.short, remote=place)
        try:
            await session.run()
        finally:
            self._sessions.remove(session)
            _log.info("browser_disconnected", peer=entry.peer.short)

    def _make_room(self, peer: PeerId) -> None:
        """End the oldest session of a browser that has too many, or of all."""
        going = [session for session in self._sessions if not session.is_ending]
        same = [session for session in going if session.entry.peer == peer]
        if len(same) >= BROWSERS_OF_KEY.most:
            same[0].end()
        elif len(going) >= BROWSERS.most:
            going[0].end()


class _Session:
    """One browser on one sealed pipe, until pipe and channels have ended (implements Signals)."""

    def __init__(
        self, pipe: SealedPipe, entry: Entry, serve: ServeBrowser, meetings: MakeMeetings | None
    ) -> None:
        self.entry = entry
        self._pipe = pipe
        self._serve = serve
        self._signals: asyncio.Queue[bytes] = asyncio.Queue(_SIGNALS_WAITING)
        self._idle = asyncio.Event()
        self._meetings = meetings(self) if meetings is not None else None
        if self._meetings is not None:
            self._meetings.on_channel = self._direct
            self._meetings.on_idle = self._idle.set
        self._owner: Owner | None = None
        self.is_ending = False

    def end(self) -> None:
        """End pipe and channels."""
        self.is_ending = True
        if self._owner is not None:
            self._owner.cancel()

    async def run(self) -> None:
        """Run until pipe and channels have ended, or `end`."""
        peer = f"peer {self.entry.peer.short}"
        try:
            async with Owner() as owner:
                self._owner = owner
                if self._meetings is not None:
                    owner.start(self._meetings.serve(_no_links), name="browser offers")
                live = owner.start_for(peer, self._live(), name="browser")
                live.add_done_callback(lambda _: owner.cancel())
        finally:
            self._owner = None

    async def _live(self) -> None:
        meetings = self._meetings
        try:
            await self._listen()
        except (EndOfStream, Broken, Closed):
            while meetings is not None and meetings.under_way:  # a channel over WebRTC goes on
                self._idle.clear()
                await self._idle.wait()

    async def _listen(self) -> None:
        """Take in signals until the end, or until the pipe becomes the channel."""
        while True:
            try:
                async with asyncio.timeout(BROWSER_SILENT_SECONDS.most):
                    kind, message = await self._pipe.receive()
            except TimeoutError:
                raise Closed("the browser has said nothing for too long") from None
            if kind == DATA:
                await self._keep(SealedChannel(self._pipe, self.entry.peer, message))
                return
            signal = decode_browser(message) if kind == SIGNALLING else None
            if isinstance(signal, BrowserSignal) and self._meetings is not None:
                await self._signals.put(signal.payload)

    async def _direct(self, pipe: IcePipe) -> None:
        await self._keep(DirectChannel(pipe, self.entry.peer))

    async def _keep(self, channel: BrowserChannel) -> None:
        try:
            await self._serve(channel)
        finally:
            await channel.close()

    # --- Signals, of the one browser

    async def send(self, peer: PeerId, payload: bytes) -> None:
        """Send a signal to the browser. Raises Broken."""
        try:
            await self._pipe.send(SIGNALLING, BrowserSignal(payload).encode())
        except MeshdError as error:
            raise Broken(error.what) from None

    async def receive(self) -> tuple[PeerId, bytes]:
        """Return the browser's next signal."""
        return self.entry.peer, await self._signals.get()


def _end_now(timeout: asyncio.Timeout) -> None:
    if not timeout.expired():  # nor about to
        timeout.reschedule(0.0)


async def _no_links(_link: object) -> None:
    raise AssertionError("a browser's meetings make channels, no links")
