"""Replays: a record ends on its own machine as it did, and one with another meaning does not, at the right call."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from memtopo.common.errors import UsageError
from memtopo.driver.handles import Handle
from memtopo.driver.recorder import DriverCall
from memtopo.driver.types import gpu
from memtopo.driver.wrappers import Call, Forwarder
from memtopo.drivers.target import Target, resolve
from memtopo.output import schemas
from memtopo.output.programs import recorded_program
from memtopo.output.programs.languages import text
from memtopo.plans.calls import named
from memtopo.plans.trace import TracedCall
from memtopo.records import Record, read_record
from memtopo.records.player import IMPORTS, NoProgram, Played, program_calls
from memtopo.records.replay import PROCESS_ENDED, LeftOutCalls, Replay, replay
from memtopo.testing.library import folder
from tests.cli.conftest import InlineRunner
from tests.helpers.command_line import run_memtopo
from tests.helpers.processes import open_descriptors
from tests.helpers.program_calls import comparable, compile_program, make_library, run_programs
from tests.helpers.records import MIB, Calls
from tests.helpers.samples import sampled
from tests.helpers.specs import EVERY_SPEC, PLANNED_ONLY, ROOT

RECORDS = {path.name.partition(".")[0]: path for path in sorted((ROOT / "tests" / "data").glob("re*/*.jsonl.xz"))}
NAMES = [*RECORDS]
BUILT = [path for path in EVERY_SPEC if path not in PLANNED_ONLY]
Damage = Callable[[dict[str, Any]], dict[str, Any] | None]


def captured(name: str, folder: Path) -> Record:
    """A record of a program that ran on an H100, or on two H200s."""
    file = folder / f"{name}.jsonl"
    file.write_bytes(lzma.decompress(RECORDS[name].read_bytes()))
    return read_record([file])


def machine_of(record: Record) -> Target:
    """The machine that a record is of."""
    return resolve("h100x1" if len(record.heads[0].gpus) == 1 else "h200x2")


def made(run_inline: InlineRunner, spec: str, folder: Path, machine: str = "h200x4") -> Path:
    """The trace of a run of a spec."""
    trace = folder / "trace"
    done = run_inline("apply", ROOT / "specs" / f"{spec}.yaml", "--machine", machine, "--trace", trace)
    assert done.status == 0, done.err
    return trace


def damaged(trace: Path, change: Damage) -> Replay:
    """Replay of a trace in which calls are other ones, or none."""
    head, *lines = trace.read_text().splitlines()
    changed = [change(json.loads(line)) for line in lines]
    trace.write_text("".join(f"{each}\n" for each in (head, *(json.dumps(line) for line in changed if line))))
    return replay(read_record([trace]), resolve("h200x4"))


@pytest.mark.parametrize("spec", sampled(BUILT, seconds=4))
def test_the_record_of_a_run_ends_as_the_run_did(run_inline: InlineRunner, tmp_path: Path, spec: Path) -> None:
    found = run_inline("replay", made(run_inline, spec.stem, tmp_path), "--machine", "h200x4")
    assert found.status == 0, found.out
    assert "ok: all calls that were made end as in the record" in found.out


@pytest.mark.parametrize("name", NAMES)
def test_what_a_program_did_on_gpus_the_simulator_allows(tmp_path: Path, name: str) -> None:
    record = captured(name, tmp_path)
    found = replay(record, machine_of(record))
    assert found.difference is None
    assert found.left_out == ()
    assert found.made == sum(each.call.method != "mark" for each in record.calls)


def test_a_machine_that_refuses_a_call_is_named_with_its_reason(tmp_path: Path) -> None:
    """PyTorch asks for a fabric handle first, which this H100 refused; its next request has none."""
    record = captured("torch-expandable", tmp_path)
    index = next(n for n, each in enumerate(record.calls) if each.call.method == "mem_create" and each.call.error)
    call = replace(record.calls[index].call, error=None, result=1)
    calls = (*record.calls[:index], replace(record.calls[index], call=call), *record.calls[index + 1 :])
    found = replay(replace(record, calls=calls), resolve("h100x1"))
    assert found.difference
    assert (found.difference.call.number, found.difference.error) == (call.number, "CUDA_ERROR_NOT_PERMITTED")
    assert found.difference.reason
    assert found.difference.before == tuple(each.call for each in record.calls[:index])[-5:]


def test_a_call_that_failed_in_the_record_and_succeeds_here_is_named(tmp_path: Path) -> None:
    record = captured("cupy-raw", tmp_path)
    index = next(n for n, each in enumerate(record.calls) if each.call.method == "mem_alloc")
    call = replace(record.calls[index].call, error="CUDA_ERROR_OUT_OF_MEMORY", result=None)
    calls = (*record.calls[:index], replace(record.calls[index], call=call), *record.calls[index + 1 :])
    difference = replay(replace(record, calls=calls), resolve("h100x1")).difference
    assert difference
    assert (difference.call.number, difference.error) == (call.number, None)


def test_of_a_removed_call_the_one_that_needs_it_is_named(run_inline: InlineRunner, tmp_path: Path) -> None:
    def without_first_map(line: dict[str, Any]) -> dict[str, Any] | None:
        return None if line.get("step") == "map weights" and not line["undo"] else line

    found = damaged(made(run_inline, "single-gpu", tmp_path), without_first_map).difference
    assert found
    assert (found.call.call, found.error) == ("cuMemSetAccess", "CUDA_ERROR_INVALID_VALUE")


@pytest.mark.parametrize(
    ("method", "name"),
    [("mem_create", "cuMemMap"), ("mem_address_reserve", "cuMemMap"), ("mem_unmap", "cuMemAddressFree")],
)
def test_without_the_calls_of_one_kind_the_next_that_needs_them_is_named(
    run_inline: InlineRunner, tmp_path: Path, method: str, name: str
) -> None:
    found = damaged(
        made(run_inline, "single-gpu", tmp_path), lambda line: None if line["method"] == method else line
    ).difference
    assert found
    assert found.call.call == name


def test_another_size_is_named_where_it_no_longer_fits(run_inline: InlineRunner, tmp_path: Path) -> None:
    def larger(line: dict[str, Any]) -> dict[str, Any]:
        if line["method"] == "mem_create":
            line["arguments"]["size"] += 2 << 20
        return line

    found = damaged(made(run_inline, "single-gpu", tmp_path), larger).difference
    assert found
    assert found.call.call == "cuMemMap"
    assert found.reason


def test_memory_that_is_unmapped_in_part_is_named(run_inline: InlineRunner, tmp_path: Path) -> None:
    def half(line: dict[str, Any]) -> dict[str, Any]:
        if line["method"] == "mem_unmap":
            line["arguments"]["size"] //= 2
        return line

    found = damaged(made(run_inline, "quickstart", tmp_path), half).difference
    assert found
    assert found.call.call == "cuMemUnmap"


def test_a_smaller_machine_refuses_what_it_lacks(run_inline: InlineRunner, tmp_path: Path) -> None:
    trace = made(run_inline, "four-gpu-kv", tmp_path)
    refused = run_inline("replay", trace, "--machine", "h200x2", "--json")
    assert refused.status == 1
    assert not list(Draft202012Validator(schemas.schema("replay")).iter_errors(refused.document))
    difference = refused.document["difference"]
    assert difference["call"]["call"] == "cuDevicePrimaryCtxRetain"
    assert difference["error"] == "CUDA_ERROR_INVALID_DEVICE"


def test_calls_that_memtopo_does_not_have_are_counted_and_named(run_inline: InlineRunner, tmp_path: Path) -> None:
    def other(line: dict[str, Any]) -> dict[str, Any]:
        return line | ({"method": "ctx_enable_peer", "call": "cuCtxEnablePeerAccess"} if line["n"] == 3 else {})

    found = damaged(made(run_inline, "quickstart", tmp_path), other)
    assert [(each.function, each.calls) for each in found.left_out if "does not have it" in each.reason] == [
        ("cuCtxEnablePeerAccess", 1)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_record_is_replayed_or_refused(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    file = tmp_path / "damaged.jsonl"
    head, *lines = lzma.decompress(RECORDS["torch-expandable"].read_bytes()).decode().splitlines()
    for _ in range(40):
        changed = [json.loads(line) for line in lines]
        for _ in range(3):
            line = chosen.choice(changed)
            held = chosen.choice([line, line["arguments"]]) if isinstance(line.get("arguments"), dict) else line
            if held:
                key = chosen.choice([*held])
                held[key] = chosen.choice([None, -1, 0, 1 << 70, "x", [], {}, {"location": "gpu9"}, True, 2.5])
        file.write_text("".join(f"{each}\n" for each in (head, *map(json.dumps, changed))))
        with suppress(UsageError):
            replay(read_record([file]), resolve("h100x1"))


def test_processes_pass_their_handles_on(run_inline: InlineRunner, tmp_path: Path) -> None:
    """Descriptors and IPC handles: without the exports, imports have none."""
    trace = made(run_inline, "legacy-ipc", tmp_path)
    whole = run_inline("replay", trace, "--machine", "h200x4", "--json").document
    assert whole["difference"] is None
    assert not any("handle" in each["reason"] for each in whole["left_out"])
    importer = max(trace.iterdir(), key=lambda file: file.read_text().count("ipc_open_mem_handle"))
    alone = run_inline("replay", importer, "--machine", "h200x4", "--json").document
    assert any(each["reason"] == "its handle does not belong to an export in the record" for each in alone["left_out"])


@pytest.mark.parametrize("name", NAMES)
def test_a_program_of_a_record_makes_its_calls(tmp_path: Path, name: str) -> None:
    record = captured(name, tmp_path)
    importing = {each.process for each in record.calls if each.call.method in IMPORTS}
    for process, head in enumerate(record.heads):
        if process in importing:
            with pytest.raises(NoProgram, match="imports an export of another process"):
                program_calls(record, process, None)
            continue
        calls = program_calls(record, process, None)
        program = recorded_program("recorded", head.process, machine_of(record).line, calls)
        source = tmp_path / f"program{process}.c"
        source.write_text(text(program, "c"))
        folder = tmp_path / f"lib{process}"
        folder.mkdir()
        make_library(folder)
        ran = run_programs({"": compile_program(source, folder)}, folder, tmp_path)[""]
        assert comparable(ran)[0] == comparable([each for each in calls if each.method != "init"])[0]
        compile(text(program, "cuda-python"), "program.py", "exec")
        assert len(list(named(calls))) == len(calls)


def test_the_program_of_a_difference_ends_with_its_call(run_inline: InlineRunner, tmp_path: Path) -> None:
    trace = made(run_inline, "single-gpu", tmp_path)
    lines = trace.read_text().splitlines()
    trace.write_text("".join(f"{line}\n" for line in lines if '"method": "mem_unmap"' not in line))
    found = run_inline("replay", trace, "--machine", "h200x4", "--as", "c")
    assert found.status == 1
    build = found.out.partition("static void build(void) {")[2].partition("\n}")[0]
    assert build.rstrip().splitlines()[-1].strip().startswith("CHECK(cuMemAddressFree(range_made")
    assert "cuMemAddressFree: CUDA_ERROR" in found.err
    assert run_inline("replay", trace, "--as", "c", "--json", "--machine", "h200x4").status == 2


@pytest.mark.parametrize(
    ("method", "arguments", "result"),
    [
        ("mem_retain_allocation_handle", {"address": 1}, []),
        ("mem_release", {}, None),
        ("device_get_mem_pool", {}, 1),
        ("mem_alloc_pitch", {}, 1),
    ],
)
def test_no_program_is_made_of_damaged_calls(
    tmp_path: Path, method: str, arguments: dict[str, Any], result: object
) -> None:
    calls = Calls()
    calls.call(method, arguments, result=result)
    record = read_record([calls.write(tmp_path / "r.jsonl")])
    with pytest.raises(UsageError, match="call 1 of the record does not have the arguments of"):
        program_calls(record, 0, None)


def test_the_calls_before_a_difference_are_those_of_its_process(tmp_path: Path) -> None:
    processes = [Calls("a"), Calls("b")]
    for each in processes:
        each.reserve(2)
    processes[1].call("mem_address_reserve", {"size": 1, "alignment": 0, "address": 0, "flags": 0}, result=1)
    record = read_record([each.write(tmp_path / f"{each.head.process}.jsonl") for each in processes])
    difference = replay(record, resolve("h200x2")).difference
    assert difference
    assert [(each.process, each.number) for each in (*difference.before, difference.call)] == [("b", 1), ("b", 2)]


class Ending:
    """A process of a replay that ends in its first call."""

    def play(self, call: TracedCall, shared: Handle | None = None) -> Played:
        return Played(PROCESS_ENDED, f"the process ended in {call.call}, {shared}")


def test_a_process_that_ends_in_a_call_which_failed_in_the_record_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls()
    for _ in range(2):
        calls.call("mem_alloc", {"size": 2 << 20}, error="CUDA_ERROR_OUT_OF_MEMORY", device=0)
    monkeypatch.setattr("memtopo.records.replay._players", lambda *_: nullcontext([Ending()]))
    found = replay(read_record([calls.write(tmp_path / "r.jsonl")]), resolve("h100x1"))
    assert found.difference
    assert (found.difference.call.number, found.difference.error, found.other_errors) == (1, PROCESS_ENDED, {})


def test_a_handle_is_passed_to_each_of_its_imports_and_left_open_by_none(tmp_path: Path) -> None:
    """Also if the object is exported twice."""
    calls = Calls()
    chunk = calls.create(2, "gpu0", handles=["fd"])
    for _ in range(2):
        calls.call("mem_export_to_shareable_handle", {"handle": chunk, "kind": 1, "flags": 0}, result="handle:1")
    for handle in (7, 8):
        calls.call("mem_import_from_shareable_handle", {"shared": "handle:1", "kind": 1}, result=handle)
        calls.map(calls.reserve(2), 0, handle, 2)
    record, before = read_record([calls.write(tmp_path / "r.jsonl")]), open_descriptors()
    found = replay(record, resolve("h200x2"))
    assert (found.difference, found.left_out, found.made) == (None, (), len(calls.calls))
    assert open_descriptors() == before


class Counting(Forwarder):
    """A simulator that counts the open descriptors before each chunk is created."""

    def __init__(self, driver: Any) -> None:
        self.close, self.open = driver.close, list[int]()
        super().__init__(driver)

    def _wrap(self, method: str, call: Call) -> Call:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.open.append(open_descriptors())
            return call(*args, **kwargs)

        return counted if method == "mem_create" else call


def test_a_handle_that_no_later_call_imports_is_closed_at_once(tmp_path: Path) -> None:
    """An open one would keep its memory (fact 29), also of an object that is exported again after its last import."""
    calls = Calls()
    for size, imports in ((2, 0), (4, 1), (6, 0)):
        chunk, shared = calls.create(size, "gpu0", handles=["fd"]), f"handle:{size}"
        for number in range(imports + 1):
            calls.call("mem_export_to_shareable_handle", {"handle": chunk, "kind": 1, "flags": 0}, result=shared)
            if number < imports:
                calls.call("mem_import_from_shareable_handle", {"shared": shared, "kind": 1}, result=7)
                calls.call("mem_release", {"handle": 7})
        calls.call("mem_release", {"handle": chunk})
    machine = resolve("h200x2")
    driver = Counting(machine.open())
    counting = Target("h200x2", machine.machine, simulated=True, _opener=lambda: driver)
    found = replay(read_record([calls.write(tmp_path / "r.jsonl")]), counting)
    assert (found.difference, found.made, len(driver.open), len({*driver.open})) == (None, len(calls.calls), 3, 1)


def test_a_damaged_call_between_an_export_and_its_import_leaves_no_handle_open(tmp_path: Path) -> None:
    calls = Calls()
    chunk = calls.create(2, "gpu0", handles=["fd"])
    calls.call("mem_export_to_shareable_handle", {"handle": chunk, "kind": 1, "flags": 0}, result="handle:1")
    calls.call("mem_alloc_pitch", {}, result=1 << 40)
    calls.call("mem_import_from_shareable_handle", {"shared": "handle:1", "kind": 1}, result=7)
    record, before = read_record([calls.write(tmp_path / "r.jsonl")]), open_descriptors()
    with pytest.raises(UsageError, match="call 3 of the record"):
        replay(record, resolve("h200x2"))
    assert open_descriptors() == before


def test_addresses_that_were_freed_are_those_of_later_objects_alone(tmp_path: Path) -> None:
    """The first reservation was in the middle of the second one."""
    calls, base = Calls(), 1 << 40
    calls.call("mem_address_reserve", {"size": 2 * MIB}, result=base + 2 * MIB)
    calls.call("mem_address_free", {"address": base + 2 * MIB, "size": 2 * MIB})
    calls.call("mem_address_reserve", {"size": 8 * MIB}, result=base)
    for offset in (2, 0):
        calls.map(base, offset, calls.create(2, "gpu0"), 2)
    found = replay(read_record([calls.write(tmp_path / "r.jsonl")]), resolve("h200x2"))
    assert (found.difference, found.made) == (None, len(calls.calls))


def test_calls_that_fail_here_by_another_error_are_counted_and_no_difference(tmp_path: Path) -> None:
    """A call without an end is not made."""
    calls = Calls()
    given = {"size": 1, "properties": {"location": "gpu0", "handles": []}, "flags": 0}
    for _ in range(2):
        calls.call("mem_create", given, error="CUDA_ERROR_OUT_OF_MEMORY")
    calls.call("mem_create", given, seconds=None)
    found = replay(read_record([calls.write(tmp_path / "r.jsonl")]), resolve("h200x2"))
    assert (found.difference, found.made) == (None, 2)
    assert found.other_errors == {"cuMemCreate: CUDA_ERROR_INVALID_VALUE for CUDA_ERROR_OUT_OF_MEMORY": 2}


def test_memory_without_a_pool_is_of_the_pool_that_the_program_has_set(tmp_path: Path) -> None:
    """Which is too small for it, in the record and here."""
    calls = Calls()
    calls.call("device_get_default_mem_pool", {"device": 0}, result=4, device=0, thread=1)
    properties = {"location": "gpu0", "handles": [], "max_size": 32 * MIB}
    calls.call("mem_pool_create", {"properties": properties}, result=5, device=0, thread=1)
    calls.call("device_set_mem_pool", {"device": 0, "pool": 5}, device=0, thread=1)
    more: dict[str, Any] = {"device": 0, "thread": 1, "error": "CUDA_ERROR_OUT_OF_MEMORY"}
    calls.call("mem_alloc_async", {"size": 64 * MIB, "stream": 0}, **more)
    found = replay(read_record([calls.write(tmp_path / "r.jsonl")]), resolve("h200x2"))
    assert (found.difference, found.left_out) == (None, ())


_PAGE = {"address": 1 << 40, "size": 2 * MIB}


@pytest.mark.parametrize(
    ("method", "arguments", "missing"),
    [
        ("mem_map", _PAGE | {"offset": 0, "handle": 77, "flags": 0}, "memory at 0x10000000000"),
        ("mem_set_access", _PAGE | {"grants": []}, "memory at 0x10000000000"),
        ("mem_export_to_shareable_handle", {"handle": 77, "kind": 1, "flags": 0}, "chunk 0x4d"),
        ("mem_alloc_from_pool_async", {"size": 1, "pool": 5, "stream": 0}, "pool 0x5"),
        ("mem_unmap", _PAGE, None),
        ("mem_release", {"handle": 77}, None),
        ("mem_free", {"address": 1 << 40}, None),
    ],
)
def test_a_call_that_builds_on_what_does_not_exist_is_refused_and_one_that_takes_down_is_left_out(
    tmp_path: Path, method: str, arguments: dict[str, Any], missing: str | None
) -> None:
    calls = Calls()
    calls.call(method, arguments, result=1)
    found = replay(read_record([calls.write(tmp_path / "r.jsonl")]), resolve("h200x2"))
    if missing is None:
        assert (found.difference, [each.reason for each in found.left_out]) == (
            None, ["of an object that no call of the record has created"],
        )  # fmt: skip
        return
    assert found.difference
    assert (found.difference.error, found.difference.reason, found.left_out) == (
        "CUDA_ERROR_INVALID_VALUE", f"no call of the record has created {missing}", (),
    )  # fmt: skip


class Asking(Forwarder):
    """A simulator that keeps the keywords of its calls."""

    def __init__(self, driver: Any) -> None:
        self.close, self.keywords = driver.close, list[dict[str, Any]]()
        super().__init__(driver)

    def _wrap(self, method: str, call: Call) -> Call:
        def kept(*args: Any, **kwargs: Any) -> Any:
            self.keywords.append(kwargs)
            return call(*args, **kwargs)

        return kept if method == "mem_get_allocation_granularity" else call


def test_arguments_that_drivers_take_by_name_reach_them(tmp_path: Path) -> None:
    calls, machine = Calls(), resolve("h200x2")
    given = {"properties": {"location": "gpu0", "handles": []}, "recommended": True}
    calls.call("mem_get_allocation_granularity", given, result=2 * MIB)
    driver = Asking(machine.open())
    asking = Target("h200x2", machine.machine, simulated=True, _opener=lambda: driver)
    replay(read_record([calls.write(tmp_path / "r.jsonl")]), asking)
    assert driver.keywords == [{"recommended": True}]


def test_a_long_argument_is_shown_in_part(run_inline: InlineRunner, tmp_path: Path) -> None:
    calls = Calls()
    long = {"location": "gpu" + "x" * 2_900_000}
    calls.call("mem_create", {"size": 2 * MIB, "properties": long, "flags": 0}, result=5)
    calls.call("mem_map", _PAGE | {"offset": 0, "handle": 5, "flags": 0, **{f"a{n}": "y" * 900 for n in range(99)}})
    record = calls.write(tmp_path / "r.jsonl")
    for command in ("replay", "trace", "show", "spec"):
        found = run_inline(command, record, *(["-m", "h200x2"] if command == "replay" else []))
        assert len(found.out + found.err) < 8000, command


def test_the_context_of_a_call_is_current_for_it_alone(tmp_path: Path) -> None:
    calls = Calls()
    calls.call("mem_alloc", {"size": 2 * MIB}, result=1 << 40, device=0, thread=1)
    calls.call("mem_alloc", {"size": 2 * MIB}, error="CUDA_ERROR_INVALID_CONTEXT")
    found = replay(read_record([calls.write(tmp_path / "r.jsonl")]), resolve("h200x2"))
    assert (found.difference, found.made, found.other_errors) == (None, 2, {})


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_the_streams_that_have_names_are_stream_0(tmp_path: Path, stream: int) -> None:
    """To which no memory is attached."""
    calls, managed = Calls(), 1 << 40
    calls.call("mem_alloc_managed", {"size": 2 * MIB, "flags": 1}, result=managed, device=0, thread=1)
    given = {"stream": stream, "address": managed, "flags": 4}
    calls.call("stream_attach_mem_async", given, error="CUDA_ERROR_INVALID_VALUE", device=0, thread=1)
    found = replay(read_record([calls.write(tmp_path / "r.jsonl")]), resolve("h200x2"))
    assert (found.difference, found.made, found.left_out) == (None, 2, ())


def test_memory_ends_with_the_context_that_a_program_itself_has_retained(tmp_path: Path) -> None:
    calls = Calls()
    calls.call("device_primary_ctx_retain", {"device": 0}, result=5, device=0, thread=1)
    calls.call("mem_alloc", {"size": 2 * MIB}, result=1 << 40, device=0, thread=1)
    calls.call("device_primary_ctx_release", {"device": 0}, device=0, thread=1)
    calls.call("mem_free", {"address": 1 << 40}, error="CUDA_ERROR_INVALID_VALUE", device=0, thread=1)
    found = replay(read_record([calls.write(tmp_path / "r.jsonl")]), resolve("h200x2"))
    assert (found.difference, found.made, found.other_errors) == (None, 4, {})


def test_memory_that_a_program_registers_is_there_until_it_is_unregistered(tmp_path: Path) -> None:
    calls = Calls()
    calls.call("device_primary_ctx_retain", {"device": 0}, result=5, device=0, thread=1)
    for number in range(8):
        given = {"address": (1 << 40) + number * MIB + 512, "size": 8192, "flags": 0}  # it begins within a page
        calls.call("mem_host_register", given, device=0, thread=1)
    found = replay(read_record([calls.write(tmp_path / "r.jsonl")]), resolve("h200x2"))
    assert (found.difference, found.made) == (None, 9)


def test_memory_without_a_pool_is_of_the_pool_of_the_same_gpu_of_its_process(tmp_path: Path) -> None:
    """Which is another number of the record; the pool is too small for it, in the record and here."""
    first, second = Calls("a", ("GPU-a",)), Calls("b", ("GPU-b",))
    first.reserve(2)
    more: dict[str, Any] = {"device": 0, "thread": 1}
    properties = {"location": "gpu0", "handles": [], "max_size": 32 * MIB}
    second.call("mem_pool_create", {"properties": properties}, result=5, **more)
    second.call("device_set_mem_pool", {"device": 0, "pool": 5}, **more)
    error = "CUDA_ERROR_OUT_OF_MEMORY"
    second.call("mem_alloc_async", {"size": 64 * MIB, "stream": 0}, error=error, **more)
    record = read_record([each.write(tmp_path / f"{each.head.process}.jsonl") for each in (first, second)])
    found = replay(record, resolve("h200x2"))
    assert (found.difference, found.left_out, found.other_errors) == (None, (), {})


def test_a_program_makes_the_pool_in_place_of_the_default_one_at_the_gpu_of_its_process(tmp_path: Path) -> None:
    """GPUs have other numbers for it than in the record: its second one is the first of the other process."""
    first, second = Calls("a", ("GPU-a", "GPU-b", "GPU-c")), Calls("b", ("GPU-c", "GPU-a", "GPU-b"))
    first.reserve(2)
    second.call("mem_alloc_async", {"size": MIB, "stream": 0}, result=1 << 40, device=0)
    record = read_record([each.write(tmp_path / f"{each.head.process}.jsonl") for each in (first, second)])
    (made,) = (each for each in program_calls(record, 1, None) if each.method == "mem_pool_create")
    assert made.arguments["properties"].location == gpu(2)


def programmed(calls: Calls, folder: Path, last: int | None = None) -> list[DriverCall]:
    """The calls of the program of a record, up to the one with a number."""
    record = read_record([calls.write(folder / "r.jsonl")])
    until = next((each.call for each in record.calls if each.call.number == last), None)
    return program_calls(record, 0, until)


def test_a_program_leaves_out_failed_calls_and_what_queries_have_retained(tmp_path: Path) -> None:
    """And calls for objects that no call has made. The call of a difference is its last one, also if it failed."""
    calls = Calls()
    properties = {"location": "gpu0", "handles": []}
    calls.call("mem_create", {"size": 1, "properties": properties, "flags": 0}, error="CUDA_ERROR_INVALID_VALUE")
    base, chunk = calls.reserve(2), calls.create(2, "gpu0")
    calls.map(base, 0, chunk, 2)
    for _ in range(2):
        calls.call("mem_retain_allocation_handle", {"address": base}, result=chunk)
    for handle in (999, chunk, chunk, chunk):
        calls.call("mem_release", {"handle": handle})
    calls.call("mem_unmap", {"address": base, "size": 1}, error="CUDA_ERROR_INVALID_VALUE")
    calls.unmap(base, 0, 2)
    made = ["mem_address_reserve", "mem_create", "mem_map", "mem_release", "mem_unmap"]
    assert [each.method for each in programmed(calls, tmp_path)] == made
    *_, last = programmed(calls, tmp_path, last=len(calls.calls) - 1)
    assert (last.method, last.arguments["size"]) == ("mem_unmap", 1)


def test_a_program_makes_the_context_of_each_call_current_once(tmp_path: Path) -> None:
    calls = Calls()
    for device in (0, 0, 1, 0):
        calls.call("mem_alloc", {"size": MIB}, result=len(calls.calls) + 1 << 40, device=device, thread=1)
    found = programmed(calls, tmp_path)
    switch = ["ctx_pop_current", "ctx_push_current", "mem_alloc"]
    first = ["device_primary_ctx_retain", "ctx_push_current", "mem_alloc", "mem_alloc"]
    assert [each.method for each in found] == [*first, "device_primary_ctx_retain", *switch, *switch]
    contexts = {each.arguments["device"]: each.result for each in found if each.method == "device_primary_ctx_retain"}
    pushed = [each.arguments["context"] for each in found if each.method == "ctx_push_current"]
    assert pushed == [contexts[0], contexts[1], contexts[0]]


def test_a_program_has_one_pool_in_place_of_the_default_one_until_it_sets_another(tmp_path: Path) -> None:
    calls = Calls()
    for _ in range(2):
        calls.call("mem_alloc_async", {"size": MIB, "stream": 0}, result=len(calls.calls) + 1 << 40, device=0)
    calls.call("mem_pool_create", {"properties": {"location": "gpu0", "handles": [], "max_size": 0}}, result=5)
    calls.call("device_set_mem_pool", {"device": 0, "pool": 5})
    calls.call("mem_alloc_async", {"size": MIB, "stream": 0}, result=9 << 40, device=0)
    found = programmed(calls, tmp_path)
    made = [each.result for each in found if each.method == "mem_pool_create"]
    used = [each.arguments["pool"] for each in found if each.method == "mem_alloc_from_pool_async"]
    assert (len(made), used) == (2, [made[0], made[0], made[1]])


def test_a_program_has_the_defaults_of_arguments_that_a_record_lacks(run_inline: InlineRunner, tmp_path: Path) -> None:
    trace = made(run_inline, "single-gpu", tmp_path)
    whole = run_inline("replay", trace, "--machine", "h200x4", "--as", "c").out

    trace.write_text(trace.read_text().replace('"offset": 0, ', ""))
    assert run_inline("replay", trace, "--machine", "h200x4", "--as", "c").out == whole


def test_several_processes_say_what_they_leave_out_and_why_a_call_is_refused(tmp_path: Path) -> None:
    """A layout has the name of the first process that has one, and a mark is no call."""
    first, second = Calls("a"), Calls("b")
    second.head = replace(second.head, layout="kv")
    first.reserve(2)
    second.call("memcpy_htod", {"destination": 1 << 40, "data": "handle:1"})
    second.call("mark", {"label": "here"})
    given = {"size": 1, "properties": {"location": "gpu0", "handles": []}, "flags": 0}
    second.call("mem_create", given, result=7)
    record = read_record([each.write(tmp_path / f"{each.head.process}.jsonl") for each in (first, second)])
    found = replay(record, resolve("h200x2"))
    assert found.left_out == (LeftOutCalls("cuMemcpyHtoD", 1, "its bytes are not in the record"),)
    assert (found.record, found.processes, found.calls, found.made) == ("kv", 2, 3, 2)
    assert found.difference
    assert "not a multiple" in str(found.difference.reason)


def test_a_process_has_the_gpus_of_its_record_of_which_a_smaller_machine_has_not_all(tmp_path: Path) -> None:
    first, second = Calls("a", ("GPU-b", "GPU-a")), Calls("b", ("GPU-a",))
    first.reserve(2)
    second.create(2, "gpu0")
    record = read_record([each.write(tmp_path / f"{each.head.process}.jsonl") for each in (first, second)])
    assert replay(record, resolve("h200x2")).difference is None
    difference = replay(record, resolve("h100x1")).difference
    assert difference
    assert (difference.call.process, difference.call.method) == ("b", "mem_create")


def test_processes_on_a_driver_are_processes_that_pass_their_handles_on(tmp_path: Path) -> None:
    """On the library in place of the driver's."""
    record = captured("apply-tensor-parallel-server", tmp_path)
    variables = {"LD_LIBRARY_PATH": str(folder()), "MEMTOPO_MACHINE": "h200x2"}
    found = run_memtopo("replay", *tmp_path.iterdir(), "--machine", "local", "--json", **variables)
    replayed = found.document
    assert (replayed["processes"], replayed["made"], replayed["difference"]) == (2, record.made, None), found


def test_processes_share_the_memory_of_the_machine(tmp_path: Path) -> None:
    processes = [Calls("a"), Calls("b")]
    for each in processes:
        each.create(80 << 10, "gpu0")
    record = read_record([each.write(tmp_path / f"{each.head.process}.jsonl") for each in processes])
    difference = replay(record, resolve("h200x2")).difference
    assert difference
    assert (difference.call.process, difference.error) == ("b", "CUDA_ERROR_OUT_OF_MEMORY")


def test_a_record_of_too_many_processes_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    processes = [Calls("a"), Calls("b")]
    for each in processes:
        each.reserve(2)
    record = read_record([each.write(tmp_path / f"{each.head.process}.jsonl") for each in processes])
    for most in (2, 1):
        monkeypatch.setattr("memtopo.records.replay.MOST_PROCESSES", most)
        with nullcontext() if most == 2 else pytest.raises(UsageError, match="has 2 processes, and a replay at most 1"):
            assert replay(record, resolve("h200x2")).difference is None
