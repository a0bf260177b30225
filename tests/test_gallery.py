from __future__ import annotations

import re

from docs import make_gallery
from tests.helpers.specs import EVERY_SPEC, ROOT


def test_the_gallery_is_current() -> None:
    """docs/gallery.md and its pictures are what `make docs` writes, and there are no others"""
    made = make_gallery.files()
    kept = {f"docs/gallery/{file.name}" for file in (ROOT / "docs" / "gallery").iterdir()} | {"docs/gallery.md"}
    assert kept == set(made)
    stale = [name for name, text in made.items() if (ROOT / name).read_text(encoding="utf-8") != text]
    assert stale == [], "if they are better now: make docs"


def test_every_spec_is_in_the_gallery() -> None:
    """Each spec in specs/ has a section with its sentence, its picture, what the picture says, and a link"""
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    for path in EVERY_SPEC:
        section = (
            rf"## {path.stem}\n\n[A-Z0-9][^\n]+\n\n!\[[^\]]+\.\]\(gallery/{path.stem}\.svg\)\n\n\[specs/{path.name}\]"
        )
        assert re.search(section, page), path.stem


def test_the_readme_opens_with_a_picture() -> None:
    """Below its title the README shows the quickstart's picture"""
    title, picture = (ROOT / "README.md").read_text(encoding="utf-8").split("\n\n", 2)[:2]
    assert title == "# memtopo"
    assert "(docs/gallery/quickstart.svg)" in picture


def test_pictures_are_small() -> None:
    """No picture of the gallery has more than 24 KB"""
    sizes = {file.name: file.stat().st_size for file in (ROOT / "docs" / "gallery").iterdir()}
    assert max(sizes.values()) <= 24_000, sizes
