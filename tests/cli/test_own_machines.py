"""`machines:` of specs: one command validates a folder whose specs differ in GPUs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from memtopo.machine import dump, load
from tests.cli.conftest import InlineRunner
from tests.helpers import ci_forms as forms
from tests.helpers.checked_specs import GOOD, TWO_GPUS


def of(text: str, machines: str) -> str:
    return text.replace("ranges", f"machines: {machines}\nranges")


@pytest.fixture
def specs(folder: Path) -> Path:
    (folder / "one.yaml").write_text(of(GOOD, "h100x1"))
    (folder / "two.yaml").write_text(of(TWO_GPUS, "[h200x2, h200x4]"))
    return folder


def test_each_spec_is_validated_on_its_machines(run_inline: InlineRunner, specs: Path) -> None:
    done = run_inline("validate", ".")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "spec      h100x1  h200x2  h200x4",
        "one.yaml  ok",
        "two.yaml          ok      ok",
        "",
        "2 files on 3 machines: 2 ok",
    ]


def test_named_machines_take_precedence(run_inline: InlineRunner, specs: Path) -> None:
    """In a variable as well, and without a warning: it is asked what would be there."""
    for machines, variables in ((("-m", "h100x1"), {}), ((), {"MEMTOPO_MACHINE": "h100x1"})):
        done = run_inline("validate", ".", *machines, "--json", **variables)
        assert done.status == 1
        results = {each["file"]: (each["machine"], each["errors"]) for each in done.document["results"]}
        assert results == {"one.yaml": ("h100x1", 0), "two.yaml": ("h100x1", 1)}
        assert done.document["warnings"] == 0


def test_reports_have_each_spec_on_its_own_machines_only(run_inline: InlineRunner, specs: Path) -> None:
    (specs / "two.yaml").write_text(of(TWO_GPUS, "[h100x1, h200x4]"))
    done = run_inline("validate", ".", "--report", "junit=j.xml", "--report", "markdown=m.md", "--json")
    assert done.status == 1
    suites = {each.name: [case.name for case in each] for each in forms.junit(Path("j.xml").read_text())}
    assert suites == {"h100x1": ["one.yaml", "two.yaml"], "h200x4": ["two.yaml"]}
    rows, _ = forms.markdown(Path("m.md").read_text())
    assert rows == [["spec", "h100x1", "h200x4"], ["two.yaml", "1 error", "ok"], ["one.yaml", "ok", ""]]
    (fault,) = done.document["diagnostics"]
    assert (fault["code"], fault["machines"]) == ("MT401", ["h100x1"])


def test_combinations_of_settings_are_of_the_machines_of_each_spec(run_inline: InlineRunner, specs: Path) -> None:
    text = GOOD.replace("size: 2MiB}}\nmap", "size: $size}}\nmap").replace("ranges", "params: {size: 2MiB}\nranges")
    (specs / "one.yaml").write_text(of(text, "h100x1"))
    done = run_inline("validate", "one.yaml", "--set", "size=2MiB,3MiB", "--json")
    assert [(each["machine"], each["ok"]) for each in done.document["results"]] == [
        ("h100x1 with size=2MiB", True),
        ("h100x1 with size=3MiB", False),
    ]


def test_a_file_of_a_machine_is_found_from_the_folder_of_the_spec(run_inline: InlineRunner, specs: Path) -> None:
    """One that cannot be read is an error at its line; the spec is validated on the others."""
    (specs / "sub").mkdir()
    (specs / "ours.json").write_text(dump(load("h200x2")))
    (specs / "sub" / "two.yaml").write_text(of(TWO_GPUS, "../ours.json"))
    done = run_inline("validate", "sub")
    assert (done.status, done.out) == (0, "sub/two.yaml: ok on ours.json\n")
    (specs / "sub" / "two.yaml").write_text(of(TWO_GPUS, "[h100x1, ../theirs.json]"))
    done = run_inline("validate", "sub", "--format", "concise")
    assert (done.status, done.out.splitlines()) == (
        1,
        [
            "sub/two.yaml:3:20: error[MT205]: machine file 'theirs.json' cannot be read: no such file or directory",
            "sub/two.yaml:5:26: error[MT401]: the machine has no gpu1",
        ],
    )


@pytest.mark.parametrize(
    ("machines", "code"), [("h200", "MT205"), ("{}", "MT103"), ("[]", "MT103"), ("./no.json", "MT205")]
)
def test_a_spec_without_a_known_machine_is_an_error_beside_others(
    run_inline: InlineRunner, specs: Path, machines: str, code: str
) -> None:
    """It is validated without a machine, and no GPU is needed."""
    (specs / "one.yaml").write_text(of(GOOD, machines))
    done = run_inline("validate", ".", "--json")
    assert [each["code"] for each in done.document["diagnostics"]] == [code]
    assert [(each["file"], each["ok"]) for each in done.document["results"]] == [
        ("one.yaml", False),
        ("two.yaml", True),
        ("two.yaml", True),
    ]


def test_a_spec_without_a_known_machine_is_in_a_column_without_a_machine(run_inline: InlineRunner, specs: Path) -> None:
    (specs / "one.yaml").write_text(of(GOOD, "h200"))
    done = run_inline("validate", ".", "--report", "markdown=m.md")
    assert done.out.splitlines()[-5:] == [
        "spec      no machine  h200x2  h200x4",
        "one.yaml  1 error",
        "two.yaml              ok      ok",
        "",
        "2 files on 2 machines: 1 ok, 1 with errors",
    ]
    assert forms.markdown(Path("m.md").read_text())[0][0] == ["spec", "no machine", "h200x2", "h200x4"]


def test_without_a_gpu_a_spec_that_names_no_machines_is_an_error_beside_others(
    run_inline: InlineRunner, specs: Path
) -> None:
    """The others are validated; what needs no machine is checked in that spec, too."""
    (specs / "one.yaml").write_text(GOOD)
    done = run_inline("validate", ".", CUDA_VISIBLE_DEVICES="")
    assert (done.status, done.err) == (1, "")
    assert done.out.startswith("one.yaml: error[MT205]: the spec names no machines, and no ")
    assert "= help: add 'machines: [h200x2]' to the spec, or use --machine h200x2" in " ".join(done.out.split())
    assert [line.split() for line in done.out.splitlines()[-5:-2]] == [
        ["spec", "no", "machine", "h200x2", "h200x4"],
        ["one.yaml", "1", "error"],
        ["two.yaml", "ok", "ok"],
    ]


@pytest.mark.parametrize("arguments", [(), ("--fix",), ("--diff",)])
def test_without_a_gpu_and_without_machines_nothing_is_checked(
    run_inline: InlineRunner, specs: Path, arguments: tuple[str, ...]
) -> None:
    """The error names the first file."""
    (specs / "two.yaml").write_text(TWO_GPUS)
    (specs / "one.yaml").write_text(GOOD)
    done = run_inline("validate", ".", *arguments, CUDA_VISIBLE_DEVICES="")
    assert (done.status, done.out) == (3, "")
    first, hint = done.err.splitlines()
    assert first.startswith("memtopo: error: 'one.yaml' names no machines, and no ")
    assert hint == "memtopo: hint: add 'machines: [h200x2]' to the spec, or use --machine h200x2"


def test_a_file_that_is_no_spec_needs_no_machine(run_inline: InlineRunner, specs: Path) -> None:
    (specs / "one.yaml").write_text("a: [")
    done = run_inline("validate", ".", "--json")
    assert [(each["file"], each["ok"]) for each in done.document["results"][:1]] == [("one.yaml", False)]
    assert [each["code"] for each in done.document["diagnostics"]] == ["MT005"]


def test_a_near_miss_is_corrected(run_inline: InlineRunner, specs: Path) -> None:
    (specs / "one.yaml").write_text(of(GOOD, "[h200x4, H100x1]"))
    assert run_inline("validate", "one.yaml", "--fix").status == 0
    assert "machines: [h200x4, h100x1]\n" in (specs / "one.yaml").read_text()


def test_a_saved_plan_is_validated_on_the_machines_of_its_spec(run_inline: InlineRunner, specs: Path) -> None:
    run_inline("plan", "one.yaml", "-m", "h200x2", "-o", "one.json")
    done = run_inline("validate", "one.json")
    assert (done.status, done.out) == (0, "one.json: ok on h100x1\n")


def test_what_makes_nothing_uses_the_first_machine_where_there_is_no_gpu(run_inline: InlineRunner, specs: Path) -> None:
    """Without --machine; what makes a layout does not, but names it."""
    for command in (("plan", "two.yaml"), ("draw", "two.yaml"), ("diff", "two.yaml", "one.yaml")):
        done = run_inline(*command)
        assert done.out.splitlines()[0].endswith("  on h200x2 (simulated)"), done
        assert done.err.splitlines()[0].startswith("memtopo: using h200x2, the first machine of the spec, because no ")
    done = run_inline("plan", "two.yaml", "-m", "./nowhere.json")
    assert (done.status, done.out) == (3, "")
    done = run_inline("apply", "two.yaml")
    assert (done.status, done.out) == (3, "")
    assert done.err.splitlines()[-1] == "memtopo: hint: the spec is for h200x2: use --machine h200x2"


def test_a_spec_is_applied_on_another_machine_with_a_warning(run_inline: InlineRunner, specs: Path) -> None:
    done = run_inline("apply", "one.yaml", "-m", "h200x2", "--json")
    assert (done.status, json.loads(done.out)["outcome"]) == (0, "ok")
    assert "one.yaml:3:11: warning[MT507]: the spec is for h100x1, and h200x2 has other GPUs" in done.err


def test_errors_of_machine_files_are_selected_and_ignored_as_all_others(run_inline: InlineRunner, specs: Path) -> None:
    (specs / "two.yaml").write_text(of(TWO_GPUS, "[h200x2, theirs.json]"))
    found = run_inline("validate", "two.yaml", "--format", "concise")
    assert (found.status, found.out.count("error[MT205]")) == (1, 1)
    for arguments in (("--ignore", "MT205"), ("--select", "MT4")):
        assert run_inline("validate", "two.yaml", *arguments).status == 0
    (specs / "two.yaml").write_text(of(TWO_GPUS, "[h200x2, theirs.json]  # memtopo: ignore[MT205]"))
    found = run_inline("validate", "two.yaml")
    assert (found.status, found.out) == (0, "two.yaml: ok on h200x2; 1 diagnostic ignored by comments\n")


def test_the_machines_of_a_spec_may_be_a_parameter(run_inline: InlineRunner, specs: Path) -> None:
    (specs / "two.yaml").write_text(of(TWO_GPUS, "$m").replace("ranges", "params: {m: h200x2}\nranges"))
    done = run_inline("validate", "two.yaml", "--set", "m=h200x4")
    assert (done.status, done.out) == (0, "two.yaml: ok on h200x4\n")


def test_files_without_a_machine_stop_no_corrections_of_others(run_inline: InlineRunner, specs: Path) -> None:
    (specs / "none.yaml").write_text(GOOD)
    (specs / "two.yaml").write_text(of(TWO_GPUS, "h200x2").replace("location", "locatoin", 1))
    assert run_inline("validate", "none.yaml", "two.yaml", "--diff").status == 1
    done = run_inline("validate", "none.yaml", "two.yaml", "--fix", "--format", "concise")
    assert done.status == 1
    assert "two.yaml: corrected 1 error" in done.err
    assert "none.yaml" in done.out
    assert "locatoin" not in (specs / "two.yaml").read_text()


def test_a_pipe_is_no_machine_of_a_spec(run_inline: InlineRunner, specs: Path) -> None:
    os.mkfifo(specs / "pipe.json")
    (specs / "two.yaml").write_text(of(TWO_GPUS, "[h200x2, pipe.json]"))
    done = run_inline("validate", "two.yaml", "--format", "concise")
    assert (done.status, "machine file 'pipe.json' is a pipe" in done.out) == (1, True)


def test_a_plan_names_the_machine_file_that_cannot_be_read(run_inline: InlineRunner, specs: Path) -> None:
    (specs / "two.yaml").write_text(of(TWO_GPUS, "theirs.json"))
    done = run_inline("plan", "two.yaml")
    assert (done.status, "theirs.json" in done.err) == (3, True)
    (specs / "two.yaml").write_text(of(TWO_GPUS, "[theirs.json, h200x2]"))
    done = run_inline("apply", "two.yaml")
    assert (done.status, "hint: the spec is for h200x2: use --machine h200x2" in done.err) == (3, True)


def test_files_without_a_machine_are_counted_apart_with_settings(run_inline: InlineRunner, specs: Path) -> None:
    (specs / "none.yaml").write_text(of(GOOD, "[theirs.json]").replace("ranges", "params: {n: 1}\nranges"))
    (specs / "one.yaml").write_text(of(GOOD, "h100x1").replace("ranges", "params: {n: 1}\nranges"))
    done = run_inline("validate", "none.yaml", "one.yaml", "--set", "n=2,3")
    assert "none.yaml without a machine with n=2" in done.out
    assert "2 files on 1 machine with 2 combinations of settings" in done.out
