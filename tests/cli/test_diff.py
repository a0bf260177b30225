"""`memtopo diff`: its exit status, its document, and its refusals."""

from __future__ import annotations

import json
import re
from html import unescape as html_unescaped
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.cli.conftest import InlineRunner, held
from tests.helpers.command_line import ROOT

SLEEP = ROOT / "specs/sleep-mode.yaml"
WEIGHTS = ROOT / "specs/weights.yaml"


def smaller(folder: Path) -> Path:
    found = folder / "smaller.yaml"
    found.write_text(SLEEP.read_text().replace("count: 64", "count: 48"))
    return found


def test_diff_exits_with_1_if_specs_differ_and_with_0_if_not(run_inline: InlineRunner, tmp_path: Path) -> None:
    same = run_inline("diff", SLEEP, SLEEP, "-m", "h100x1")
    assert (same.status, same.out.splitlines()[-1]) == (0, "nothing differs; 198 steps are equal")
    other = run_inline("diff", SLEEP, smaller(tmp_path), "-m", "h100x1")
    assert other.status == 1
    assert "unmap    page.63 … page.48     16" in other.out
    assert other.widest <= 80


def test_diff_names_a_saved_plan_by_its_file(run_inline: InlineRunner, tmp_path: Path) -> None:
    plan = tmp_path / "p.json"
    run_inline("plan", SLEEP, "-m", "h100x1", "-o", plan)
    document = run_inline("diff", plan, SLEEP, "-m", "h100x1", "--json").document
    assert (document["before"], document["after"]) == (str(plan), str(SLEEP))


def test_diff_document_has_rows_memory_and_pictures(run_inline: InlineRunner, tmp_path: Path) -> None:
    found = run_inline("diff", SLEEP, smaller(tmp_path), "-m", "h100x1", "--json")
    assert found.status == 1
    document = found.document
    assert document["memtopo_difference"] == 1
    assert [(row["verb"], row["calls"]) for row in document["undo"]] == [("unmap", 16), ("release", 16)]
    assert document["memory"]["gpu0"] == {"before": 192 << 20, "after": 160 << 20, "peak": 192 << 20}
    assert document["picture_before"]["memory"][0]["used"] - document["picture_after"]["memory"][0]["used"] == 32 << 20


def test_diff_shows_each_process_and_equal_ones_once(run_inline: InlineRunner, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(WEIGHTS.read_text().replace("mine: [gpu0, gpu1]", "mine: gpu1"))
    other.write_text(other.read_text().replace("256MiB, count: 2", "128MiB, count: 4"))
    same = tmp_path / "same.yaml"
    same.write_text(other.read_text().replace("rw", "r"))
    found = run_inline("diff", same, other, "-m", "h200x2")
    assert found.status == 1
    assert [line for line in found.out.splitlines() if line.startswith(("goes", "comes"))] == ["comes in server"]
    assert "  unchanged  reader.0 … reader.1, each" in found.out
    moved = run_inline("diff", WEIGHTS, other, "-m", "h200x2", "--json").document
    assert [each["first"] for each in moved["processes"]] == ["server", "reader.0", "reader.1"]
    assert (moved["undo"], moved["memory"]["gpu0"]["peak"]) == ([], 512 << 20)


def test_diff_shows_processes_that_are_alike_once_unless_all_are_asked_for(
    run_inline: InlineRunner, tmp_path: Path
) -> None:
    before, after = ROOT / "specs" / "real" / "nvshmem.yaml", tmp_path / "larger.yaml"
    after.write_text(before.read_text().replace("units: 2", "units: 3"))
    command = "diff", before, after, "-m", "h200x4"
    folded, every = run_inline(*command).out, run_inline(*command, "--all").out
    for title in ("goes", "comes"):
        assert f"\n{title} in pe.0 … pe.3, each on its GPU: gpu0, gpu1, gpu2, gpu3\n" in folded
        assert [f"\n{title} in pe.{number}\n" in every for number in range(4)] == [True] * 4
    assert [each.count("4 alike, pe.0 is drawn") for each in (folded, every)] == [2, 0]


def test_diff_names_exports_that_a_writer_has_to_commit_again(run_inline: InlineRunner, tmp_path: Path) -> None:
    before, after = ROOT / "specs/weights-server.yaml", tmp_path / "after.yaml"
    after.write_text(before.read_text().replace("shards: 2", "shards: 3"))
    found = run_inline("diff", before, after, "-m", "h200x2")
    contract = "export weights: count 2 → 3, importers release its memory first"
    assert found.out.splitlines()[-2] == f"  contract     {contract}"
    assert found.out.splitlines()[-1] == "  commit lost  export weights: a writer has to commit it again"
    assert run_inline("diff", before, after, "-m", "h200x2", "--json").document["emptied"] == ["weights"]
    comment = run_inline("diff", before, after, "-m", "h200x2", "--summary", "--format", "markdown").out
    assert "- contract: export weights: count 2 &#8594; 3" in comment
    after.write_text(before.read_text().replace("chunks:", "chunks:\n  spare: {location: gpu0, size: 2MiB}"))
    assert run_inline("diff", before, after, "-m", "h200x2", "--json").document["emptied"] == []


def test_diff_refuses_an_invalid_spec_and_other_processes(run_inline: InlineRunner) -> None:
    bad = run_inline("diff", SLEEP, ROOT / "tests/bad/no-access.yaml", "-m", "h100x1")
    assert bad.status == 1
    several = run_inline("diff", SLEEP, WEIGHTS, "-m", "h200x2")
    assert several.status == 1
    assert "weights.yaml:8:1: error[MT807]: the layout is one of a single process" in several.err


def test_diff_compares_a_held_layout_with_a_spec(
    run_inline: InlineRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the machine of its holder."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with held(tmp_path, SLEEP):
        equal, other = (run_inline("diff", "sleep-mode", spec) for spec in (SLEEP, smaller(tmp_path)))
    assert (equal.status, other.status) == (0, 1)
    assert "on h100x1 (simulated)" in " ".join(equal.out.split())  # a long path wraps it


def test_a_held_layout_is_found_in_the_folder_of_the_variable(run_inline: InlineRunner, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    folder = {"MEMTOPO_SOCKET": f"{tmp_path}/"}
    with held(tmp_path, SLEEP, "--socket", f"{tmp_path}/"):
        assert run_inline("diff", "sleep-mode", SLEEP, **folder).status == 0
        assert run_inline("plan", "sleep-mode", SLEEP, **folder).status == 0
        assert run_inline("plan", "sleep-mode", SLEEP, "--socket", f"{tmp_path}/sleep-mode.sock").status == 0


KV = """memtopo: 1
name: kv
params: {count: 4, size: 2MiB}
ranges: {kv: {size: $count * $size}}
chunks: {page: {location: gpu0, size: $size, count: $count}}
map: {kv: [page]}
access: {kv: {gpu0: rw}}
"""


@pytest.fixture
def golden(run_inline: InlineRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a spec and a plan of it, which was saved with a setting; the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plans").mkdir()
    (tmp_path / "kv.yaml").write_text(KV)
    assert run_inline("plan", "kv.yaml", "-m", "h200x2", "--set", "count=8", "-o", "plans/kv.json").status == 0
    return tmp_path


def test_a_saved_plan_is_compared_with_its_file_on_its_machine_with_its_settings(
    run_inline: InlineRunner, golden: Path
) -> None:
    """Without a GPU; a plan that is saved anew no longer differs."""
    same = run_inline("diff", "plans/kv.json")
    assert (same.status, same.err) == (0, "")
    assert same.out.splitlines() == [
        "diff  plans/kv.json → kv.yaml  on h200x2 (simulated)",
        "",
        "nothing differs; 18 steps are equal",
    ]
    (golden / "kv.yaml").write_text(KV.replace("2MiB", "4MiB"))
    other = run_inline("diff", "plans/kv.json", "--json")
    assert (other.status, other.document["memory"]["gpu0"]["after"]) == (1, 32 << 20)
    run_inline("plan", "kv.yaml", "-m", "h200x2", "--set", "count=8", "-o", "plans/kv.json")
    assert run_inline("diff", "plans/kv.json").status == 0


def test_an_accepted_plan_is_saved_anew_with_its_machine_and_settings(run_inline: InlineRunner, golden: Path) -> None:
    """One that does not differ stays as it is."""
    plan, other = golden / "plans" / "kv.json", golden / "plans" / "other.json"
    (golden / "other.yaml").write_text(KV)
    assert run_inline("plan", "other.yaml", "-m", "h200x4", "-o", other).status == 0
    before, unchanged = json.loads(plan.read_text()), other.read_bytes()
    (golden / "kv.yaml").write_text(KV.replace("2MiB", "4MiB"))
    found = run_inline("diff", "plans", "--accept", MEMTOPO_MACHINE="h100x1")
    assert (found.status, found.err) == (0, "memtopo: saved to plans/kv.json\n")
    now = json.loads(plan.read_text())
    assert [now[key] for key in ("machine", "facts")] == [before[key] for key in ("machine", "facts")]
    assert (now["spec"]["settings"], now["plan"]["memory"]["gpu0"]) == ({"count": "8"}, 32 << 20)
    assert other.read_bytes() == unchanged
    assert run_inline("diff", "plans").status == 0


@pytest.mark.parametrize(
    "arguments", [("plans/kv.json", "kv.yaml"), ("plans", "-m", "h200x4"), ("plans", "--set", "count=9")]
)
def test_a_plan_of_another_spec_machine_or_value_is_not_accepted(
    run_inline: InlineRunner, golden: Path, arguments: tuple[str, ...]
) -> None:
    before = (golden / "plans" / "kv.json").read_bytes()
    (golden / "kv.yaml").write_text(KV.replace("2MiB", "4MiB"))
    assert run_inline("diff", *arguments, MEMTOPO_DIFF_ACCEPT="1").status == 2
    assert (golden / "plans" / "kv.json").read_bytes() == before


def test_a_variable_does_not_replace_the_machine_of_a_saved_plan(run_inline: InlineRunner, golden: Path) -> None:
    """A job sets it for `validate`; an option does."""
    for arguments, name in (((), "h200x2"), (("-m", "h200x4"), "h200x4")):
        found = run_inline("diff", "plans", *arguments, MEMTOPO_MACHINE="h100x1 h200x4")
        assert found.out.splitlines()[0] == f"diff  plans/kv.json → kv.yaml  on {name} (simulated)"


def test_a_summary_has_the_change_of_memory_and_the_entries_that_differ(run_inline: InlineRunner, golden: Path) -> None:
    text = KV.replace("2MiB", "4MiB").replace("page", "block") + "pinned: {staging: {size: 2MiB}}\n"
    (golden / "kv.yaml").write_text(text)
    found = run_inline("diff", "plans/kv.json", "--summary")
    assert (found.status, found.err) == (1, "")
    assert found.out.splitlines() == [
        "diff  plans/kv.json → kv.yaml  on h200x2 (simulated)",
        "",
        "  memory  before   after   change",
        "  gpu0    16 MiB  32 MiB  +16 MiB",
        "  host       0 B   2 MiB   +2 MiB",
        "",
        "  added       chunks.block, pinned.staging",
        "  removed     chunks.page",
        "  changed     ranges.kv, map.kv",
        "  parameters  size=2MiB → 4MiB",
        "  kept        1 step, with addresses, handles and bytes",
        "  moved       kv moves: pointers and graphs that have its address are invalid",
    ]
    entries = run_inline("diff", "plans/kv.json", "--json").document["entries"]
    assert entries == {
        "added": ["chunks.block", "pinned.staging"],
        "removed": ["chunks.page"],
        "changed": ["ranges.kv", "map.kv"],
    }


def test_entries_of_processes_have_their_names(run_inline: InlineRunner, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    text = "memtopo: 1\nname: w\nprocesses:\n  a: {count: 2, buffers: {own: {location: gpu0, size: 2MiB}}}\n"
    other.write_text(f"{text}  b: {{buffers: {{one: {{location: gpu0, size: 2MiB}}}}}}\n")
    before = tmp_path / "before.yaml"
    before.write_text(other.read_text().replace("size: 2MiB", "size: 4MiB", 1).replace("one:", "two:"))
    assert "  changed     a.buffers.own\n" in run_inline("diff", before, other, "-m", "h200x2", "--summary").out
    before.write_text(before.read_text().replace("count: 2", "count: 2, visible: [gpu0, gpu1]"))
    entries = run_inline("diff", before, other, "-m", "h200x2", "--json").document["entries"]
    assert entries == {"added": ["b.buffers.one"], "removed": ["b.buffers.two"], "changed": ["a", "a.buffers.own"]}


def test_the_name_of_a_layout_differs_beside_a_process_called_name(run_inline: InlineRunner, tmp_path: Path) -> None:
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    before.write_text("memtopo: 1\nname: w\nprocesses:\n  name: {buffers: {own: {location: gpu0, size: 2MiB}}}\n")
    after.write_text(before.read_text().replace("name: w", "name: v"))
    found = run_inline("diff", before, after, "-m", "h200x2", "--json")
    assert (found.status, found.document["entries"]["changed"]) == (1, ["layout name"])


def test_a_folder_of_plans_is_compared_as_a_whole(run_inline: InlineRunner, golden: Path) -> None:
    """Each plan on its own machine; other files of JSON are named."""
    (golden / "two.yaml").write_text(KV.replace("gpu0", "gpu1"))
    run_inline("plan", "two.yaml", "-m", "h200x4", "-o", "plans/two.json")
    (golden / "plans" / "other.json").write_text("{}")
    (golden / "two.yaml").write_text(KV.replace("gpu0", "gpu1").replace("count: 4", "count: 2"))
    found = run_inline("diff", "plans", "--summary")
    assert (found.status, found.err) == (1, "memtopo: 1 file without a saved plan is not compared: plans/other.json\n")
    assert [line for line in found.out.splitlines() if "diff" in line or "gpu" in line] == [
        "diff  plans/kv.json → kv.yaml  on h200x2 (simulated)",
        "nothing differs; 18 steps are equal",
        "diff  plans/two.json → two.yaml  on h200x4 (simulated)",
        "  gpu1     8 MiB  4 MiB  -4 MiB",
    ]
    (golden / "two.yaml").write_text(KV.replace("gpu0", "gpu1"))
    assert run_inline("diff", "plans").status == 0


WITHOUT_STEPS = """memtopo: 1
name: kv
ranges: {kv: {size: 4MiB}, el: {size: 16MiB, elastic: {chunks: block}}}
chunks:
  page: {location: gpu0, size: 2MiB, count: 2, handles: fd, parts: {head: 4KiB, tail: rest}}
  block: {location: gpu0, size: 2MiB, count: {max: 4}, handles: fd}
map: {kv: [page]}
access: {kv: {gpu0: rw}, el: {gpu0: rw}}
managed: {area: {size: 8MiB}}
exports: {page: {chunk: page, via: fd, commit: required}, block: {chunk: block, via: fd, quota: 2}}
states: {asleep: {drop: [page]}}
"""


@pytest.mark.parametrize(
    ("old", "new", "entries"),
    [
        ("name: kv", "name: other", {"changed": "layout name"}),
        ("head: 4KiB", "head: 8KiB", {"changed": "chunks.page"}),
        ("quota: 2", "quota: 3", {"changed": "exports.block"}),
        (", commit: required", "", {"changed": "exports.page"}),
        ("8MiB", "8MiB, oversubscribe: true", {"changed": "managed.area"}),
        ("drop: [page]", "drop: [kv]", {"changed": "states.asleep"}),
        ("asleep:", "away:", {"added": "states.away", "removed": "states.asleep"}),
        ("states: {asleep: {drop: [page]}}\n", "", {"removed": "states.asleep"}),
    ],
)
def test_a_spec_without_a_step_that_differs_is_not_equal(
    run_inline: InlineRunner, golden: Path, old: str, new: str, entries: dict[str, str]
) -> None:
    """In any output; an accepted one is saved."""
    (golden / "kv.yaml").write_text(WITHOUT_STEPS)
    assert run_inline("plan", "kv.yaml", "-m", "h200x2", "-o", "plans/kv.json").status == 0
    assert run_inline("diff", "plans").status == 0
    (golden / "kv.yaml").write_text(WITHOUT_STEPS.replace(old, new))
    facts = entries.items()
    for form in (), ("--summary",):
        found = run_inline("diff", "plans", *form)
        assert (found.status, found.out.splitlines()[2].partition(";")[0]) == (1, "no step differs")
        assert facts <= {tuple(line.split(maxsplit=1)) for line in found.out.splitlines()}
    comment = run_inline("diff", "plans", "--format", "markdown")
    shown = html_unescaped(comment.out)
    assert (comment.status, [each for each in entries.items() if f"- {': '.join(each)}\n" not in shown]) == (1, [])
    pictures = re.findall(r"```text\n(.*?)```", comment.out, re.DOTALL)
    assert len({*pictures}) == len(pictures)
    assert run_inline("diff", "plans", "--accept").err == "memtopo: saved to plans/kv.json\n"
    assert run_inline("diff", "plans").status == 0


def test_a_parameter_without_a_step_that_differs_is_not_equal(run_inline: InlineRunner, golden: Path) -> None:
    (golden / "kv.yaml").write_text(KV.replace("params: {", "params: {note: a, "))
    found = run_inline("diff", "plans")
    assert (found.status, found.out.splitlines()[2:]) == (
        1,
        ["no step differs; 18 steps are equal", "", "  parameters  note=- → a"],
    )


@pytest.mark.parametrize("form", [(), ("--summary",), ("--format", "markdown")])
def test_a_refused_plan_has_its_first_error_beside_the_other_differences(
    run_inline: InlineRunner, golden: Path, form: tuple[str, ...]
) -> None:
    """A damaged plan is refused too."""
    for name in ("bad", "damaged"):
        (golden / f"{name}.yaml").write_text(KV)
        run_inline("plan", f"{name}.yaml", "-m", "h200x2", "-o", f"plans/{name}.json")
    (golden / "bad.yaml").write_text(KV.replace("gpu0", "gpu7"))
    (golden / "plans" / "damaged.json").write_text('{"memtopo_plan": 1}')
    (golden / "kv.yaml").write_text(KV.replace("2MiB", "4MiB"))
    found = run_inline("diff", "plans", *form)
    shown = html_unescaped(found.out)
    assert (found.status, found.err.count("error[MT401]")) == (1, 1)
    assert [line.partition(" is damaged: ")[0] for line in shown.splitlines() if line.startswith("refused: ")] == [
        "refused: bad.yaml:5:27: error[MT401]: the machine has no gpu7",
        "refused: saved plan 'plans/damaged.json'",
    ]
    assert [name for name in ("bad", "damaged", "kv") if f"  plans/{name}.json" in shown.replace("##", " ")] == [
        "bad",
        "damaged",
        "kv",
    ]
    assert "32 MiB" in shown


def test_files_that_are_no_plans_are_listed_in_short(run_inline: InlineRunner, golden: Path) -> None:
    for number in range(7):
        (golden / "plans" / f"{number}.json").write_text("[]")
    listed = ", ".join(f"plans/{number}.json" for number in range(5))
    message = f"memtopo: 7 files without a saved plan are not compared: {listed} and 2 more\n"
    assert run_inline("diff", "plans").err == message
    for number in (5, 6):
        (golden / "plans" / f"{number}.json").unlink()
    message = f"memtopo: 5 files without a saved plan are not compared: {listed}\n"
    assert run_inline("diff", "plans").err == message


def test_a_refused_plan_is_not_accepted(run_inline: InlineRunner, golden: Path) -> None:
    """The others are."""
    for name in ("bad", "kv"):
        (golden / f"{name}.yaml").write_text(KV)
        run_inline("plan", f"{name}.yaml", "-m", "h200x2", "-o", f"plans/{name}.json")
    before = (golden / "plans" / "bad.json").read_bytes()
    (golden / "bad.yaml").write_text(KV.replace("gpu0", "gpu7"))
    (golden / "kv.yaml").write_text(KV.replace("2MiB", "4MiB"))
    assert run_inline("diff", "plans", "--accept").status == 1
    assert run_inline("diff", "plans/kv.json").status == 0
    assert (golden / "plans" / "bad.json").read_bytes() == before


def test_a_comment_has_the_summary_and_both_pictures(run_inline: InlineRunner, golden: Path) -> None:
    (golden / "kv.yaml").write_text(KV.replace("2MiB", "4MiB"))
    found = run_inline("diff", "plans", "--format", "markdown")
    assert (found.status, found.err) == (1, "")
    html = MarkdownIt("gfm-like", {"linkify": False}).render(found.out)
    assert "<h2>plans/kv.json → kv.yaml</h2>\n<p>on h200x2 (simulated)</p>" in html
    assert [re.sub("<.*?>", "", row) for row in re.findall("<td>.*?</td>", html)] == [
        "gpu0", "16 MiB", "32 MiB", "+16 MiB",
    ]  # fmt: skip
    before, after = re.findall(r'<pre><code class="language-text">(.*?)</code></pre>', html, re.DOTALL)
    assert "8 × 2 MiB" in before
    assert "8 × 4 MiB" in after
    short = run_inline("diff", "plans", "--format", "markdown", "--summary")
    assert "```" not in short.out
    assert found.out.startswith(short.out)


def test_a_comment_is_one_line_if_nothing_differs(run_inline: InlineRunner, golden: Path) -> None:
    found = run_inline("diff", "plans", "--format", "markdown")
    assert (found.status, found.out) == (0, "nothing differs\n")


def test_a_comment_of_many_plans_has_pictures_while_there_is_room(run_inline: InlineRunner, golden: Path) -> None:
    names = [f"{number}-{'long' * 30}" for number in "abcdefghijklmn"]
    chunks = "".join(f"  {name}: {{location: gpu0, size: 2MiB}}\n" for name in names)
    text = f"memtopo: 1\nname: kv\nchunks:\n{chunks}"
    (golden / "kv.yaml").write_text(text)
    run_inline("plan", "kv.yaml", "-m", "h200x2", "-o", "plans/kv.json")
    for number in range(40):
        (golden / "plans" / f"{number}.json").write_text((golden / "plans" / "kv.json").read_text())
    (golden / "kv.yaml").write_text(text.replace("2MiB", "4MiB"))
    found = run_inline("diff", "plans", "--format", "markdown").out
    assert f"{names[11]} and 2 more\n" in found
    shown = found.count("## plans")
    assert 1 < found.count("### before") < shown < 41
    assert found.endswith(f"\n\n{41 - shown} more are not shown.\n")
    assert 50_000 < len(found) < 65_536


def test_refused_plans_are_first_in_a_comment(run_inline: InlineRunner, golden: Path) -> None:
    (golden / "plans" / "late.json").write_text('{"memtopo_plan": 1}')
    (golden / "kv.yaml").write_text(KV.replace("2MiB", "4MiB"))
    lines = run_inline("diff", "plans", "--format", "markdown").out.splitlines()
    assert ["late" in line for line in lines if line.startswith("## ")] == [True, False]


def test_names_of_files_are_text_in_a_comment(run_inline: InlineRunner, golden: Path) -> None:
    """No markup, and no command of a CI runner; a picture ends no block."""
    name = "::error::[x](http:a) <b>`@all` #1.yaml"
    (golden / name).write_text(KV.replace("params: {", "params: {note: <b>@all, "))
    assert run_inline("plan", name, "-m", "h200x2", "-o", "plans/kv.json").status == 0
    (golden / name).write_text(KV.replace("2MiB", "4MiB"))
    found = run_inline("diff", "plans/kv.json", "--format", "markdown").out
    html = MarkdownIt("gfm-like", {"linkify": False}).render(found)
    assert html_unescaped(re.findall("<h2>(.*)</h2>", html)[0]) == f"plans/kv.json → {name}"
    assert "parameters: note=&lt;b&gt;@all → -, size=2MiB → 4MiB" in html
    assert not re.search(r"^::|@all|#1|<b>", found, re.MULTILINE)


def test_a_plan_of_a_file_elsewhere_is_compared_only_by_its_name(run_inline: InlineRunner, golden: Path) -> None:
    """A plan of others may name any file, and diagnostics quote it."""
    plan = golden / "plans" / "kv.json"
    (golden / "link").symlink_to("/etc/hostname")
    for elsewhere in ("../secret", "/etc/hostname", "link"):
        plan.write_text(plan.read_text().replace('"name": "kv.yaml"', f'"name": "{elsewhere}"'))
        found = run_inline("diff", "plans")
        assert found.status == 1
        assert f"the spec of 'plans/kv.json' is outside the current folder: '{elsewhere}'" in found.err
        assert found.out.startswith("diff  plans/kv.json\n\nrefused: ")
        plan.write_text(plan.read_text().replace(f'"name": "{elsewhere}"', '"name": "kv.yaml"'))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("kv.yaml",), "'kv.yaml' is not a saved plan"),
        (("nothing",), "'nothing' does not exist"),
        ((".git",), "folder '.git' contains no saved plan"),
        (("plans", "--json"), "a folder of plans has no JSON"),
    ],
)
def test_without_a_plan_or_a_spec_to_compare_with_nothing_is_compared(
    run_inline: InlineRunner, golden: Path, arguments: tuple[str, ...], message: str
) -> None:
    (golden / ".git").mkdir()
    found = run_inline("diff", *arguments)
    assert (found.status, found.err.splitlines()[0]) == (2, f"memtopo: error: {message}")


NODES = """memtopo: 1
name: ring
processes:
  pe:
    count: 4
    nodes: [a, b]
    devices: {mine: [gpu0, gpu1]}
    chunks: {part: {location: mine, size: SIZE}}
    ranges: {side: {size: SIZE}}
    map: {side: [part]}
    access: {side: {mine: rw}}
"""


def test_processes_of_two_nodes_are_shown_by_node(run_inline: InlineRunner, tmp_path: Path) -> None:
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    before.write_text(NODES.replace("SIZE", "2MiB"))
    after.write_text(NODES.replace("SIZE", "4MiB"))
    command = "diff", before, after, "-m", "a=h200x2", "-m", "b=h200x2"
    found = run_inline(*command).out
    assert [line for line in found.splitlines() if line.startswith("comes in")] == [
        "comes in pe.0 … pe.1 on a, each on its GPU: gpu0, gpu1",
        "comes in pe.2 … pe.3 on b, each on its GPU: gpu0, gpu1",
    ]
    assert [each["node"] for each in run_inline(*command, "--json").document["processes"]] == ["a", "a", "b", "b"]


def test_an_accepted_plan_may_get_other_processes(run_inline: InlineRunner, golden: Path) -> None:
    (golden / "pe.yaml").write_text(NODES.replace("SIZE", "2MiB").replace("    nodes: [a, b]\n", ""))
    assert run_inline("plan", "pe.yaml", "-m", "h200x4", "-o", "plans/pe.json").status == 0
    text = (golden / "pe.yaml").read_text().replace("count: 4", "count: 2")
    (golden / "pe.yaml").write_text(text)
    assert "MT807" in run_inline("diff", "plans/pe.json").err
    done = run_inline("diff", "plans/pe.json", "--accept")
    assert (done.status, "the spec has other processes" in done.err) == (0, True)
    assert [each["first"] for each in json.loads(Path("plans/pe.json").read_text())["plan"]["processes"]]
    assert run_inline("diff", "plans/pe.json").status == 0


def test_a_plan_of_standard_input_has_no_file_to_compare_with(run_inline: InlineRunner, golden: Path) -> None:
    plan = golden / "plans" / "kv.json"
    plan.write_text(plan.read_text().replace('"kv.yaml"', '"<stdin>"'))
    done = run_inline("diff", plan)
    assert (done.status, "was made from standard input" in done.err) == (1, True)


def test_the_format_of_a_variable_is_that_of_errors(run_inline: InlineRunner, golden: Path) -> None:
    done = run_inline("diff", "nothing.json", MEMTOPO_DIFF_FORMAT="json")
    assert (done.status, "does not exist" in done.document["error"]["message"]) == (2, True)
