from __future__ import annotations

import pytest

from tests.helpers.checked_specs import BAD, GOOD, TWO_GPUS, WARNED, Checking
from tests.helpers.ci_forms import diagnostics, text

NO_GPU7 = GOOD.replace("location: gpu0", "location: gpu7")
LARGE = GOOD.replace("2MiB", "100GiB")


def test_a_diagnostic_of_all_machines_is_reported_once_without_machines(checked: Checking) -> None:
    found = checked({"x.yaml": BAD}, "h100x1", "h200x2", "h200x4")
    output = text("concise", found)
    assert len(output.splitlines()) == 2
    assert "h100x1" not in output
    (file,) = found.files
    assert [each.only for each in file.diagnostics()] == [(), ()]


def test_a_diagnostic_of_some_machines_is_reported_once_with_them(checked: Checking) -> None:
    text_ = TWO_GPUS.replace("location: gpu1", "location: gpu3")
    found = checked({"x.yaml": text_}, "h100x1", "h200x2", "h200x4")
    assert text("concise", found).splitlines() == [
        "x.yaml:4:26: error[MT401]: the machine has no gpu3 (only on h100x1, h200x2)"
    ]
    assert "= note: only on h100x1, h200x2" in text("text", found)


def test_notes_that_differ_by_machine_name_their_machines(checked: Checking) -> None:
    output = text("text", checked({"x.yaml": NO_GPU7}, "h100x1", "h200x2"))
    assert output.count("error[MT401]") == 1
    assert "= note: on h100x1: it has 1 GPU: only gpu0" in output
    assert "= note: on h200x2: it has 2 GPUs: gpu0 to gpu1" in output


def test_diagnostics_with_different_messages_are_reported_separately(checked: Checking) -> None:
    big = GOOD.replace("2MiB", "200GiB")
    assert len(text("concise", checked({"x.yaml": big}, "h100x1", "h200x2")).splitlines()) == 2


def test_results_of_several_machines_end_with_a_table_and_a_summary(checked: Checking) -> None:
    lines = text("text", checked({"a.yaml": GOOD, "世.yaml": TWO_GPUS, "c.yaml": BAD}, "h100x1", "h200x2")).splitlines()
    assert lines[-6:] == [
        "spec     h100x1              h200x2",
        "a.yaml   ok                  ok",
        "世.yaml  1 error             ok",
        "c.yaml   1 error, 1 warning  1 error, 1 warning",
        "",
        "3 files on 2 machines: 1 ok, 2 with errors",
    ]


def test_one_file_on_one_machine_has_no_table(checked: Checking) -> None:
    assert text("text", checked({"a.yaml": GOOD})) == "a.yaml: ok on h200x2\n"
    assert text("text", checked({"a.yaml": BAD})).splitlines()[-1] == "1 error, 1 warning in a.yaml"


def test_many_files_on_one_machine_have_diagnostics_and_a_summary(checked: Checking) -> None:
    files = {f"{number}.yaml": GOOD for number in range(1500)}
    assert text("text", checked(files)) == "1,500 files on h200x2: 1,500 ok\n"


def test_json_results_have_an_entry_per_file_and_machine(checked: Checking) -> None:
    """The shape is the same for one file and for many."""
    one = diagnostics(text("json", checked({"a.yaml": GOOD})))
    assert one == {
        "memtopo_diagnostics": 1,
        "ok": True,
        "errors": 0,
        "warnings": 0,
        "results": [{"file": "a.yaml", "machine": "h200x2", "ok": True, "errors": 0, "warnings": 0, "ignored": 0}],
        "diagnostics": [],
    }
    many = diagnostics(text("json", checked({"a.yaml": BAD, "b.yaml": TWO_GPUS}, "h100x1", "h200x2")))
    assert many.keys() == one.keys()
    assert [
        (each["file"], each["machine"], each["ok"], each["errors"], each["warnings"]) for each in many["results"]
    ] == [
        ("a.yaml", "h100x1", False, 1, 1),
        ("a.yaml", "h200x2", False, 1, 1),
        ("b.yaml", "h100x1", False, 1, 0),
        ("b.yaml", "h200x2", True, 0, 0),
    ]
    listed = [(each["code"], each["file"], each["machines"]) for each in many["diagnostics"]]
    assert listed == [
        ("MT301", "a.yaml", ["h100x1", "h200x2"]),
        ("MT501", "a.yaml", ["h100x1", "h200x2"]),
        ("MT401", "b.yaml", ["h100x1"]),
    ]
    assert (many["errors"], many["warnings"]) == (2, 1)


@pytest.mark.parametrize(
    ("text_", "strict", "ok"),
    [(GOOD, True, True), (WARNED, False, True), (WARNED, True, False), (BAD, False, False), (BAD, True, False)],
)
def test_a_warning_is_a_failure_if_the_check_is_strict(checked: Checking, text_: str, strict: bool, ok: bool) -> None:
    found = checked({"good.yaml": GOOD, "x.yaml": text_}, strict=strict)
    assert (found.ok, [found.failed(file) for file in found.files]) == (ok, [False, not ok])
