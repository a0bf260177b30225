"""`memtopo budget`."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from jsonschema import Draft202012Validator

from memtopo.output import schemas
from tests.cli.conftest import InlineRunner
from tests.helpers.specs import ROOT

VLLM, SLEEP = ROOT / "specs/real/vllm-sleep.yaml", ROOT / "specs/sleep-mode.yaml"
M = ("--machine", "h100x1")


def test_layouts_that_fit_while_all_are_awake_exit_with_0(run_inline: InlineRunner) -> None:
    result = run_inline("budget", VLLM, SLEEP, *M)
    assert (result.status, result.err) == (0, "")
    assert "ok: they fit together in every state" in result.out


def test_layouts_that_do_not_exit_with_1_and_name_the_line(run_inline: InlineRunner) -> None:
    result = run_inline("budget", VLLM, VLLM, *M)
    assert result.status == 1
    assert f"{VLLM}:22:3: error[MT402]: vllm-sleep.0, vllm-sleep.1 need 148.2 GiB on gpu0" in result.out
    assert "not all can be awake together; 13 of 16 combinations of states fit" in result.out
    none = run_inline("budget", VLLM, VLLM, *M, "--context", "60GiB")
    assert none.status == 1
    assert "do not fit together in any combination of states" in none.out
    assert "least is missing with vllm-sleep.0 level-1, vllm-sleep.1 level-1: 40.8 GiB on gpu0" in " ".join(
        none.out.split()
    )


def test_the_document_agrees_with_its_schema_and_the_exit_status(run_inline: InlineRunner) -> None:
    document = run_inline("budget", VLLM, VLLM, *M, "--json").document
    assert document["memtopo_budget"] == 1
    assert not list(Draft202012Validator(schemas.schema("budget")).iter_errors(document))
    assert document["fits"] is False
    (lacks,) = document["combinations"][0]["shortfalls"]
    assert lacks["place"] == f"{VLLM}:22:3"


@pytest.mark.parametrize("form", ["concise", "sarif", "github", "gitlab", "markdown", "junit"])
def test_errors_have_the_formats_of_validate(run_inline: InlineRunner, form: str) -> None:
    result = run_inline("budget", VLLM, VLLM, *M, "--format", form)
    assert result.status == 1
    assert "MT402" in result.out
    if form == "junit":
        assert ET.fromstring(result.out).attrib["failures"] == "1"


def test_a_value_is_of_the_specs_that_declare_its_parameter(run_inline: InlineRunner) -> None:
    assert run_inline("budget", VLLM, SLEEP, *M, "--set", "kv=10GiB").status == 0
    refused = run_inline("budget", VLLM, SLEEP, *M, "--set", "other=10GiB")
    assert refused.status == 1
    assert "other" in refused.out


@pytest.mark.parametrize("form", ["concise", "json"])
def test_an_error_that_a_comment_ignores_is_one_of_a_budget(
    run_inline: InlineRunner, tmp_path: Path, form: str
) -> None:
    spec = tmp_path / "large.yaml"
    large = "c: {location: gpu0, size: 100GiB}  # memtopo: ignore[MT402, MT501]"
    spec.write_text(f"memtopo: 1\nname: large\nchunks:\n  {large}\n")
    assert run_inline("validate", spec, *M).status == 0
    found = run_inline("budget", spec, SLEEP, *M, "--format", form)
    assert (found.status, "MT402" in found.out, "MT501" in found.out) == (1, True, False)
    if form == "json":
        assert [each["ignored"] for each in found.document["results"]] == [1, 0]


def test_saved_plans_have_values_of_their_own(run_inline: InlineRunner, tmp_path: Path) -> None:
    plan = tmp_path / "small.plan"
    assert run_inline("plan", VLLM, *M, "--set", "kv=2GiB", "--set", "weights=1GiB", "-o", plan).status == 0
    document = run_inline("budget", plan, VLLM, *M, "--json").document
    assert [each["params"]["kv"] for each in document["layouts"]] == ["2GiB", "92%"]
    assert document["fits"] is True
    document = run_inline("budget", plan, VLLM, *M, "--set", "kv=4GiB", "--json").document
    assert [each["params"]["kv"] for each in document["layouts"]] == ["2GiB", "4GiB"]
    refused = run_inline("budget", plan, *M, "--set", "kv=4GiB")
    assert (refused.status, "keeps the values with which it was made" in refused.err) == (2, True)


def test_each_of_several_plans_of_one_file_is_validated(run_inline: InlineRunner, tmp_path: Path) -> None:
    spec, plans = tmp_path / "kv.yaml", [tmp_path / "small.plan", tmp_path / "large.plan"]
    spec.write_text("memtopo: 1\nname: kv\nparams: {size: 1GiB}\nchunks: {c: {location: gpu0, size: $size}}\n")
    for plan, size in zip(plans, ("2GiB", "100GiB"), strict=True):
        assert run_inline("plan", spec, "-m", "h200x2", f"--set=size={size}", "-o", plan).status == 0
    for each in (plans, plans[::-1]):
        found = run_inline("budget", *each, *M)
        assert (found.status, found.out.count("error[MT402]")) == (1, 1)


def test_a_saved_plan_and_its_changed_spec_are_quoted_each_from_its_own_text(
    run_inline: InlineRunner, tmp_path: Path
) -> None:
    spec, plan = tmp_path / "kv.yaml", tmp_path / "kv.plan"
    spec.write_text("memtopo: 1\nname: kv\nchunks:\n  before: {location: gpu0, size: 50GiB}\n")
    assert run_inline("plan", spec, *M, "-o", plan).status == 0
    spec.write_text("memtopo: 1\nname: kv\n# comment\n\nchunks:\n  after: {location: gpu0, size: 60GiB}\n")
    for each in ((plan, spec), (spec, plan)):
        found = run_inline("budget", *each, *M)
        assert found.status == 1
        assert "4 |   before: {" in found.out
        assert "6 |   after: {" in found.out


def test_invalid_specs_are_reported_as_by_validate(run_inline: InlineRunner, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("memtopo: 1\nname: wrong\nchunks: {a: {location: gpu9, size: 2MiB}}\n")
    for form in ("text", "json", "junit"):
        given = run_inline("budget", wrong, SLEEP, *M, "--format", form)
        assert given.status == 1
        assert given.out == run_inline("validate", wrong, SLEEP, *M, "--format", form).out
    missing = run_inline("budget", tmp_path / "none.yaml", *M)
    assert missing.status == run_inline("validate", tmp_path / "none.yaml", *M).status


@pytest.mark.parametrize("wrong", ["lots", "2 granules", "5MB"])
def test_a_context_is_a_size(run_inline: InlineRunner, wrong: str) -> None:
    refused = run_inline("budget", SLEEP, *M, "--context", wrong)
    assert refused.status == 2
    assert "--context" in refused.err


def test_specs_on_nodes_are_refused(run_inline: InlineRunner) -> None:
    spec = next((ROOT / "specs/nodes").glob("*.yaml"))
    refused = run_inline("budget", spec, "--machine", "h200x4")
    assert refused.status == 2
    assert "a budget covers one machine" in refused.err


def test_a_record_is_a_layout_of_the_memory_of_its_program(run_inline: InlineRunner, tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    assert run_inline("apply", SLEEP, *M, "--trace", trace, "--check", "none").status == 0
    document = run_inline("budget", trace, VLLM, *M, "--json").document
    recorded, _ = document["layouts"]
    assert (recorded["name"], recorded["states"]["awake"]["gpu0"]) == ("run", 192 << 20)
    assert run_inline("budget", trace, *M, "--at", "0").status in (0, 1)
