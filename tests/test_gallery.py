from __future__ import annotations

import re

from docs import make_gallery
from tests.helpers.specs import EVERY_SPEC, ROOT


def test_gallery_and_its_pictures_are_current() -> None:
    """`make docs` writes them; there are no other pictures."""
    made = make_gallery.files()
    kept = {f"docs/gallery/{file.name}" for file in (ROOT / "docs" / "gallery").iterdir()} | {"docs/gallery.md"}
    assert kept == set(made)
    stale = [name for name, text in made.items() if (ROOT / name).read_text(encoding="utf-8") != text]
    assert stale == [], "if they are better now: make docs"


def test_every_spec_has_a_section_in_the_gallery() -> None:
    """With its sentence, its picture, the text of the picture and a link."""
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    for path in EVERY_SPEC:
        section = (
            rf"## {path.stem}\n\n[A-Z0-9][^\n]+\n\n!\[[^\]]+\.\]\(gallery/{path.stem}\.svg\)\n\n\[specs/{path.name}\]"
        )
        assert re.search(section, page), path.stem


def test_readme_shows_the_quickstart_below_its_title() -> None:
    title, picture = (ROOT / "README.md").read_text(encoding="utf-8").split("\n\n", 2)[:2]
    assert title == "# memtopo"
    assert "(docs/gallery/quickstart.svg)" in picture


def test_pictures_of_the_gallery_have_at_most_24_kb() -> None:
    sizes = {file.name: file.stat().st_size for file in (ROOT / "docs" / "gallery").iterdir()}
    assert max(sizes.values()) <= 24_000, sizes
