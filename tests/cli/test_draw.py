"""`memtopo draw`: where its drawings go, and in which form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memtopo.cli.draw import _FORMATS_BY_SUFFIX
from memtopo.output.diagram import FORMATS
from tests.cli.conftest import InlineRunner
from tests.helpers.command_line import QUICKSTART, ROOT

HAND_OVER = ROOT / "specs" / "hand-over.yaml"
M = "-mh200x2"


def test_draw_writes_text_to_stdout_by_default(run_inline: InlineRunner) -> None:
    result = run_inline("draw", QUICKSTART, M)
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("draw  quickstart  on h200x2 (simulated)\n")
    assert "─┘" in result.out


def test_width_flag_or_variable_sets_the_width_of_text(run_inline: InlineRunner) -> None:
    """The default is the width of the terminal."""
    assert run_inline("draw", HAND_OVER, M, "--width", "100").widest == 100
    assert run_inline("draw", HAND_OVER, M, MEMTOPO_WIDTH="60").widest == 60
    assert run_inline("draw", HAND_OVER, M, COLUMNS="70").widest == 70


def test_ascii_flag_or_variable_draws_in_ascii(run_inline: InlineRunner) -> None:
    assert run_inline("draw", HAND_OVER, M, "--ascii").out.isascii()
    assert run_inline("draw", HAND_OVER, M, MEMTOPO_ASCII="1").out == run_inline("draw", HAND_OVER, M, "--ascii").out
    assert not run_inline("draw", HAND_OVER, M).out.isascii()


def test_state_flag_or_variable_draws_a_state(run_inline: InlineRunner) -> None:
    """Memory that is gone is address space alone, and what keeps its bytes lies where it is."""
    sleep_mode = ROOT / "specs" / "sleep-mode.yaml"
    result = run_inline("draw", sleep_mode, M, "--state", "level-1")
    assert result.out.startswith("draw  sleep-mode in state level-1  on h200x2 (simulated)\n")
    assert result.out.count("nothing mapped") == 2
    assert "offloaded weight 64 MiB" in result.out
    assert run_inline("draw", sleep_mode, M, MEMTOPO_DRAW_STATE="level-1").out == result.out
    assert "in state level-1, on h200x2" in run_inline("draw", sleep_mode, M, "--state", "level-1", "--format=svg").out
    assert run_inline("draw", sleep_mode, M, "--state", "level-1", "--json").document["state"] == "level-1"
    awake = run_inline("draw", sleep_mode, M, "--state", "awake").out
    assert awake.splitlines()[1:] == run_inline("draw", sleep_mode, M).out.splitlines()[1:]


def test_an_unknown_state_is_wrong_usage(run_inline: InlineRunner) -> None:
    result = run_inline("draw", ROOT / "specs" / "sleep-mode.yaml", M, "--state", "level")
    assert (result.status, result.out) == (2, "")
    assert "there is no state 'level'" in result.err
    assert "layout 'quickstart' has no states" in run_inline("draw", QUICKSTART, M, "--state", "level").err


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_draws_memory_of_which_nothing_is_used(run_inline: InlineRunner, form: str) -> None:
    spec = ROOT / "specs" / "sleep-mode.yaml"
    assert "sleep-mode" in run_inline("draw", spec, M, "--state", "level-2", "--format", form).out


@pytest.mark.parametrize("form", FORMATS)
def test_format_flag_or_variable_sets_the_format_of_stdout(run_inline: InlineRunner, form: str) -> None:
    result = run_inline("draw", HAND_OVER, M, "--format", form)
    assert result.status == 0
    assert result.out == run_inline("draw", HAND_OVER, M, MEMTOPO_DRAW_FORMAT=form).out
    assert "hand-over" in result.out


@pytest.mark.parametrize("ending", [*_FORMATS_BY_SUFFIX, ".TXT"])
def test_suffix_of_an_output_file_sets_its_format(run_inline: InlineRunner, tmp_path: Path, ending: str) -> None:
    """The file receives what stdout would, and stdout nothing."""
    file = tmp_path / f"map{ending}"
    result = run_inline("draw", HAND_OVER, M, "-o", file, FORCE_COLOR="1", COLUMNS="60")
    assert (result.status, result.out, result.err) == (0, "", f"memtopo: drawn to {file}\n")
    form = _FORMATS_BY_SUFFIX[ending.lower()]
    assert file.read_text() == run_inline("draw", HAND_OVER, M, "--format", form, COLUMNS="80").out


def test_width_and_ascii_are_those_of_text_in_a_file_too(run_inline: InlineRunner, tmp_path: Path) -> None:
    file, how = tmp_path / "map.txt", ("--width", "60", "--ascii")
    run_inline("draw", HAND_OVER, M, "-o", file, *how)
    assert file.read_text() == run_inline("draw", HAND_OVER, M, *how).out


def test_several_output_files_can_be_drawn(run_inline: InlineRunner, tmp_path: Path) -> None:
    """MEMTOPO_DRAW_OUTPUT is a list; - is stdout."""
    files = [tmp_path / "a.dot", tmp_path / "b.mmd"]
    result = run_inline("draw", HAND_OVER, M, "-o", files[0], "-o", files[1], "-o", "-")
    assert result.out == run_inline("draw", HAND_OVER, M).out
    kept = [file.read_text() for file in files]
    assert [text.split("\n", 1)[0] for text in kept] == ["digraph memtopo {", "flowchart LR"]
    run_inline("draw", HAND_OVER, M, MEMTOPO_DRAW_OUTPUT=" ".join(map(str, files)))
    assert [file.read_text() for file in files] == kept


def test_a_picture_replaces_no_other_json(run_inline: InlineRunner, tmp_path: Path) -> None:
    picture, plan = tmp_path / "picture.json", tmp_path / "plan.json"
    run_inline("plan", HAND_OVER, M, "-o", plan)
    before = plan.read_text()
    statuses = [run_inline("draw", HAND_OVER, M, "-o", file).status for file in (picture, picture, plan)]
    assert (statuses, plan.read_text()) == ([0, 0, 2], before)


@pytest.mark.parametrize("ending", _FORMATS_BY_SUFFIX)
def test_a_drawing_replaces_drawings_and_no_other_file(run_inline: InlineRunner, tmp_path: Path, ending: str) -> None:
    file, other, long = tmp_path / f"map{ending}", tmp_path / f"other{ending}", tmp_path / "long.yaml"
    long.write_text(f"memtopo: 1\nname: {'n' * 70}\nchunks: {{c: {{location: gpu0, size: 2MiB}}}}\n")
    for spec, *how in (HAND_OVER, "--ascii"), (long,), (ROOT / "specs/sleep-mode.yaml", "--state", "level-2"):
        assert run_inline("draw", spec, M, "-o", file, "--width", "20", *how).status == 0
    for text in (
        "requests==2.0\n",
        "<svg></svg>",
        "<!doctype html>\n<title>memtopo</title>",
        "digraph g {",
        "graph LR",
    ):
        other.write_text(text)
        refused = run_inline("draw", HAND_OVER, M, "-o", file, "-o", other)
        assert (refused.status, other.read_text()) == (2, text)
        assert "memtopo did not write it" in refused.err


@pytest.mark.parametrize("file", ["map.png", "map", "", ".dot", "a.dot.gz"])
def test_an_unknown_suffix_is_wrong_usage(run_inline: InlineRunner, file: str) -> None:
    """The hint lists the suffixes; nothing is drawn."""
    result = run_inline("draw", HAND_OVER, M, "-o", file)
    assert (result.status, result.out) == (2, "")
    assert all(ending in result.err for ending in _FORMATS_BY_SUFFIX)


def test_an_unknown_drawing_format_is_answered_with_the_nearest(run_inline: InlineRunner) -> None:
    result = run_inline("draw", HAND_OVER, M, "--format", "mermad")
    assert (result.status, result.out) == (2, "")
    assert "did you mean 'mermaid'" in result.err
    assert run_inline("draw", HAND_OVER, M, "--format", "dot", "--json").status == 2
    assert run_inline("draw", HAND_OVER, M, "--format", "json", "--json").document["memtopo_picture"] == 1


def test_an_unwritable_drawing_exits_with_4(run_inline: InlineRunner, tmp_path: Path) -> None:
    assert run_inline("draw", HAND_OVER, M, "-o", tmp_path / "no" / "a.dot").status == 4


def test_an_invalid_spec_is_not_drawn_and_its_diagnostics_are_reported(
    run_inline: InlineRunner, tmp_path: Path
) -> None:
    """With --json they are on stdout too."""
    bad, file = ROOT / "tests" / "bad" / "overlap.yaml", tmp_path / "a.dot"
    result = run_inline("draw", bad, M, "-o", file)
    assert (result.status, result.out) == (1, "")
    assert "MT" in result.err
    assert not file.exists()
    assert run_inline("draw", bad, M, "--json").document["diagnostics"]
    assert run_inline("draw", bad, M, "--format=json").document["diagnostics"]


def test_draw_json_is_the_diagram_as_data(run_inline: InlineRunner) -> None:
    found = run_inline("draw", HAND_OVER, M, "--json").document
    assert (found["memtopo_picture"], found["name"], found["machine"]["simulated"]) == (1, "hand-over", True)
    assert [each["first"] for each in found["picture"]["processes"]] == ["prefill", "decode"]


def test_drawing_of_a_saved_plan_equals_that_of_its_spec(run_inline: InlineRunner, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    assert run_inline("plan", HAND_OVER, M, "-o", saved).status == 0
    assert run_inline("draw", saved, M).out == run_inline("draw", HAND_OVER, M).out


def test_plan_shows_the_same_drawing_as_draw(run_inline: InlineRunner) -> None:
    _, _, drawing = run_inline("draw", HAND_OVER, M).out.partition("\n\n")
    assert drawing in run_inline("plan", HAND_OVER, M).out
    plan = json.loads(run_inline("plan", HAND_OVER, M, "--json").out)
    assert plan["plan"]["picture"] == run_inline("draw", HAND_OVER, M, "--json").document["picture"]


@pytest.mark.parametrize("form", ["text", *FORMATS])
def test_hostile_sources_of_imports_are_inert_in_every_format(
    run_inline: InlineRunner, tmp_path: Path, form: str
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "memtopo: 1\nname: test\nranges: {r: {size: 2MiB}}\n"
        'imports: {w: {from: "/run/\\"]<script>x</script>&lt;`[red].sock/w", location: gpu0, size: 2MiB}}\n'
        "map: {r: [w]}\naccess: {r: {gpu0: r}}\n"
    )
    result = run_inline("draw", spec, M, "--format", form)
    assert result.status == 0
    assert "red" in result.out
    assert "<script>" not in result.out or '\\"]<script>' in result.out


def test_an_error_is_a_document_if_the_variable_requests_json(run_inline: InlineRunner, tmp_path: Path) -> None:
    invalid = tmp_path / "invalid.yaml"
    invalid.write_text("memtopo: 1\nname: x\nranges: {a: {size: 3B}}\n")
    assert run_inline("draw", HAND_OVER, "-m", "h9000", MEMTOPO_DRAW_FORMAT="json").document["error"]["exit_code"] == 3
    done = run_inline("draw", str(invalid), M, MEMTOPO_DRAW_FORMAT="json")
    assert (done.status, done.document["ok"]) == (1, False)


def test_alike_processes_are_one_unless_all_are_asked_for(run_inline: InlineRunner) -> None:
    """In text and in pictures; JSON has every one."""
    spec, m = ROOT / "specs" / "real" / "nvshmem.yaml", "-mh200x4"
    assert "── pe.0 … 3  4 alike, pe.0 is drawn ──" in run_inline("draw", spec, m).out
    every = run_inline("draw", spec, m, "--all").out
    assert [f"── pe.{number} ──" in every for number in range(4)] == [True] * 4
    assert run_inline("draw", spec, m, MEMTOPO_ALL_PROCESSES="1").out == every
    for form in ("svg", "html", "dot"):
        pictures = run_inline("draw", spec, m, "--format", form), run_inline("draw", spec, m, "--format", form, "--all")
        assert ["pe.0 … 3, as pe.0" in each.out for each in pictures] == [True, False]
        assert ["pe.3" in each.out for each in pictures] == [False, True]
    assert len(run_inline("draw", spec, m, "--json").document["picture"]["processes"]) == 4
