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


def test_to_stdout(here: Here) -> None:
    """Without anything else, the drawing is text, on stdout alone"""
    said = here("draw", QUICKSTART, M)
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith("draw  quickstart  on h200x2 (simulated)\n")
    assert "─┘" in said.out


def test_a_width(here: Here) -> None:
    """--width, or MEMTOPO_WIDTH, is how wide text is drawn, and the terminal's where neither is given"""
    assert here("draw", HAND_OVER, M, "--width", "100").widest == 100
    assert here("draw", HAND_OVER, M, MEMTOPO_WIDTH="60").widest == 60
    assert here("draw", HAND_OVER, M, COLUMNS="70").widest == 70


def test_ascii(here: Here) -> None:
    """--ascii, or MEMTOPO_ASCII, draws with ASCII alone"""
    assert here("draw", HAND_OVER, M, "--ascii").out.isascii()
    assert here("draw", HAND_OVER, M, MEMTOPO_ASCII="1").out == here("draw", HAND_OVER, M, "--ascii").out
    assert not here("draw", HAND_OVER, M).out.isascii()


@pytest.mark.parametrize("form", FORMATS)
def test_a_form_on_stdout(here: Here, form: str) -> None:
    """--format, or MEMTOPO_DRAW_FORMAT, names the form of what goes to stdout"""
    said = here("draw", HAND_OVER, M, "--format", form)
    assert said.status == 0
    assert said.out == here("draw", HAND_OVER, M, MEMTOPO_DRAW_FORMAT=form).out
    assert "hand-over" in said.out


@pytest.mark.parametrize("ending", _FORMATS_BY_SUFFIX)
def test_a_file(here: Here, tmp_path: Path, ending: str) -> None:
    """The suffix of -o says in which form it is drawn; the file is what stdout would get, which gets nothing"""
    file = tmp_path / f"map{ending}"
    said = here("draw", HAND_OVER, M, "-o", file, FORCE_COLOR="1", COLUMNS="60")
    assert (said.status, said.out, said.err) == (0, "", f"memtopo: drawn to {file}\n")
    assert file.read_text() == here("draw", HAND_OVER, M, "--format", _FORMATS_BY_SUFFIX[ending], COLUMNS="80").out


def test_many_files(here: Here, tmp_path: Path) -> None:
    """-o may be given again, and MEMTOPO_DRAW_OUTPUT is a list; - among them is stdout"""
    files = [tmp_path / "a.dot", tmp_path / "b.mmd"]
    said = here("draw", HAND_OVER, M, "-o", files[0], "-o", files[1], "-o", "-")
    assert said.out == here("draw", HAND_OVER, M).out
    kept = [file.read_text() for file in files]
    assert [text.split("\n", 1)[0] for text in kept] == ["digraph memtopo {", "flowchart LR"]
    here("draw", HAND_OVER, M, MEMTOPO_DRAW_OUTPUT=" ".join(map(str, files)))
    assert [file.read_text() for file in files] == kept


@pytest.mark.parametrize("file", ["map.png", "map", "", ".dot", "a.dot.gz"])
def test_no_such_suffix(here: Here, file: str) -> None:
    """A file whose suffix names no form is wrong usage, the hint says which there are, and nothing is drawn"""
    said = here("draw", HAND_OVER, M, "-o", file)
    assert (said.status, said.out) == (2, "")
    assert all(ending in said.err for ending in _FORMATS_BY_SUFFIX)


def test_no_such_form(here: Here) -> None:
    """A form that there is not is wrong usage, with the one that was meant"""
    said = here("draw", HAND_OVER, M, "--format", "mermad")
    assert (said.status, said.out) == (2, "")
    assert "did you mean 'mermaid'" in said.err
    assert here("draw", HAND_OVER, M, "--format", "dot", "--json").status == 2


def test_a_file_that_cannot_be_written(here: Here, tmp_path: Path) -> None:
    """Where a file cannot be written, the status says so"""
    assert here("draw", HAND_OVER, M, "-o", tmp_path / "no" / "a.dot").status == 4


def test_an_invalid_spec(here: Here, tmp_path: Path) -> None:
    """Of a spec that is wrong nothing is drawn: its faults are told, and with --json on stdout too"""
    bad, file = ROOT / "tests" / "bad" / "overlap.yaml", tmp_path / "a.dot"
    said = here("draw", bad, M, "-o", file)
    assert (said.status, said.out) == (1, "")
    assert "MT" in said.err
    assert not file.exists()
    assert here("draw", bad, M, "--json").document["diagnostics"]
    assert here("draw", bad, M, "--format=json").document["diagnostics"]


def test_json(here: Here) -> None:
    """--json is the picture as data"""
    found = here("draw", HAND_OVER, M, "--json").document
    assert (found["memtopo_picture"], found["name"], found["machine"]["simulated"]) == (1, "hand-over", True)
    assert [each["first"] for each in found["picture"]["processes"]] == ["prefill", "decode"]


def test_a_saved_plan(here: Here, tmp_path: Path) -> None:
    """The spec in a saved plan is drawn as the file that it was made from"""
    saved = tmp_path / "plan.json"
    assert here("plan", HAND_OVER, M, "-o", saved).status == 0
    assert here("draw", saved, M).out == here("draw", HAND_OVER, M).out


def test_plan_has_the_same_drawing(here: Here) -> None:
    """What `plan` shows of a layout is what `draw` shows of it"""
    _, _, drawing = here("draw", HAND_OVER, M).out.partition("\n\n")
    assert drawing in here("plan", HAND_OVER, M).out
    plan = json.loads(here("plan", HAND_OVER, M, "--json").out)
    assert plan["plan"]["picture"] == here("draw", HAND_OVER, M, "--json").document["picture"]


@pytest.mark.parametrize("form", ["text", *FORMATS])
def test_a_hostile_source(here: Here, tmp_path: Path, form: str) -> None:
    """The text after `from:` is anyone's; none of it is acted upon, in any form"""
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
