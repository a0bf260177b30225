"""A check as SARIF 2.1.0 (OASIS), which code scanning and editors read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from memtopo.common.errors import MemtopoError
from memtopo.common.text import printable
from memtopo.common.version import __version__
from memtopo.diagnostics import explanations
from memtopo.diagnostics.explanations import Example
from memtopo.diagnostics.model import Span
from memtopo.output import json, validation
from memtopo.output.validation import Placed, fingerprints
from memtopo.rules.files import Checked

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
BASE = "%SRCROOT%"

_Object = dict[str, Any]


def lines(checked: Checked) -> list[str]:
    """The whole log: one run, its rules those that were broken, and every fault once as a result."""
    faults = validation.places(checked)
    codes = sorted({fault.diagnostic.code for fault in faults})
    prints = fingerprints(faults)
    results = [
        _result(fault, codes.index(fault.diagnostic.code), mark) for fault, mark in zip(faults, prints, strict=True)
    ]
    invocation = {"executionSuccessful": True, "exitCode": int(not checked.ok)}
    return _log([_rule(code) for code in codes], results, invocation)


def failure(error: MemtopoError) -> list[str]:
    """The log of a check that could not be made: no results, and why."""
    told = _message(validation.error_prose(error))
    notification = {"level": "error", "message": told}
    invocation = {
        "executionSuccessful": False,
        "exitCode": error.exit_code,
        "toolExecutionNotifications": [notification],
    }
    return _log([], [], invocation)


def _log(rules: list[_Object], results: list[_Object], invocation: _Object) -> list[str]:
    driver = {"name": "memtopo", "semanticVersion": __version__, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {BASE: {"description": {"text": "the top of the repository"}}},
        "invocations": [invocation],
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}).splitlines()


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


def _example(label: str, example: Example) -> Iterable[str]:
    yield f"{label}: {example.note}".rstrip()
    if example.spec:
        yield f"```yaml\n{example.spec}```"


def _result(fault: Placed, rule: int, mark: str) -> _Object:
    diagnostic = fault.diagnostic
    result: _Object = {
        "ruleId": diagnostic.code,
        "ruleIndex": rule,
        "level": diagnostic.severity,
        "message": _message(validation.prose(diagnostic)),
        "locations": [_location(fault.file, fault.span)],
        "partialFingerprints": {"memtopoFault/v1": mark},
    }
    related = [
        {"id": number, **_location(fault.file, span), "message": _message(label.text)}
        for number, (label, span) in enumerate(fault.labels)
        if span
    ]
    return result | ({"relatedLocations": related} if related else {})


def _message(text: str) -> _Object:
    # "[…](…)" in a message is a link to wherever somebody's spec would have it lead.
    return {"text": "\n".join(map(printable, text.split("\n"))).replace("](", "] (")}


def _location(file: str, span: Span | None) -> _Object:
    return {"physicalLocation": {"artifactLocation": _artifact(file), "region": _region(span)}}


def _region(span: Span | None) -> dict[str, int]:
    # Code scanning takes no result without a line; what is wrong with a whole file is shown at its beginning.
    if span is None:
        return {"startLine": 1}
    return {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.end_line,
        "endColumn": span.end_column,
    }


def _artifact(file: str) -> dict[str, str]:
    path = validation.from_top(file)
    uri = quote(os.fsencode(path), safe="/")
    if path.startswith("/"):
        return {"uri": f"file://{uri}"}
    return {"uri": uri, "uriBaseId": BASE}
