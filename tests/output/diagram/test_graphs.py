"""Layouts as graphs: what is in them, that Graphviz and Mermaid read it, and that no text gets out of its quotes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from memtopo.geometry.diagram import Diagram
from memtopo.output.blocks import Drawing
from memtopo.output.diagram.graph import MOST_CHARACTERS, MOST_EDGES, Graph, Node, dot, graph, mermaid
from tests.helpers.diagrams import HOSTILE_TEXTS, hostile_diagram, hostile_processes, spec_diagram, text_diagram
from tests.helpers.machines import invented, with_multicast
from tests.helpers.specs import EVERY_SPEC, ROOT
from tests.helpers.tools import tool

# Each kind of line of a flowchart, with any text in quotes.
WORDS = r'"(?:[A-Za-z0-9 ,.()×…/_+=-]|#\d+;|<br>)*"'
SHAPE = rf"(?:\[{WORDS}\]|\(\[{WORDS}\]\)|\[\[{WORDS}\]\]|>{WORDS}\]|\[/{WORDS}/\]|\{{\{{{WORDS}\}}\}})"
LINES = re.compile(
    rf"flowchart LR|  accTitle: [\w,.()-][\w ,.()-]*|  subgraph p\d+\[{WORDS}\]|  end"
    rf"|(?:  )+(?:n\d+|more|choices){SHAPE}:::(?:d\d|plain)"
    r"|  style p\d+ fill:none,stroke:#\w{6}"
    rf"|  n\d+ -\.?->(?:\|{WORDS}\|)? n\d+|  classDef (?:d\d|plain) fill:#\w{{6}},stroke:#\w{{6}},color:#000"
)


def text_graph(text: str) -> Graph:
    return graph(text_diagram(text))


def nodes(shown: Graph) -> dict[str, Node]:
    return {node.id: node for node in (*shown.nodes, *(node for each in shown.clusters for node in each.nodes))}


def edges(shown: Graph) -> list[tuple[str, str, tuple[str, ...], bool]]:
    """Each edge by the shapes and names of its ends."""
    names = {id: f"{node.shape} {node.lines[0]}" for id, node in nodes(shown).items()}
    return [(names[edge.source], names[edge.target], edge.lines, edge.handles) for edge in shown.edges]


def accepted(text: str) -> str:
    """Graph drawn by Graphviz as SVG."""
    done = subprocess.run([tool("dot"), "-Tsvg"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_graph_has_chunks_ranges_and_mappings() -> None:
    shown = graph(spec_diagram(ROOT / "specs" / "ring-buffer.yaml")[0])
    assert [node.lines for node in shown.nodes] == [("data", "8 MiB", "gpu0"), ("ring", "16 MiB", "gpu0 rw")]
    assert edges(shown) == [("memory data", "range ring", ("data at 0", "data at 8 MiB"), False)]
    assert shown.clusters == ()


def test_memory_is_bound_to_an_object_that_is_mapped() -> None:
    shown = graph(spec_diagram(ROOT / "specs" / "multicast.yaml")[0])
    assert [node.lines[0] for node in shown.nodes] == ["part", "team", "own", "both"]
    assert edges(shown) == [
        ("memory part", "range own", ("part.0 … 1 at 0",), False),
        ("object team", "range both", ("team at 0",), False),
        ("memory part", "object team", ("bound",), False),
    ]


def test_memory_is_bound_to_an_object_of_another_process() -> None:
    text = (
        "processes: {"
        "creator: {multicast: {team: {devices: gpus, size: 2MiB, handles: fd}}, "
        "exports: {team: {multicast: team, via: fd}}}, "
        "rank: {count: 2, devices: {mine: gpus}, ranges: {mc: {size: 2MiB}}, "
        "chunks: {part: {location: mine, size: 2MiB, handles: fd}}, imports: {team: {from: creator.team}}, "
        "bind: {team: part}, map: {mc: team}, access: {mc: {mine: rw}}}}"
    )
    found = edges(graph(text_diagram(text, with_multicast(invented(2)))))
    assert ("object team", "export team", (), False) in found
    assert [each for each in found if each[:2] == ("memory part", "import team")] == [
        ("memory part", "import team", ("bound",), False)
    ] * 2
    assert [each for each in found if each[:2] == ("import team", "range mc")] == [
        ("import team", "range mc", ("team at 0",), False)
    ] * 2


def test_handles_lead_from_an_export_to_an_import_of_another_process() -> None:
    shown = graph(spec_diagram(ROOT / "specs" / "hand-over.yaml")[0])
    assert [each.title for each in shown.clusters] == ["prefill", "decode"]
    assert shown.nodes == ()
    assert edges(shown) == [
        ("memory page", "range kv", ("page.0 … 31 at 0",), False),
        ("memory page", "export pages", (), False),
        ("object filled", "export filled", (), False),
        ("import page", "range kv", ("page.0 … 31 at 0",), False),
        ("export pages", "import page", ("32 by fd",), True),
        ("export filled", "import filled", ("by ipc",), True),
    ]


def test_a_holder_is_a_node_outside_of_all_processes() -> None:
    shown = text_graph(
        "ranges: {r: {size: 8MiB}}\nimports: {w: {from: /run/x.sock/w, location: gpu1, size: 2MiB, count: 4}}\n"
        "map: {r: [w]}\naccess: {r: {gpu0: r}}"
    )
    assert edges(shown) == [
        ("import w", "range r", ("w.0 … 3 at 0",), False),
        ("outside /run/x.sock", "import w", ("w", "4 by fd"), True),
    ]


def test_external_resources_have_their_properties_and_come_from_outside() -> None:
    shown = text_graph(
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


def test_managed_memory_is_labelled() -> None:
    shown = graph(spec_diagram(ROOT / "specs" / "managed.yaml")[0])
    assert {node.shape for node in shown.nodes} == {"memory"}
    assert ("table", "managed", "64 MiB", "gpu0") in [node.lines for node in shown.nodes]
    assert ("index", "managed", "8 MiB", "host") in [node.lines for node in shown.nodes]


def test_mappings_have_their_own_access_if_it_differs() -> None:
    shown = text_graph(
        "ranges: {r: {size: 8MiB}}\nchunks: {c: {location: gpu0, size: 2MiB, count: 2}}\nmap: {r: [c]}\n"
        "access: {r: [{offset: 0, size: 2MiB, grant: {gpu0: rw}}, {offset: 2MiB, size: 2MiB, grant: {gpu1: r}}]}"
    )
    assert edges(shown)[0][2] == ("c.0 at 0, gpu0 rw", "c.1 at 2 MiB, gpu1 r")
    assert nodes(shown)["n1"].lines == ("r", "8 MiB", "4 MiB mapped")


def test_processes_that_a_graph_leaves_out_are_counted() -> None:
    """Not their pictures, each of which may be of many."""
    text = "processes: {a: {ranges: {r: {size: 2MiB}}}, b: {count: 5, ranges: {r: {size: 4MiB}}}}"
    shown = graph(text_diagram(text), most=1)
    assert [each.title for each in shown.clusters] == ["a"]
    assert nodes(shown)["more"].lines == ("… and 5 more processes",)


@pytest.mark.parametrize("path", EVERY_SPEC, ids=lambda path: path.stem)
def test_graphviz_draws_each_spec_without_warnings(path: Path) -> None:
    shown = graph(spec_diagram(path)[0])
    svg = accepted(dot(Drawing(spec_diagram(path)[0], path.stem)))
    assert svg.count('class="node"') == len(nodes(shown))
    assert svg.count('class="edge"') == len(shown.edges)


@pytest.mark.parametrize("path", EVERY_SPEC, ids=lambda path: path.stem)
def test_mermaid_is_well_formed(path: Path) -> None:
    for line in mermaid(Drawing(spec_diagram(path)[0], path.stem)).splitlines():
        assert LINES.fullmatch(line), line


@pytest.mark.parametrize("made", [hostile_diagram, hostile_processes], ids=["one", "several"])
@pytest.mark.parametrize("evil", HOSTILE_TEXTS, ids=ascii)
def test_no_text_changes_the_structure_of_a_dot_graph(evil: str, made: Callable[[str], Diagram]) -> None:
    svg, innocent = (accepted(dot(Drawing(made(word), word))) for word in (evil, "x"))
    for kind in ('class="node"', 'class="edge"', 'class="cluster"'):
        assert svg.count(kind) == innocent.count(kind)
    assert "<script" not in svg
    assert "xlink:href" not in svg


@pytest.mark.parametrize("made", [hostile_diagram, hostile_processes], ids=["one", "several"])
@pytest.mark.parametrize("evil", HOSTILE_TEXTS, ids=ascii)
def test_no_text_changes_the_structure_of_a_flowchart(evil: str, made: Callable[[str], Diagram]) -> None:
    lines, innocent = (mermaid(Drawing(made(word), word)).splitlines() for word in (evil, "x"))
    assert all(LINES.fullmatch(line) for line in lines)
    assert [re.sub(WORDS, "", line) for line in lines[2:]] == [re.sub(WORDS, "", line) for line in innocent[2:]]


def test_escaped_text_is_shown_as_written() -> None:
    text = accepted(dot(Drawing(hostile_diagram("&lt;b&gt; \\N"), "x")))
    assert "&amp;lt;b&amp;gt; \\N" in text


def test_a_large_layout_fits_the_limits_of_github() -> None:
    many = range(300)
    chunks = ", ".join(f"c{index}: {{location: gpu{index % 2}, size: {2 + 2 * (index % 3)}MiB}}" for index in many)
    ranges = ", ".join(f"r{index}: {{size: 64MiB}}" for index in many)
    mapped = ", ".join(f"r{index}: [{', '.join(f'c{(index + more) % 300}' for more in range(6))}]" for index in many)
    shown = text_diagram(f"ranges: {{{ranges}}}\nchunks: {{{chunks}}}\nmap: {{{mapped}}}")
    text = mermaid(Drawing(shown, "large"))
    assert len(text) <= MOST_CHARACTERS
    assert len(graph(shown).edges) <= MOST_EDGES
    assert "… 288 more" in text
