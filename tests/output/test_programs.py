"""Programs out of plans compile, run, and make the calls that a run makes."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from memtopo import machine
from memtopo.driver.recorder import DriverCall
from memtopo.driver.wrappers import METHODS
from memtopo.machine import Machine
from memtopo.output.calls import TEST, line
from memtopo.output.programs import NotExpressible
from memtopo.output.programs.languages import Language, texts
from memtopo.output.programs.writer import Names, words_of_parts
from memtopo.plans.calls import NamedCall, named
from memtopo.records.player import LEFT_OUT, changes_something
from memtopo.run.planned_calls import planned_calls
from tests.helpers.machines import with_fabric
from tests.helpers.program_calls import (
    EXPRESSIBLE,
    LINE,
    REFUSED,
    comparable,
    compile_program,
    make_library,
    run_programs,
    written,
)
from tests.helpers.samples import sampled
from tests.helpers.specs import ROOT, composed, run_request

H200X4 = machine.load("h200x4")
IN_PYTHON = {"quickstart", "elastic-kv", "hand-over", "legacy-ipc", "managed", "nic-kv"}
"""Those whose programs in Python are run each time: a process that imports the bindings takes a second."""
IN_OTHER_SPECS = {
    "init", "memset_d8", "mem_host_register", "mem_host_unregister", "external_memory_get_mapped_buffer",
    "destroy_external_memory", "destroy_external_semaphore", "signal_external_semaphore", "wait_external_semaphore",
    "multicast_create", "multicast_add_device", "multicast_bind_mem", "multicast_bind_addr", "multicast_unbind",
    "memcpy_async", "event_record", "event_synchronize", "stream_wait_event", "mem_pool_trim_to",
}  # fmt: skip
"""Calls of elastic ranges, of what is refused, of changes, and of programs."""
REAL_HEADER = Path("/usr/local/cuda/include")


OTHER_CALLS = """
processes:
  server:
    ranges: {w: {size: 24MiB}, even: {size: 6MiB, count: 3}, uneven: {size: 16MiB}, turn: {size: 2MiB, count: 5}}
    chunks:
      w: {location: [gpu0, gpu1], size: 2MiB, count: 5, handles: [fd, fabric]}
      c: {location: gpu0, size: 2MiB, count: 6, compressible: true}
      host: {location: "host:0", size: 2MiB}
    map:
      w: [{chunk: w.0, offset: 2MiB}, {chunk: w.1, offset: 20MiB}, {chunk: w.2, offset: 4MiB}, w.3, w.4]
      even: {chunk: c, each: 2}
      uneven: [host]
      turn.1:3: [{chunk: c.0:2, each: 1}]
      turn.3:5: [{chunk: c.0:2, each: 1}]
    access: {w: {gpu0: rw}, even: {gpu0: rw}, uneven: {gpu0: r}, turn: {gpu0: r}}
    pools:
      p: {location: gpu0, handles: fd, max_size: 64MiB, release_threshold: 2MiB, accessed_by: gpu1}
      q: {location: gpu1, reuse_allow_opportunistic: false}
    allocations: {a: {pool: p, size: 2MiB, count: 4}, small: {pool: q, size: 64KiB}}
    buffers: {b: {location: gpu0, size: 1MiB}}
    managed: {m: {size: 2MiB, prefer: gpu0, accessed_by: [gpu1], prefetch: gpu0}, s: {size: 2MiB, attach: single}}
    pinned: {staging: {size: 2MiB, count: 2, accessed_by: [gpu0, gpu1]}, flags: {size: 64KiB, write_combined: true}}
    events: {e: {device: gpu0}}
    exports:
      w: {chunk: w, via: fabric}
      a: {allocation: a, via: fd}
      b: {buffer: b, via: ipc}
      e: {event: e, via: ipc}
      nic: {buffer: b, via: dmabuf}
  reader:
    count: 2
    ranges: {v: {size: 10MiB}}
    imports: {w: {from: server.w}, a: {from: server.a, accessed_by: gpu1}, b: {from: server.b}, e: {from: server.e}}
    map: {v: w}
    access: {v: {gpu1: rw}}
"""
"""Calls that the shipped specs do not make, numbers in no order, and `turn`: numbers in turn in a loop from 1 on."""
FABRIC = with_fabric(2)
MANY_PACKETS = {
    "c": """    for (int i = 0; i < 10000 && send(peers[0].socket, "", 1, MSG_NOSIGNAL) > 0; i++) continue;\n""",
    "cuda-python": """try:
    for _ in range(10000):
        peers["prefill", False].send(b"0")
except ConnectionError:
    pass
""",
}
"""Statements of an importer that sends its exporter more than the socket between them holds."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    make_library(folder)
    return folder


def planned(spec: str | Path, facts: Machine = H200X4) -> dict[str, list[DriverCall]]:
    """Calls that a plan lists; other tests compare them with those of runs."""
    found = composed(spec, facts)
    calls = planned_calls(found.plan, found.geometry)
    return {label: [each for each in entries if isinstance(each, DriverCall)] for label, entries in calls.items()}


@pytest.mark.parametrize("path", sampled(EXPRESSIBLE))
def test_a_program_in_c_makes_the_calls_of_its_plan(path: Path, library: Path, tmp_path: Path) -> None:
    files = {label: compile_program(file, library) for label, file in written(path, "c", tmp_path).items()}
    made = run_programs(files, library, tmp_path)
    for label, calls in planned(path).items():
        assert comparable(made[label]) == comparable(calls), label


@pytest.mark.parametrize("path", sampled(EXPRESSIBLE, names=IN_PYTHON))
def test_a_program_in_python_makes_the_calls_of_its_plan(path: Path, library: Path, tmp_path: Path) -> None:
    made = run_programs(written(path, "cuda-python", tmp_path), library, tmp_path)
    for label, calls in planned(path).items():
        assert comparable(made[label]) == comparable(calls), label


@pytest.mark.parametrize("language", ["c", "cuda-python"])
def test_programs_make_the_calls_of_every_kind_of_object(language: Language, library: Path, tmp_path: Path) -> None:
    files = written(OTHER_CALLS, language, tmp_path, FABRIC)
    if language == "c":
        files = {label: compile_program(file, library) for label, file in files.items()}
    made = run_programs(files, library, tmp_path)
    for label, calls in planned(OTHER_CALLS, FABRIC).items():
        assert comparable(made[label]) == comparable(calls), label
    tried = {each.method for calls in made.values() for each in calls}
    missing = {method for method in METHODS if changes_something(method)} - tried - set(LEFT_OUT) - IN_OTHER_SPECS
    assert not missing


@pytest.mark.parametrize("language", ["c", "cuda-python"])
def test_a_process_releases_nothing_before_its_importers_have(
    language: Language, library: Path, tmp_path: Path
) -> None:
    """Their calls are in one log, in the order in which they were made.

    The importer first sends more packets than a socket holds. It goes on once the exporter reads, as it does while it
    awaits importers, or once the exporter has ended.
    """
    files = written(ROOT / "specs" / "hand-over.yaml", language, tmp_path)
    slow = files["decode"]
    end = {"c": "    take_down();", "cuda-python": "# take down"}[language]
    assert slow.read_text().count(end) == 1
    slow.write_text(slow.read_text().replace(end, MANY_PACKETS[language] + end))
    if language == "c":
        files = {label: compile_program(file, library) for label, file in files.items()}
    log = tmp_path / "log"
    run_programs(files, library, tmp_path, CUDA_CALLS=str(log))
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    importer = next(call["pid"] for call in calls if "Import" in call["call"])
    released = [call["pid"] == importer for call in calls if call["call"] in ("cuMemRelease", "cuEventDestroy")]
    assert released == sorted(released, reverse=True)
    assert 0 < sum(released) < len(released)
    assert not list(tmp_path.glob("*.sock"))


@pytest.mark.skipif(not (REAL_HEADER / "cuda.h").exists(), reason="no CUDA toolkit")
@pytest.mark.parametrize("name", ["quickstart", "legacy-ipc", "managed", "elastic-kv", "nic-kv"])
def test_programs_compile_with_the_header_of_cuda(name: str, library: Path, tmp_path: Path) -> None:
    for file in written(ROOT / "specs" / f"{name}.yaml", "c", tmp_path).values():
        compile_program(file, library, REAL_HEADER)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_a_program_cannot_make_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotExpressible, match="a program of its calls cannot"):
        written(ROOT / "specs" / f"{name}.yaml", "c", tmp_path)


def test_thousands_of_chunks_are_loops() -> None:
    request = run_request(ROOT / "specs" / "paged-kv.yaml", H200X4)
    calls = planned_calls(request.plan, request.geometry)
    assert len(calls[""]) > 30_000
    (text,) = texts(request.plan.name, LINE, calls, "c", {}).values()
    assert len(text.splitlines()) < 130


@pytest.mark.parametrize("name", ['*/ int x; """', "*\\ int x;", "*\\/ int x;", "machines/*.json", "/*/ int x;"])
def test_the_name_of_a_machine_cannot_end_the_comment(name: str, library: Path, tmp_path: Path) -> None:
    request = run_request(ROOT / "specs" / "quickstart.yaml", H200X4)
    calls = planned_calls(request.plan, request.geometry)
    for language in ("c", "cuda-python"):
        (text,) = texts("quickstart", replace(LINE, name=name), calls, language, {}).values()
        assert text.count("*/") == text.count("/*")
        assert text.count('"""') % 2 == 0
        if language == "c":
            (tmp_path / "program.c").write_text(text)
            compile_program(tmp_path / "program.c", library)


@pytest.mark.parametrize(
    ("language", "closed"), [("c", f"    close_handle(); /* {TEST} */"), ("cuda-python", f"close_handle()  # {TEST}")]
)
def test_an_export_for_nobody_is_closed_and_called_a_test(language: Language, closed: str, tmp_path: Path) -> None:
    """In the list of calls, too; exports for importers, and handles that are received, are none."""
    for label, file in written(OTHER_CALLS, language, tmp_path, FABRIC).items():
        assert file.read_text().splitlines().count(closed) == (5 if label == "server" else 0)
    found = composed(OTHER_CALLS, FABRIC)
    calls = planned_calls(found.plan, found.geometry)
    lines = [line(each) for entries in calls.values() for each in named(entries) if isinstance(each, NamedCall)]
    tests = [each.partition("(")[0].strip() for each in lines if each.endswith(f" /* {TEST} */")]
    assert sorted(tests) == [
        "cuIpcGetEventHandle", "cuIpcGetMemHandle", "cuMemExportToShareableHandle", "cuMemGetHandleForAddressRange",
        "cuMemPoolExportPointer", "cuMemPoolExportToShareableHandle",
    ]  # fmt: skip


@pytest.mark.parametrize(("suffix", "defined"), [(".py.txt", r"^(?:def|class) (\w+)"), (".c", r"^static .*?(\w+)\(")])
def test_no_object_has_the_name_of_a_function_of_the_parts(suffix: str, defined: str) -> None:
    folder = ROOT / "memtopo" / "output" / "programs" / "parts"
    parts = [each.read_text() for each in folder.iterdir() if each.name.endswith(suffix)]
    functions = {name for text in parts for name in re.findall(defined, text, re.MULTILINE)}
    assert {"close_handle", "send_to"} <= functions
    names = Names(words_of_parts(suffix))
    assert not {names.identifier(each, each) for each in functions} & functions


def test_a_pool_called_properties_hides_no_function(tmp_path: Path) -> None:
    spec = "pools: {properties: {location: gpu0}}\nallocations: {a: {pool: properties, size: 2MiB}}\n"
    (file,) = written(spec, "cuda-python", tmp_path).values()
    body = ast.parse(file.read_text()).body
    functions = {each.name for each in body if isinstance(each, ast.FunctionDef)}
    assigned = [target for each in body if isinstance(each, ast.Assign) for target in each.targets]
    variables = {each.id for each in assigned if isinstance(each, ast.Name)}
    assert "pool_properties_2" in variables
    assert not variables & functions


@pytest.mark.parametrize(("language", "hint"), [("c", "0x200000000000ULL, "), ("cuda-python", "0x200000000000, ")])
def test_a_hint_is_written_as_an_address(language: Language, hint: str, tmp_path: Path) -> None:
    (file,) = written("ranges: {kv: {size: 2MiB, address: 0x200000000000}}\n", language, tmp_path).values()
    (line,) = [line for line in file.read_text().splitlines() if "cuMemAddressReserve" in line]
    assert f"2 * MiB, 0, {hint}" in line


@pytest.mark.parametrize(("spec", "kept"), [("sleep-mode", True), ("elastic-kv", False)])
def test_the_memory_for_offloaded_chunks_is_explained_in_a_comment(spec: str, kept: bool, tmp_path: Path) -> None:
    languages: tuple[Language, ...] = ("c", "cuda-python")
    for language in languages:
        (file,) = written(ROOT / "specs" / f"{spec}.yaml", language, tmp_path).values()
        assert ("keeps the bytes of offloaded chunks" in file.read_text()) == kept


@pytest.mark.parametrize("language", ["c", "cuda-python"])
def test_ranges_at_one_address_in_all_processes_are_named_in_a_comment(language: Language, tmp_path: Path) -> None:
    spec = (
        "processes: {pe: {count: 2, ranges: {heap: {size: 2MiB, count: 3, same_address: true}, own: {size: 2MiB}}}}\n"
    )
    for file in written(spec, language, tmp_path).values():
        assert "Ranges that have one address in all processes: heap.\n" in file.read_text()
    (other,) = written("ranges: {kv: {size: 2MiB}}\n", language, tmp_path).values()
    assert "in all processes" not in other.read_text()


def test_objects_of_equal_names_get_numbers() -> None:
    names = Names(["chunk_a_2"])
    assert [names.identifier(key, "chunk a") for key in (1, 2, 3, 1)] == [
        "chunk_a",
        "chunk_a_3",
        "chunk_a_4",
        "chunk_a",
    ]
