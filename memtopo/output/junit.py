"""Validation results as JUnit's XML: a test suite for each machine, a test case for each file."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.common.errors import MemtopoError
from memtopo.common.text import output_line, printable
from memtopo.output import diagnostics, validation
from memtopo.rules.files import Checked, Result

_HEAD = '<?xml version="1.0" encoding="UTF-8"?>'
_WIDTH = 100
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})


def lines(checked: Checked) -> list[str]:
    """The whole document. A case fails if the exit status would be 1; other warnings are its output."""
    results = list(checked.results)
    failed = sum(checked.failed(result) for result in results)
    yielded = [_HEAD, _open("testsuites", name="memtopo", **_counts(len(results), failures=failed))]
    for machine in checked.machines:
        yielded += _suite(checked, machine, [result for result in results if result.machine == machine])
    return [*yielded, "</testsuites>"]


def failure(error: MemtopoError) -> list[str]:
    """The document of a validation that could not be made: one case with the error."""
    counts = _counts(1, errors=1)
    head = _open("error", message=error.message, type=f"exit {error.exit_code}")
    return [
        _HEAD,
        _open("testsuites", name="memtopo", **counts),
        f"  {_open('testsuite', name='memtopo', **counts)}",
        f"    {_open('testcase', name='memtopo validate', classname='memtopo')}",
        f"      {head}{_text(validation.error_message(error))}</error>",
        "    </testcase>",
        "  </testsuite>",
        "</testsuites>",
    ]


def _suite(checked: Checked, machine: str, results: list[Result]) -> Iterator[str]:
    counts = _counts(len(results), failures=sum(checked.failed(result) for result in results))
    yield f"  {_open('testsuite', name=machine, **counts)}"
    for result in results:
        yield from _case(result, failed=checked.failed(result))
    yield "  </testsuite>"


def _case(result: Result, *, failed: bool) -> Iterator[str]:
    name = result.document.file
    head = _open("testcase", name=name, classname=f"memtopo.{result.machine}", file=validation.repository_path(name))
    if not result.diagnostics:
        yield f"    {head[:-1]}/>"
        return
    text = _text("\n".join(diagnostics.text(result.diagnostics, result.document, width=_WIDTH)))
    yield f"    {head}"
    if failed:
        worst = min(result.diagnostics, key=lambda each: (each.severity, each.code)).code
        yield f"      {_open('failure', message=validation.verdict(result), type=worst)}{text}</failure>"
    else:
        yield f"      <system-out>{text}</system-out>"
    yield "    </testcase>"


def _counts(tests: int, *, failures: int = 0, errors: int = 0) -> dict[str, str]:
    return {"tests": str(tests), "failures": str(failures), "errors": str(errors)}


def _open(element: str, **attributes: str) -> str:
    listed = "".join(f' {name}="{_text(printable(value))}"' for name, value in attributes.items())
    return f"<{element}{listed}>"


def _text(text: str) -> str:
    """Escape text for XML; control characters are spelled out, since XML cannot contain most of them."""
    return "\n".join(output_line(line) for line in text.split("\n")).translate(_ENTITIES)
