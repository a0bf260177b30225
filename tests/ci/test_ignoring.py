from __future__ import annotations

from pathlib import Path

import pytest

from memtopo import machine
from memtopo.diagnostics.codes import CODES
from memtopo.language import read_text
from memtopo.rules.validation import Validated, validate
from tests.ci.conftest import BAD, GOOD, TWO_GPUS, WARNED, Checking
from tests.cli.running import memtopo

UNUSED = "memtopo: 1\nname: x\nchunks:\n  hot: {{location: gpu0, size: 2MiB}}{}\n"


def validate_on(text: str, on: str = "h200x2") -> Validated:
    return validate(read_text(text.encode(), "x.yaml"), machine.load(on))


def codes_on(text: str, on: str = "h200x2") -> list[str]:
    return [fault.code for fault in validate_on(text, on).diagnostics]


@pytest.mark.parametrize(
    "comment",
    [
        "  # memtopo: ignore[MT501] mapped later",
        "  # memtopo: ignore[MT501]",
        "  #memtopo:ignore[MT501]x",
        "  #\tmemtopo:\tignore [ MT501 ]",
        "  # spare # memtopo: ignore[MT501] mapped later",
        "  # memtopo: ignore[MT501, MT505]",
        "  # memtopo: ignore[MT501,MT503,MT505] one of them is in vain, and that is ignored",
    ],
)
def test_a_warning(comment: str) -> None:
    """A warning is not told where a comment on its line names it, with or without a reason"""
    found = validate_on(UNUSED.format(comment))
    assert found.diagnostics == ()
    assert "MT501" in {fault.code for fault in found.ignored}
    assert found.geometry is not None


@pytest.mark.parametrize(
    "comment",
    [
        "\n  # memtopo: ignore[MT501] on the next line",
        "  # memtopo: ignore[MT502] another code",
        "  # memtopo: ignore[MT5] a prefix",
        "  # memtopo: ignore[mt501] small letters",
        "  # memtopo: ignore MT501",
        "  # memtopo: ignore",
        "  # memtopo: ignore[]",
        "  # memtopo: ignore[MT501",
        "  # memtopo: ignore-next[MT501]",
    ],
)
def test_in_vain(comment: str) -> None:
    """A comment elsewhere, with another code or without one ignores nothing, and a warning says so"""
    assert codes_on(UNUSED.format(comment)) == ["MT501", "MT505"]


@pytest.mark.parametrize("comment", ["  # memtopo ignore[MT501]", "  # ignore[MT501]", "  # memtopo: ignored[MT501]"])
def test_other_comments(comment: str) -> None:
    """Other comments mean nothing"""
    assert codes_on(UNUSED.format(comment)) == ["MT501"]


@pytest.mark.parametrize(
    "text",
    [
        "memtopo: 1\nname: x\nchunks: {hot: {location: gpu0, size: '2MiB # memtopo: ignore[MT105]'}}\n",
        'memtopo: 1\nname: x\nchunks: {hot: {location: gpu0, size: "2MiB # memtopo: ignore[MT105]"}}\n',
        "memtopo: 1\nname: x\nchunks:\n  hot:\n    location: gpu0\n    size: |\n      2MiB # memtopo: ignore[MT105]\n",
        "memtopo: 1\nname: x\nchunks: {hot: {location: gpu0, size: 2MiB#memtopo:ignore[MT105]}}\n",
    ],
)
def test_values_are_no_comments(text: str) -> None:
    """What stands within a value is no comment"""
    assert "MT105" in codes_on(text) or "MT005" in codes_on(text)
    assert "MT105" not in {fault.code for fault in validate_on(text).ignored}


def test_a_comment_beside_such_a_value() -> None:
    """A value that looks like a comment does not hide the comment after it"""
    text = UNUSED.replace("hot", "'# memtopo: ignore[MT104]'").format("  # memtopo: ignore[MT104]")
    assert codes_on(text) == ["MT104"]
    assert [fault.code for fault in validate_on(text).ignored] == ["MT104"]


def test_an_error_is_only_passed_over() -> None:
    """An ignored error is still told by whoever would build, with a note, and there is no geometry"""
    found = validate_on(BAD.replace("3MiB}", "3MiB}  # memtopo: ignore[MT301] on purpose"))
    assert [fault.code for fault in found.diagnostics] == ["MT301", "MT501"]
    assert "a spec with an error is never built" in found.diagnostics[0].notes[-1]
    assert found.geometry is None


def test_nothing_is_built_over_an_error(folder: Path) -> None:
    """An ignored error is passed over by validate, and plan and apply refuse the spec all the same"""
    spec = folder / "spec.yaml"
    spec.write_text(BAD.replace("}", "}  # memtopo: ignore[MT301,MT501]"))
    said = memtopo("validate", spec, "-m", "h200x2")
    assert (said.status, said.out) == (0, f"{spec}: ok on h200x2; 2 diagnostics ignored by comments\n")
    for command in ("plan", "apply"):
        said = memtopo(command, spec, "-m", "h200x2")
        assert (said.status, said.out) == (1, "")
        assert "error[MT301]" in said.err
        assert "warning[" not in said.err


def test_warnings_are_silent_everywhere(folder: Path) -> None:
    """An ignored warning is told by no command"""
    spec = folder / "spec.yaml"
    spec.write_text(WARNED.rstrip() + "  # memtopo: ignore[MT501]\n")
    for command in ("validate", "plan", "apply"):
        said = memtopo(command, spec, "-m", "h200x2", MEMTOPO_STRICT="1")
        assert (said.status, said.err) == (0, "")
        assert "MT501" not in said.out


@pytest.mark.parametrize("code", [code for code in CODES if code.startswith("MT0")])
def test_reading_is_not_ignored(code: str) -> None:
    """What is wrong with a text cannot be ignored: what is not read is not checked"""
    assert codes_on(GOOD + f"# memtopo: ignore[{code}]\n") == ["MT505"]
    twice = GOOD + f"name: y  # memtopo: ignore[MT009,{code}]\n"
    assert "MT009" in codes_on(twice)
    assert codes_on(f"a: [  # memtopo: ignore[MT005,{code}]\n") == ["MT005"]


def test_while_rules_are_silent() -> None:
    """Where an entry was left out, rules say less, and no comment is called vain for that"""
    broken = GOOD.replace("size: 2MiB}}\nmap", "size: 2MB}}  # memtopo: ignore[MT301] once\nmap")
    assert codes_on(broken) == ["MT105"]
    assert codes_on(GOOD.replace("size: 2MiB}}\nmap", "size: 2MiB}}  # memtopo: ignore[MT301] once\nmap")) == ["MT505"]


def test_in_vain_on_some_machines(checked: Checking) -> None:
    """A comment that is needed on one machine is vain on no other of the same run"""
    text = TWO_GPUS.replace("}}\nmap", "}}  # memtopo: ignore[MT401] not for one GPU\nmap")
    found = checked({"x.yaml": text}, "h100x1", "h200x2")
    assert [(result.machine, result.diagnostics, result.ignored) for result in found.results] == [
        ("h100x1", (), 1),
        ("h200x2", (), 0),
    ]
    assert [fault.code for fault in next(checked({"x.yaml": text}, "h200x2").results).diagnostics] == ["MT505"]


def test_places() -> None:
    """A warning about a comment points at the code that is meant"""
    found = validate_on(UNUSED.format("  # memtopo: ignore[MT501, MT5O2 ] x"))
    (fault,) = found.diagnostics
    assert fault.span is not None
    assert (fault.span.line, fault.span.column, fault.span.end_column) == (4, 63, 68)
    assert fault.help == "did you mean MT502?"


def test_many_comments() -> None:
    """Comments without end are read in passing, and no more warnings are told than of any other kind"""
    found = codes_on(GOOD + "# memtopo: ignore[MT501]\n" * 100_000)
    assert set(found) == {"MT505"}
    assert len(found) <= 1001
