"""Browsers are answered while the API is there, and no longer."""

import asyncio

from meshd.base.tasks import Owner
from meshd.daemon.browsers import answer_browsers
from meshd.gateway.interface import GatewayConfig

from tests.process.gateway_fake import DONE, streams, world


class FakeBrowsers:
    """The part of Browsers that is used."""

    serve_channel: object = None
    on_ban: object = None


async def test_channels_are_served_until_the_api_ends() -> None:
    browsers = FakeBrowsers()
    async with world(streams(DONE), config=GatewayConfig(port=0)) as here, Owner() as owner:
        work = answer_browsers(browsers, here.gateway)  # type: ignore[arg-type]
        owner.start(work, name="browsers")
        await asyncio.sleep(0)
        assert browsers.serve_channel is not None and browsers.on_ban is not None
        owner.cancel()
    assert browsers.serve_channel is None and browsers.on_ban is None
