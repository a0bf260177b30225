"""`memtopo explain`: codes, driver facts and errors of the driver, as text, JSON and Markdown."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from docs import make_fact_index
from memtopo.cli.driver_messages import read_message
from memtopo.cli.reference import explain_command
from memtopo.common.errors import UsageError
from memtopo.diagnostics import CODES, read_page
from memtopo.diagnostics.explanations import PAGE, explanation, facts
from memtopo.output import explain as rendering
from tests.cli.conftest import InlineRunner
from tests.helpers.command_line import run_memtopo, run_with_input
from tests.helpers.refusals import reasons

MESSAGES = tomllib.loads(Path(__file__).with_name("error_messages.toml").read_text("utf-8"))["messages"]
EXPLANATIONS = {code: explanation(code) for code in CODES}


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("MT301", "cuMemMap"), "there is no code 'cuMemMap'"),
        (("fact-14", "cuMemMap"), "there is no code 'cuMemMap'"),
        (("cuMemMap", "INVALID_VALUE", "--markdown"), "an error of the driver is explained as text or JSON"),
        (("cuMemCreate", "99999"), "the driver has no error 99999"),
        (("cuFileBufRegister error, object allocation failed",), "no causes are known for cuFileBufRegister"),
    ],
)
def test_what_is_not_explained_together_is_refused(arguments: tuple[str, ...], message: str) -> None:
    done = run_memtopo("explain", *arguments)
    assert (done.status, done.out) == (2, "")
    assert message in done.err


def test_a_code_that_a_text_has_twice_is_explained_once() -> None:
    once, twice = (run_memtopo("explain", "a.yaml:1:2: error[MT301]: one " * times).out for times in (1, 2))
    assert once == twice != ""


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("cuMemMap INVALID_VALUE", "cuMemMap: INVALID_VALUE"),
        ("cumemmap invalid_value", "cuMemMap: INVALID_VALUE"),
        ("cuMemMap 801", "cuMemMap: NOT_SUPPORTED"),
        ("cuMemMap failed: error code 801", "cuMemMap: NOT_SUPPORTED"),
        ("cuMemMap: operation not supported", "cuMemMap: NOT_SUPPORTED"),
        ("RuntimeError: CUDA error: invalid device context", "Every call: INVALID_CONTEXT"),
        ("CUDA error 700", "Every call: ILLEGAL_ADDRESS"),
        ("700", "Every call: ILLEGAL_ADDRESS"),
        ("cuMemAlloc_v2", "cuMemAlloc: OUT_OF_MEMORY"),
        ("invalid_context", "Every call: INVALID_CONTEXT"),
        ("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (gpu0 has 3 GiB free)", "cuMemCreate: OUT_OF_MEMORY"),
        ("kv.yaml:5:38: error[MT301]: chunk 'hot': 3MiB is not a multiple of 2MiB", "error[MT301]: "),
        ("cuSignalExternalSemaphoresAsync", "more: memtopo explain fact-36"),
    ],
)
def test_explain_understands_calls_errors_and_whole_messages(words: str, first: str) -> None:
    assert run_memtopo("explain", words).out.startswith(first)


NOT_OPEN = "cuMemMap: CUDA_ERROR_INVALID_VALUE (the handle is not open (stricter than hardware: fact 69)) at kv.c:7"


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (NOT_OPEN, [[69], [13, 69]]),
        ("cuMemSetAccess({gpu9 rw}): CUDA_ERROR_INVALID_VALUE (gpu9 does not exist)", [[20]]),
        ("cuMemAddressFree: CUDA_ERROR_INVALID_VALUE (the size is not the reservation's)", [[12]]),
    ],
)
def test_explain_lists_the_causes_of_the_reason_in_a_message(message: str, found: list[list[int]]) -> None:
    document = run_memtopo("explain", message, "--json").document
    assert [cause["facts"] for cause in document["causes"]] == found


def answer(message: str, capsys: pytest.CaptureFixture[str], *, as_json: bool = False) -> tuple[bool, str]:
    """Whether the cause of a message is known, and what `explain` prints, in this process."""
    try:
        explain_command([message], as_json=as_json)
    except UsageError as error:
        return False, "\n".join([error.message, *error.details, *filter(None, [error.hint])])
    return True, capsys.readouterr().out


@pytest.mark.parametrize(("message", "call", "error", "words"), MESSAGES)
def test_explain_reads_the_call_and_the_error_of_a_message(
    message: str,
    call: str,
    error: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its cause has 12 lines; where it is not known, the call and the error are stated."""
    monkeypatch.setenv("COLUMNS", "80")
    assert read_message(message).decisive == (call or None, error or None)
    is_known, text = answer(message, capsys)
    assert is_known == bool(words)
    for each in filter(None, [words] if words else [call, error]):
        assert each in " ".join(text.split())
    assert len(text.splitlines()) <= (12 if words else 15)


def test_the_reason_of_the_simulator_answers(capsys: pytest.CaptureFixture[str]) -> None:
    for reason in reasons():
        stated = reason.replace("…", "gpu0")
        is_known, text = answer(f"cuMemGetAccess(a=1): CUDA_ERROR_INVALID_VALUE ({stated})", capsys, as_json=True)
        assert is_known
        (cause,) = json.loads(text)["causes"]
        assert stated in cause["cause"] or stated in cause["reasons"]


def test_explain_reads_a_message_from_standard_input() -> None:
    done = run_with_input(b"\xff\0 cuMemMap failed\n  with error 801\n", "explain", "-")
    assert (done.status, done.out.splitlines()[0]) == (0, "cuMemMap: NOT_SUPPORTED")


@pytest.mark.parametrize(
    "text", ["cuMemMap failed: 801 ", "(" * 9, "error ", "\x1b[1m", "\0\x01 ", "ошибка 错误 ", "a_" * 30]
)
def test_a_long_message_is_read_at_both_ends(text: str) -> None:
    message = read_message(text * (1_000_000 // len(text)) + "\ncuMemSetAccess: CUDA_ERROR_INVALID_VALUE")
    assert ("cuMemSetAccess", "INVALID_VALUE") in message.errors


def test_explain_lists_causes_with_checks_and_further_facts() -> None:
    found = run_memtopo("explain", "cuMemMap", "NOT_SUPPORTED", COLUMNS="80")
    assert "  - the offset is not 0\n      check: create a chunk for each part (fact 13)\n" in found.out
    assert "\nmore: memtopo explain fact-8 fact-13 fact-14 fact-15 fact-16 " in found.out
    assert found.widest <= 80
    document = run_memtopo("explain", "cuMemMap", "NOT_SUPPORTED", "--json").document
    assert [cause["facts"] for cause in document["causes"]] == [[13, 28], [13]]


@pytest.mark.parametrize("error", ["NOT_PERMITTED", "CUDA_ERROR_NOT_FOUND", "UNKNOWN", "CUDA_ERROR_NO_SUCH"])
def test_explain_says_that_no_cause_of_an_error_is_known_for_a_call(error: str) -> None:
    found = run_memtopo("explain", "cuMemMap", error)
    assert (found.status, found.out) == (2, "")
    assert f"no cause of {error.removeprefix('CUDA_ERROR_')} is known for cuMemMap\n" in found.err
    assert "memtopo explain fact-8 " in found.err


@pytest.mark.parametrize(
    ("words", "unknown", "hint"),
    [
        ("cuMemMap INVALID_VALEU", "INVALID_VALEU", "did you mean 'INVALID_VALUE'?"),
        ("cuMemMap invalid_valeu", "invalid_valeu", "did you mean 'INVALID_VALUE'?"),
        ("INVALID_VALEU cuMemMap", "INVALID_VALEU", "did you mean 'INVALID_VALUE'?"),
        ("cuMemMap ECC_UNCORRECTABEL", "ECC_UNCORRECTABEL", "did you mean 'ECC_UNCORRECTABLE'?"),
        ("cuMemMap xyzzy", "xyzzy", "write 'memtopo explain cuMemMap'"),
    ],
)
def test_explain_refuses_a_word_beside_a_call_that_is_no_error(words: str, unknown: str, hint: str) -> None:
    found = run_memtopo("explain", *words.split())
    assert (found.status, found.out) == (2, "")
    assert found.err.splitlines() == [f"memtopo: error: the driver has no error {unknown}", f"memtopo: hint: {hint}"]


@pytest.mark.parametrize("call", ["cuMemAlloc", "cuMemcpy", "cuMemMap"])
def test_explain_cites_the_facts_that_name_a_call_and_none_of_a_longer_name(call: str) -> None:
    cited = run_memtopo("explain", call, "--json").document["facts"]
    assert [fact["number"] for fact in cited] == make_fact_index.calls(read_page(PAGE))[call]


@pytest.mark.parametrize("error", ["INVALID_VALUE", "INVALID_CONTEXT", ""])
def test_explain_suggests_the_call_that_was_meant(error: str) -> None:
    found = run_memtopo("explain", f"cuMemSetAcess {error}")
    assert (found.status, found.out) == (2, "")
    assert "did you mean 'cuMemSetAccess'?" in found.err


@pytest.mark.parametrize(
    ("words", "named"),
    [("cuGraphCreate", "cuGraphCreate"), ("CUDA_ERROR_NO_SUCH", "NO_SUCH"), ("it does not work", "no call")],
)
def test_explain_says_that_nothing_is_known(words: str, named: str) -> None:
    found = run_memtopo("explain", words)
    assert (found.status, found.out) == (2, "")
    assert "not known" in found.err
    assert named in found.err


def test_a_word_of_a_megabyte_is_not_repeated(run_inline: InlineRunner) -> None:
    result = run_inline("explain", "x" * 1_000_000)
    assert (result.status, len(result.err) < 400) == (2, True)
