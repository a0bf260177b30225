"""Work grows no faster than the spec: twice the entries cause at most 2.3 times the work, whatever they contain."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from memtopo import machine, planner
from memtopo.language import Document, read_text
from memtopo.output.diagram.build import build_diagram
from memtopo.rules import validate
from memtopo.spec import SECTIONS
from tests.helpers.line_count import executed_lines

MACHINE = machine.load("h200x2")
HEAD = "memtopo: 1\nname: x\n"
FEW, MOST_GROWTH = 200, 2.3

# Entries of each section: some valid, some wrong in their own way. `$` is the number of an entry.
ENTRIES: dict[str, Sequence[str]] = {
    "devices": ["d$: 0", "d$: 7", "d$: zz", "gpu$: 0", "host: [$]", "d$: [0, 1]"],
    "ranges": [
        "r$: {size: 2MiB}", "r$: {size: 3MiB}", "r$: {size: 2 granules, align: 3MiB}", "r$: {}", "r$: {sise: 2MiB}",
        "r$: {size: 2MiB, address: 0x200000000000, fixed: true}", "r$: {size: 64TiB, count: 2}", "r$: 2MiB",
        "r$: {size: fill}", "r$: {size: fill, count: 2}",
    ],
    "chunks": [
        "c$: {location: gpu0, size: 2MiB}", "c$: {location: [gpu0, gpu1], size: 2MiB, count: 3, handles: fabric}",
        "c$: {location: u$, size: 2MiB}", "c$: {location: d1, size: 3MiB}", "c$: {locaton: gpu0, size: 2MiB}",
        "c$: {location: host, size: 64GiB}", "_c$: {location: gpu0, size: 2MiB}", "r$: {location: gpu0, size: 2MiB}",
        "c$: {location: gpu0, size: 2MiB, count: fill}", "c$: {location: [gpu0, gpu1], size: 0.001%}",
    ],
    "map": [
        "r$: [c$]", "r$: [c$, c1, {chunk: c2, offset: 0}]", "u$: [c$]", "rs.$: [c1]", "rs.0:$: c1", "r$: b$",
        "rs: [u$]", "r1.$: c1", "r$: {chunk: c$, offset: 4MiB}", "r$: [{chunk: c$, each: fill, stride: 4MiB}]",
        "r$: [{chunk: c$, each: 2}, c$]",
    ],
    "heaps": [
        "h$: {location: gpu0, size: 2MiB}", "h$: {location: u$, size: 2MiB}", "c$: {location: gpu0, size: 3MiB}",
        "h$: {location: gpu0, size: 2MiB, limit: u$}", "h$: {location: gpu1, size: 2MiB, limit: 0.001%}",
    ],
    "access": [
        "r$: {gpu0: rw}", "rs.$: {gpu0: rw, gpu1: r}", "rs.0:$: {gpu0: r}", "u$: {gpu0: rw}", "r$: {u$: rw}",
        "r$: [{size: 2MiB, grant: {gpu1: r}}, {size: 4MiB, grant: {u$: r}}]", "r$: rw", "r$: {gpu0: x}",
    ],
    "buffers": [
        "b$: {location: gpu0, size: 2MiB}", "b$: {location: u$, size: 2MiB}", "c$: {location: host, size: 2MiB}",
    ],
    "managed": [
        "m$: {size: 2MiB}", "m$: {size: 2MiB, prefer: u$}", "m$: {size: 2MiB, accessed_by: [gpu0, gpu1, host:0]}",
        "c$: {size: 2MiB, prefetch: gpu1}",
    ],
    "events": ["e$: {device: gpu0}", "e$: {device: u$}", "c$: {device: gpu1}"],
    "external": [
        "x$: {from: camera, via: opaque_fd, device: gpu0, size: 8MiB}",
        "x$: {from: camera/x, via: opaque_fd, device: gpu0, size: 8MiB, buffers: {y$: {offset: 0, size: 9MiB}}}",
        "x$: {from: u$.x, via: dma_buf, device: u$, size: 8MiB}",
    ],
    "semaphores": [
        "s$: {from: camera/s, via: timeline_fd, device: gpu0, wait: $, signal: $}",
        "s$: {from: camera, via: timeline_fd, device: gpu0, signal: 1}", "s$: {from: camera, via: opaque_fd, wait: 1}",
    ],
    "states": [
        "s$: {drop: [r$]}", "s$: {drop: c$, offload: {c1: host:0}}", "s$: {drop: [u$]}", "s$: {offload: {c$: u$}}",
        "awake: {drop: c$}", "s$: {drop: [c$, c$]}", "s$: {offload: {r$: gpu1}}", "s$: [c$]",
        "s$: {offload: {c$: p1}}",
    ],
    "pinned": [
        "p$: {size: 2MiB, count: 3}", "p$: {file: /dev/shm/f$, size: 2MiB}", "p$: {from: camera, size: 2MiB}",
        "p$: {size: 2MiB, accessed_by: u$}", "p$: {file: f$, size: 2MiB}", "p$: {size: 2MiB, offset: 1B}", "p$: [u$]",
    ],
    "pools": [
        "q$: {location: gpu0, handles: fd}", "q$: {location: [gpu0, gpu1]}", "q$: {location: host, handles: fd}",
        "q$: {location: gpu0, max_size: 2MiB, accessed_by: gpu1}", "q$: {location: u$}", "q$: {handles: ipc}",
    ],
    "allocations": [
        "a$: {pool: q$, size: 8MiB}", "a$: {pool: q0, size: 8MiB, count: 3}", "a$: {pool: u$, size: 8MiB}",
        "a$: {pool: q$}", "a$: {pool: c$, size: 1MiB}", "a$: q$",
    ],
    "exports": [
        "o$: {chunk: c$, via: fd}", "o$: {chunk: u$, via: fd}", "o$: {buffer: b$, via: ipc}",
        "o$: {allocation: a$, via: fd}",
        "o$: {event: e$, via: ipc}", "o$: {event: c$, via: fd}", "o$: {chunk: w$, via: fd}", "o$: [c$]",
    ],
    "imports": [
        "w$: {from: server/w$, location: gpu0, size: 2MiB}", "w$: {from: p.o$}", "w$: {from: u$.o$}", "w$: server.w$",
        "w$: {from: server/w$, pool: gpu0, size: 2MiB}",
        "w$: {from: server/w$}", "c$: {from: server/w$, location: u$, size: 2MiB, count: 3}",
    ],
    "multicast": [
        "t$: {devices: gpus, size: 2MiB, handles: fd}", "t$: {devices: [gpu0, u$], size: 3MiB}", "c$: {devices: gpu1}",
        "t$: {devices: [gpu0, gpu0], size: 2MiB}",
    ],
    "bind": ["t$: [c$]", "t$: [c$, {chunk: c1, offset: 2MiB}]", "u$: [c$]", "t$: {range: r$}", "t$: [u$]", "c$: c$"],
}  # fmt: skip

RANGE, CHUNK = "ranges: {r: {size: 64GiB}}\n", "chunks: {c: {location: gpu0, size: 2MiB, count: 2000, handles: fd}}"
# Lists and mappings inside of one entry.
INNER = {
    "locations of a chunk": ("chunks: {c: {size: 2MiB, count: 2000, location: [", "gpu0", "]}}"),
    "unknown locations of a chunk": ("chunks: {c: {size: 2MiB, location: [", "u$", "]}}"),
    "handles": ("chunks: {c: {size: 2MiB, location: gpu0, handles: [", "fd", "]}}"),
    "unknown handles": ("chunks: {c: {size: 2MiB, location: gpu0, handles: [", "u$", "]}}"),
    "chunks of a range": (f"{RANGE}{CHUNK}\nmap: {{r: [", "c.$", "]}"),
    "undeclared chunks of a range": (RANGE + "map: {r: [", "u$", "]}"),
    "overlaps": (f"{RANGE}{CHUNK}\nmap: {{r: [", "{chunk: c.0, offset: 0}", "]}"),
    "grants": (RANGE + "access: {r: {", "host:$: r", "}}"),
    "parts of access": (
        f"{RANGE}{CHUNK}\nmap: {{r: c}}\naccess: {{r: [",
        "{offset: $ granules, size: 300 granules, grant: {gpu0: rw}}",
        "]}",
    ),
    "GPUs of managed memory": ("managed: {m: {size: 2MiB, accessed_by: [", "gpu0", "]}}"),
    "parts of an external object": (
        "external: {x: {from: camera, via: opaque_fd, device: gpu0, size: 8MiB, buffers: {",
        "y$: {offset: 0, size: 64KiB}",
        "}}}",
    ),
    "names of a device and uses of others": ("devices: {", "d$: 0", "}\nchunks: {c: {location: u, size: 2MiB}}"),
    "unknown keys": ("chunks: {c: {location: gpu0, size: 2MiB, ", "k$: 1", "}}"),
    "visible GPUs": ("processes: {p: {count: 8, visible: [", "gpu0", "]}}"),
    "GPUs of a name": ("processes: {p: {count: 8, devices: {d: [", "0", "]}}}"),
    "names of counted processes": ("processes: {p: {count: 8, devices: {", "d$: [0, 1]", "}}}"),
    "exports of counted processes": (
        f"processes: {{q: {{imports: {{w: {{from: p.u}}}}}}, p: {{count: 8, {CHUNK}, exports: {{",
        "o$: {chunk: c, via: fd}",
        "}}}",
    ),
    "keys of a process": ("processes: {p: {", "k$: 1", "}}"),
    "codes of a comment": ("chunks: # memtopo: ignore[", "MT501,x", "]\n  c: {location: gpu0, size: 2MiB}"),
    "comments": ("", "c$: 1 # memtopo: ignore[MT101]\n", ""),
}


def filled_parts(count: int) -> str:
    """One range with `count` chunks, each of which fills what is left before the next one."""
    chunks = section_text("chunks", ["c$: {location: gpu0, size: 2MiB, count: fill}"], count)
    placed = ", ".join(numbered("{chunk: c$, offset: $ granules}", count))
    return f"{HEAD}ranges: {{r: {{size: {count} granules}}}}\n{chunks}map: {{r: [{placed}]}}\n"


def peers_beside_errors(count: int) -> str:
    """As many ranges with access for peers as chunks with an error."""
    chunks = section_text("chunks", ["c$: {location: u$, size: 2MiB}"], count)
    ranges = f"{HEAD}ranges: {{rs: {{size: 2MiB, count: {count}}}}}\n"
    return ranges + chunks + section_text("access", ["rs.$: {peers: r}"], count)


def states_of_undeclared_names(count: int) -> str:
    """As many states with an undeclared name as chunks."""
    chunks = section_text("chunks", ["c$: {location: gpu0, size: 2MiB}"], count)
    return HEAD + chunks + section_text("states", ["s$: {drop: [u$]}"], count)


def processed(text: str) -> Document:
    """Read, validate, plan and draw a spec, as far as it is valid."""
    document = read_text(text.encode(), "x.yaml")
    assert document.root, document.diagnostics
    if geometry := validate(document, MACHINE).geometry:
        planner.plan(geometry, MACHINE).summary()
        build_diagram(geometry, MACHINE)
    return document


def numbered(template: str, count: int) -> list[str]:
    return [template.replace("$", str(index)) for index in range(count)]


def section_text(section: str, templates: Sequence[str], count: int) -> str:
    """A section with `count` entries, of all templates in turn, numbered."""
    entries = [templates[index % len(templates)].replace("$", str(index)) for index in range(count)]
    return "".join(f"{line}\n" for line in (f"{section}:", *(f"  {entry}" for entry in entries)))


def mixed(seed: int, count: int) -> str:
    """A spec with all sections; the seed selects the entries of each."""
    chooser = random.Random(seed)
    chosen = {name: chooser.sample(found, chooser.randint(1, 3)) for name, found in ENTRIES.items()}
    return HEAD + "".join(section_text(name, templates, count) for name, templates in chosen.items())


def assert_linear(few: str, twice: str) -> None:
    work = [executed_lines(lambda text=text: processed(text)) for text in (few, twice)]  # type: ignore[misc]
    assert work[1] <= MOST_GROWTH * work[0], work


def test_every_section_has_entries_for_the_comparison() -> None:
    assert ENTRIES.keys() == SECTIONS.keys()


@pytest.mark.parametrize("section", ENTRIES)
def test_twice_the_entries_of_a_section_cause_twice_the_work(section: str) -> None:
    others = "ranges: {rs: {size: 2MiB, count: 2000}}\n" if section in ("map", "access") else ""
    few, twice = (HEAD + others + section_text(section, ENTRIES[section], count) for count in (FEW, 2 * FEW))
    assert_linear(few, twice)


@pytest.mark.parametrize("within", INNER)
def test_twice_the_values_of_an_entry_cause_twice_the_work(within: str) -> None:
    before, template, after = INNER[within]
    separator = "" if template.endswith("\n") else ", "
    few, twice = (HEAD + before + separator.join(numbered(template, count)) + after + "\n" for count in (FEW, 2 * FEW))
    assert_linear(few, twice)


@pytest.mark.parametrize("text", [filled_parts, peers_beside_errors, states_of_undeclared_names])
def test_twice_the_entries_that_depend_on_others_cause_twice_the_work(text: Callable[[int], str]) -> None:
    assert_linear(text(FEW), text(2 * FEW))


@pytest.mark.parametrize("seed", range(4))
def test_twice_the_entries_of_all_sections_cause_twice_the_work(seed: int) -> None:
    assert_linear(mixed(seed, FEW // 4), mixed(seed, FEW // 2))


@pytest.mark.exhaustive(seconds=2)
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_mixtures_of_entries_cause_work_in_proportion(seed: int) -> None:
    assert_linear(mixed(seed, FEW), mixed(seed, 2 * FEW))
