"""Browsers are answered while the API is there, and no longer; so is who asks for the page."""

import pytest
from meshd.base.tasks import Owner
from meshd.daemon.browsers import answer_browsers
from meshd.gateway import pages
from meshd.gateway.interface import GatewayConfig
from meshd.gateway.pages import PageFile, small_page
from meshd.link.browser.port import ReadPage

from tests.conformance.run import until
from tests.process.gateway_fake import DONE, streams, world


class FakeBrowsers:
    """The part of Browsers that is used."""

    serve_channel: object = None
    on_ban: object = None


class FakePort:
    """The part of BrowserPort that is used."""

    read_page: ReadPage | None = None


@pytest.mark.parametrize("page", [small_page()["/"], None], ids=["built", "not built"])
async def test_channels_are_served_until_the_api_ends(
    page: PageFile | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    browsers, port = FakeBrowsers(), FakePort()
    monkeypatch.setattr(pages, "remote_page", lambda: page)
    async with world(streams(DONE), config=GatewayConfig(port=0)) as here, Owner() as owner:
        work = answer_browsers(browsers, port, here.gateway)  # type: ignore[arg-type]
        owner.start(work, name="browsers")
        await until(lambda: browsers.serve_channel is not None)
        assert browsers.on_ban is not None
        if page is None:
            assert port.read_page is None
        else:
            assert port.read_page is not None
            assert (await port.read_page()).endswith(page.place.read_bytes())
        owner.cancel()
    assert browsers.serve_channel is None and browsers.on_ban is None and port.read_page is None
