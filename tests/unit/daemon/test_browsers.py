"""Browsers are answered while the API is there, and no longer."""

import asyncio

from meshd.base.tasks import Owner
from meshd.daemon.browsers import answer_browsers

from tests.unit.gateway.test_browser_bridge import FakeSource


class FakeBrowsers:
    """The part of Browsers that is used."""

    serve_channel: object = None


class FakeGate:
    """Implements MemberGate for nobody."""

    key_digests = ()


async def test_channels_are_served_until_the_api_ends() -> None:
    browsers = FakeBrowsers()
    async with Owner() as owner:
        work = answer_browsers(browsers, FakeGate(), FakeSource())  # type: ignore[arg-type]
        owner.start(work, name="browsers")
        await asyncio.sleep(0)
        assert browsers.serve_channel is not None
        owner.cancel()
    assert browsers.serve_channel is None
