"""action.yml: its form, and its steps run by bash as the runner runs them, without a network."""

from __future__ import annotations

import json
import os
import re
import site
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.helpers import ci_forms as forms
from tests.helpers.command_line import environment, run_memtopo, write_program
from tests.helpers.specs import ROOT
from tests.helpers.tools import path_with_quick_compiler

ACTION: Any = yaml.safe_load((ROOT / "action.yml").read_text())
INSTALL, VALIDATE, COMPARE, COMMENT = ACTION["runs"]["steps"]
DEFAULTS = {name: given.get("default", "") for name, given in ACTION["inputs"].items()}


def test_action_file_fits_the_schema_and_describes_inputs_and_outputs() -> None:
    schema = resources.files("check_jsonschema").joinpath("builtin_schemas/vendor/github-actions.json").read_text()
    Draft7Validator(json.loads(schema)).validate(ACTION)
    assert ACTION["runs"]["using"] == "composite"
    assert all(each["description"] for each in (*ACTION["inputs"].values(), *ACTION["outputs"].values()))


SECTION = (ROOT / "docs" / "ci.md").read_text().partition("### The action")[2].partition("\n## ")[0]


def test_page_has_a_workflow_with_the_action() -> None:
    (text,) = re.findall(r"^```yaml github\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
    schema = resources.files("check_jsonschema").joinpath("builtin_schemas/vendor/github-workflows.json").read_text()
    # YAML 1.1 of this reader takes the key `on` for a boolean.
    workflow = {"on" if key is True else key: value for key, value in yaml.safe_load(text).items()}
    Draft7Validator(json.loads(schema)).validate(workflow)
    assert workflow["permissions"] == {"contents": "read", "pull-requests": "write"}
    *_, used = workflow["jobs"]["memtopo"]["steps"]
    assert used["with"].keys() < DEFAULTS.keys()


def test_page_has_a_row_with_the_default_of_each_input() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", SECTION, re.MULTILINE))
    assert rows.keys() == DEFAULTS.keys()
    assert {name: rows[name] for name, default in DEFAULTS.items() if default} == {
        name: f"`{default}`" for name, default in DEFAULTS.items() if default
    }


def test_inputs_reach_scripts_only_through_variables() -> None:
    """Every input is used."""
    for each in ACTION["runs"]["steps"]:
        assert "${{" not in each["run"]
    used = re.findall(r"\binputs\.(\w+) ", (ROOT / "action.yml").read_text())
    assert set(used) == set(ACTION["inputs"])


def step(which: Any, folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run a step as the runner does."""
    given = DEFAULTS | inputs
    environ = which.get("env", {})
    for name, value in environ.items():
        inputs[name] = re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: given[match[1]], value)
        inputs[name] = re.sub(r"\$\{\{ github\..* \}\}", "17", inputs[name])
    runner = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_REPOSITORY": "owner/name",
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "GITHUB_WORKSPACE": str(folder),
        "RUNNER_TEMP": str(folder / "temp"),
    }
    variables = {name: inputs[name] for name in environ} | {
        name: value for name, value in inputs.items() if name.startswith(("PIP_", "PYTHON", "PATH"))
    }
    script = folder / "step.sh"
    script.write_text(which["run"])
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
    return subprocess.run(
        command, cwd=folder, env=environment() | runner | variables, capture_output=True, text=True, check=False
    )


@pytest.fixture
def repository(folder: Path) -> Path:
    """Specs of the sample, and memtopo at the path where the first step installs it."""
    (folder / "specs").symlink_to(ROOT / "examples" / "ci" / "specs")
    write_program(folder / "temp" / "memtopo" / "bin" / "memtopo")
    return folder


def test_validation_step_annotates_lines_and_fails(repository: Path) -> None:
    """It leaves a summary and the log that its output names."""
    done = step(VALIDATE, repository, machines="h100x1 h200x2")
    assert (done.returncode, done.stderr) == (1, "")
    assert [command.properties["line"] for command in forms.github(done.stdout)] == ["5", "11"]
    assert len(forms.sarif((repository / DEFAULTS["sarif"]).read_text())["results"]) == 2
    rows, _ = forms.markdown((repository / "summary.md").read_text())
    assert rows[0] == ["spec", "h100x1", "h200x2"]
    assert ACTION["outputs"]["sarif"]["value"] == "${{ inputs.sarif }}"


def test_validation_step_passes_for_valid_specs(repository: Path) -> None:
    """The log exists all the same."""
    done = step(VALIDATE, repository, machines="h200x2", paths="specs/cache.yaml\n", sarif="other.sarif")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert forms.sarif((repository / "other.sarif").read_text())["results"] == []


def test_paths_are_separated_by_lines(repository: Path) -> None:
    """Paths may contain spaces; patterns reach memtopo as they are."""
    (repository / "a b").mkdir()
    (repository / "a b" / "c d.yaml").write_text("a: [")
    done = step(VALIDATE, repository, machines="h200x2", paths="a b\n\nspecs/c*.yaml\n**/hand*.yaml\n-x*")
    assert done.returncode == 3
    done = step(VALIDATE, repository, machines="h200x2", paths="a b\n\nspecs/c*.yaml\nspecs/*over.yaml")
    assert {command.properties["file"] for command in forms.github(done.stdout)} == {
        "a b/c d.yaml",
        "specs/handover.yaml",
    }


@pytest.mark.parametrize("evil", ["$(touch owned) `touch owned`; touch owned", "'; touch owned; '\"; touch owned; \""])
def test_hostile_inputs_are_no_commands(repository: Path, evil: str) -> None:
    step(VALIDATE, repository, paths=evil, machines=evil, strict=evil, sarif=evil)
    assert not (repository / "owned").exists()


@pytest.mark.parametrize("name", ["paths", "machines", "strict", "sarif"])
def test_hostile_inputs_are_names_and_no_flags(repository: Path, name: str) -> None:
    flag = "--report=text=owned"
    given = {"machines": "h200x2", "paths": "specs/cache.yaml"}
    given[name] = f"{given[name]}\n{flag}" if name == "paths" else flag
    step(VALIDATE, repository, **given)
    assert not (repository / "owned").exists()


@pytest.mark.parametrize(("strict", "status"), [("true", 1), ("false", 0)])
def test_strict_makes_warnings_fail_the_step(repository: Path, strict: str, status: int) -> None:
    (repository / "w.yaml").write_text("memtopo: 1\nname: w\nchunks: {c: {location: gpu0, size: 2MiB}}\n")
    done = step(VALIDATE, repository, machines="h200x2", paths="w.yaml", strict=strict)
    assert done.returncode == status
    assert [command.name for command in forms.github(done.stdout)] == ["warning"]


def test_without_machines_each_spec_is_validated_on_its_own(repository: Path) -> None:
    (repository / "w.yaml").write_text("memtopo: 1\nname: w\nmachines: h100x1\nranges: {a: {size: 2MiB}}\n")
    done = step(VALIDATE, repository, paths="w.yaml")
    assert done.returncode == 0, done.stderr
    assert forms.markdown((repository / "summary.md").read_text())[0] == [["spec", "h100x1"], ["w.yaml", "1 warning"]]


@pytest.fixture
def golden(repository: Path) -> Path:
    """A plan in a folder, and its spec, which has changed since."""
    (repository / "plans").mkdir()
    spec = repository / "cache.yaml"
    spec.write_text(Path(repository / "specs" / "cache.yaml").read_text())
    done = run_memtopo("plan", spec, "-m", "h100x1", "-o", repository / "plans" / "cache.json")
    assert done.status == 0, done.err
    plan = repository / "plans" / "cache.json"
    plan.write_text(plan.read_text().replace(str(spec), "cache.yaml"))
    spec.write_text(spec.read_text().replace("64MiB", "128MiB").replace("16MiB", "32MiB"))
    return repository


@pytest.mark.parametrize(("strict", "status"), [("false", 0), ("true", 1)])
def test_comparison_step_adds_the_difference_to_the_summary(golden: Path, strict: str, status: int) -> None:
    """With strict, a difference fails the job."""
    (golden / "summary.md").write_text("before\n")
    done = step(COMPARE, golden, golden="plans", strict=strict)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")
    body = (golden / "temp" / "memtopo.md").read_text()
    assert (golden / "summary.md").read_text() == f"before\n{body}"
    assert body.startswith("## plans&#47;cache&#46;json &#8594; cache&#46;yaml\n")
    assert [line for line in body.splitlines() if line.startswith("###")] == ["### before", "### after"]


@pytest.mark.parametrize("golden_path", ["nowhere", "specs", "--help", "$(touch owned)"])
def test_comparison_step_fails_where_nothing_is_compared(golden: Path, golden_path: str) -> None:
    done = step(COMPARE, golden, golden=golden_path)
    assert done.returncode == 2, done.stderr
    message = "contains no saved plan" if golden_path == "specs" else "does not exist"
    assert message in (golden / "summary.md").read_text()
    assert not (golden / "owned").exists()


def test_comparison_step_fails_for_a_spec_that_is_refused(golden: Path) -> None:
    """Or for a plan that is damaged."""
    (golden / "cache.yaml").write_text("memtopo: 1\nname: cache\nranges: {a: {size: 3MB}}\n")
    done = step(COMPARE, golden, golden="plans")
    assert (done.returncode, "error[MT" in done.stderr) == (1, True)
    (golden / "plans" / "a → b.json").write_text('{"memtopo_plan": 1}')
    (golden / "plans" / "cache.json").unlink()
    done = step(COMPARE, golden, golden="plans")
    assert (done.returncode, "is damaged" in done.stderr) == (1, True)


def test_plans_are_compared_and_commented_on_where_an_earlier_step_has_failed() -> None:
    """Where nothing was compared, the comment says so: that of an earlier run would be out of date."""
    assert COMPARE["if"] == "${{ !cancelled() && inputs.golden != '' }}"
    assert COMMENT["if"] == f"{COMPARE['if'].removesuffix(' }}')} && github.event_name == 'pull_request' }}}}"


def test_comment_step_has_the_text_of_the_comparison_and_does_not_fail_the_job(golden: Path) -> None:
    """Where the comment cannot be written, as here, the log has a warning."""
    step(COMPARE, golden, golden="plans")
    done = step(COMMENT, golden, PATH="/usr/bin:/bin")
    assert [each.name for each in forms.github(done.stdout)] == ["warning"]
    body, compared = (golden / "temp" / "memtopo.md.body").read_text(), (golden / "temp" / "memtopo.md").read_text()
    assert (done.returncode, body) == (0, f"<!-- memtopo -->\n{compared}")


GH = """#!/bin/sh
case "$*" in
  *--jq*) cat id ;;
  *) echo "$*" >> calls ;;
esac
"""
"""A `gh` that lists the comment whose number is in the file `id`, and keeps all other calls."""


@pytest.mark.parametrize("number", ["", "5\n"])
@pytest.mark.parametrize("text", ["## a\n", "nothing differs\n", ""])
def test_comment_step_edits_its_comment_and_makes_none_if_nothing_differs(
    repository: Path, number: str, text: str
) -> None:
    gh = repository / "bin" / "gh"
    gh.parent.mkdir()
    gh.write_text(GH)
    gh.chmod(0o755)
    (repository / "id").write_text(number)
    (repository / "calls").touch()
    (repository / "temp" / "memtopo.md").write_text(text)
    done = step(COMMENT, repository, PATH=f"{repository / 'bin'}:/usr/bin:/bin")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    file = repository / "temp" / "memtopo.md.body"
    edited = f"api --silent --method PATCH repos/owner/name/issues/comments/5 --field body=@{file}\n"
    made = f"pr comment 17 --repo owner/name --body-file {file}\n"
    expected = edited if number else "" if text == "nothing differs\n" else made
    assert (repository / "calls").read_text() == expected
    shown = text or "The saved plans were not compared: see the log of the job.\n"
    assert file.read_text() == f"<!-- memtopo -->\n{shown}"


TAKEN = (
    "pip", "venv", "ensurepip", "sitecustomize", "usercustomize", "hatchling", "hatch_build", "memtopo", "typer",
    "typing", "json", "subprocess", "encodings",
)  # fmt: skip
"""Modules of Python and others that the steps import."""


def test_installation_step_installs_the_files_of_the_action_and_no_module_of_the_checkout_runs(folder: Path) -> None:
    """They are apart from everything else on the runner, at the path where the second step finds them."""
    for name in TAKEN:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'owned')!r}, 'a').write({name!r})")
    packages = os.pathsep.join(site.getsitepackages())  # with what builds memtopo: nothing is fetched
    python = folder / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f"""#!/bin/sh
{sys.executable} "$@" && echo {packages} > "$(echo {folder}/temp/memtopo/lib/python*/site-packages)/offline.pth"
""")
    python.chmod(0o755)
    offline = {
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_IGNORE_INSTALLED": "1",
        "PIP_NO_COMPILE": "1",
    }
    hostile = {"PYTHONPATH": f"{folder}::.", "PYTHONPYCACHEPREFIX": str(folder)}
    done = step(INSTALL, folder, PATH=path_with_quick_compiler(python.parent), **hostile, **offline)
    assert done.returncode == 0, done.stderr
    assert [*(folder / "temp" / "memtopo").glob("lib/python*/site-packages/memtopo/cli/__init__.py")]
    (folder / "specs").symlink_to((ROOT / "examples" / "ci" / "specs").resolve())
    done = step(VALIDATE, folder, machines="h200x2", paths="specs/cache.yaml", **hostile)
    assert (done.returncode, done.stderr) == (0, "")
    done = step(COMPARE, folder, golden="specs", **hostile)
    assert done.returncode == 2, done.stderr
    assert not (folder / "owned").exists()
