"""`memtopo explain`: explanations, their examples, and the page of all rules."""

from __future__ import annotations

import re

import pytest

from docs import make_fact_index, make_rules
from memtopo.diagnostics import CODES
from memtopo.diagnostics.explanations import Example, Explanation, explanation, facts
from memtopo.drivers.target import recorded
from memtopo.machine import load
from memtopo.output import explain as rendering
from memtopo.rules.validation import diagnose_change
from memtopo.session.composition import Composition
from tests.helpers.command_line import run_memtopo
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


def test_explain_shows_rule_fact_and_examples_of_codes() -> None:
    """Case does not matter, and several codes may be given."""
    done = run_memtopo("explain", "mt305", "MT503", COLUMNS="80")
    assert done.status == 0
    lines = done.out.splitlines()
    assert lines[0] == "error[MT305]: a mapping runs past the end of its range"
    assert "warning[MT503]: no device has access to a range" in lines
    assert "  wrong  ranges: {kv: {size: 4MiB}}" in lines
    assert "         map: {kv: [page]}" in lines
    assert done.widest <= 80
    assert "`" not in done.out


def test_explain_without_codes_lists_all() -> None:
    lines = [line.strip() for line in run_memtopo("explain").out.splitlines()]
    for code, known in EXPLANATIONS.items():
        assert f"{code}  {known.title}" in lines


def test_an_unknown_code_is_wrong_usage() -> None:
    """The nearest code is suggested."""
    done = run_memtopo("explain", "MT3O5")
    assert done.status == 2
    assert done.out == ""
    assert "there is no code 'MT3O5'" in done.err
    assert "did you mean MT305?" in done.err


def test_a_number_without_a_code_gets_no_suggestion() -> None:
    done = run_memtopo("explain", "MT999")
    assert done.status == 2
    assert "did you mean" not in done.err


@pytest.mark.parametrize("arguments", [("--all",), ("MT301", "mt302"), ()])
def test_explain_json_is_one_document_with_the_codes(arguments: tuple[str, ...]) -> None:
    read = run_memtopo("explain", *arguments, "--json").document["codes"]
    wanted = [code.upper() for code in arguments if not code.startswith("-")] or list(CODES)
    assert [each["code"] for each in read] == wanted
    assert {each["severity"] for each in read} <= {"error", "warning"}
    assert all(("rule" in each) == bool(arguments) for each in read)


def test_explain_markdown_of_codes_is_their_sections_of_the_document_of_all() -> None:
    document = run_memtopo("explain", "--all", "--markdown").out
    assert document.splitlines() == rendering.page(EXPLANATIONS.values())
    assert run_memtopo("explain", "mt301", "--markdown").out.strip() in document


def test_markdown_takes_precedence_over_the_json_variable() -> None:
    assert run_memtopo("explain", "MT301", "--markdown", MEMTOPO_JSON="1").out.startswith('<a id="MT301">')


@pytest.mark.parametrize("name", ["fact-15", "FACT-15", "fact15", "Fact 15", "15"])
def test_explain_prints_a_fact_under_its_topic(name: str) -> None:
    done = run_memtopo("explain", *name.split(), COLUMNS="80")
    lines = done.out.splitlines()
    assert (done.status, lines[0]) == (0, "fact 15: Mapping")
    assert "  Danger: a chunk mapped so that it runs past the end of its reservation →" in lines
    assert done.widest <= 80


def test_the_topic_of_a_fact_is_that_of_its_text() -> None:
    assert facts()[69].topic == "Mapping of released handles"


def test_explain_prints_each_row_of_a_table_in_a_fact() -> None:
    lines = run_memtopo("explain", "fact-58").out.splitlines()
    assert "  'cuDestroyExternalSemaphore' | hangs" in lines
    assert not any("--" in line for line in lines)


def test_explain_json_has_facts_beside_codes() -> None:
    read = run_memtopo("explain", "MT301", "fact-33", "--json").document
    assert [each["code"] for each in read["codes"]] == ["MT301"]
    assert read["facts"] == [{"number": 33, "topic": "Sharing", "text": "Never fork after `cuInit`: spawn."}]


def test_explain_refuses_a_fact_that_does_not_exist() -> None:
    done = run_memtopo("explain", "fact-9999")
    assert (done.status, done.out) == (2, "")
    assert f"facts are fact-1 to fact-{max(facts())}" in done.err


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("MT301", "cuMemMap"), "an error of the driver is explained by itself"),
        (("fact-14", "cuMemMap"), "an error of the driver is explained by itself"),
        (("--all", "cuMemMap"), "an error of the driver is explained by itself"),
        (("cuMemMap", "INVALID_VALUE", "--markdown"), "an error of the driver is explained by itself"),
        (("cuMemCreate", "99999"), "the driver has no error 99999"),
    ],
)
def test_what_is_not_explained_together_is_refused(arguments: tuple[str, ...], message: str) -> None:
    done = run_memtopo("explain", *arguments)
    assert (done.status, done.out) == (2, "")
    assert message in done.err


def test_a_code_that_a_text_has_twice_is_explained_once() -> None:
    once, twice = (run_memtopo("explain", "a.yaml:1:2: error[MT301]: one " * times).out for times in (1, 2))
    assert once == twice != ""
