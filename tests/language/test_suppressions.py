from __future__ import annotations

from pathlib import Path

import pytest

from memtopo import machine
from memtopo.diagnostics import CODES, messages
from memtopo.language import read_text
from memtopo.language.located import MOST_CODES
from memtopo.rules import Validated, validate
from tests.helpers.checked_specs import BAD, GOOD, TWO_GPUS, WARNED, Checking
from tests.helpers.command_line import run_memtopo

UNUSED = "memtopo: 1\nname: x\nchunks:\n  hot: {{location: gpu0, size: 2MiB}}{}\n"


def validate_on(text: str, on: str = "h200x2") -> Validated:
    return validate(read_text(text.encode(), "x.yaml"), machine.load(on))


def codes_on(text: str, on: str = "h200x2") -> list[str]:
    return [fault.code for fault in validate_on(text, on).diagnostics]


def test_a_comment_suppresses_all_diagnostics_of_its_code_on_its_line() -> None:
    chunks = "{a: {location: gpu0, size: 2MiB}, b: {location: gpu0, size: 2MiB}}"
    found = validate_on(f"memtopo: 1\nname: x\nchunks: {chunks}  # memtopo: ignore[MT501]\n")
    assert (found.diagnostics, [each.path[-1] for each in found.ignored]) == ((), ["a", "b"])


def test_a_diagnostic_of_several_lines_is_suppressed_on_its_first() -> None:
    text = "memtopo: 1\nname: x\nchunks: {{a: {{location: gpu0, size: [1,{}\n 2]{}\n}}}}\n"
    comment = "  # memtopo: ignore[MT103]"
    first, last = validate_on(text.format(comment, "")), validate_on(text.format("", comment))
    assert [[each.code for each in found.ignored] for found in (first, last)] == [["MT103"], []]


def test_a_value_like_a_comment_does_not_hide_the_comment_after_it() -> None:
    text = UNUSED.replace("hot", "'# memtopo: ignore[MT104]'").format("  # memtopo: ignore[MT104]")
    assert codes_on(text) == ["MT104"]
    assert [fault.code for fault in validate_on(text).ignored] == ["MT104"]


def test_a_suppressed_error_keeps_the_spec_from_being_built() -> None:
    """The error is still reported, with a note, and there is no geometry."""
    found = validate_on(BAD.replace("3MiB}", "3MiB}  # memtopo: ignore[MT301] on purpose"))
    assert [fault.code for fault in found.diagnostics] == ["MT301", "MT501"]
    assert "a spec with an error is never built" in found.diagnostics[0].notes[-1]
    assert found.geometry is None


def test_suppressed_errors_pass_validate_but_not_plan_and_apply(folder: Path) -> None:
    spec = folder / "spec.yaml"
    spec.write_text(BAD.replace("}", "}  # memtopo: ignore[MT301,MT501]"))
    said = run_memtopo("validate", spec, "-m", "h200x2")
    assert (said.status, said.out) == (0, f"{spec}: ok on h200x2; 2 diagnostics ignored by comments\n")
    for command in ("plan", "apply"):
        said = run_memtopo(command, spec, "-m", "h200x2")
        assert (said.status, said.out) == (1, "")
        assert "error[MT301]" in said.err
        assert "warning[" not in said.err


def test_suppressed_warnings_are_reported_by_no_command(folder: Path) -> None:
    spec = folder / "spec.yaml"
    spec.write_text(WARNED.rstrip() + "  # memtopo: ignore[MT501]\n")
    for command in ("validate", "plan", "apply"):
        said = run_memtopo(command, spec, "-m", "h200x2", MEMTOPO_STRICT="1")
        assert (said.status, said.err) == (0, "")
        assert "MT501" not in said.out


@pytest.mark.parametrize("code", [code for code in CODES if code.startswith("MT0")])
def test_errors_of_reading_cannot_be_suppressed(code: str) -> None:
    """Text that is not read is not checked."""
    assert codes_on(GOOD + f"# memtopo: ignore[{code}]\n") == ["MT505"]
    twice = GOOD + f"name: y  # memtopo: ignore[MT009,{code}]\n"
    assert "MT009" in codes_on(twice)
    assert codes_on(f"a: [  # memtopo: ignore[MT005,{code}]\n") == ["MT005"]


def test_suppressions_are_not_unused_if_an_entry_was_left_out() -> None:
    """Rules report less if an entry was left out."""
    broken = GOOD.replace("size: 2MiB}}\nmap", "size: 2MB}}  # memtopo: ignore[MT301] once\nmap")
    assert codes_on(broken) == ["MT105"]
    assert codes_on(GOOD.replace("size: 2MiB}}\nmap", "size: 2MiB}}  # memtopo: ignore[MT301] once\nmap")) == ["MT505"]


def test_a_suppression_needed_on_one_machine_is_unused_on_none(checked: Checking) -> None:
    text = TWO_GPUS.replace("}}\nmap", "}}  # memtopo: ignore[MT401] not for one GPU\nmap")
    found = checked({"x.yaml": text}, "h100x1", "h200x2")
    assert [(result.machine, result.diagnostics, result.ignored) for result in found.results] == [
        ("h100x1", (), 1),
        ("h200x2", (), 0),
    ]
    found = checked({"x.yaml": text}, "h200x2", "h100x1")
    assert [(result.diagnostics, result.ignored) for result in found.results] == [((), 0), ((), 1)]
    assert [fault.code for fault in next(checked({"x.yaml": text}, "h200x2").results).diagnostics] == ["MT505"]


def test_warnings_about_suppressions_point_at_the_code() -> None:
    found = validate_on(UNUSED.format("  # memtopo: ignore[MT501, MT5O2 ] x"))
    (fault,) = found.diagnostics
    assert fault.span is not None
    assert (fault.span.line, fault.span.column, fault.span.end_column) == (4, 63, 68)
    assert fault.help == "did you mean MT502?"


def test_many_suppressions_are_read_quickly() -> None:
    """No more warnings are reported than of any other kind."""
    found = codes_on(GOOD + "# memtopo: ignore[MT501]\n" * 100_000)
    assert set(found) == {"MT505"}
    assert len(found) <= 1001


def test_codes_beyond_the_limit_of_one_text_are_not_read() -> None:
    """One warning has the position of the first code that is not read, before the codes that ignore nothing."""
    found = validate_on("memtopo: 1\nname: x\n# memtopo: ignore[" + "x," * (2 * MOST_CODES) + "x]\n").diagnostics
    first = found[0]
    assert first.code == "MT505"
    assert f"{MOST_CODES:,}" in first.message
    assert first.span == (3, 19 + 2 * MOST_CODES, 3, 20 + 2 * MOST_CODES)
    assert len(found) == 1 + messages.MOST
