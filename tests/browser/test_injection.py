from __future__ import annotations

from pathlib import Path

import pytest

from memtopo import machine
from memtopo.output.blocks import Drawing
from memtopo.output.diagram import page
from memtopo.output.diagram.build import build_diagram
from memtopo.output.diagram.svg import svg
from memtopo.rules import validate
from tests.browser.inspection import Browser, View
from tests.helpers.specs import document

SPEC = """
memtopo: 1
name: test
ranges: {r: {size: 4MiB}}
imports:
  w:
    from: '/tmp/"><script>document.title=1</script><img src=x onerror=alert(1)>]]>.sock/w'
    location: gpu0
    size: 2MiB
    count: 2
external:
  frame:
    from: '/tmp/"><script>document.title=1</script><img src=x onerror=alert(1)>]]>.sock/x'
    via: opaque_fd
    device: gpu0
    size: 4MiB
    buffers: {y: {offset: 2MiB, size: 2MiB}}
semaphores: {ready: {from: '/path/<script>/x', via: timeline_fd, device: gpu0, wait: 1}}
map: {r: [w]}
access: {r: {gpu0: r}}
"""
EVIL = "</title></style>]]>\"'><script>document.documentElement.dataset.evil=1</script><svg/onload=alert(1)>&\x1b"


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_no_text_of_a_spec_is_executed_in_a_page(suffix: str, browser: Browser, tmp_path: Path) -> None:
    """Origins, titles and file names that contain markup are shown as text."""
    facts = machine.load("h200x2")
    found = validate(document(SPEC), facts)
    assert found.geometry, found.diagnostics
    draw = {"svg": svg, "html": page}[suffix]
    file = tmp_path / f"page.{suffix}"
    file.write_text(draw(Drawing(build_diagram(found.geometry, facts), EVIL, note=EVIL, locate=lambda _: EVIL)))
    browser.open(file)
    assert browser.look(View(1000)) == []
    assert browser.complaints() == []
    scripts = "return document.querySelectorAll('script,img,[onload],[onerror],[data-evil]').length"
    assert browser.driver.execute_script(scripts) == 0
