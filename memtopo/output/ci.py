"""Validation results in the formats of CI: GitHub's commands, GitLab's Code Quality, JUnit, Markdown, SARIF and JSON.

Each format is a function for the results, and one for the error of a validation that could not be made. Pages are
written as GitHub-flavoured Markdown, for comments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

from memtopo.common import __version__
from memtopo.common.errors import MemtopoError
from memtopo.common.text import output_line, printable
from memtopo.diagnostics import explanations
from memtopo.diagnostics.model import TextSpan
from memtopo.language.located import Located
from memtopo.output import diagnostics, json, validation
from memtopo.output.blocks import Block, Drawing, Page, Pairs, Stacked, Table, Toned
from memtopo.output.plain import DEFAULT_WIDTH
from memtopo.output.validation import fingerprints, repository_path
from memtopo.rules.files import Checked, Result

_Object = dict[str, Any]
_WIDTH = 100
"""Columns of diagnostics in a document."""


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = _DATA | str.maketrans({":": "%3A", ",": "%2C"})


def _github(checked: Checked) -> list[str]:
    """One command for each diagnostic, errors first: the runner shows ten errors and ten warnings of a step."""
    return list(map(_annotation, sorted(validation.all_located(checked), key=lambda each: each.diagnostic.severity)))


def _annotation(found: Located) -> str:
    rule = explanations.explanation(found.diagnostic.code)
    properties = {"file": repository_path(found.file), **_position(found.span), "title": f"{rule.code}: {rule.title}"}
    return _command(found.diagnostic.severity, properties, validation.full_message(found.diagnostic))


def _position(span: TextSpan | None) -> dict[str, str]:
    if span is None:
        return {}
    lines = {"line": str(span.line), "endLine": str(span.end_line)}
    # The runner refuses columns of an annotation that spans several lines.
    columns = {"col": str(span.column), "endColumn": str(span.end_column)} if span.line == span.end_line else {}
    return lines | columns


def _command(kind: str, properties: dict[str, str], message: str) -> str:
    listed = ",".join(f"{name}={printable(value).translate(_PROPERTY)}" for name, value in properties.items())
    return f"::{kind} {listed}::{_printable_lines(message).translate(_DATA)}"


def _gitlab(checked: Checked) -> list[str]:
    """One entry for each diagnostic."""
    found = validation.all_located(checked)
    entries = [
        {
            "description": "; ".join(map(printable, validation.full_message(each.diagnostic).split("\n"))),
            "check_name": each.diagnostic.code,
            "fingerprint": fingerprint,
            "severity": {"error": "major", "warning": "minor"}[each.diagnostic.severity],
            "location": {"path": repository_path(each.file), "lines": {"begin": each.span.line if each.span else 1}},
        }
        for each, fingerprint in zip(found, fingerprints(found), strict=True)
    ]
    return _document(entries)


def _document(content: object) -> list[str]:
    return json.dumps(content).splitlines()


def _junit(checked: Checked) -> list[str]:
    """A suite for each machine, a case for each file.

    A case fails if the exit status would be 1; other warnings are its output.
    """
    results = list(checked.results)
    suites = _counted(ET.Element("testsuites"), "memtopo", len(results), failures=sum(map(checked.failed, results)))
    for machine in checked.machines:
        own = [result for result in results if result.machine == machine]
        suite = _counted(ET.SubElement(suites, "testsuite"), machine, len(own), failures=sum(map(checked.failed, own)))
        for result in own:
            _add_case(suite, result, failed=checked.failed(result))
    return _xml(suites)


def _junit_failure(error: MemtopoError) -> list[str]:
    """One case with the error."""
    suites = _counted(ET.Element("testsuites"), "memtopo", 1, errors=1)
    suite = _counted(ET.SubElement(suites, "testsuite"), "memtopo", 1, errors=1)
    case = ET.SubElement(suite, "testcase", name="memtopo validate", classname="memtopo")
    found = ET.SubElement(case, "error", message=output_line(error.message), type=f"exit {error.exit_code}")
    found.text = _text(validation.error_message(error))
    return _xml(suites)


def _counted(element: ET.Element, name: str, tests: int, *, failures: int = 0, errors: int = 0) -> ET.Element:
    element.attrib |= {"name": output_line(name), "tests": f"{tests}", "failures": f"{failures}", "errors": f"{errors}"}
    return element


def _add_case(suite: ET.Element, result: Result, *, failed: bool) -> None:
    name = result.document.file
    places = {"classname": f"memtopo.{result.machine}", "file": repository_path(name)}
    case = ET.SubElement(suite, "testcase", {key: output_line(text) for key, text in {"name": name, **places}.items()})
    if failed:
        worst = min(result.diagnostics, key=lambda each: (each.severity, each.code)).code
        found = ET.SubElement(case, "failure", message=validation.verdict(result), type=worst)
    elif result.diagnostics:
        found = ET.SubElement(case, "system-out")
    else:
        return
    found.text = _text("\n".join(diagnostics.text(result.diagnostics, result.document, width=_WIDTH)))


def _xml(element: ET.Element) -> list[str]:
    ET.indent(element)
    return ['<?xml version="1.0" encoding="UTF-8"?>', *ET.tostring(element, encoding="unicode").splitlines()]


def _text(text: str) -> str:
    """Lines for XML; control characters are spelled out, since XML cannot contain most of them."""
    return "\n".join(map(output_line, text.split("\n")))


MOST_ROWS = 200
"""Limit on table rows."""


def _markdown(checked: Checked) -> list[str]:
    """A summary, a table and the diagnostics, up to `MOST_LINES` lines of them."""
    rows = []
    every = validation.rows(checked)
    for name, cells in sorted(every, key=lambda row: not any(each and checked.failed(each) for each in row[1])):
        verdicts = (each if each in ("ok", "") else f"**{each}**" for each in map(validation.verdict, cells))
        rows.append([f"<code>{escaped(name)}</code>", *verdicts])
    what = "rows" if checked.variants > 1 else "files"
    more = ["", f"{len(rows) - MOST_ROWS:,} more {what} are not shown."] if len(rows) > MOST_ROWS else []
    head = ["## memtopo", "", escaped(validation.total(checked)), ""]
    results = table([*map(escaped, validation.headings(checked))], rows[:MOST_ROWS])
    texts = (diagnostics.text(validation.merged(file), file.document, width=_WIDTH) for file in checked.files)
    found = [output_line(line) for text in texts for line in text]
    return [*head, *results, *more, *(fenced(found) if found else ())]


def _markdown_failure(error: MemtopoError) -> list[str]:
    hint = ["", f"hint: {escaped(error.hint)}"] if error.hint else []
    return ["## memtopo", "", f"**error:** {escaped(error.message)}", *hint]


SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
BASE = "%SRCROOT%"


def _sarif(checked: Checked) -> list[str]:
    """The whole log: one run with every diagnostic once as a result, and the rules that these broke."""
    found = validation.all_located(checked)
    codes = sorted({each.diagnostic.code for each in found})
    identified = zip(found, fingerprints(found), strict=True)
    results = [_result(each, codes.index(each.diagnostic.code), fingerprint) for each, fingerprint in identified]
    return _log(list(map(_rule, codes)), results, {"executionSuccessful": True, "exitCode": int(not checked.ok)})


def _sarif_failure(error: MemtopoError) -> list[str]:
    """A log without results, and the error as a notification."""
    notification = {"level": "error", "message": _message(validation.error_message(error))}
    failed = {"executionSuccessful": False, "exitCode": error.exit_code}
    return _log([], [], failed | {"toolExecutionNotifications": [notification]})


def _log(rules: list[_Object], results: list[_Object], invocation: _Object) -> list[str]:
    run = {
        "tool": {"driver": {"name": "memtopo", "semanticVersion": __version__, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {BASE: {"description": {"text": "the top of the repository"}}},
        "invocations": [invocation],
        "results": results,
    }
    return _document({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(code: str) -> _Object:
    found = explanations.explanation(code)
    rule, fact = found.rule.replace("\n", " "), found.fact.replace("\n", " ")
    return {
        "id": code,
        "shortDescription": {"text": found.title},
        "fullDescription": {"text": rule.replace("`", "'")},
        "help": {
            "text": f"{rule}\n\n{fact}".replace("`", "'"),
            "markdown": "\n\n".join((rule, fact, *_example("Wrong", found.wrong), *_example("Right", found.right))),
        },
        "defaultConfiguration": {"level": found.severity},
        "properties": {"problem.severity": found.severity},
    }


def _example(label: str, example: explanations.Example) -> Iterable[str]:
    yield f"{label}: {example.note}".rstrip()
    if example.spec:
        yield f"```yaml\n{example.spec}```"


def _result(found: Located, rule: int, fingerprint: str) -> _Object:
    diagnostic = found.diagnostic
    result: _Object = {
        "ruleId": diagnostic.code,
        "ruleIndex": rule,
        "level": diagnostic.severity,
        "message": _message(validation.full_message(diagnostic)),
        "locations": [_location(found.file, found.span)],
        "partialFingerprints": {"memtopoFault/v1": fingerprint},
    }
    related = [
        {"id": number, **_location(found.file, label.span), "message": _message(label.text)}
        for number, label in enumerate(found.labels)
        if label.span
    ]
    return result | ({"relatedLocations": related} if related else {})


def _message(text: str) -> _Object:
    # "[…](…)" in a message would be a link, with a target that a spec could choose.
    return {"text": _printable_lines(text).replace("](", "] (")}


def _location(file: str, span: TextSpan | None) -> _Object:
    # Code scanning requires a line; a diagnostic of a whole file is shown on the first one.
    region = {"startLine": 1}
    if span:
        region = {"startLine": span.line, "startColumn": span.column}
        region |= {"endLine": span.end_line, "endColumn": span.end_column}
    path = repository_path(file)
    uri = quote(os.fsencode(path), safe="/")
    place = {"uri": f"file://{uri}"} if path.startswith("/") else {"uri": uri, "uriBaseId": BASE}
    return {"physicalLocation": {"artifactLocation": place, "region": region}}


_Written = tuple[Callable[[Checked], list[str]], Callable[[MemtopoError], list[str]]]

WRITERS: Mapping[str, _Written] = {
    "json": (
        lambda checked: _document(json.validation_document(checked)),
        lambda error: _document(json.error_document(error)),
    ),
    "sarif": (_sarif, _sarif_failure),
    "junit": (_junit, _junit_failure),
    "github": (_github, lambda error: [_command("error", {"title": "memtopo"}, validation.error_message(error))]),
    "gitlab": (_gitlab, lambda _: ["[]"]),  # the format has no field for an error
    "markdown": (_markdown, _markdown_failure),
}
"""Functions of each format: lines of results, and of an error."""


# What Markdown, HTML or a forge interprets: markup, tags, links, mentions, issue numbers, emoji codes.
_MARKUP = re.compile(r"[^A-Za-z0-9 ,;()×µ%='/.:+-]|[.:/](?=[A-Za-z/])|^[+-]|(?<=^[0-9])\.(?= )")

_TICKS = re.compile(r"`+")
MOST_LINES = 600
"""Limit on the lines of a block of text; a comment may have 65,536 characters."""


def page_lines(page: Page) -> list[str]:
    """A page of paragraphs, names with values, tables and drawings, as lines."""
    lines = [f"## {escaped(page.title)}", *(line for fact in page.facts for line in ("", escaped(fact)))]
    for section in page.sections:
        title = ["", f"### {escaped(section.title)}"] if section.title else []
        lines += [*title, *(line for block in section.blocks for line in _block(block))]
    return lines


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Table):
        yield from ("", f"{escaped(block.caption)}:") if block.caption else ()
        cells = ([_words(cell) for cell in row] for row in block.rows)
        yield from ("", *table([escaped(column.heading) for column in block.columns], cells))
    elif isinstance(block, Pairs):
        yield from ("", *(f"- {escaped(name)}: {escaped(value)}" for name, value in block.rows))
    elif isinstance(block, Drawing):
        from memtopo.output import console  # noqa: PLC0415 slow to import, and needed for drawings only

        yield from fenced(console.unstyled(block, DEFAULT_WIDTH).splitlines())
    else:
        yield from ("", _words(block).strip())


def fenced(lines: Sequence[str]) -> Iterator[str]:
    """Lines of a block of text, up to `MOST_LINES` of the `lines`, none of which can end it."""
    shown = lines[:MOST_LINES]
    fence = "`" * max(3, 1 + max((len(ticks) for line in shown for ticks in _TICKS.findall(line)), default=0))
    yield from ("", f"{fence}text", *shown, fence)
    if len(lines) > MOST_LINES:
        yield from ("", f"{len(lines) - MOST_LINES:,} more lines are not shown.")


def _words(shown: object) -> str:
    if isinstance(shown, Stacked):
        return "; ".join(map(escaped, shown.lines))
    return escaped(shown.text if isinstance(shown, Toned) else str(shown))


def table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Lines of a table; the cells are escaped already."""
    yield from (f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows))


def escaped(text: str) -> str:
    """Escape every character that has a meaning in Markdown or HTML, or for a forge."""
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", printable(text))
