from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.browser.inspection import LARGER, SMALL, VIEWS, Browser, View, browsing, found

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{HERE}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker("browser")


@pytest.fixture(scope="session")
def open_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not found() and not os.environ.get("CI"):
        pytest.skip("no chromium and chromedriver here; on Debian: apt-get install chromium chromium-driver")
    with browsing(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def browser(open_browser: Browser) -> Browser:
    """The browser of the session, without what pages of other tests fetched and reported."""
    open_browser.complaints()
    return open_browser


@pytest.fixture(
    params=[[SMALL, *LARGER], pytest.param(VIEWS, marks=pytest.mark.exhaustive(seconds=3))], ids=["some", "all"]
)
def views(request: pytest.FixtureRequest) -> Sequence[View]:
    """Views of a page: each width, scheme and medium once, or with `make test-full` all combinations."""
    found: Sequence[View] = request.param
    return found
