from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from memtopo import machine
from memtopo.output.blocks import Drawing
from memtopo.output.diagram import page
from memtopo.output.diagram.build import build_diagram
from memtopo.output.diagram.svg import svg
from memtopo.rules import validate
from tests.browser.inspection import LARGER, SMALL, VIEWS, Browser, View
from tests.helpers.diagrams import PARTS_AND_HOLES, spec_diagram
from tests.helpers.samples import in_sample, sampled
from tests.helpers.specs import EVERY_SPEC, document

EVERY = [*EVERY_SPEC, PARTS_AND_HOLES]
IN_ALL_VIEWS = {"parts-and-holes", "hand-over", "managed"}
LONG = "a-name-that-somebody-gave-to-a-chunk-in-a-spec-with-much-care"
NESTED = "".join(
    f"""
  p{turn}:
    ranges: {{r: {{size: 16MiB}}}}
    chunks: {{c: {{location: gpu{turn % 4}, size: 2MiB, count: 2, handles: fd}}}}
    exports: {{c: {{chunk: c, via: fd}}, again: {{chunk: c.0, via: fd}}}}
    imports: {{m: {{from: p{(turn + 1) % 5}.c}}, n: {{from: p{(turn + 2) % 5}.c}}}}
    map: {{r: [c, m, n]}}
    access: {{r: {{gpu{turn % 4}: rw}}}}
"""
    for turn in range(5)
)
CRAMPED = {
    "long names": f"""
        devices: {{{LONG}0: 0, {LONG}1: 1}}
        ranges: {{{LONG}: {{size: 64MiB, count: 3}}, b: {{size: 1GiB}}}}
        chunks: {{{LONG}: {{location: [{LONG}0, {LONG}1], size: 2MiB, count: 96, handles: [fd]}}}}
        buffers: {{{LONG}-buffer: {{location: {LONG}0, size: 3MiB, count: 700}}}}
        map: {{{LONG}: [{LONG}]}}
        access: {{{LONG}: {{{LONG}0: rw, {LONG}1: r}}}}
        exports: {{{LONG}-x: {{chunk: {LONG}, via: fd}}, {LONG}-y: {{buffer: {LONG}-buffer, via: ipc}}}}
        imports:
          {LONG}-i: {{from: /a/long/path/{"語" * 20}.sock/{LONG}, location: gpu1, size: 2MiB, count: 4}}
        """,
    "long names of others": f"""
        managed: {{{LONG}-managed: {{size: 3MiB, prefer: host, accessed_by: [gpu0, gpu1, gpu2], prefetch: gpu3}}}}
        external:
          {LONG}:
            from: '/a/long/path/{"語" * 20}<script>.sock/{LONG}'
            via: opaque_fd
            device: gpu1
            size: 64MiB
            buffers: {{a: {{offset: 63MiB, size: 1KiB}}, {LONG}: {{offset: 1KiB, size: 60MiB}},
                       {", ".join(f"p{turn}: {{offset: {turn}MiB, size: 7MiB}}" for turn in range(20))}}}
        semaphores:
          {LONG}-ready: {{from: camera/{LONG}, via: timeline_fd, device: gpu2, wait: 100000, signal: 200000}}
        """,
    "many lanes": """
        ranges: {a: {size: 64MiB}, b: {size: 64MiB}}
        chunks: {x: {location: [gpu0, gpu1, gpu2, gpu3], size: 2MiB, count: 32}}
        map: {a: [x], b: [{chunk: x.0:7, offset: 4MiB}, {chunk: x.20, offset: 40MiB}, x.2, x.2, x.2]}
        access: {a: {gpu0: rw, gpu1: r, gpu2: rw, gpu3: r}, b: {gpu0: rw, gpu1: r, gpu2: rw, gpu3: r}}
        """,
    "many lines": f"memtopo: 1\nname: test\nprocesses:\n{NESTED}",
    "many labels": f"""
        ranges: {{r: {{size: 4000MiB}}}}
        chunks: {{a: {{location: gpu0, size: 2MiB, count: 900}}, b: {{location: gpu1, size: 4MiB, count: 450}}}}
        map: {{r: [{", ".join(f"a.{turn}, b.{turn}" for turn in range(450))}]}}
        access: {{r: {{gpu1: r}}}}
        """,
}


def defects(path: Path, browser: Browser, folder: Path, views: Sequence[View]) -> list[str]:
    """What is clipped, covered, hard to read, fetched or reported on the console."""
    shown, read = spec_diagram(path)
    file = folder / "page.html"
    file.write_text(page(Drawing(shown, path.stem, "4 × NVIDIA H200", read.position)))
    browser.open(file)
    return [fault for view in views for fault in browser.look(view)] + browser.complaints()


@pytest.mark.parametrize("path", in_sample(EVERY), ids=lambda path: path.stem)
def test_pages_have_no_defect_on_a_small_and_a_larger_window_or_paper(
    path: Path, browser: Browser, tmp_path: Path
) -> None:
    """Texts move with the width, most of all in a small window; colours change with the scheme."""
    larger = LARGER[EVERY.index(path) % len(LARGER)]
    assert defects(path, browser, tmp_path, VIEWS if path.stem in IN_ALL_VIEWS else [SMALL, larger]) == []


@pytest.mark.exhaustive(seconds=1)
@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_pages_have_no_defect_at_any_width_in_any_scheme(path: Path, browser: Browser, tmp_path: Path) -> None:
    assert defects(path, browser, tmp_path, VIEWS) == []


@pytest.mark.parametrize("path", sampled(EVERY, 0.5))
def test_svg_files_have_no_defect_in_either_scheme(path: Path, browser: Browser, tmp_path: Path) -> None:
    """Nothing is clipped, covered, hard to read, fetched or reported on the console."""
    shown, read = spec_diagram(path)
    file = tmp_path / "map.svg"
    file.write_text(svg(Drawing(shown, path.stem, note="4 × NVIDIA H200", locate=read.position)))
    browser.open(file)
    assert [fault for scheme in ("light", "dark") for fault in browser.look(View(960, scheme))] == []
    assert browser.complaints() == []


@pytest.mark.parametrize("name", CRAMPED)
def test_long_names_and_many_lanes_cause_no_defect(
    name: str, browser: Browser, views: Sequence[View], tmp_path: Path
) -> None:
    facts = machine.load("h200x4")
    found = validate(document(dedent(CRAMPED[name])), facts)
    assert found.geometry, found.diagnostics
    shown = build_diagram(found.geometry, facts)
    for suffix, draw, seen in (("html", page, views), ("svg", svg, [View(960)])):
        file = tmp_path / f"page.{suffix}"
        file.write_text(draw(Drawing(shown, "a title of many words " * 9, note="a note of many words " * 9)))
        browser.open(file)
        assert [fault for view in seen for fault in browser.look(view)] == []
    assert browser.complaints() == []


def test_an_embedded_svg_follows_the_color_scheme(browser: Browser, tmp_path: Path) -> None:
    """GitHub embeds an SVG as an image; it is light or dark as the reader's scheme is."""
    shown, _ = spec_diagram(EVERY[0])
    (tmp_path / "map.svg").write_text(svg(Drawing(shown, "title")))
    file = tmp_path / "page.html"
    file.write_text('<!doctype html><body style="margin:0"><img src="map.svg" width="960" alt="">')
    browser.open(file)
    assert browser.colour(View(960, "light"), 12, 12) == (255, 255, 255)
    assert browser.colour(View(960, "dark"), 12, 12) == (14, 17, 22)
