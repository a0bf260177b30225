"""Validation results as SARIF 2.1.0 (OASIS), which code scanning and editors read."""

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
from memtopo.language.located import Located
from memtopo.output import json, validation
from memtopo.output.validation import fingerprints
from memtopo.rules.files import Checked

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
BASE = "%SRCROOT%"

_Object = dict[str, Any]


def lines(checked: Checked) -> list[str]:
    """The whole log: one run with every diagnostic once as a result, and the rules that these broke."""
    found = validation.all_located(checked)
    codes = sorted({each.diagnostic.code for each in found})
    results = [
        _result(each, codes.index(each.diagnostic.code), fingerprint)
        for each, fingerprint in zip(found, fingerprints(found), strict=True)
    ]
    invocation = {"executionSuccessful": True, "exitCode": int(not checked.ok)}
    return _log([_rule(code) for code in codes], results, invocation)


def failure(error: MemtopoError) -> list[str]:
    """The log of a validation that could not be made: no results, and the error as a notification."""
    notification = {"level": "error", "message": _message(validation.error_message(error))}
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
        {"id": number, **_location(found.file, span), "message": _message(label.text)}
        for number, (label, span) in enumerate(found.labels)
        if span
    ]
    return result | ({"relatedLocations": related} if related else {})


def _message(text: str) -> _Object:
    # "[…](…)" in a message would be a link, with a target that a spec could choose.
    return {"text": "\n".join(map(printable, text.split("\n"))).replace("](", "] (")}


def _location(file: str, span: Span | None) -> _Object:
    return {"physicalLocation": {"artifactLocation": _artifact(file), "region": _region(span)}}


def _region(span: Span | None) -> dict[str, int]:
    # Code scanning requires a line; a diagnostic of a whole file is shown on the first one.
    if span is None:
        return {"startLine": 1}
    return {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.end_line,
        "endColumn": span.end_column,
    }


def _artifact(file: str) -> dict[str, str]:
    path = validation.repository_path(file)
    uri = quote(os.fsencode(path), safe="/")
    if path.startswith("/"):
        return {"uri": f"file://{uri}"}
    return {"uri": uri, "uriBaseId": BASE}
