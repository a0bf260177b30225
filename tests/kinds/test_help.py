"""Help of diagnostics: what would be right, for forms that users of other tools are likely to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from memtopo.diagnostics.model import At, Diagnostic
from memtopo.language import Document
from memtopo.machine import Machine
from memtopo.output.diagnostics import text
from tests.helpers.machines import invented
from tests.helpers.specs import diagnose, document, validate_text

FILLED = """
ranges: {kv: {size: 4MiB}}
chunks: {hot: {location: gpu0, size: 2MiB}, cold: {location: gpu1, size: 2MiB}}
map: {kv: [hot, cold]}
"""

ELASTIC = """
ranges: {kv: {size: 2MiB, elastic: true}}
chunks: {c: {location: gpu0, size: 2MiB, count: {min: 0, max: 1}}}
access: {kv: {gpu0: rw}}
"""


def errors(spec: str, machine: Machine | None = None) -> list[Diagnostic]:
    return [each for each in diagnose(spec, machine) if each.severity == "error"]


@pytest.mark.parametrize(
    ("spec", "help"),
    [
        ("chunks: {c: {location: gpu0, size: 2MiB, handles: posix_fd}}", "did you mean 'fd'?"),
        ("chunks: {c: {location: gpu0, size: 2MiB, handles: [ipc]}}", "legacy IPC cannot carry chunks"),
        ("chunks: {c: {location: gpu0, size: 2MiB, handles: shm}}", "write one of fd, fabric"),
        ("chunks: {c: {location: 'cuda:1', size: 2MiB}}", "did you mean 'gpu1'?"),
        ("chunks: {c: {location: 0, size: 2MiB}}", "did you mean 'gpu0'?"),
        ("chunks: {c: {location: gpu*, size: 2MiB}}", "write gpus, which is every GPU"),
        ("chunks: {c: {location: all, size: 2MiB}}", "write gpus, which is every GPU"),
        ("imports: {s: server.w}", "write 's: {from: server.w}'"),
        ("access: {kv: rw}", "write 'kv: {gpu0: rw}'"),
        ("exports: [page]", "write it as in 'exports: {w: {chunk: hot, via: fd}}'"),
        (f"{ELASTIC}map: {{kv: [c]}}", "leave it out of 'map'"),
        ("hosts: [a, b]", "a process names its node: 'node: a', or 'nodes: [a, b]' for a counted one"),
        ("machine: h200x2", "did you mean 'machines'?"),
        ("imports: {w: {from: nodeA:5555/x}}", "a process on another node, of this spec, is PROCESS.EXPORT"),
        ("chunks: {c: {location: gpu1 else gpu0, size: 2MiB}}", "name one device: only 'handles', 'rdma',"),
        ("processes: {p: {count: gpus}}", "write a number, or a parameter such as $ranks"),
        ("managed: {m: {size: 90%}}", "a share of memory can be the 'size' or the 'count' of chunks"),
        ("buffers: {b: {location: gpu0, size: 2MiB, count: fill}}", "'fill' can be the 'size' of ranges and the"),
        ("chunks: {c: {location: gpu0, size: 2MiB, count: '1,000'}}", "write 1000"),
        (
            "heaps: {weights: {location: gpu0, size: 4MiB}}\nstates: {s: {drop: [weight]}}",
            "did you mean 'weights'?",
        ),
        ("exports: {w: {chunk: w.0.data, via: fd}}", "name a chunk as a whole: w.0; programs, drawings and importers"),
        ("params: {a: 4}\nranges: {r: {size: $a MiB}}", "write a product: $a * 1MiB"),
        ("params: {g: gpu0}\naccess: {r: {$g: rw}}", "name the device: 'devices: {mine: $g}', and write 'mine' here"),
        ("params: {g: kv}\nranges: {$g: {size: 2MiB}}", "write the key itself: parameters can replace only values"),
        ("params: {n: 4}\nmap: {r: [p.0:$n]}", "a parameter is a whole value: declare the whole text"),
        ("chunks: {c: {location: gpu0, size: 2MiB, count: '0x4'}}", "write 4"),
        (
            "chunks: {c: {location: gpu7, size: 2MiB}}",
            "'gpus' is every GPU of a machine; 'memtopo machines' lists other machines",
        ),
        ("pinned: {p: {size: 2MiB, file: ''}}", "write the path, such as /dev/shm/ring"),
        ("states: {s: {offload: [hot]}}", "write 'offload: {hot: host}'"),
        ("chunks: {c: {location: 'host:7', size: 2MiB}}", "write host"),
        ("imports: {w: {from: engine.kv}}", "write engine/kv for a held layout"),
        (
            "chunks: {c: {location: gpu0, size: 2MiB}}\nprocesses: {p: {exports: {w: {chunk: c, via: fd}}}}",
            "move it into the process that it belongs to",
        ),
        ("multicast: {t: {devices: [gpu0, gpu0], size: 2MiB}}", "name it once"),
        ("multicast: {t: {devices: gpus, size: 2MiB, count: 3}}", "known are devices, size, handles, round"),
        ("sizes: 1", "known are memtopo, name, machines, params, devices, ranges, chunks, map, heaps, access"),
    ],
)
def test_help_says_what_to_write(spec: str, help: str) -> None:
    (found,) = errors(spec)
    assert str(found.help).startswith(help)


def test_help_for_an_undeclared_name_lists_entries_with_errors_too() -> None:
    found = errors("multicast: {t: {devices: gpus}, u: {size: 2MiB}}\nbind: {nope: [hot]}")
    assert [each.help for each in found if each.path == ("bind", "nope")] == ["known are t, u"]


@pytest.mark.parametrize(
    "spec",
    [
        "ranges: {kv: {size: 4MiB}}\nchunks: {hot: {location: gpu0, size: 32mib}}\nmap: {kv: [hott]}",
        "ranges: {hot: {size: 4mib}}\naccess: {hott: {gpu0: rw}}",
        "chunks: {hot: {location: gpu0, size: 32mib}}\nexports: {x: {chunk: hott, via: fd}}",
    ],
)
def test_help_for_an_undeclared_name_suggests_an_entry_with_an_error(spec: str) -> None:
    assert [each.help for each in errors(spec) if each.code == "MT201"] == ["did you mean 'hot'?"]


def test_an_undeclared_name_in_place_of_a_list_is_marked() -> None:
    source = document("ranges: {kv: {size: 4MiB, elastic: {chunks: pages}}}")
    span = source.span(("ranges", "kv", "elastic", "chunks", 0))
    assert span
    assert source.line(span.line)[span.column - 1 :].startswith("pages")


def test_help_for_a_python_path_is_its_text() -> None:
    spec = {"memtopo": 1, "name": "test", "pinned": {"p": {"size": "2MiB", "file": Path("/dev/shm/ring")}}}
    (found,) = Document.from_object(spec).diagnostics
    assert (found.path, found.help) == (("pinned", "p", "file"), "pass its text: str(path)")


@pytest.mark.parametrize(
    ("state", "help"),
    [
        ("offload: {kv: pined}", "did you mean 'pinned'?"),
        ("offload: {kv: disk}", "known are gpu0, gpu1, host, host:0, pinned"),
        ("drop: [nothing]", "known are kv, hot, cold"),
    ],
)
def test_help_for_states_names_what_they_take(state: str, help: str) -> None:
    (found,) = errors(f"{FILLED}access: {{kv: {{gpu0: rw}}}}\nstates: {{asleep: {{{state}}}}}", invented(2))
    assert found.help == help


def test_names_of_ranges_and_chunks_are_listed_once() -> None:
    (found,) = errors(
        "ranges: {kv: {size: 2MiB}}\nchunks: {kv: {location: gpu0, size: 2MiB}}\nmap: {kv: [kv]}\n"
        "access: {kv: {gpu0: rw}}\nstates: {asleep: {drop: [nothing]}}"
    )
    assert found.help == "known are kv"


@pytest.mark.parametrize(
    ("state", "second", "first"),
    [
        ("drop: [kv], offload: {hot: pinned}", (("offload", "hot"), "key"), (("drop", 0), "value")),
        ("offload: {kv: pinned, hot: pinned}", (("offload", "hot"), "key"), (("offload", "kv"), "key")),
        ("drop: [kv, hot]", (("drop", 1), "value"), (("drop", 0), "value")),
    ],
)
def test_a_chunk_that_a_state_lists_twice_is_marked_where_it_is_named(
    state: str, second: tuple[object, At], first: tuple[object, At]
) -> None:
    (found,) = errors(f"{FILLED}access: {{kv: {{gpu0: rw}}}}\nstates: {{asleep: {{{state}}}}}", invented(2))
    (label,) = found.labels
    assert [(each.path[2:], each.at) for each in (found, label)] == [second, first]


def test_an_unknown_key_has_all_known_keys() -> None:
    (found,) = errors("sizes: 1")
    assert str(found.help).endswith("semaphores, states, processes")


def test_an_overlap_has_the_offset_and_the_size_that_would_do() -> None:
    (found,) = errors(
        FILLED.replace("cold]", "{chunk: cold, offset: 0}, {chunk: hot, offset: 4MiB}]").replace("4MiB}}", "6MiB}}")
    )
    assert found.help == "the first free offset after it is 2MiB"
    (found,) = errors(FILLED.replace("[hot, cold]", "[hot, cold, {chunk: hot, offset: 2MiB}]"))
    assert found.help == "the first free offset after it is 4MiB, for which the size of 'kv' is at least 6MiB"


def test_entries_that_overlap_in_several_ranges_are_one_diagnostic() -> None:
    (found,) = errors(
        "ranges: {kv: {size: 8MiB, count: 3}}\n"
        "chunks: {a: {location: gpu0, size: 4MiB}, b: {location: gpu0, size: 2MiB}}\n"
        "map: {kv: [{chunk: a, each: all}, {chunk: b, each: all, offset: 2MiB}]}\naccess: {kv: {gpu0: rw}}"
    )
    assert found.message == "'b' overlaps 'a' at 2MiB of 'kv.0'"
    assert found.notes == ("and in 2 more places",)


def test_a_blank_after_the_colon_of_a_key_is_asked_for() -> None:
    (found,) = document("params: {pages:, page: 2MiB}").diagnostics
    assert found.help == "in braces, a blank follows the ':' of a key; text with ':' needs quotes"


def test_missing_gpus_of_one_list_are_one_diagnostic() -> None:
    (found,) = errors("chunks: {c: {location: [gpu0, gpu4, gpu5, gpu6], size: 2MiB, count: 4}}")
    assert found.message == "the machine has no gpu4, gpu5, gpu6"


def test_chunks_with_the_same_unsupported_handle_are_one_diagnostic() -> None:
    each = ", ".join(f"c{index}: {{location: gpu{index % 2}, size: 2MiB, handles: fabric}}" for index in range(12))
    (found,) = errors(f"chunks: {{{each}}}")
    assert found.code == "MT404"
    assert [label.path for label in found.labels] == [("chunks", f"c{index}", "handles") for index in range(1, 8)]
    assert found.notes[-1] == "and 4 more entries"


def test_a_device_without_access_is_underlined_alone() -> None:
    found = errors(FILLED + "access: {kv: {gpu0: rw, gpu1: r}}", invented(2, peers=False))
    assert [(each.code, each.path, each.at) for each in found] == [
        ("MT403", ("access", "kv", "gpu1"), "key"),
        ("MT403", ("access", "kv", "gpu0"), "key"),
    ]
    part = "access: {kv: [{size: 4MiB, grant: {gpu0: rw, gpu1: rw, host: r}}]}"
    found = errors(FILLED + part)
    assert {(each.code, each.path) for each in found} == {("MT406", ("access", "kv", 0, "grant", "host"))}


def test_numbers_of_facts_are_explained_once() -> None:
    found = validate_text("managed: {m: {size: 2MiB}, n: {size: 2MiB}}\nmap: {m: [m], n: [n]}")
    shown = text(found.diagnostics, found.document)
    assert sum("docs/driver-facts.md" in line for line in shown) == 1
    plain = validate_text("chunks: {c: {location: gpu9, size: 2MiB}}")
    assert not any("docs/driver-facts.md" in line for line in text(plain.diagnostics, plain.document))
