"""Settings of parameters: `--set`, variables, and the plans and held layouts that keep them."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from memtopo.cli.options import MOST_COMBINATIONS, Settings, settings
from memtopo.common.errors import UsageError
from tests.cli.conftest import InlineRunner, held
from tests.helpers.specs import document

SPEC = """\
memtopo: 1
name: cache
params: {pages: 2, page: 2MiB}
ranges: {kv: {size: $pages * $page}}
chunks: {page: {location: gpu0, size: $page, count: $pages}}
map: {kv: [page]}
access: {kv: {gpu0: rw}}
"""
SHARED = """\
memtopo: 1
name: cache
params: {pages: 2, page: 2MiB}
processes:
  server:
    ranges: {w: {size: $pages * $page}}
    chunks: {w: {location: gpu0, size: $page, count: $pages, handles: fd}}
    map: {w: [w]}
    access: {w: {gpu0: rw}}
    exports: {w: {chunk: w, via: fd}}
  reader:
    imports: {w: {from: server.w}}
    ranges: {v: {size: $pages * $page}}
    map: {v: [w]}
    access: {v: {gpu0: r}}
"""
M = "--machine=h200x2"


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A spec with parameters, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC)
    return "spec.yaml"


def test_a_setting_replaces_a_parameter_of_every_command_that_reads_a_spec(run_inline: InlineRunner, spec: str) -> None:
    planned = run_inline("plan", spec, M, "--json", "--set", "pages=8").document
    assert planned["plan"]["params"] == {"pages": "8", "page": "2MiB"}
    assert planned["plan"]["memory"] == {"gpu0": 16 << 20}
    assert planned["spec"]["settings"] == {"pages": "8"}
    drawn = run_inline("draw", spec, M, "--json", "--set", "pages=8", "--set", "page=4MiB").document
    assert drawn["picture"]["memory"][0]["used"] == 32 << 20
    applied = run_inline("apply", spec, M, "--json", "--set", "pages=$page / 2MiB * 6").document
    assert (applied["outcome"], applied["plan"]["params"]["pages"]) == ("ok", "6")
    assert run_inline("diff", spec, spec, M, "--set", "pages=8").status == 0
    assert run_inline("validate", spec, M, "--set", "pages=8").status == 0


def test_plans_and_reports_list_the_parameters(run_inline: InlineRunner, spec: str) -> None:
    for command in ("plan", "apply"):
        assert "  parameters      pages=8 page=2MiB\n" in run_inline(command, spec, M, "--set", "pages=8").out


def test_an_option_takes_precedence_over_a_variable_which_may_be_for_other_specs(
    run_inline: InlineRunner, spec: str
) -> None:
    def params(*options: str, **variables: str) -> dict[str, str]:
        found: dict[str, str] = run_inline("plan", spec, M, "--json", *options, **variables).document["plan"]["params"]
        return found

    assert params(MEMTOPO_SET_pages="4", MEMTOPO_SET_layers="3") == {"pages": "4", "page": "2MiB"}
    assert params(MEMTOPO_SET="pages=4 page='$pages * 1MiB' layers=3") == {"pages": "4", "page": "4MiB"}
    assert params("--set=pages=8", MEMTOPO_SET_pages="4", MEMTOPO_SET="page=4MiB") == {"pages": "8", "page": "2MiB"}


def test_a_typed_name_that_is_not_declared_is_an_error_of_the_spec(run_inline: InlineRunner, spec: str) -> None:
    wrong = run_inline("plan", spec, M, "--set", "pgaes=8")
    assert (wrong.status, "error[MT901]" in wrong.err, "did you mean pages?" in wrong.err) == (1, True, True)


@pytest.mark.parametrize("words", [["pages"], ["=3"], ["pages=3", "pages=4"]])
def test_a_malformed_setting_is_wrong_usage(run_inline: InlineRunner, spec: str, words: list[str]) -> None:
    options = [f"--set={word}" for word in words]
    assert run_inline("plan", spec, M, *options).status == 2


def test_validate_checks_every_combination_and_names_those_that_fail(run_inline: InlineRunner, spec: str) -> None:
    done = run_inline("validate", spec, M, "--json", "--set", "pages=1,100,100000", "--set", "page=2MiB,3MiB")
    results = {each["machine"]: each["ok"] for each in done.document["results"]}
    assert results == {
        "h200x2 with pages=1 page=2MiB": True,
        "h200x2 with pages=1 page=3MiB": False,
        "h200x2 with pages=100 page=2MiB": True,
        "h200x2 with pages=100 page=3MiB": False,
        "h200x2 with pages=100000 page=2MiB": False,
        "h200x2 with pages=100000 page=3MiB": False,
    }
    (too_much,) = (each for each in done.document["diagnostics"] if each["code"] == "MT402")
    assert too_much["machines"] == ["h200x2 with pages=100000 page=2MiB"]


def test_a_single_value_is_not_named_in_results(run_inline: InlineRunner, spec: str) -> None:
    done = run_inline("validate", spec, M, "--set", "pages=1,100000", "--set", "page=2MiB")
    assert "= note: only on h200x2 with pages=100000\n" in done.out
    assert "1 file on 1 machine with 2 combinations of settings: 1 with errors" in done.out
    assert run_inline("validate", spec, M, "--set", "pages=1").out == "spec.yaml: ok on h200x2\n"


def test_combinations_are_bounded() -> None:
    many = ",".join(map(str, range(MOST_COMBINATIONS)))
    assert len(settings([f"a={many}", "b=1,1"]).combinations()) == MOST_COMBINATIONS
    with pytest.raises(UsageError, match="2,000 combinations of settings are more than the 1,000"):
        settings([f"a={many}", "b=1,2"]).combinations()


def test_combinations_keep_apart_what_was_typed_and_have_the_moment_of_a_record() -> None:
    given = Settings({"a": "1,2"}, {"a": "5", "b": "3"}, "end")
    assert given.combinations() == tuple(Settings({"a": each}, {"b": "3"}, "end") for each in ("1", "2"))


def test_a_saved_plan_keeps_its_settings(run_inline: InlineRunner, spec: str) -> None:
    assert run_inline("plan", spec, M, "--set=pages=8", "-o", "plan.json").status == 0
    done = run_inline("apply", "plan.json", M, "--json", MEMTOPO_SET_pages="3")
    assert (done.document["outcome"], done.document["plan"]["params"]["pages"]) == ("ok", "8")
    refused = run_inline("apply", "plan.json", M, "--set=pages=8")
    assert (refused.status, "keeps the values with which it was made" in refused.err) == (2, True)
    assert run_inline("validate", "plan.json", M).status == 0
    assert run_inline("validate", "plan.json", M, "--set=page=3MiB").status == 1
    saved = Path("plan.json").read_text()
    Path("plan.json").write_text(saved.replace('"pages": "8"', '"pages": "4"'))
    assert run_inline("apply", "plan.json", M).status == 7


def test_settings_leave_a_document_the_others_of_its_own() -> None:
    own = document("params: {a: 1, b: 2, c: 3, d: 4}\ndevices: {w: $a, x: $b, y: $c, z: $d}").with_settings(
        {"a": "10", "b": "20", "c": "30"}
    )
    given = Settings({"c": "typed"}, {"b": "variable", "c": "variable", "other": "x"})
    assert given.applied(own).values == {"a": "10", "b": "variable", "c": "typed", "d": "4"}


def test_a_list_of_values_takes_precedence_over_variables_of_single_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMTOPO_SET_a", "1")
    monkeypatch.setenv("MEMTOPO_SET_b", "2")
    monkeypatch.setenv("MEMTOPO_SET", "b=3 'c=4 5'")
    assert settings(["b=3", "'c=4", "5'"], "end") == Settings({}, {"a": "1", "b": "3", "c": "4 5"}, "end")
    assert settings(["b=6"], "end") == Settings({"b": "6"}, {"a": "1", "b": "2"}, "end")
    assert settings(["b=", "c=x=y"]).typed == {"b": "", "c": "x=y"}


def line_with(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    """The next line of a process's stderr that has a text."""
    assert process.stderr
    return next(line for line in process.stderr if text in line)


@pytest.mark.parametrize("text", [SPEC, SHARED], ids=["one", "several"])
def test_a_held_layout_keeps_its_settings(run_inline: InlineRunner, spec: str, tmp_path: Path, text: str) -> None:
    """What is shown and compared has them, a reload keeps them, and a change has its own."""
    here = {"XDG_RUNTIME_DIR": str(tmp_path)}
    Path(spec).write_text(text)
    variables = {"MEMTOPO_SET_page": "4MiB", "MEMTOPO_SET_other": "1"}
    with held(tmp_path, spec, "--reload", "--set=pages=4", machine="h200x2", **variables) as process:
        shown = run_inline("show", "cache", "--json", **here).document
        assert shown["params"] == {"pages": "4", "page": "4MiB"}
        assert shown["picture"]["memory"][0]["used"] == 16 << 20
        assert run_inline("diff", "cache", spec, "--set=pages=4", "--set=page=4MiB", **here).status == 0
        differs = run_inline("diff", "cache", spec, "--set=pages=4", **here)
        assert (differs.status, "  parameters  page=4MiB → 2MiB\n" in differs.out) == (1, True)
        Path(spec).write_text(
            text.replace("params: {", "params: {more: $pages * 2, ").replace("$pages * $page", "$more * $page")
        )
        process.send_signal(signal.SIGHUP)
        assert b"generation=2 different=0" in line_with(process, b"reload made")
        assert run_inline("show", "cache", "--json", **here).document["params"]["more"] == "8"
        Path(spec).write_text(text)
        assert run_inline("plan", "cache", spec, "--set=pages=3", "-o", "plan.json", **here).status == 0
        assert run_inline("change", "cache", "plan.json", "--set=pages=3", **here).status == 2
        done = run_inline("change", "cache", "plan.json", MEMTOPO_SET_pages="5", **here)
        assert done.status == 0, done.err
        assert run_inline("show", "cache", "--json", **here).document["params"] == {"pages": "3", "page": "2MiB"}
        assert run_inline("change", "cache", spec, "--set=pages=1", **here).status == 0
        assert "  parameters  pages=1 page=2MiB\n" in run_inline("show", "cache", **here).out
