from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.inspection import Browser, View

HEAD = '<title id="t">t</title><desc id="d">d</desc>'
FINE = '<rect class="k" x="10" y="10" width="180" height="60" fill="#fff"/><text x="20" y="40" fill="#000">fine</text>'


def svg(content: str = FINE, head: str = HEAD, more: str = "") -> str:
    return f'<svg viewBox="0 0 200 100" width="200" role="img" aria-labelledby="t d" {more}>{head}{content}</svg>'


def looked_at(html: str, browser: Browser, folder: Path, view: View) -> list[str]:
    file = folder / "page.html"
    file.write_text(f'<!doctype html><meta charset="utf-8">{html}')
    browser.open(file)
    return browser.look(view)


def test_inspection_finds_nothing_in_a_correct_drawing(browser: Browser, tmp_path: Path) -> None:
    assert looked_at(svg(), browser, tmp_path, View(400)) == []


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        (svg('<text x="150" y="50">far too long a text</text>'), "outside of the drawing"),
        (svg(FINE + '<text x="150" y="40" fill="#000">longer</text>'), "out of its card"),
        (svg(FINE + '<text x="30" y="42" fill="#000">other</text>'), "overlaps"),
        (svg('<text x="20" y="40" fill="#999">pale</text>'), "contrast 2.8"),
        (
            svg('<defs><pattern id="p"/></defs><rect width="99" height="99" fill="url(#p)"/><text y="40">on</text>'),
            "textu",
        ),
        (svg(FINE + '<rect x="190" y="0" width="20" height="9"/>'), "a rect outside"),
        (svg(head='<desc id="d">d</desc><desc id="t"></desc>'), "without a title"),
        (svg(head='<title id="t">t</title><title id="d">d</title>'), "without a description"),
        (svg(more='role="group"').replace('role="img" ', ""), "no image"),
        (svg(head=HEAD + '<g id="t"/>'), "not there once"),
        (svg() + svg(), "2 drawings"),
        ("<p>nothing</p>", "no text"),
        (svg() + '<p style="color:#aaa">pale</p>', "contrast 2.3"),
        (svg() + '<p style="overflow:hidden;width:40px">incomprehensibly</p>', "wider than its place"),
        (svg() + '<div style="width:900px">.</div>', "wider than the window"),
    ],
    ids=lambda each: each if len(each) < 24 else "",
)
def test_inspection_finds_each_defect_at_its_element(html: str, fault: str, browser: Browser, tmp_path: Path) -> None:
    assert any(fault in each for each in looked_at(html, browser, tmp_path, View(400)))


def test_inspection_finds_defects_of_the_dark_scheme_or_of_print_only_there(browser: Browser, tmp_path: Path) -> None:
    style = (
        "<style>@media screen and (prefers-color-scheme:dark){text{fill:#fff!important}}@media print{rect{fill:#000}}"
    )
    html = svg() + style + "</style>"
    assert looked_at(html, browser, tmp_path, View(400, "dark")) != []
    assert looked_at(html, browser, tmp_path, View(400, "dark", "print")) != []
    assert looked_at(html, browser, tmp_path, View(400, "light")) == []


def test_inspection_reports_console_output_and_requests_once(browser: Browser, tmp_path: Path) -> None:
    looked_at(
        svg() + "<script>console.error('broken')</script><img src='page.html' alt=''>", browser, tmp_path, View(400)
    )
    found = browser.complaints()
    assert any("broken" in each for each in found)
    assert any("fetched file:" in each for each in found)
    assert browser.complaints() == []
