"""The site of the documentation, as `make site` builds it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from tests.helpers.specs import ROOT


class Targets(HTMLParser):
    """Ids of a page, and what it links to or loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids = {""}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.loaded += [given[name] for name in ("src", "href") if name in given and tag in ("script", "link", "img")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Targets]:
    """Pages of the site by path, built as `make site` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    variables = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return {page: Targets(page) for page in folder.rglob("*.html") if page.name != "404.html"}


def test_links_of_the_site_lead_to_pages_and_their_ids(site: dict[Path, Targets]) -> None:
    broken = []
    for page, found in site.items():
        for link in found.links:
            path, place = urldefrag(link)
            if ":" in path:
                continue
            target = Path(os.path.normpath(page.parent / unquote(path))) if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (target in site and unquote(place) not in site[target].ids):
                broken.append(f"{page.name}: {link}")
    assert broken == []


def test_site_loads_nothing_from_elsewhere(site: dict[Path, Targets]) -> None:
    """So that it can be read without a network."""
    assert [(page.name, each) for page, found in site.items() for each in found.loaded if "//" in each] == []


def test_every_page_of_the_docs_is_in_the_navigation(site: dict[Path, Targets]) -> None:
    (index,) = [page for page in site if page.name == "index.html" and page.with_name("tutorial.html").exists()]
    linked = {urldefrag(link)[0] for link in site[index].links}
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert pages - {"index.html"} <= linked


def test_no_fence_is_left_in_the_text_of_a_page(site: dict[Path, Targets]) -> None:
    """A block that was not recognised shows its backticks."""
    assert [page.name for page in site if "<p>```" in page.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    ("words", "page"),
    [("INVALID_VALUE", "errors.html"), ("sleep", "how-to/sleep.html"), ("cuMemMap", "driver-facts.html")],
)
def test_the_search_of_the_site_knows_the_words_of_a_page(site: dict[Path, Targets], words: str, page: str) -> None:
    folder = min(site, key=lambda each: len(each.parts)).parent
    index = json.loads((folder / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {each["location"].partition("#")[0] for each in index["docs"] if words in f"{each['title']} {each['text']}"}
    assert page in found
    assert any(source.endswith(".js") and "bundle" in source for source in site[folder / "index.html"].loaded)
