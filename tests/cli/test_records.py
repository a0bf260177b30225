"""Records on the command line: `spec`, `show`, `draw` and `diff`."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from memtopo.output import schemas
from tests.cli.conftest import InlineRunner
from tests.helpers.records import Calls
from tests.helpers.specs import ROOT

QUICKSTART = ROOT / "specs" / "quickstart.yaml"
HAND_OVER = ROOT / "specs" / "hand-over.yaml"
M = ("--machine", "h200x2")


@pytest.fixture
def record(run_inline: InlineRunner, tmp_path: Path) -> Path:
    """Record of the quickstart."""
    file = tmp_path / "calls.jsonl"
    assert run_inline("apply", QUICKSTART, *M, "--check", "none", "--trace", file).status == 0
    return file


def valid(document: dict[str, object], kind: str) -> bool:
    return not list(Draft202012Validator(schemas.schema(kind)).iter_errors(document))


def test_a_record_has_the_memory_of_its_spec(run_inline: InlineRunner, record: Path) -> None:
    same = run_inline("diff", QUICKSTART, record, *M)
    assert (same.status, same.out.splitlines()[-1]) == (0, "the record has the memory of the spec")
    other = run_inline("diff", HAND_OVER, record, *M, COLUMNS="500")
    assert other.status == 1
    assert f"{HAND_OVER}:" in other.out
    document = run_inline("diff", HAND_OVER, record, *M, "--json").document
    assert valid(document, "comparison")
    rows = {(row["section"], row["location"], row["size"], row["words"]): row for row in document["differences"]}
    pages = rows["chunks", "gpu0", 2 << 20, "fd"]
    assert (pages["in_spec"], pages["in_record"]) == (32, 0)
    assert pages["position"].startswith(f"{HAND_OVER}:")
    assert rows["chunks", "gpu1", 32 << 20, ""]["position"] is None
    for more in (("--summary",), ("--format", "markdown")):
        assert run_inline("diff", QUICKSTART, record, *M, *more).status == 2


@pytest.mark.parametrize("share", ["4", "-1%", "101%", "x%"])
def test_what_is_no_share_is_wrong_usage(run_inline: InlineRunner, record: Path, share: str) -> None:
    assert run_inline("diff", QUICKSTART, record, *M, "--within", share).status == 2


def test_memory_at_a_moment_is_shown(run_inline: InlineRunner, tmp_path: Path) -> None:
    calls = Calls()
    calls.create(2, "gpu0")
    calls.call("mark", {"label": "loaded"})
    handle = calls.create(4, "gpu1")
    calls.call("mem_release", {"handle": handle})
    record = calls.write(tmp_path / "r.jsonl")
    found = {at: run_inline("show", record, "--at", at, "--json").document for at in ("peak", "end", "loaded", "0.002")}
    assert valid(found["peak"], "record")
    sizes = {at: {row["location"]: row["size"] >> 20 for row in each["memory"]} for at, each in found.items()}
    assert sizes == {"peak": {"gpu0": 2, "gpu1": 4}, "end": {"gpu0": 2}, "loaded": {"gpu0": 2}, "0.002": {"gpu0": 2}}
    assert [(row["location"], row["size"] >> 20) for row in found["peak"]["leaks"]] == [("gpu0", 2)]
    assert found["peak"]["marks"] == ["loaded"]
    text = run_inline("show", record).out
    assert "never freed by the program" in text
    assert "moments that the program marked: loaded" in text
    for moment in ("later", "nan", "inf", "-1"):
        unknown = run_inline("show", record, "--at", moment)
        assert unknown.status == 2
        assert "peak, end, loaded" in unknown.err


def test_a_record_is_drawn_with_its_memory_over_time(run_inline: InlineRunner, record: Path, tmp_path: Path) -> None:
    drawn = run_inline("draw", record, *M)
    assert drawn.status == 0
    assert "96 MiB  gpu0 rw, gpu1 r" in drawn.out
    page = tmp_path / "page.html"
    assert run_inline("draw", record, *M, "-o", page).status == 0
    assert page.read_text().count("<polyline") == 2
    assert run_inline("draw", QUICKSTART, *M, "-o", page).status == 0
    assert "<polyline" not in page.read_text()


def test_a_spec_is_saved_over_one_that_memtopo_wrote_only(
    run_inline: InlineRunner, record: Path, tmp_path: Path
) -> None:
    saved, mine = tmp_path / "saved.yaml", tmp_path / "mine.yaml"
    mine.write_text("memtopo: 1\n")
    assert run_inline("spec", record, "-o", saved).status == 0
    first = saved.read_text()
    assert run_inline("spec", record, "--at", "end", "-o", saved).status == 0
    assert saved.read_text() != first
    assert run_inline("spec", record, "-o", mine).status == 2
    assert mine.read_text() == "memtopo: 1\n"
    assert run_inline("spec", record).out == first


def test_a_spec_is_printed_for_a_dash(run_inline: InlineRunner, record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(record.parent)
    assert run_inline("spec", record, "-o", "-").out == run_inline("spec", record).out
    assert not Path("-").exists()


def test_a_replay_is_on_one_machine_and_ends_with_1_if_a_call_ends_otherwise(
    run_inline: InlineRunner, tmp_path: Path
) -> None:
    """Its program is that of the process of the call; of several processes without such a call there is none."""
    first, second = Calls("p.0"), Calls("p.1")
    first.create(2, "gpu0")
    second.create(4, "gpu0")
    records = [each.write(tmp_path / f"{each.head.process}.jsonl") for each in (first, second)]
    for more, status, words in (
        ((), 0, ""),
        (("--as", "c"), 2, "the record has several processes"),
        (("--as", "c", "--json"), 2, "--as prints a program, and no JSON"),
        (("-m", "a=h200x2"), 2, "a replay is on one machine"),
    ):
        found = run_inline("replay", *records, *(more if "-m" in more else (*M, *more)))
        assert (found.status, words in found.err) == (status, True), found
    second.call("mem_release", {"handle": second.create(6, "gpu0")}, error="CUDA_ERROR_INVALID_VALUE")
    second.write(records[1])
    found = run_inline("replay", *records, *M, "--as", "c")
    assert (found.status, "p.1" in found.out, "p.0" in found.out, "6 * MiB" in found.out) == (1, True, False, True)
    assert "memtopo: call 3, cuMemRelease: success\n" in found.err
    assert run_inline("replay", *records, *M).status == 1


def test_an_imported_snapshot_is_saved_over_a_record_only(run_inline: InlineRunner, tmp_path: Path) -> None:
    snapshot, mine = ROOT / "tests" / "data" / "snapshots" / "native.pickle", tmp_path / "mine"
    lines = run_inline("import", snapshot).out.splitlines()
    for _ in range(2):
        saved = run_inline("import", snapshot, "-o", mine)
        assert (saved.status, saved.err) == (0, f"memtopo: saved to {mine}: {len(lines) - 1:,} calls\n")
    mine.write_text("mine")
    assert (run_inline("import", snapshot, "-o", mine).status, mine.read_text()) == (2, "mine")


@pytest.mark.parametrize("line", ['{"method": "mem_map"}', "{}", '{"memtopo_trace_file": 2}', "[" * 99_999])
def test_damaged_records_are_refused(run_inline: InlineRunner, tmp_path: Path, line: str) -> None:
    record = Calls().write(tmp_path / "r.jsonl")
    record.write_text(record.read_text() + f"{line}\n")
    for command in (("spec", record), ("show", record), ("draw", record, *M), ("diff", QUICKSTART, record, *M)):
        assert run_inline(*command).status == 2
    missing = run_inline("spec", tmp_path / "none")
    assert (missing.status, "No such file or directory" in missing.err) == (2, True)
    for name in ("spec", "show"):
        refused = run_inline(name, QUICKSTART)
        assert (refused.status, "is no trace of memtopo" in refused.err) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"size": "2"}, {"size": 2, "properties": 5}, {"size": 2, "properties": {"location": []}}, {"size": None}],
)
def test_a_call_without_its_arguments_is_named(run_inline: InlineRunner, tmp_path: Path, arguments: object) -> None:
    calls = Calls("p.1")
    calls.create(2, "gpu0")
    calls.call("mem_create", arguments, result=5)  # type: ignore[arg-type]
    refused = run_inline("show", calls.write(tmp_path / "r.jsonl"))
    assert refused.status == 2
    assert "call 2 of the record, of process p.1, does not have the arguments of cuMemCreate" in refused.err


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("mem_create", {"size": 2, "properties": {"location": "gpu0", "handles": 5}}),
        ("mem_create", {"size": 2, "properties": {"location": "gpu0", "handles": [[]]}}),
        ("mem_create", {"size": 2, "properties": {"location": "gpu0\nname: x"}}),
        ("mem_pool_create", {"properties": {"location": "gpu0", "max_size": "x"}}),
        ("mem_pool_set_attribute", {"pool": 1, "attribute": 4, "value": "x"}),
        ("mem_set_access", {"address": 1, "size": 2, "grants": [{"location": "gpu0", "access": []}]}),
        ("mem_pool_set_access", {"pool": 5, "grants": [{"location": [], "access": "rw"}]}),
    ],
)
def test_damage_within_arguments_is_refused(
    run_inline: InlineRunner, tmp_path: Path, method: str, arguments: dict[str, object]
) -> None:
    calls = Calls()
    calls.call("mem_pool_create", {"properties": {"location": "gpu0", "handles": [], "max_size": 0}}, result=5)
    calls.call(method, arguments, result=6)
    refused = run_inline("spec", calls.write(tmp_path / "r.jsonl"))
    assert refused.status == 2
    assert "call 2 of the record does not have the arguments of" in refused.err


@pytest.mark.parametrize("arguments", [{}, {"device": 0}, {"device": "x", "pool": 1}, {"device": 0, "pool": []}])
def test_a_damaged_call_for_a_default_pool_is_not_replayed(
    run_inline: InlineRunner, tmp_path: Path, arguments: dict[str, object]
) -> None:
    calls = Calls()
    calls.call("device_set_mem_pool", arguments, error="CUDA_ERROR_INVALID_VALUE")
    refused = run_inline("replay", calls.write(tmp_path / "r.jsonl"), *M)
    assert refused.status == 2
    assert "call 1 of the record does not have the arguments of device_set_mem_pool" in refused.err


def test_texts_of_a_record_are_escaped(run_inline: InlineRunner, tmp_path: Path) -> None:
    calls = Calls("\x1b[31m\n::error::p")
    calls.call("mem_alloc", {"size": 96 << 20}, result=1 << 40, device=0, stack=("lib\x1b[31m\n.so:f",))
    calls.call("mark", {"label": "\x1b[2J\n::error::x"})
    record = calls.write(tmp_path / "r.jsonl")
    for command in (("show", record), ("spec", record), ("draw", record, *M), ("diff", QUICKSTART, record, *M)):
        found = run_inline(*command)
        assert "\x1b" not in found.out + found.err
        assert "\n::" not in found.out + found.err
    assert json.dumps(run_inline("show", record, "--json").document)


WRONG = [5, "1", [1], None, True, {}, -1, 1 << 70, {"a": [{}]}]


def test_random_damage_is_refused_or_shown(run_inline: InlineRunner, record: Path) -> None:
    """Of values, and of whole lines."""
    head, *lines = record.read_text().splitlines()
    for seed in range(40):
        chosen = random.Random(seed)
        damaged = [json.loads(line) for line in chosen.sample(lines, len(lines) - seed)]
        for call in chosen.sample(damaged, 20):
            given = call["arguments"]
            within = [each for each in given.values() if isinstance(each, dict)] if isinstance(given, dict) else []
            place = chosen.choice([call, given or call, *filter(None, within)])
            place[chosen.choice(list(place))] = chosen.choice(WRONG)
        record.write_text("".join(f"{line}\n" for line in (head, *map(json.dumps, damaged))))
        for command in (("show", record), ("spec", record), ("diff", QUICKSTART, record, *M)):
            found = run_inline(*command)
            assert found.status in (0, 1, 2), found.err
