"""Layouts as graphs: what is in them, that Graphviz and Mermaid read it, and that no text gets out of its quotes."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from memtopo import machine
from memtopo.language import read_file
from memtopo.output.diagram.build import build_diagram
from memtopo.output.diagram.dot import dot
from memtopo.output.diagram.graph import Graph, Node, graph
from memtopo.output.diagram.mermaid import MOST_CHARACTERS, MOST_EDGES, mermaid
from memtopo.output.diagram.model import Diagram
from memtopo.rules.validation import validate
from tests.helpers.machines import invented
from tests.helpers.specs import EVERY_SPEC, ROOT, judged
from tests.output.diagram.pictures import EVIL, hostile, hostile_processes

DOT = shutil.which("dot")
graphviz = pytest.mark.skipif(DOT is None, reason="Graphviz is not installed")

# What a flowchart's lines may be, told apart by everything but the words in quotes.
WORDS = r'"(?:[A-Za-z0-9 ,.()×…/_+=-]|#\d+;|<br>)*"'
SHAPE = rf"(?:\[{WORDS}\]|\(\[{WORDS}\]\)|\[\[{WORDS}\]\]|>{WORDS}\]|\[/{WORDS}/\]|\{{\{{{WORDS}\}}\}})"
LINES = re.compile(
    rf"flowchart LR|  accTitle: [\w,.()-][\w ,.()-]*|  subgraph p\d+\[{WORDS}\]|  end"
    rf"|(?:  )+(?:n\d+|more){SHAPE}:::(?:d\d|plain)"
    r"|  style p\d+ fill:none,stroke:#\w{6}"
    rf"|  n\d+ -\.?->(?:\|{WORDS}\|)? n\d+|  classDef (?:d\d|plain) fill:#\w{{6}},stroke:#\w{{6}},color:#000"
)


@cache
def pictured(path: Path) -> Diagram:
    facts = machine.load("h200x4")
    found = validate(read_file(path), facts)
    assert found.geometry, found.diagnostics
    return build_diagram(found.geometry, facts)


def drawn(text: str) -> Graph:
    facts = invented(2, memory=1 << 50)
    found = judged(text, facts)
    assert found.geometry, found.diagnostics
    return graph(build_diagram(found.geometry, facts))


def nodes(shown: Graph) -> dict[str, Node]:
    return {node.id: node for node in (*shown.nodes, *(node for each in shown.clusters for node in each.nodes))}


def edges(shown: Graph) -> list[tuple[str, str, tuple[str, ...], bool]]:
    """Each edge by the kinds and names of its ends."""
    names = {id: f"{node.kind} {node.lines[0]}" for id, node in nodes(shown).items()}
    return [(names[edge.source], names[edge.target], edge.lines, edge.handles) for edge in shown.edges]


def accepted(text: str) -> str:
    """What Graphviz makes of a graph, as SVG."""
    assert DOT
    done = subprocess.run([DOT, "-Tsvg"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_one_process() -> None:
    """Chunks, ranges with their access, and which chunks are where in them"""
    shown = graph(pictured(ROOT / "specs" / "ring-buffer.yaml"))
    assert [node.lines for node in shown.nodes] == [("data", "8 MiB", "gpu0"), ("ring", "16 MiB", "gpu0 rw")]
    assert edges(shown) == [("chunk data", "range ring", ("data at 0", "data at 8 MiB"), False)]
    assert shown.clusters == ()


def test_handles_between_processes() -> None:
    """A handle's way leads from what is exported to the import, in another process, and from there into a range"""
    shown = graph(pictured(ROOT / "specs" / "hand-over.yaml"))
    assert [each.title for each in shown.clusters] == ["prefill", "decode"]
    assert shown.nodes == ()
    assert edges(shown) == [
        ("chunk page", "range kv", ("page.0 … 31 at 0",), False),
        ("chunk page", "export pages", (), False),
        ("event filled", "export filled", (), False),
        ("import page", "range kv", ("page.0 … 31 at 0",), False),
        ("export pages", "import page", ("32 by fd",), True),
        ("export filled", "import filled", ("by ipc",), True),
    ]


def test_handles_from_outside() -> None:
    """A holder outside is a node outside of all processes"""
    shown = drawn(
        "ranges: {r: {size: 8MiB}}\nimports: {w: {from: /run/x.sock/w, location: gpu1, size: 2MiB, count: 4}}\n"
        "map: {r: [w]}\naccess: {r: {gpu0: r}}"
    )
    assert edges(shown) == [
        ("import w", "range r", ("w.0 … 3 at 0",), False),
        ("outside /run/x.sock", "import w", ("w", "4 by fd"), True),
    ]


def test_what_another_api_made() -> None:
    """External memory counts its parts, a semaphore says what a check does with it, and both come from outside"""
    shown = drawn(
        "external: {frame: {from: camera, via: opaque_fd, device: gpu0, size: 8MiB, dedicated: true,"
        " buffers: {y: {offset: 0, size: 4MiB}}}}\n"
        "semaphores:\n"
        "  ready: {from: camera, via: timeline_fd, device: gpu1, wait: 1, signal: 2}\n"
        "  done: {from: /run/x.sock/done, via: opaque_fd, device: gpu0, signal: true}\n"
    )
    assert [node.lines for node in shown.nodes] == [
        ("frame", "8 MiB", "dedicated", "1 part", "gpu0"),
        ("ready", "semaphore", "timeline, waits for 1, signals 2", "gpu1"),
        ("done", "semaphore", "binary, signals", "gpu0"),
        ("camera", "outside"),
        ("/run/x.sock", "outside"),
    ]
    assert edges(shown) == [
        ("outside camera", "import frame", ("frame", "by opaque_fd"), True),
        ("outside camera", "import ready", ("ready", "by timeline_fd"), True),
        ("outside /run/x.sock", "import done", ("done", "by opaque_fd"), True),
    ]


def test_managed_memory_says_so() -> None:
    """Managed memory is a node of its own, with its kind"""
    shown = graph(pictured(ROOT / "specs" / "managed.yaml"))
    assert {node.kind for node in shown.nodes} == {"managed"}
    assert shown.nodes[0].lines == ("index", "managed", "8 MiB", "gpu0")


def test_parts_with_their_access() -> None:
    """Where access is not the same all over a range, each mapping tells its own"""
    shown = drawn(
        "ranges: {r: {size: 8MiB}}\nchunks: {c: {location: gpu0, size: 2MiB, count: 2}}\nmap: {r: [c]}\n"
        "access: {r: [{offset: 0, size: 2MiB, grant: {gpu0: rw}}, {offset: 2MiB, size: 2MiB, grant: {gpu1: r}}]}"
    )
    assert edges(shown)[0][2] == ("c.0 at 0, gpu0 rw", "c.1 at 2 MiB, gpu1 r")
    assert nodes(shown)["n1"].lines == ("r", "8 MiB", "4 MiB mapped")


@graphviz
@pytest.mark.parametrize("path", EVERY_SPEC, ids=lambda path: path.stem)
def test_graphviz_reads_it(path: Path) -> None:
    """Graphviz draws every spec in specs/ without a word, with each of its nodes and edges"""
    shown = graph(pictured(path))
    svg = accepted(dot(pictured(path), path.stem))
    assert svg.count('class="node"') == len(nodes(shown))
    assert svg.count('class="edge"') == len(shown.edges)


@pytest.mark.parametrize("path", EVERY_SPEC, ids=lambda path: path.stem)
def test_mermaid_is_well_formed(path: Path) -> None:
    """Every line of a flowchart is one of the few kinds of lines that it is made of"""
    for line in mermaid(pictured(path), path.stem).splitlines():
        assert LINES.fullmatch(line), line


@graphviz
@pytest.mark.parametrize("made", [hostile, hostile_processes], ids=["one", "several"])
@pytest.mark.parametrize("evil", EVIL, ids=ascii)
def test_nothing_gets_out_of_a_graph(evil: str, made: Callable[[str], Diagram]) -> None:
    """With any text for a name, Graphviz sees the same nodes and edges as with an innocent one, and no link"""
    svg, innocent = (accepted(dot(made(word), word)) for word in (evil, "x"))
    for kind in ('class="node"', 'class="edge"', 'class="cluster"'):
        assert svg.count(kind) == innocent.count(kind)
    assert "<script" not in svg
    assert "xlink:href" not in svg


@pytest.mark.parametrize("made", [hostile, hostile_processes], ids=["one", "several"])
@pytest.mark.parametrize("evil", EVIL, ids=ascii)
def test_nothing_gets_out_of_a_flowchart(evil: str, made: Callable[[str], Diagram]) -> None:
    """With any text for a name, a flowchart has the lines that it has with an innocent one, but for words in quotes"""
    told, innocent = (mermaid(made(word), word).splitlines() for word in (evil, "x"))
    assert all(LINES.fullmatch(line) for line in told)
    assert [re.sub(WORDS, "", line) for line in told[2:]] == [re.sub(WORDS, "", line) for line in innocent[2:]]


def test_a_text_is_shown_as_it_is() -> None:
    """What is escaped in a graph reads as it was written"""
    if DOT is None:
        pytest.skip("Graphviz is not installed")
    text = accepted(dot(hostile("&lt;b&gt; \\N"), "x"))
    assert "&amp;lt;b&amp;gt; \\N" in text


def test_a_large_layout() -> None:
    """Of a large layout a graph has the first things of each kind and counts the rest; GitHub draws its flowchart"""
    many = range(300)
    chunks = ", ".join(f"c{turn}: {{location: gpu{turn % 2}, size: {2 + 2 * (turn % 3)}MiB}}" for turn in many)
    ranges = ", ".join(f"r{turn}: {{size: 64MiB}}" for turn in many)
    mapped = ", ".join(f"r{turn}: [{', '.join(f'c{(turn + more) % 300}' for more in range(6))}]" for turn in many)
    facts = invented(2, memory=1 << 50)
    found = judged(f"ranges: {{{ranges}}}\nchunks: {{{chunks}}}\nmap: {{{mapped}}}", facts)
    assert found.geometry, found.diagnostics
    shown = build_diagram(found.geometry, facts)
    text = mermaid(shown, "large")
    assert len(text) <= MOST_CHARACTERS
    assert len(graph(shown).edges) <= MOST_EDGES
    assert "… 288 more" in text
