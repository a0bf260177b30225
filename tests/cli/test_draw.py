"""`memtopo draw`: where its drawings go, and in which form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memtopo.cli.draw import _FORMATS_BY_SUFFIX
from memtopo.output.diagram.formats import FORMATS
from tests.cli.conftest import Here
from tests.cli.running import QUICKSTART, ROOT

HAND_OVER = ROOT / "specs" / "hand-over.yaml"
M = "-mh200x2"


def test_draw_writes_text_to_stdout_by_default(here: Here) -> None:
    said = here("draw", QUICKSTART, M)
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith("draw  quickstart  on h200x2 (simulated)\n")
    assert "─┘" in said.out


def test_width_flag_or_variable_sets_the_width_of_text(here: Here) -> None:
    """The default is the width of the terminal."""
    assert here("draw", HAND_OVER, M, "--width", "100").widest == 100
    assert here("draw", HAND_OVER, M, MEMTOPO_WIDTH="60").widest == 60
    assert here("draw", HAND_OVER, M, COLUMNS="70").widest == 70


def test_ascii_flag_or_variable_draws_in_ascii(here: Here) -> None:
    assert here("draw", HAND_OVER, M, "--ascii").out.isascii()
    assert here("draw", HAND_OVER, M, MEMTOPO_ASCII="1").out == here("draw", HAND_OVER, M, "--ascii").out
    assert not here("draw", HAND_OVER, M).out.isascii()


@pytest.mark.parametrize("form", FORMATS)
def test_format_flag_or_variable_sets_the_format_of_stdout(here: Here, form: str) -> None:
    said = here("draw", HAND_OVER, M, "--format", form)
    assert said.status == 0
    assert said.out == here("draw", HAND_OVER, M, MEMTOPO_DRAW_FORMAT=form).out
    assert "hand-over" in said.out


@pytest.mark.parametrize("ending", _FORMATS_BY_SUFFIX)
def test_suffix_of_an_output_file_sets_its_format(here: Here, tmp_path: Path, ending: str) -> None:
    """The file receives what stdout would, and stdout nothing."""
    file = tmp_path / f"map{ending}"
    said = here("draw", HAND_OVER, M, "-o", file, FORCE_COLOR="1", COLUMNS="60")
    assert (said.status, said.out, said.err) == (0, "", f"memtopo: drawn to {file}\n")
    assert file.read_text() == here("draw", HAND_OVER, M, "--format", _FORMATS_BY_SUFFIX[ending], COLUMNS="80").out


def test_several_output_files_can_be_drawn(here: Here, tmp_path: Path) -> None:
    """MEMTOPO_DRAW_OUTPUT is a list; - is stdout."""
    files = [tmp_path / "a.dot", tmp_path / "b.mmd"]
    said = here("draw", HAND_OVER, M, "-o", files[0], "-o", files[1], "-o", "-")
    assert said.out == here("draw", HAND_OVER, M).out
    kept = [file.read_text() for file in files]
    assert [text.split("\n", 1)[0] for text in kept] == ["digraph memtopo {", "flowchart LR"]
    here("draw", HAND_OVER, M, MEMTOPO_DRAW_OUTPUT=" ".join(map(str, files)))
    assert [file.read_text() for file in files] == kept


@pytest.mark.parametrize("file", ["map.png", "map", "", ".dot", "a.dot.gz"])
def test_an_unknown_suffix_is_wrong_usage(here: Here, file: str) -> None:
    """The hint lists the suffixes; nothing is drawn."""
    said = here("draw", HAND_OVER, M, "-o", file)
    assert (said.status, said.out) == (2, "")
    assert all(ending in said.err for ending in _FORMATS_BY_SUFFIX)


def test_an_unknown_drawing_format_is_answered_with_the_nearest(here: Here) -> None:
    said = here("draw", HAND_OVER, M, "--format", "mermad")
    assert (said.status, said.out) == (2, "")
    assert "did you mean 'mermaid'" in said.err
    assert here("draw", HAND_OVER, M, "--format", "dot", "--json").status == 2


def test_an_unwritable_drawing_exits_with_4(here: Here, tmp_path: Path) -> None:
    assert here("draw", HAND_OVER, M, "-o", tmp_path / "no" / "a.dot").status == 4


def test_an_invalid_spec_is_not_drawn_and_its_diagnostics_are_reported(here: Here, tmp_path: Path) -> None:
    """With --json they are on stdout too."""
    bad, file = ROOT / "tests" / "bad" / "overlap.yaml", tmp_path / "a.dot"
    said = here("draw", bad, M, "-o", file)
    assert (said.status, said.out) == (1, "")
    assert "MT" in said.err
    assert not file.exists()
    assert here("draw", bad, M, "--json").document["diagnostics"]
    assert here("draw", bad, M, "--format=json").document["diagnostics"]


def test_draw_json_is_the_diagram_as_data(here: Here) -> None:
    found = here("draw", HAND_OVER, M, "--json").document
    assert (found["memtopo_picture"], found["name"], found["machine"]["simulated"]) == (1, "hand-over", True)
    assert [each["first"] for each in found["picture"]["processes"]] == ["prefill", "decode"]


def test_drawing_of_a_saved_plan_equals_that_of_its_spec(here: Here, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    assert here("plan", HAND_OVER, M, "-o", saved).status == 0
    assert here("draw", saved, M).out == here("draw", HAND_OVER, M).out


def test_plan_shows_the_same_drawing_as_draw(here: Here) -> None:
    _, _, drawing = here("draw", HAND_OVER, M).out.partition("\n\n")
    assert drawing in here("plan", HAND_OVER, M).out
    plan = json.loads(here("plan", HAND_OVER, M, "--json").out)
    assert plan["plan"]["picture"] == here("draw", HAND_OVER, M, "--json").document["picture"]


@pytest.mark.parametrize("form", ["text", *FORMATS])
def test_hostile_sources_of_imports_are_inert_in_every_format(here: Here, tmp_path: Path, form: str) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "memtopo: 1\nname: test\nranges: {r: {size: 2MiB}}\n"
        'imports: {w: {from: "/run/\\"]<script>x</script>&lt;`[red].sock/w", location: gpu0, size: 2MiB}}\n'
        "map: {r: [w]}\naccess: {r: {gpu0: r}}\n"
    )
    said = here("draw", spec, M, "--format", form)
    assert said.status == 0
    assert "red" in said.out
    assert "<script>" not in said.out or '\\"]<script>' in said.out
