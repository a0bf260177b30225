"""Limits of device memory: free memory, contexts, and all processes together."""

from __future__ import annotations

import pytest

from memtopo.common.units import GiB
from memtopo.machine import queries
from tests.helpers.machines import invented, with_nodes
from tests.helpers.specs import codes, diagnose, run, run_request, validate_text

SPEC = "chunks: {hot: {location: [gpu0, gpu1], size: 20GiB, count: 4}}"


def test_free_memory_of_a_live_machine_limits_a_layout() -> None:
    machine = invented(2)
    busy = machine.devices[1].model_copy(update={"free_bytes": 30 << 30})
    live = queries.changed(machine, devices=[machine.devices[0], busy])
    assert "MT402" not in codes(SPEC, machine)
    (diagnostic,) = [diagnostic for diagnostic in diagnose(SPEC, live) if diagnostic.code == "MT402"]
    assert diagnostic.message == "the layout needs 40 GiB on gpu1, which has 30 GiB free: 10.5 GiB too much"


def test_a_context_needs_memory() -> None:
    """Fact 30."""
    text = "ranges: {{r: {{size: {0}}}}}\nchunks: {{c: {{location: gpu0, size: {0}}}}}\nmap: {{r: c}}\n"
    text += "access: {{r: {{gpu0: rw}}}}"
    machine = invented(1)
    (diagnostic,) = diagnose(text.format("81410MiB"), machine)
    assert diagnostic.code == "MT402"
    assert diagnostic.notes[-1] == "a context takes about 512 MiB of the GPU's memory in addition"
    assert run(run_request(text.format("81408MiB"), machine), machine).report.exit_code == 0


MEMORY = (
    "processes:\n a: {count: COUNT, ranges: {v: {size: 10GiB}}, chunks: {c: {location: gpu0, size: 10GiB}}, "
    "map: {v: c}, access: {v: {gpu0: rw}}}\n"
)


@pytest.mark.parametrize(
    ("count", "room", "expected"),
    [
        (1, 10 * GiB + GiB // 2, []),
        (1, 10 * GiB + GiB // 2 - 1, ["MT402"]),
        (3, 31 * GiB + GiB // 2, []),
        (3, 31 * GiB + GiB // 2 - 1, ["MT402"]),
    ],
)
def test_memory_and_contexts_of_all_processes_are_added(count: int, room: int, expected: list[str]) -> None:
    found = validate_text(MEMORY.replace("COUNT", str(count)), invented(2, memory=room)).diagnostics
    assert [diagnostic.code for diagnostic in found] == expected
    if found:
        assert found[0].path == ("processes", "a", "chunks", "c", "size")


def test_an_importer_needs_a_context_but_no_memory() -> None:
    text = MEMORY.replace("COUNT", "1").replace(
        "size: 10GiB}}, map", "size: 10GiB, handles: fd}}, exports: {c: {chunk: c, via: fd}}, map"
    )
    text += (
        " r: {count: 4, ranges: {v: {size: 10GiB}}, imports: {x: {from: a.0.c}}, map: {v: x}, access: {v: {gpu0: r}}}\n"
    )
    text = text.replace("a: {count: 1, ", "a: {").replace("a.0.c", "a.c")
    for room, expected in ((12 * GiB + GiB // 2, []), (12 * GiB, ["MT402"])):
        found = validate_text(text, invented(2, memory=room)).diagnostics
        assert [diagnostic.code for diagnostic in found] == expected
    assert any("contexts of 5 processes" in note for note in found[0].notes)


def test_contexts_without_memory_are_counted() -> None:
    text = "processes:\n r: {count: 20, events: {e: {device: gpu1}}}\n"
    (diagnostic,) = validate_text(text, invented(2, memory=8 * GiB)).diagnostics
    assert (diagnostic.code, diagnostic.path) == ("MT402", ("processes",))
    assert (
        diagnostic.message == "the contexts of 20 processes take about 10 GiB on gpu1, which has 8 GiB: 2 GiB too much"
    )


def test_buffers_count_with_their_blocks() -> None:
    text = "buffers: {b: {location: [gpu0, gpu1], size: 1MiB, count: 6}}\n"
    shared = text + "exports: {b: {buffer: b, via: ipc}}\n"
    room = GiB // 2 + (4 << 20)
    assert [codes(each, invented(2, memory=room)) for each in (text, shared)] == [[], ["MT402"]]


def test_host_memory_of_all_nodes_limits_a_layout() -> None:
    text = "chunks: {a: {location: host:0, size: 1TiB, count: 64}, b: {location: host, size: 2MiB}}"
    (unknown,) = [each for each in diagnose(text, invented(1)) if each.code == "MT402"]
    assert unknown.message == "the layout needs 64.0 TiB on the host, which has 1 TiB: 63.0 TiB too much"
    assert "assumed" in unknown.notes[0]
    machine = queries.changed(invented(1), host_bytes=8 * GiB)
    (known,) = [each for each in diagnose(text.replace("1TiB, count: 64", "8GiB"), machine) if each.code == "MT402"]
    assert known.message == "the layout needs 8.0 GiB on the host, which has 8 GiB: 2 MiB too much"
    for fits in ("7GiB", "8190MiB"):
        assert "MT402" not in codes(text.replace("1TiB, count: 64", fits), machine)


def test_states_may_not_offload_more_than_the_host_has() -> None:
    """The areas of all states exist at once; states that offload the same chunks to the same node share them."""
    text = """\
ranges: {r: {size: 12GiB}}
chunks: {a: {location: gpu0, size: 8GiB}, b: {location: gpu0, size: 4GiB}}
map: {r: [a, b]}
access: {r: {gpu0: rw}}
states:
  both: {offload: {r: host:0}}
  one: {offload: {a: host:0}}
"""
    machine = queries.changed(invented(1), host_bytes=8 * GiB)
    (found,) = diagnose(text, machine)
    assert (found.code, found.path[:2]) == ("MT402", ("states", "both"))
    assert found.message == "the layout needs 12 GiB on the host, which has 8 GiB: 4 GiB too much"
    assert diagnose(text, queries.changed(machine, host_bytes=12 * GiB)) == ()


NODES = with_nodes(invented(1), 8 * GiB, 4 * GiB)


@pytest.mark.parametrize(
    ("chunks", "found"),
    [
        ("a: {location: host:0, size: 8GiB}, b: {location: host:1, size: 4GiB}", []),
        ("a: {location: host:1, size: 1TiB, count: 64}", ["64 TiB on host:1, which has 4 GiB: 64.0 TiB too much"]),
        ("a: {location: host:1, size: 6GiB}", ["6 GiB on host:1, which has 4 GiB: 2 GiB too much"]),
        (
            "a: {location: [host:0, host:1], size: 1GiB, count: 10}",
            ["5 GiB on host:1, which has 4 GiB: 1 GiB too much"],
        ),
        ("a: {location: host, size: 12GiB}", []),
        (
            "a: {location: host, size: 6GiB}, b: {location: host:0, size: 7GiB}",
            ["13 GiB on the host, which has 12 GiB: 1 GiB too much"],
        ),
        (
            "a: {location: host, size: 4GiB}, b: {location: host:0, size: 9GiB}",
            ["9 GiB on host:0, which has 8 GiB: 1 GiB too much"],
        ),
        (
            "a: {location: host, size: 5GiB}, b: {location: host:0, size: 9GiB}",
            [
                "9 GiB on host:0, which has 8 GiB: 1 GiB too much",
                "14 GiB on the host, which has 12 GiB: 2 GiB too much",
            ],
        ),
    ],
)
def test_each_node_of_the_host_limits_a_layout(chunks: str, found: list[str]) -> None:
    """The whole host is reported as well only if more is missing than on its nodes."""
    messages = [each.message for each in diagnose(f"chunks: {{{chunks}}}", NODES) if each.code == "MT402"]
    assert messages == [f"the layout needs {each}" for each in found]


@pytest.mark.parametrize(
    ("size", "found"),
    [
        (13, "13 GiB on the host, which has 12 GiB: 1 GiB too much"),
        (6, "6 GiB on the host, where 1 GiB may be page-locked: 5 GiB too much"),
    ],
)
def test_the_host_is_reported_once_if_its_page_locked_memory_is_too_little_as_well(size: int, found: str) -> None:
    machine = with_nodes(invented(1), 8 * GiB, 4 * GiB, pinned=GiB)
    text = f"chunks: {{a: {{location: host, size: {size}GiB}}}}"
    messages = [each.message for each in diagnose(text, machine) if each.code == "MT402"]
    assert messages == [f"the layout needs {found}"]


def test_nodes_are_shared_by_all_processes() -> None:
    text = "processes:\n a: {count: 3, chunks: {c: {location: host:1, size: 2GiB}}}"
    (found,) = [each for each in diagnose(text, NODES) if each.code == "MT402"]
    assert found.path == ("processes", "a", "chunks", "c", "size")
    assert found.message == "the layout needs 6 GiB on host:1, which has 4 GiB: 2 GiB too much"


def test_a_node_of_unknown_size_is_not_counted() -> None:
    text = "chunks: {a: {location: host:1, size: 64GiB}}"
    assert "MT402" not in codes(text, with_nodes(invented(1), 8 * GiB, None))


STATES = """\
ranges: {r: {size: 6GiB}}
chunks: {a: {location: gpu0, size: 6GiB}}
map: {r: a}
access: {r: {gpu0: rw}}
managed: {m: {size: 2GiB, prefer: host:1}}
states: {asleep: {offload: {r: WHERE}}}
"""


@pytest.mark.parametrize(
    ("where", "pinned", "found"),
    [
        ("host:0", None, []),
        ("host:1", None, ["6 GiB on host:1, which has 4 GiB: 2 GiB too much"]),
        ("pinned", None, []),
        ("pinned", 6 * GiB, []),
        ("pinned", 5 * GiB, ["6 GiB on the host, where 5 GiB may be page-locked: 1 GiB too much"]),
        ("host:0", 5 * GiB, ["6 GiB on the host, where 5 GiB may be page-locked: 1 GiB too much"]),
        ("host", 5 * GiB, ["6 GiB on the host, where 5 GiB may be page-locked: 1 GiB too much"]),
    ],
)
def test_offload_areas_count_on_their_node_and_as_page_locked(where: str, pinned: int | None, found: list[str]) -> None:
    """Managed memory is not page-locked, and advice about a node does not keep it there (fact 71)."""
    machine = with_nodes(invented(1), 8 * GiB, 4 * GiB, pinned=pinned)
    diagnostics = diagnose(STATES.replace("WHERE", where), machine)
    assert [each.message for each in diagnostics] == [f"the layout needs {each}" for each in found]
    assert all(each.path[:2] == ("states", "asleep") for each in diagnostics)


def test_a_hint_for_exhausted_host_memory_does_not_name_gpu_tools() -> None:
    machine = invented(1)
    request = run_request("chunks: {a: {location: host:0, size: 2GiB}}", machine)
    failure = run(request, queries.changed(machine, host_bytes=GiB)).report.failure
    assert failure
    assert "OUT_OF_MEMORY" in failure.error
    assert "nvidia-smi" not in str(failure.hint)
    assert "host" in str(failure.cause)


def test_the_failure_of_a_chunk_names_its_node() -> None:
    """Memory that others took since the machine was recorded."""
    before, now = with_nodes(invented(1), 8 * GiB, 4 * GiB), with_nodes(invented(1), 8 * GiB, GiB)
    failure = run(run_request("chunks: {a: {location: host:1, size: 2GiB}}", before), now).report.failure
    assert failure
    assert failure.reason == "host:1 has 1 GiB free"
    assert str(failure.cause).startswith("NUMA node host:1 has less than 2GiB of free memory")
    assert failure.path == ("chunks", "a")


def test_the_failure_of_pinned_memory_names_the_host() -> None:
    text = STATES.replace("WHERE", "pinned").replace("managed: {m: {size: 2GiB, prefer: host:1}}\n", "")
    before, now = with_nodes(invented(1), 8 * GiB, 4 * GiB), with_nodes(invented(1), 2 * GiB, 2 * GiB)
    failure = run(run_request(text, before), now).report.failure
    assert failure
    assert failure.reason == "the host has 4 GiB free"
    assert str(failure.cause).startswith("6GiB of the host's memory cannot be page-locked")
    assert "nvidia-smi" not in str(failure.hint)


@pytest.mark.parametrize(
    ("chunk", "size", "advice", "found"),
    [
        ("79GiB", "96GiB", "", ["95.5 GiB on the host, which has 12 GiB: 83.5 GiB too much"]),
        ("1GiB", "87GiB", "", []),
        ("1GiB", "90GiB", "", []),
        ("1GiB", "91GiB", "", ["12.5 GiB on the host, which has 12 GiB: 512 MiB too much"]),
        ("40GiB", "60GiB", "", ["20.5 GiB on the host, which has 12 GiB: 8.5 GiB too much"]),
        ("80GiB", "4GiB", "", ["80 GiB on gpu0, which has 80 GiB: 512 MiB too much"]),
        ("1GiB", "91GiB", ", accessed_by: [gpu0, gpu1]", ["12.5 GiB on the host, which has 12 GiB: 512 MiB too much"]),
        ("1GiB", "13GiB", ", prefer: host", ["13 GiB on the host, which has 12 GiB: 1 GiB too much"]),
    ],
)
def test_what_exceeds_a_gpu_is_on_the_host(chunk: str, size: str, advice: str, found: list[str]) -> None:
    """Chunks never do, and they leave oversubscribed memory what they do not take."""
    machine = with_nodes(invented(2), 8 * GiB, 4 * GiB, pinned=GiB)
    text = f"chunks: {{c: {{location: gpu0, size: {chunk}}}}}\n"
    text += f"managed: {{m: {{size: {size}, oversubscribe: true{advice}}}}}"
    messages = [each.message for each in diagnose(text, machine) if each.code == "MT402"]
    assert messages == [f"the layout needs {each}" for each in found]


def test_entries_that_exceed_a_gpu_share_its_room() -> None:
    machine = with_nodes(invented(2), 8 * GiB, 4 * GiB, pinned=GiB)
    text = "managed: {m: {size: 60GiB, oversubscribe: true}, n: {size: 60GiB, oversubscribe: true}}"
    (diagnostic,) = [each for each in diagnose(text, machine) if each.code == "MT402"]
    assert diagnostic.message == "the layout needs 40.5 GiB on the host, which has 12 GiB: 28.5 GiB too much"
