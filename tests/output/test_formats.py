"""Results of a validation as text, and the formats by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from memtopo.common.errors import Unavailable, UsageError
from memtopo.output import formats
from memtopo.output.validation import repository_path
from tests.helpers.checked_specs import BAD, GOOD, TWO_GPUS, WARNED, Checking
from tests.helpers.ci_forms import diagnostics, text


def test_one_file_on_one_machine_has_its_diagnostics_or_is_ok_there(checked: Checking) -> None:
    assert text("text", checked({"a.yaml": GOOD})) == "a.yaml: ok on h200x2\n"
    ignoring = WARNED.rstrip() + "  # memtopo: ignore[MT501]\n"
    assert text("text", checked({"a.yaml": ignoring})) == ("a.yaml: ok on h200x2; 1 diagnostic ignored by comments\n")
    both = text("text", checked({"a.yaml": ignoring, "b.yaml": ignoring}))
    assert both == "2 files on h200x2: 2 ok; 2 diagnostics ignored by comments\n"
    lines = text("text", checked({"a.yaml": BAD})).splitlines()
    assert lines[0].startswith("a.yaml:4:31: error[MT301]: ")
    assert not any(line.startswith(("spec", "1 file")) for line in lines)
    assert lines[-1] == "1 error, 1 warning in a.yaml"


def test_several_files_have_a_sum(checked: Checking) -> None:
    files = {"a.yaml": GOOD, "b.yaml": TWO_GPUS, "c.yaml": WARNED}
    *_, total = text("text", checked(files)).splitlines()
    assert total == "3 files on h200x2: 2 ok, 1 with warnings"


def test_concise_results_have_a_line_for_each_diagnostic_with_its_machine_if_others_have_it_not(
    checked: Checking,
) -> None:
    lines = text("concise", checked({"a.yaml": BAD, "b.yaml": TWO_GPUS}, "h100x1", "h200x2")).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["error[MT301]", "warning[MT501]", "error[MT401]"]
    assert [line.endswith("(only on h100x1)") for line in lines] == [False, False, True]
    assert text("concise", checked({"a.yaml": GOOD})) == ""


def test_a_diagnostic_of_some_machines_is_reported_once_with_them(checked: Checking) -> None:
    text_ = TWO_GPUS.replace("location: gpu1", "location: gpu3")
    found = checked({"x.yaml": text_}, "h100x1", "h200x2", "h200x4")
    assert text("concise", found).splitlines() == [
        "x.yaml:4:26: error[MT401]: the machine has no gpu3 (only on h100x1, h200x2)"
    ]
    assert "= note: only on h100x1, h200x2" in text("text", found)


def test_notes_that_differ_by_machine_name_their_machines(checked: Checking) -> None:
    output = text("text", checked({"x.yaml": GOOD.replace("location: gpu0", "location: gpu7")}, "h100x1", "h200x2"))
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
        "results": [
            {
                "file": "a.yaml",
                "machine": "h200x2",
                "ok": True,
                "errors": 0,
                "warnings": 0,
                "ignored": 0,
                "untried": None,
            }
        ],
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


def test_an_unknown_format_names_the_nearest_and_an_error_is_no_text() -> None:
    assert [formats.format_named(name) for name in formats.FORMATS] == [*formats.FORMATS]
    with pytest.raises(UsageError, match="there is no format 'sarf'") as refused:
        formats.format_named("sarf")
    assert "sarif" in str(refused.value.hint)
    assert [formats.failure(name, Unavailable("no GPU")) for name in formats.TEXT_FORMATS] == [[], []]
    assert formats.failure("gitlab", Unavailable("no GPU")) == ["[]"]


def test_a_file_is_named_by_its_link_in_the_repository(folder: Path) -> None:
    (folder / "link.yaml").symlink_to("/elsewhere/spec.yaml")
    assert repository_path("link.yaml") == repository_path(str(folder / "link.yaml")) == "link.yaml"
