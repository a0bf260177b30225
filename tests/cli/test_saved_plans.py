"""Saved plans: applied only where planning again gives the same."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from memtopo import machine
from tests.helpers.command_line import run_memtopo, run_with_input
from tests.helpers.specs import ROOT

QUICKSTART = str(ROOT / "specs" / "quickstart.yaml")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    file = tmp_path / "plan.json"
    assert run_memtopo("plan", QUICKSTART, "-m", "h200x2", "-o", str(file)).status == 0
    return file


def test_a_saved_plan_is_applied_if_it_still_holds(saved: Path) -> None:
    """It may have been made for another machine, and then says so."""
    for name, other in (("h200x2", False), ("h200x4", True)):
        done = run_memtopo("apply", str(saved), "-m", name)
        assert (done.status, "another machine: h200x2 (simulated)" in done.err) == (0, other), done.err
        assert "ok: built, checked and taken down" in done.out
        saved.write_text(json.dumps(json.loads(saved.read_text())))  # without lines for rows


def test_a_plan_is_of_the_machine_of_a_record_by_any_name(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "ours.json").write_text(machine.dump(machine.load("h200x2")))
    done = run_memtopo("apply", str(saved), "-m", str(tmp_path / "ours.json"))
    assert (done.status, "another machine" in done.err) == (0, False)


def test_a_saved_plan_is_drawn_and_compared_on_its_own_machine(saved: Path) -> None:
    """Without --machine; with it, on that one."""
    drawn = run_memtopo("draw", str(saved))
    assert (drawn.status, drawn.err, drawn.out.splitlines()[0]) == (0, "", "draw  quickstart  on h200x2 (simulated)")
    compared = run_memtopo("diff", str(saved), QUICKSTART)
    assert (compared.status, compared.err) == (0, "")
    assert "on h200x2 (simulated)" in " ".join(compared.out.split())
    there = run_memtopo("diff", str(saved), QUICKSTART, "-m", "h200x4")
    assert "on h200x4 (simulated)" in " ".join(there.out.split())


def test_a_plan_that_holds_on_other_gpus_names_those_it_was_made_for(tmp_path: Path) -> None:
    spec, file = tmp_path / "s.yaml", tmp_path / "plan.json"
    spec.write_text("memtopo: 1\nname: s\nranges: {a: {size: 2MiB}}\n")
    assert run_memtopo("plan", str(spec), "-m", "h100x1", "-o", str(file)).status == 0
    other, same = (run_memtopo("apply", str(file), "-m", name) for name in ("h200x2", "h100x1"))
    line = f"memtopo: the plan {str(file)!r} was made for another machine: h100x1 (simulated)"
    assert (other.status, line in other.err.splitlines()) == (0, True)
    assert (same.status, "another machine" in same.err) == (0, False)


def test_a_plan_of_a_simulated_machine_names_it_where_there_is_no_gpu(saved: Path) -> None:
    done = run_memtopo("apply", str(saved))
    assert (done.status, done.err.splitlines()[-1]) == (
        3,
        "memtopo: hint: the plan is for h200x2: use --machine h200x2",
    )
    other = run_memtopo("apply", str(saved), "-m", "./none.json")
    saved.write_text(saved.read_text().replace('"simulated": true', '"simulated": false'))
    real = run_memtopo("apply", str(saved))
    for done in (other, real):
        assert (done.status, "the plan is for" in done.err) == (3, False), done


def test_a_saved_plan_equals_the_printed_one_without_the_drawing(saved: Path) -> None:
    """It contains the spec's text and the facts of the machine."""
    printed = run_memtopo("plan", QUICKSTART, "-m", "h200x2", "--json").out
    kept, shown = json.loads(saved.read_text()), json.loads(printed)
    assert kept["plan"].pop("picture") is None
    assert shown["plan"].pop("picture")
    kept["spec"]["text"] = "".join(kept["spec"]["text"])
    assert kept == shown | {"digest": None}  # two of which git cannot merge
    assert json.loads(printed)["spec"]["text"] == Path(QUICKSTART).read_text()
    assert json.loads(printed)["facts"] == json.loads(machine.dump(machine.load("h200x2")))


LAYERS = """\
memtopo: 1
name: merged
ranges: {a: {size: 4MiB}, b: {size: 4MiB}, c: {size: 4MiB}}
chunks: {a: {location: gpu0, size: 4MiB}, b: {location: gpu0, size: 4MiB}, c: {location: gpu0, size: 4MiB}}
map: {a: [a], b: [b], c: [c]}
access:
  a: {gpu0: rw}
  b: {gpu0: rw}
  c: {gpu0: rw}
"""


def test_git_merges_plans_of_two_branches_that_differ_in_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, timeout=60)

    def commit(old: str, new: str) -> None:
        spec.write_text(spec.read_text().replace(old, new))
        assert run_memtopo("plan", str(spec), "-m", "h200x2", "-o", str(file)).status == 0
        git("add", "-A")
        git("commit", "-qm", "change")

    identity = ["-c", "user.name=n", "-c", "user.email=n@example.com"]
    monkeypatch.chdir(tmp_path)
    spec, file = Path("layers.yaml"), Path("layers.json")
    spec.write_text(LAYERS)
    git("init", "-q", "-b", "main")
    commit("", "")
    for branch, range_ in (("one", "a"), ("two", "c")):
        git("checkout", "-qb", branch, "main")
        commit(f"{range_}: {{gpu0: rw}}", f"{range_}: {{gpu0: r}}")
    git("merge", "-q", "one")
    assert run_memtopo("diff", str(file)).status == 0
    assert run_memtopo("apply", str(file), "-m", "h200x2").status == 0


def test_a_stale_plan_exits_with_7_and_names_the_change(saved: Path) -> None:
    """Nothing is built."""
    text = saved.read_text()
    saved.write_text(text.replace("count: 16}", "count: 8}"))
    done = run_memtopo("apply", str(saved), "-m", "h200x2")
    assert done.status == 7
    assert "-create page.0 … page.15 (16 calls), 2MiB each, gpu0, gpu1" in done.err
    assert "+create page.0 … page.7 (8 calls), 2MiB each, gpu0, gpu1" in done.err
    assert not done.out


def test_a_saved_plan_with_an_invalid_spec_is_not_applied(saved: Path) -> None:
    """Its rows do not matter."""
    done = run_memtopo("apply", str(saved), "-m", "h100x1")
    assert done.status == 7
    assert "MT401" in done.err
    saved.write_text(saved.read_text().replace("size: 96MiB", "size: 90MiB"))
    done = run_memtopo("apply", str(saved), "-m", "h200x2")
    assert done.status == 7
    assert "MT305" in done.err


def test_spec_in_a_saved_plan_is_validated_with_its_positions(saved: Path) -> None:
    """Results have the name of the plan, which standard input has, too."""
    good = run_memtopo("validate", str(saved), "-m", "h200x2")
    assert (good.status, good.out) == (0, f"{saved}: ok on h200x2\n")
    assert run_with_input(saved.read_bytes(), "validate", "-", "-m", "h200x2").out == "<stdin>: ok on h200x2\n"
    both = run_memtopo("validate", str(saved), QUICKSTART, "-m", "h200x2", "--json").document
    assert [each["file"] for each in both["results"]] == [str(saved), QUICKSTART]
    bad = run_memtopo("validate", str(saved), "-m", "h100x1", "--format", "concise")
    assert (bad.status, bad.out) == (1, f"{QUICKSTART}:11:31: error[MT401]: the machine has no gpu1\n")


def test_a_damaged_plan_is_one_diagnostic_beside_those_of_other_files(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"memtopo_plan": 1, "spec": 3}')
    done = run_memtopo("validate", str(file), QUICKSTART, "-m", "h200x2")
    assert done.status == 1
    assert f"{file}: error[MT001]: saved plan {str(file)!r} is damaged" in done.out
    assert done.out.endswith("2 files on h200x2: 1 ok, 1 with errors\n")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ('{"memtopo_plan": 1', "invalid JSON: EOF while parsing an object at line 1 column 18"),
        ('{"memtopo_plan": 2}', "memtopo_plan: input should be 1"),
        ('{"memtopo_plan": 1, "spec": 3}', "spec: input should be an object"),
    ],
)
def test_a_damaged_plan_exits_with_1_and_is_called_a_plan(tmp_path: Path, damage: str, reason: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(damage)
    done = run_memtopo("apply", str(file), "-m", "h200x2")
    assert done.status == 1
    assert done.err.splitlines()[0] == f"memtopo: error: saved plan {str(file)!r} is damaged: {reason}"


def test_an_unwritable_plan_exits_with_4_and_the_reason(tmp_path: Path) -> None:
    done = run_memtopo("plan", QUICKSTART, "-m", "h200x2", "-o", str(tmp_path / "none" / "plan.json"))
    assert done.status == 4
    assert "cannot be written: no such file or directory" in done.err


def test_identities_of_devices_are_not_saved(tmp_path: Path) -> None:
    facts = json.loads(machine.dump(machine.load("h200x2")))
    facts["devices"][0] |= {"uuid": "GPU-00000000-0000-0000-0000-000000000001", "bus_id": "0000:1b:00.0"}
    facts["host_name"] = "secret-host"
    (tmp_path / "m.json").write_text(json.dumps(facts))
    file = tmp_path / "plan.json"
    assert run_memtopo("plan", QUICKSTART, "-m", str(tmp_path / "m.json"), "-o", str(file)).status == 0
    assert not [word for word in ("GPU-0000", "1b:00.0", "secret-host") if word in file.read_text()]


def test_a_plan_with_the_same_calls_at_other_offsets_is_stale(tmp_path: Path) -> None:
    spec = tmp_path / "s.yaml"
    spec.write_text(
        "memtopo: 1\nname: s\nranges: {a: {size: 32MiB}}\nchunks: {c: {location: gpu0, size: 4MiB}}\n"
        "map: {a: [{chunk: c, offset: 2 granules}]}\naccess: {a: {gpu0: rw}}\n"
    )
    facts = json.loads(machine.dump(machine.load("h100x1")))
    for entry in facts["devices"][0]["memory"]["granularity"]:
        entry |= {"minimum": 4 << 20, "recommended": 4 << 20}
    (tmp_path / "m.json").write_text(json.dumps(facts))
    file = tmp_path / "plan.json"
    assert run_memtopo("plan", str(spec), "-m", "h100x1", "-o", str(file)).status == 0
    assert run_memtopo("apply", str(file), "-m", "h100x1").status == 0
    assert run_memtopo("apply", str(file), "-m", str(tmp_path / "m.json")).status == 7


def test_a_plan_of_thousands_of_chunks_is_saved_and_compared(tmp_path: Path) -> None:
    lines = [f"  c{index}: {{location: gpu0, size: {2 + 2 * (index % 7)}MiB}}" for index in range(2000)]
    spec = tmp_path / "s.yaml"
    names = ", ".join(f"c{index}" for index in range(2000))
    spec.write_text(
        "memtopo: 1\nname: s\nranges: {a: {size: 32GiB}}\nchunks:\n"
        + "\n".join(lines)
        + f"\nmap: {{a: [{names}]}}\naccess: {{a: {{gpu0: rw}}}}\n"
    )
    file = tmp_path / "plan.json"
    assert run_memtopo("plan", str(spec), "-m", "h100x1", "--json", "-o", str(file)).status == 0
    assert run_memtopo("apply", str(file), "-m", "h100x1", "--json").status == 0
    file.write_text(file.read_text().replace("location: gpu0, size: 2MiB", "location: gpu0, size: 6MiB"))
    done = run_memtopo("apply", str(file), "-m", "h100x1")
    assert done.status == 7
    assert "more" in done.err


@pytest.mark.parametrize("command", ["plan", "probe"])
def test_output_never_overwrites_a_file_of_another_program(tmp_path: Path, command: str) -> None:
    """A spec above all; memtopo's own files are overwritten."""
    spec = tmp_path / "kv.yaml"
    spec.write_text(Path(QUICKSTART).read_text())
    words = [command, *([str(spec)] if command == "plan" else []), "-m", "h200x2", "-o"]
    done = run_memtopo(*words, str(spec))
    assert done.status == 2
    assert "memtopo did not write it" in done.err
    assert spec.read_text() == Path(QUICKSTART).read_text()
    for _ in range(2):
        assert run_memtopo(*words, str(tmp_path / "out.json")).status == 0


def test_a_plan_whose_memory_differs_is_stale(saved: Path) -> None:
    """Even if its calls are the same."""
    document = json.loads(saved.read_text())
    document["plan"]["memory"]["gpu0"] += 2 << 20
    saved.write_text(json.dumps(document))
    done = run_memtopo("apply", str(saved), "-m", "h200x2")
    assert done.status == 7
    assert "-memory on gpu0: 50MiB" in done.err
    assert "+memory on gpu0: 48MiB" in done.err
