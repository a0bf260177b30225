"""examples/ci: a repository with a good and a broken spec, and what each service shows of them."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.cli.conftest import InlineRunner
from tests.helpers import ci_forms as forms
from tests.helpers.specs import ROOT

SAMPLE = ROOT / "examples" / "ci"
MACHINES = ("-m", "h100x1", "-m", "h200x2")
PAGE = (ROOT / "docs" / "ci.md").read_text()


@pytest.fixture
def said(run_inline: InlineRunner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A way to check the sample from its top."""
    monkeypatch.chdir(SAMPLE)
    return lambda form: run_inline("validate", "specs", *MACHINES, "--format", form)


def test_github_annotates_both_errors_of_the_broken_sample(said: Any) -> None:
    assert said("github").out.splitlines()[1] == (
        "::error file=specs/handover.yaml,line=11,endLine=11,col=34,endColumn=39,"
        "title=MT301%3A a chunk's size is not a multiple of its granularity::"
        "chunk 'hot': 33MiB is not a multiple of 2MiB (1 MiB over)"
        "%0Anote: the granularity of chunks with these properties on gpu0 is 2MiB on this machine"
        "%0Ahelp: write 32MiB or 34MiB, or 'round: up'"
    )
    first, _ = forms.github(said("github").out)
    assert (first.properties["line"], first.data.splitlines()[0]) == ("5", "the machine has no gpu1")


def test_code_scanning_receives_both_errors_with_location_and_rule(said: Any) -> None:
    results = forms.sarif(said("sarif").out)["results"]
    assert [(result["ruleId"], result["locations"][0]["physicalLocation"]) for result in results] == [
        (code, {"artifactLocation": {"uri": "specs/handover.yaml", "uriBaseId": "%SRCROOT%"}, "region": region})
        for code, region in [
            ("MT401", {"startLine": 5, "startColumn": 31, "endLine": 5, "endColumn": 32}),
            ("MT301", {"startLine": 11, "startColumn": 34, "endLine": 11, "endColumn": 39}),
        ]
    ]


def test_junit_of_the_sample_passes_the_good_spec_and_fails_the_broken_one(said: Any) -> None:
    """This holds on both machines."""
    cases = {(suite.name, case.name): case for suite in forms.junit(said("junit").out) for case in suite}
    assert {key: case.is_passed for key, case in cases.items()} == {
        ("h100x1", "specs/cache.yaml"): True,
        ("h100x1", "specs/handover.yaml"): False,
        ("h200x2", "specs/cache.yaml"): True,
        ("h200x2", "specs/handover.yaml"): False,
    }
    (failure,) = cases["h200x2", "specs/handover.yaml"].result
    assert (failure.message, failure.type) == ("1 error", "MT301")


@pytest.mark.parametrize(
    ("file", "schema"), [(".github/workflows/memtopo.yml", "github-workflows"), (".gitlab-ci.yml", "gitlab-ci")]
)
def test_sample_workflow_and_job_fit_the_schemas_of_the_services(file: str, schema: str) -> None:
    vendored = resources.files("check_jsonschema").joinpath(f"builtin_schemas/vendor/{schema}.json").read_text()
    validator = Draft7Validator(json.loads(vendored))
    # YAML 1.1 of this reader takes the key `on` for a boolean.
    read = {"on" if key is True else key: value for key, value in yaml.safe_load((SAMPLE / file).read_text()).items()}
    validator.validate(read)
    assert not validator.is_valid(read | {"jobs": 3, "memtopo": 3})


@pytest.mark.parametrize("file", [".github/workflows/memtopo.yml", ".gitlab-ci.yml", ".pre-commit-config.yaml"])
def test_page_shows_the_sample_to_copy(file: str) -> None:
    assert f"\n{(SAMPLE / file).read_text()}```\n" in PAGE


def test_commands_of_the_github_job_write_the_log_it_uploads(
    run_inline: InlineRunner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the summary. The installation is not run."""
    workflow = yaml.safe_load((SAMPLE / ".github" / "workflows" / "memtopo.yml").read_text())
    *_, validation, upload = workflow["jobs"]["validate"]["steps"]
    monkeypatch.chdir(folder)
    (folder / "specs").symlink_to(SAMPLE / "specs")
    command = validation["run"].replace("$GITHUB_STEP_SUMMARY", "summary.md").split()
    assert command[0] == "memtopo"
    done = run_inline(*command[1:], GITHUB_ACTIONS="true", GITHUB_WORKSPACE=str(folder))
    assert done.status == 1
    assert [each.properties["line"] for each in forms.github(done.out)] == ["5", "11"]
    assert len(forms.sarif((folder / upload["with"]["sarif_file"]).read_text())["results"]) == 2
    assert forms.markdown((folder / "summary.md").read_text())


def test_commands_of_the_gitlab_job_write_the_reports_it_collects(
    run_inline: InlineRunner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installation is not run."""
    (job,) = yaml.safe_load((SAMPLE / ".gitlab-ci.yml").read_text()).values()
    *_, command = (line.split() for line in job["script"])
    monkeypatch.chdir(folder)
    (folder / "specs").symlink_to(SAMPLE / "specs")
    assert command[0] == "memtopo"
    assert run_inline(*command[1:], CI_PROJECT_DIR=str(folder)).status == 1
    reports = job["artifacts"]["reports"]
    assert len(forms.gitlab((folder / reports["codequality"]).read_text())) == 2
    assert forms.junit((folder / reports["junit"]).read_text()).failures == 2
    assert job["artifacts"]["when"] == "always"
