from __future__ import annotations

from memtopo.common.errors import Unavailable
from memtopo.output import ci, formats
from tests.helpers.checked_specs import BAD, GOOD, TWO_GPUS, Checking
from tests.helpers.ci_forms import markdown, text


def test_markdown_has_a_table_and_the_diagnostics(checked: Checking) -> None:
    """Invalid specs come first; diagnostics have their source lines."""
    files = {"a.yaml": GOOD, "b|c.yaml": TWO_GPUS, "d.yaml": BAD}
    rows, (fence,) = markdown(text("markdown", checked(files, "h100x1", "h200x2")))
    assert rows == [
        ["spec", "h100x1", "h200x2"],
        ["b|c.yaml", "1 error", "ok"],
        ["d.yaml", "1 error, 1 warning", "1 error, 1 warning"],
        ["a.yaml", "ok", "ok"],
    ]
    assert "d.yaml:4:31: error[MT301]" in fence
    assert " 4 |   hot: {location: gpu0, size: 3MiB}" in fence


def test_markdown_without_diagnostics_is_a_table(checked: Checking) -> None:
    assert markdown(text("markdown", checked({"a.yaml": GOOD}))) == ([["spec", "h200x2"], ["a.yaml", "ok"]], [])


def test_markdown_of_many_files_is_shortened_and_counted(checked: Checking) -> None:
    page = text("markdown", checked({f"{number}.yaml": BAD for number in range(300)}))
    rows, (fence,) = markdown(page)
    assert len(rows) == ci.MOST_ROWS + 1
    assert len(fence.splitlines()) == ci.MOST_LINES
    assert "100 more files are not shown" in page
    assert len(page) < 65_536


def test_no_line_of_a_block_of_text_ends_it() -> None:
    shown = ["```", " ````", "~~~", "# a heading"]
    assert markdown("\n".join(ci.fenced(shown))) == ([], ["".join(f"{line}\n" for line in shown)])


def test_a_failed_check_gives_its_reason_in_markdown() -> None:
    page = "\n".join(formats.failure("markdown", Unavailable("no <GPU>", hint="use --machine")))
    assert markdown(page) == ([], [])
    assert "**error:** no &#60;GPU&#62;" in page
