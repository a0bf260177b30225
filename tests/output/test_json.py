from __future__ import annotations

import json
import math
from typing import Any

import pytest

from memtopo.common.errors import Unavailable
from memtopo.diagnostics.model import Diagnostic, Label
from memtopo.geometry.diagram import Diagram, HandleFlow, ProcessDiagram, Resource
from memtopo.language import Document, read_text
from memtopo.machine import DriverFacts, Machine, MachineLine
from memtopo.output import json as rendering
from memtopo.plans.report import PhaseTime, PlanSummary, Report, Row
from memtopo.rules.files import Checked, CheckedFile, Result

MACHINE = MachineLine("h200x2", simulated=True, devices=("NVIDIA H200",), driver="CUDA 13.0")
PLAN = PlanSummary(
    "quickstart",
    (Row("map", "map", "cuMemMap", "page.0", "page.7", 8, 2 << 20, ("kv",), ("map", "kv", 0)),),
    {"gpu1": 1 << 60, "gpu0": 1},
    1 << 60,
    8,
    8,
)


def test_json_of_a_plan_has_its_fields_in_order() -> None:
    """Tuples and paths are lists, sizes are in bytes."""
    assert rendering.dumps(PLAN) == (
        """\
{
  "name": "quickstart",
  "rows": [
    {
      "phase": "map",
      "verb": "map",
      "call": "cuMemMap",
      "first": "page.0",
      "last": "page.7",
      "calls": 8,
      "bytes_each": 2097152,
      "where": [
        "kv"
      ],
      "path": [
        "map",
        "kv",
        0
      ],
      "note": ""
    }
  ],
  "memory": {
    "gpu1": 1152921504606846976,
    "gpu0": 1
  },
  "reserved": 1152921504606846976,
  "calls": 8,
  "teardown_calls": 8,
  "notes": [],
  "warnings": [],
  "picture": null,
  "processes": [],
  "states": {},
  "params": {},
  "choices": []
}
"""
    )


def test_json_of_a_report_has_plan_times_and_null_for_missing_parts() -> None:
    report = Report("quickstart", None, MACHINE, "failed", 4, PLAN, (PhaseTime("map", 8, 0.25, 1.5, 1.75),))
    read = json.loads(rendering.dumps(report))
    assert read["outcome"] == "failed"
    assert read["machine"]["devices"] == ["NVIDIA H200"]
    assert read["plan"]["rows"][0]["path"] == ["map", "kv", 0]
    assert read["times"] == [{"phase": "map", "steps": 8, "seconds": 0.25, "began": 1.5, "ended": 1.75}]
    assert read["failure"] is None


@pytest.mark.parametrize(
    ("drawn", "absent"),
    [
        (Resource("buffer", "b"), {"noun", "external", "via", "target", "bound"}),
        (HandleFlow("a", "w", "b", "w", "chunk", "fd", 1, 2 << 20, ()), {"external"}),
        (ProcessDiagram("a.0", "a.1", 2, 1, Diagram((), ()), ()), {"alike"}),
    ],
)
def test_json_of_a_drawing_has_no_fields_that_renderers_alone_read(drawn: Any, absent: set[str]) -> None:
    read = json.loads(rendering.dumps(drawn))
    assert {*drawn.__struct_fields__} - {*read} == absent


def test_json_of_diagnostics_is_sorted_with_position_path_and_labels() -> None:
    document = read_text(b"chunks:\n  hot: {size: 33MiB}\nmap: {}\n", "spec.yaml")
    unused = Diagnostic("MT502", "a range holds nothing", ("map",), "key")
    size = Diagnostic(
        "MT301",
        "no multiple",
        ("chunks", "hot", "size"),
        labels=(Label("of this", ("chunks", "hot"), "key"),),
        notes=("a note",),
        help="write 32MiB",
    )
    read = json.loads(rendering.dumps(rendering.diagnostics_document([unused, size], document)))
    assert [read["ok"], read["errors"], read["warnings"]] == [False, 1, 1]
    assert read["results"] == [
        {"file": "spec.yaml", "machine": None, "ok": False, "errors": 1, "warnings": 1, "ignored": 0, "untried": None}
    ]
    assert read["diagnostics"][0] == {
        "code": "MT301",
        "severity": "error",
        "message": "no multiple",
        "file": "spec.yaml",
        "line": 2,
        "column": 15,
        "end_line": 2,
        "end_column": 20,
        "path": ["chunks", "hot", "size"],
        "labels": [
            {"text": "of this", "line": 2, "column": 3, "end_line": 2, "end_column": 6, "path": ["chunks", "hot"]}
        ],
        "notes": ["a note"],
        "help": "write 32MiB",
        "machines": [],
    }
    assert read["diagnostics"][1]["severity"] == "warning"


@pytest.mark.parametrize("strict", [False, True])
def test_a_result_with_warnings_alone_is_ok_unless_they_are_failures(strict: bool) -> None:
    document = read_text(b"ranges: {r: {size: 2MiB}}\n", "spec.yaml")
    result = Result(document, "h200x2", (Diagnostic("MT502", "a range holds nothing", ("ranges", "r")),))
    found = rendering.validation_document(Checked.of([CheckedFile(document, (result,))], strict=strict))
    assert (found.ok, found.results[0].ok, found.warnings) == (not strict, not strict, 1)


def test_json_of_a_missing_position_is_null() -> None:
    unread = Diagnostic("MT001", "the file cannot be read")
    (read,) = json.loads(rendering.dumps(rendering.diagnostics_document([unread], Document("gone.yaml"))))[
        "diagnostics"
    ]
    assert [read["file"], read["line"], read["column"], read["path"]] == ["gone.yaml", None, None, []]


def test_json_of_a_machine_equals_its_record() -> None:
    machine = Machine(driver=DriverFacts(cuda="13.0"), devices=[], peers=[])
    assert json.loads(rendering.dumps({"h0": machine}))["h0"]["driver"] == {"cuda": "13.0"}


def test_json_of_an_error_has_message_hint_and_exit_status() -> None:
    read = json.loads(rendering.dumps(rendering.error_document(Unavailable("no GPU"))))
    assert read == {"error": {"message": "no GPU", "details": [], "hint": None, "exit_code": 3}}


def test_json_is_ascii_for_any_text() -> None:
    evil = "\x1b[31m\x9b\u202e世\ud800"
    text = rendering.dumps({"evil": evil})
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == {"evil": evil}


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_that_json_lacks_are_rejected(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        rendering.dumps(PhaseTime("map", 1, number))


def test_types_that_json_lacks_are_rejected() -> None:
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        rendering.dumps(object())


def test_a_saved_plan_has_a_line_for_each_row() -> None:
    """Mappings are divided, lists of text are not; the content is that of the other form."""
    row = (
        '    {"phase": "map", "verb": "map", "call": "cuMemMap", "first": "page.0", "last": "page.7", "calls": 8,'
        ' "bytes_each": 2097152, "where": ["kv"], "path": ["map", "kv", 0], "note": ""}'
    )
    text = rendering.dumps_by_row(PLAN)
    assert text.startswith(f'{{\n  "name": "quickstart",\n  "rows": [\n{row}\n  ],\n  "memory": {{\n    "gpu1": ')
    for data in (PLAN, {"evil": "##", "deep": [[[["a"], {}]], []], "none": None}):
        assert json.loads(rendering.dumps_by_row(data)) == json.loads(rendering.dumps(data))
        assert "##" not in rendering.dumps_by_row(data)
