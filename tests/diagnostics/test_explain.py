"""`memtopo explain`: explanations, their examples, and the page of all rules."""

from __future__ import annotations

import re

import pytest

from docs import make_fact_index, make_rules
from memtopo.diagnostics import CODES
from memtopo.diagnostics.explanations import Example, Explanation, explanation, facts
from memtopo.drivers.target import recorded
from memtopo.machine import load
from memtopo.rules import diagnose_change
from memtopo.session.composition import Composition
from tests.helpers.machines import noted
from tests.helpers.pages import anchors, family
from tests.helpers.specs import ROOT, codes, document, geometry_of

EXPLANATIONS = {code: explanation(code) for code in CODES}
FACT = re.compile(r"\bfact ([0-9]+)")
UNTYPABLE = {"MT001", "MT003"}
"""Codes of files that no text can be an example of."""


OTHER_MACHINE = "MT507"
"""Code of a machine that a spec is not for, which validation of the spec on another one does not report."""
CHANGES = {"MT806", "MT807", "MT808", "MT810", "MT813"}
"""Codes of changes: the wrong example is a change of a layout that was built from the right one."""


def found(example: Example) -> list[str]:
    return codes(example.spec, noted(example.note))


def composed_on(note: str, spec: str) -> list[str]:
    """Codes of a spec on the machine that a note names: `On h200x2:`."""
    name = note.removeprefix("On ").removesuffix(":")
    return [each.code for each in Composition.of(document(spec), recorded(name, load(name))).diagnostics]


def test_every_code_has_one_explanation_file() -> None:
    """And every file is of a code in a group."""
    package = ROOT / "memtopo"
    files = {path.stem for path in (package / "diagnostics" / "explanations").glob("*.md")}
    named = {code for file in package.rglob("*.py") for code in re.findall('"(MT[0-9]{3})"', file.read_text())}
    assert files == set(CODES) >= named


@pytest.mark.parametrize("each", EXPLANATIONS.values(), ids=EXPLANATIONS)
def test_the_bad_example_of_a_code_has_this_diagnostic_and_the_good_one_none(each: Explanation) -> None:
    if each.code in UNTYPABLE:
        assert each.wrong.note
        assert not each.wrong.spec
        return
    if each.code in CHANGES:
        before, after = geometry_of(each.right.spec), geometry_of(each.wrong.spec)
        assert [each.code] == [fault.code for fault in diagnose_change(before, after)]
        assert list(diagnose_change(before, before)) == []
    elif each.code == OTHER_MACHINE:
        right, wrong = (composed_on(one.note, one.spec) for one in (each.right, each.wrong))
        assert ([*right], [*wrong]) == ([], [OTHER_MACHINE])
    else:
        assert set(found(each.wrong)) == {each.code}
    assert found(each.right) == []


@pytest.mark.parametrize("each", EXPLANATIONS.values(), ids=EXPLANATIONS)
def test_an_explanation_is_short(each: Explanation) -> None:
    """A rule and a fact of at most three sentences and 400 characters."""
    for prose in (each.rule, each.fact):
        assert 20 < len(prose) <= 400, len(prose)
        assert len(re.findall(r"[.!?](?=\s|$)", prose)) <= 3
        assert prose.endswith(".")


def test_cited_facts_are_recorded_once() -> None:
    """In docs/driver-facts.md."""
    page = (ROOT / "docs" / "driver-facts.md").read_text()
    recorded = re.findall(r'<a id="fact-([0-9]+)"></a>', page)
    cited = {number for each in EXPLANATIONS.values() for number in FACT.findall(each.rule + each.fact)}
    assert recorded == sorted(set(recorded), key=int)
    assert cited <= set(recorded)


def test_the_pages_of_diagnostics_are_current() -> None:
    """`make docs` writes docs/rules.md and docs/rules/; there are no other pages."""
    made = make_rules.files()
    assert {str(page.relative_to(ROOT)) for page in family("rules")} == set(made)
    assert [name for name, text in made.items() if (ROOT / name).read_text() != text] == []


def test_every_code_has_a_row_in_the_index_and_a_section_on_the_page_of_its_hundred() -> None:
    index = (ROOT / "docs" / "rules.md").read_text()
    for code, each in EXPLANATIONS.items():
        page = ROOT / "docs" / "rules" / f"{code[:3]}xx.md"
        assert f'<a id="{code}"></a>[{code}](rules/{page.name}#{code}) | {each.severity} | {each.title} |' in index
        assert code in anchors(page)


def test_the_topic_of_a_fact_is_that_of_its_text() -> None:
    assert facts()[69].topic == "Mapping of released handles"


def test_facts_are_all_entries_of_the_page() -> None:
    """Each begins with its number, under a heading."""
    page = (ROOT / "docs" / "driver-facts.md").read_text()
    assert [*facts()] == [*range(1, page.count('<a id="fact-') + 1)]
    assert all(each.topic and each.text for each in facts().values())


def test_every_fact_names_a_call() -> None:
    """So that the index by call and `memtopo explain cuMemMap` have it."""
    page = (ROOT / "docs" / "driver-facts.md").read_text()
    assert {*facts()} == {number for numbers in make_fact_index.calls(page).values() for number in numbers}


def test_index_of_facts_by_topic_has_all_of_them() -> None:
    page = (ROOT / "docs" / "driver-facts.md").read_text()
    by_topic = page[page.index("## By topic") : page.index("## By call")]
    assert {int(number) for number in re.findall(r"#fact-([0-9]+)", by_topic)} == {*facts()}


def test_index_of_facts_by_call_is_current() -> None:
    """`make docs` writes it."""
    page = (ROOT / "docs" / "driver-facts.md").read_text()
    assert make_fact_index.with_index(page) == page
