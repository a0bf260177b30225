"""The command: forms, reports, selections and variables, and what its exit status tells."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from memtopo.output.formats import FORMATS
from tests.cli.conftest import InlineRunner
from tests.helpers import ci_forms as forms
from tests.helpers.checked_specs import BAD, GOOD, TWO_GPUS, WARNED
from tests.helpers.command_line import run_shell, run_with_input

M = "--machine=h200x2"


@pytest.fixture
def specs(folder: Path) -> Path:
    """Four specs: one is right, one wrong, one has a warning, and one fits no machine with one GPU."""
    (folder / "specs").mkdir()
    for name, text in {"good": GOOD, "bad": BAD, "warned": WARNED, "two": TWO_GPUS}.items():
        (folder / "specs" / f"{name}.yaml").write_text(text)
    return folder


def test_files_folders_and_patterns_are_validated_together(run_inline: InlineRunner, specs: Path) -> None:
    """Each file is read once; a summary ends the text."""
    result = run_inline("validate", "specs/good.yaml", "specs/*.yaml", "specs", M)
    assert (result.status, result.err) == (1, "")
    assert result.out.splitlines()[-1] == "4 files on h200x2: 2 ok, 1 with warnings, 1 with errors"
    assert "1 error, 1 warning in specs/bad.yaml" in result.out.splitlines()


def test_standard_input_is_validated_beside_files(specs: Path) -> None:
    result = run_with_input(BAD.encode(), "validate", "specs/good.yaml", "-", M)
    assert (result.status, result.err) == (1, "")
    assert "<stdin>:4:31: error[MT301]" in result.out
    assert "1 ok" in result.out.splitlines()[-1]


def test_several_machines_give_a_table(run_inline: InlineRunner, specs: Path) -> None:
    """A machine given twice appears once."""
    result = run_inline("validate", "specs/good.yaml", "specs/two.yaml", "-m", "h100x1", "-m", "h200x2", "-m", "h100x1")
    assert result.status == 1
    assert result.out.splitlines()[-5:-2] == [
        "spec             h100x1   h200x2",
        "specs/good.yaml  ok       ok",
        "specs/two.yaml   1 error  ok",
    ]


def test_without_a_machine_the_output_names_what_was_not_checked(run_inline: InlineRunner, specs: Path) -> None:
    """In any format, on stderr."""
    for arguments in ([], ["--json"], ["-m", "h200x2"]):
        result = run_inline("validate", "specs/good.yaml", "-m", "none", *arguments)
        assert result.status == 0
        assert result.err.startswith("memtopo: not checked without a machine")
    assert run_inline("validate", "specs/good.yaml", "-m", "none").out == "specs/good.yaml: ok without a machine\n"
    bad = run_inline("validate", "specs", "-m", "none")
    assert (bad.status, bad.out.splitlines()[-1]) == (0, "4 files without a machine: 2 ok, 2 with warnings")


@pytest.mark.parametrize("command", ["plan", "draw", "apply", "probe"])
def test_only_validate_works_without_a_machine(run_inline: InlineRunner, specs: Path, command: str) -> None:
    result = run_inline(command, *(["specs/good.yaml"] if command != "probe" else []), "-m", "none")
    assert (result.status, result.out) == (2, "")
    assert "--machine h200x2" in result.err


@pytest.mark.parametrize(
    ("name", "arguments", "status"),
    [
        ("good", [], 0),
        ("warned", [], 0),
        ("warned", ["--strict"], 1),
        ("warned", ["--strict", "--ignore", "MT501"], 0),
        ("bad", ["--ignore=MT3"], 0),
        ("bad", ["--ignore=MT3", "--strict"], 1),
        ("bad", ["--select=MT4"], 0),
        ("bad", ["--select=MT4", "--select=MT301"], 1),
        ("two", ["-m", "h100x1"], 1),
        ("two", ["-m", "h100x1", "--ignore", "MT401"], 0),
    ],
)
@pytest.mark.parametrize("form", ["text", "json", "junit"])
def test_exit_status_depends_only_on_what_is_reported(
    run_inline: InlineRunner, specs: Path, name: str, arguments: list[str], status: int, form: str
) -> None:
    """It is the same in every format; with --strict warnings count."""
    where = [] if "-m" in arguments else [M]
    assert run_inline("validate", f"specs/{name}.yaml", *where, *arguments, "--format", form).status == status


@pytest.mark.parametrize("form", FORMATS)
def test_a_requested_format_is_alone_on_stdout(run_inline: InlineRunner, specs: Path, form: str) -> None:
    """A file receives the same."""
    result = run_inline(
        "validate", "specs", M, "--format", form, "--report", f"{form}=out", COLUMNS="80", GITHUB_ACTIONS="true"
    )
    assert (result.status, result.err) == (1, "")
    assert result.out == Path("out").read_text()
    assert result.out


def test_any_number_of_reports_are_written_whole(run_inline: InlineRunner, specs: Path) -> None:
    reports = [word for form in FORMATS for word in ("--report", f"{form}={form}.out")]
    result = run_inline("validate", "specs", M, *reports, "--format=concise")
    assert result.out == Path("concise.out").read_text()
    assert len(forms.sarif(Path("sarif.out").read_text())["results"]) == 3
    assert forms.junit(Path("junit.out").read_text()).failures == 1
    assert len(forms.gitlab(Path("gitlab.out").read_text())) == len(forms.github(Path("github.out").read_text())) == 3
    assert forms.diagnostics(Path("json.out").read_text())["errors"] == 1
    assert len(forms.markdown(Path("markdown.out").read_text())[0]) == 5


def test_a_report_replaces_no_spec_that_is_validated(run_inline: InlineRunner, specs: Path) -> None:
    del specs
    spec = Path("specs/good.yaml")
    before = spec.read_text()
    result = run_inline("validate", "specs", M, "--report", "sarif=other.out", "--report", f"json=specs/../{spec}")
    assert (result.status, spec.read_text()) == (2, before)
    assert "is no report" in result.err
    assert not Path("other.out").exists()
    spec.write_text("")
    assert "would replace a spec" in run_inline("validate", "specs", M, "--report", f"json={spec}").err


@pytest.mark.parametrize("form", FORMATS)
def test_a_report_replaces_reports_and_no_other_file(run_inline: InlineRunner, specs: Path, form: str) -> None:
    """Reports in all formats, of valid and invalid specs, of tables and of failures."""
    del specs
    for other in ("requests==2.0\n", "# Notes\n", '{"runs": []}', '<?xml version="1.0"?>\n<testsuites name="other">'):
        Path("other").write_text(other)
        result = run_inline("validate", "specs", M, "--report", "json=first", "--report", f"{form}=other")
        assert (result.status, Path("other").read_text(), Path("first").exists()) == (2, other, False)
        assert "'other' exists, and is no report" in result.err
    two, nowhere, unknown = "--machine=h100x1", "--machine=none", "--machine=h9000"
    for spec, *machines in ("good", M), ("bad", M), ("good", M, two), ("bad", M, two), ("good", nowhere), ("", unknown):
        for each in (form, "json", form):
            done = run_inline("validate", f"specs/{spec}.yaml", *machines, "--report", f"{each}=out")
            assert done.status in (0, 1, 3), done.err


def test_a_report_is_added_to_the_summary_of_a_job(run_inline: InlineRunner, specs: Path) -> None:
    """Another Markdown file that is no report is not replaced."""
    for text in ("# Notes", "## memtopo\n"):
        Path("summary.md").write_text(text)
        variables = {"GITHUB_STEP_SUMMARY": str(specs / "summary.md")}
        result = run_inline("validate", "specs/good.yaml", M, "--report", "markdown=summary.md", **variables)
        added = Path("summary.md").read_text().removeprefix(f"{text}\n\n")
        assert (result.status, added.split("\n")[0]) == (0, "## memtopo")
        assert len(forms.markdown(added)[0]) == 2
    Path("other.md").write_text("# Notes")
    assert run_inline("validate", "specs/good.yaml", M, "--report", "markdown=other.md", **variables).status == 2
    Path("summary.md").write_text("# Notes")
    assert run_inline("validate", "specs/good.yaml", M, "--report", "json=summary.md", **variables).status == 2
    assert run_inline("validate", "specs/good.yaml", M, "--report=json=twice", "--report=json=twice").status == 0


def test_an_unwritable_report_exits_with_4_and_others_are_written(run_inline: InlineRunner, specs: Path) -> None:
    result = run_inline("validate", "specs/good.yaml", M, "--report", "sarif=/nowhere/x", "--report", "junit=y")
    assert result.status == 4
    assert "'/nowhere/x' cannot be written" in result.err
    assert forms.junit(Path("y").read_text()).tests == 1


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("arguments", [["nothing/*.yaml", M], ["specs", "-m", "h9000"], ["specs", M, "--select=X"]])
def test_machine_readable_formats_are_whole_documents_on_failure(
    run_inline: InlineRunner, specs: Path, form: str, arguments: list[str]
) -> None:
    result = run_inline("validate", *arguments, "--format", form, "--report", f"{form}=out")
    assert result.status in (2, 3)
    assert result.err.startswith("memtopo: error: ")
    assert result.out == Path("out").read_text()
    message = result.err.splitlines()[0].removeprefix("memtopo: error: ")
    match form:
        case "text" | "concise":
            assert result.out == ""
        case "json":
            assert result.document["error"]["message"] == message
        case "sarif":
            (invocation,) = forms.sarif(result.out)["invocations"]
            assert (invocation["executionSuccessful"], invocation["exitCode"]) == (False, result.status)
        case "junit":
            assert forms.junit(result.out).errors == 1
        case "gitlab":
            assert forms.gitlab(result.out) == []
        case "github":
            assert forms.github(result.out)[0].data.splitlines()[0] == message
        case "markdown":
            assert forms.markdown(result.out) == ([], [])


def test_json_flag_equals_format_json(run_inline: InlineRunner, specs: Path) -> None:
    """This holds with diagnostics and on failure."""
    for arguments in (["specs", M], ["specs/good.yaml", M], ["nothing/*", M], ["specs", "-m", "h9000"]):
        short, long = (
            run_inline("validate", *arguments, "--json"),
            run_inline("validate", *arguments, "--format", "json"),
        )
        assert short == long
        assert short.document


def test_annotations_are_added_to_text_in_github_actions(run_inline: InlineRunner, specs: Path) -> None:
    """A requested format is alone."""
    result = run_inline("validate", "specs", M, GITHUB_ACTIONS="true", COLUMNS="80")
    assert result.status == 1
    text = [line for line in result.out.splitlines() if not line.startswith(("::error ", "::warning "))]
    assert text == run_inline("validate", "specs", M, COLUMNS="80").out.splitlines()
    assert [command.name for command in forms.github(result.out)] == ["error", "warning", "warning"]
    assert forms.github(run_inline("validate", "specs", M, "--format=text", GITHUB_ACTIONS="true").out) == []
    assert run_inline("validate", "specs", M, "--json", GITHUB_ACTIONS="true").document["errors"] == 1
    failed = run_inline("validate", "specs", "-m", "h9000", GITHUB_ACTIONS="true")
    assert [command.name for command in forms.github(failed.out)] == ["error"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "sariff"], "there is no format 'sariff'"),
        (["--report", "sarif"], "report 'sarif' names no file"),
        (["--report", "sarif="], "report 'sarif=' names no file"),
        (["--report", "sarif=-"], "report 'sarif=-' names no file"),
        (["--report", "xml=x"], "there is no format 'xml'"),
        (["--report", "sarif=x", "--report", "junit=x"], "two reports go to 'x'"),
        (["--json", "--format", "sarif"], "--json and --format sarif are two formats for one output"),
        (["--select", "MT999"], "there is no code 'MT999'"),
        (["--ignore", "MT001"], "MT001 cannot be ignored: what is not read is not checked"),
    ],
)
def test_wrong_flags_of_validate_exit_with_2_and_one_line(
    run_inline: InlineRunner, specs: Path, arguments: list[str], message: str
) -> None:
    result = run_inline("validate", "specs", M, *arguments)
    assert result.status == 2
    assert result.err.splitlines()[0] == f"memtopo: error: {message}"


def test_every_flag_of_validate_has_a_variable(run_inline: InlineRunner, specs: Path) -> None:
    """Several values are separated by spaces."""
    flags = run_inline(
        *("validate", "specs", "-m", "h100x1", "-m", "h200x2", "--select", "MT3", "--select", "MT5", "--strict"),
        *("--ignore", "MT501", "--format", "concise", "--report", "sarif=a", "--report", "junit=b"),
    )
    written = Path("a").read_text(), Path("b").read_text()
    variables = run_inline(
        "validate",
        "specs",
        MEMTOPO_MACHINE="h100x1 h200x2",
        MEMTOPO_SELECT="MT3 MT5",
        MEMTOPO_STRICT="1",
        MEMTOPO_IGNORE="MT501",
        MEMTOPO_FORMAT="concise",
        MEMTOPO_REPORT="sarif=a junit=b",
    )
    assert flags == variables
    assert written == (Path("a").read_text(), Path("b").read_text())
    assert flags.out.startswith("specs/bad.yaml:4:31: error[MT301]")


def test_a_variable_that_is_a_path_with_spaces_is_one_machine(run_inline: InlineRunner, specs: Path) -> None:
    run_inline("probe", M, "-o", "our machine.json")
    assert run_inline("validate", "specs/good.yaml", MEMTOPO_MACHINE="./our machine.json").status == 0


def test_arguments_after_two_dashes_are_names(folder: Path) -> None:
    for name in ("--json", "-m"):
        (folder / name).write_text(GOOD)
    result = run_shell(f"memtopo validate {M} --format=concise -- --json -m")
    assert (result.status, result.out) == (0, "")


def test_a_pipe_can_be_validated_on_several_machines(folder: Path) -> None:
    (folder / "good").write_text(GOOD)
    result = run_shell("memtopo validate <(cat good) -m h100x1 -m h200x2")
    assert result.status == 0


def test_no_format_imports_rich_cuda_or_a_driver(specs: Path) -> None:
    script = (
        "import sys; from memtopo.cli.app import run\n"
        "for form in sys.argv[1:]:\n"
        "    run(['validate', 'specs', '-m', 'h200x2', '--format', form])\n"
        "    slow = {'rich', 'cuda', 'memtopo.drivers.sim', 'memtopo.drivers.cuda'} & set(sys.modules)\n"
        "    assert not slow, (form, slow)"
    )
    result = run_shell(f'"{sys.executable}" -c "$@"', script, *FORMATS)
    assert result.status == 0, result.err
    assert "warning" in result.out
