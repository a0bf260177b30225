"""`memtopo change`: a held layout is brought to another spec in place, by a plan that may be saved, or is refused."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml

from memtopo.common.errors import ExchangeError
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.target import Target
from memtopo.machine import load
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from tests.cli.conftest import InlineRunner, held
from tests.helpers.command_line import ROOT
from tests.helpers.failing_driver import Failing
from tests.helpers.held_layouts import held as held_in_thread

SPEC = """
memtopo: 1
name: cache
ranges: {weights: {size: 4MiB}, kv: {size: 4MiB}}
chunks:
  w: {location: gpu0, size: 2MiB, count: 2, handles: fd}
  page: {location: gpu0, size: 2MiB, count: 2, handles: fd}
map: {weights: [w], kv: [page]}
access: {weights: {gpu0: rw}, kv: {gpu0: rw}}
exports: {weights: {chunk: w, via: fd}, kv: {chunk: page, via: fd}}
states: {asleep: {drop: [kv]}}
"""
LARGER = SPEC.replace("kv: {size: 4MiB}", "kv: {size: 8MiB}").replace(
    "page: {location: gpu0, size: 2MiB, count: 2", "page: {location: gpu0, size: 2MiB, count: 4"
)


SHARED = """
memtopo: 1
name: cache
processes:
  server:
    ranges: {w: {size: 4MiB}}
    chunks: {w: {location: gpu0, size: 2MiB, count: 2, handles: fd}}
    map: {w: [w]}
    access: {w: {gpu0: rw}}
    exports: {w: {chunk: w, via: fd}}
  reader:
    imports: {w: {from: server.w}}
    ranges: {v: {size: 4MiB}}
    map: {v: [w]}
    access: {v: {gpu0: r}}
"""


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with `spec.yaml` and `larger.yaml`, which is the runtime directory and the current one."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "larger.yaml").write_text(LARGER)
    return tmp_path


def test_a_held_layout_is_changed_in_place(run_inline: InlineRunner, specs: Path) -> None:
    """What is shown, checked, exported and drawn afterwards is that of the new spec."""
    here = {"XDG_RUNTIME_DIR": str(specs)}
    with held(specs):
        plan = run_inline("plan", "cache", "larger.yaml", **here)
        assert plan.status == 0
        assert plan.out.splitlines()[0] == "plan  cache → larger.yaml  on h100x1 (simulated)"
        assert "memory  before   after  at most" in plan.out
        done = run_inline("change", "cache", "larger.yaml", **here)
        assert (done.status, done.out.splitlines()[0]) == (0, "change  cache to larger.yaml")
        assert done.out.splitlines()[-1] == "ok: generation 2 is as declared"
        shown = run_inline("show", "cache", "--json", **here).document
        assert (shown["generation"], shown["spec"]) == (2, "larger.yaml")
        assert {offer["name"]: offer["count"] for offer in shown["offers"]} == {"weights": 2, "kv": 4}
        assert [each["used"] for each in shown["picture"]["memory"]] == [12 << 20]
        assert run_inline("check", "cache", **here).status == 0
        assert run_inline("diff", "cache", "larger.yaml", **here).status == 0
        full = run_inline("change", "cache", "spec.yaml", "--check", "full", "--json", **here)
        assert (full.status, full.document["memtopo_change"], full.document["generation"]) == (0, 1, 3)
        assert "fingerprint" in {each["aspect"] for each in full.document["checks"]["tallies"]}


def test_a_saved_plan_is_made_once_and_then_stale(run_inline: InlineRunner, specs: Path) -> None:
    here = {"XDG_RUNTIME_DIR": str(specs)}
    with held(specs):
        assert run_inline("plan", "cache", "larger.yaml", "-o", "plan.json", **here).status == 0
        assert run_inline("change", "cache", "plan.json", **here).status == 0
        again = run_inline("change", "cache", "plan.json", **here)
        assert again.status == 7
        assert "the saved plan 'plan.json' is for generation 1, but the held layout is 2" in again.err
        assert "plan it again with 'memtopo plan NAME SPEC -o FILE'" in again.err
        chosen = run_inline("change", "cache", "plan.json", "--set=pages=4", **here)
        assert (chosen.status, "keeps the values with which it was made" in chosen.err) == (2, True)
        (specs / "plan.json").write_text((specs / "plan.json").read_text().replace('"generation":', '"generations":'))
        assert run_inline("change", "cache", "plan.json", **here).status == 1
    with held(specs, "larger.yaml"):  # of generation 1, too
        assert run_inline("plan", "cache", "spec.yaml", "-o", "back.json", **here).status == 0
    with held(specs):
        other = run_inline("change", "cache", "back.json", **here)
        assert (other.status, "is for a layout other than the one that is held now" in other.err) == (7, True)


def test_a_change_of_a_layout_that_sleeps_is_neither_planned_nor_made(run_inline: InlineRunner, specs: Path) -> None:
    here = {"XDG_RUNTIME_DIR": str(specs)}
    with held(specs):
        assert run_inline("plan", "cache", "larger.yaml", "-o", "plan.json", **here).status == 0
        assert run_inline("switch", "cache", "asleep", **here).status == 0
        for words in (("plan", "cache", "larger.yaml", "-o", "other.json"), ("change", "cache", "larger.yaml")):
            refused = run_inline(*words, **here)
            assert (refused.status, refused.out) == (4, "")
            assert "layout 'cache' is in state 'asleep'" in refused.err
            assert "'memtopo switch cache awake' first" in refused.err
        assert not (specs / "other.json").exists()
        stale = run_inline("change", "cache", "plan.json", **here)
        assert (stale.status, stale.out) == (7, "")
        assert "the saved plan 'plan.json' is for a layout that is awake, and 'cache' is in state 'asleep'" in stale.err
        assert run_inline("diff", "cache", "larger.yaml", **here).status == 1


def test_a_saved_plan_of_several_processes_is_made_once_and_then_stale(run_inline: InlineRunner, specs: Path) -> None:
    here = {"XDG_RUNTIME_DIR": str(specs)}
    (specs / "shared.yaml").write_text(SHARED)
    (specs / "one.yaml").write_text(SHARED.replace("size: 2MiB, count: 2", "size: 4MiB"))
    with held(specs, "shared.yaml"):
        assert run_inline("diff", "cache", "one.yaml", **here).status == 1
        planned = run_inline("plan", "cache", "one.yaml", "-o", "plan.json", **here)
        assert planned.status == 0
        assert "comes in reader" in planned.out
        saved = json.loads((specs / "plan.json").read_text())
        saved["plan"]["processes"][1]["kept"] += 1
        (specs / "edited.json").write_text(json.dumps(saved))
        other = run_inline("change", "cache", "edited.json", **here)
        assert (other.status, "would be different now" in other.err) == (7, True)
        assert run_inline("change", "cache", "plan.json", **here).status == 0
        again = run_inline("change", "cache", "plan.json", **here)
        assert (again.status, "is for generation 1, but the held layout is 2" in again.err) == (7, True)
        assert run_inline("diff", "cache", "one.yaml", **here).status == 0


def test_a_change_of_held_processes_may_be_to_a_spec_that_more_processes_join(
    run_inline: InlineRunner, specs: Path
) -> None:
    here = {"XDG_RUNTIME_DIR": str(specs)}
    joined = SHARED.replace("server:\n", "server:\n    held: true\n").replace("reader:\n", "reader:\n    count: 2\n")
    more = joined.replace("count: 2\n    imports", "count: 3\n    imports")
    (specs / "joined.yaml").write_text(joined)
    (specs / "more.yaml").write_text(more)
    (specs / "one.yaml").write_text(more.replace("size: 2MiB, count: 2", "size: 4MiB"))
    with held(specs, "joined.yaml"):
        found = run_inline("diff", "cache", "more.yaml", **here)
        assert (found.status, found.out.splitlines()[-1]) == (1, "  changed  reader")
        assert "\nno step differs; 7 steps are equal\n" in found.out
        assert run_inline("plan", "cache", "one.yaml", "-o", "plan.json", **here).status == 0
        assert run_inline("change", "cache", "plan.json", **here).status == 0
        assert run_inline("diff", "cache", "one.yaml", **here).status == 0
        assert len(run_inline("show", "cache", "--json", **here).document["offers"]) == 1


def test_a_spec_that_the_layout_cannot_be_changed_to_is_refused_with_its_position(
    run_inline: InlineRunner, specs: Path
) -> None:
    (specs / "named.yaml").write_text(SPEC.replace("name: cache", "name: other"))
    (specs / "wrong.yaml").write_text(SPEC.replace("kv: [page]", "kv: [pages]"))
    here = {"XDG_RUNTIME_DIR": str(specs)}
    with held(specs):
        for command in ("plan", "change"):
            named = run_inline(command, "cache", "named.yaml", **here)
            assert named.status == 1
            assert named.err.splitlines()[0] == (
                "named.yaml:3:7: error[MT806]: the layout is named 'cache', but a change must keep its name"
            )
            wrong = run_inline(command, "cache", "wrong.yaml", "--json", **here)
            assert (wrong.status, wrong.document["diagnostics"][0]["code"]) == (1, "MT201")
        assert run_inline("show", "cache", "--json", **here).document["generation"] == 1


def test_the_holder_validates_again(specs: Path) -> None:
    def refusal(spec: str, **more: str) -> ExchangeError:
        with connect(endpoint("cache")) as client, pytest.raises(ExchangeError) as caught:
            client.change(json.dumps({"spec": spec, **more}))
        return caught.value

    with held(specs):
        assert "cannot be changed to: the holder:3:7: error[MT806]" in refusal(SPEC.replace("cache", "other")).message
        assert refusal(SPEC.replace("[page]", "[pages]")).code == "invalid"
        assert "another machine" in refusal(SPEC, machine="{}").message
        with connect(endpoint("cache")) as client, pytest.raises(ExchangeError) as caught:
            client.change("[]")
        assert caught.value.code == "invalid"
        with connect(endpoint("cache")) as client, pytest.raises(ExchangeError) as caught:
            client.change(json.dumps({"spec": LARGER}), generation=2)
        assert (caught.value.code, caught.value.exit_code) == ("stale", 7)
        with connect(endpoint("cache")) as client:
            client.switch("asleep")
        assert refusal(LARGER).code == "state"
        with connect(endpoint("cache")) as client:
            client.switch("awake")
            long = f"{LARGER}# {'x' * 50_000}\n"
            assert client.change(json.dumps({"spec": long})).checks.different == 0


def test_a_change_is_refused_while_importers_would_keep_memory(run_inline: InlineRunner, specs: Path) -> None:
    smaller = LARGER.replace(
        "page: {location: gpu0, size: 2MiB, count: 4", "page: {location: gpu0, size: 4MiB, count: 2"
    )
    (specs / "other.yaml").write_text(smaller)
    here = {"XDG_RUNTIME_DIR": str(specs)}
    with held(specs), connect(endpoint("cache")) as client:
        for handle in client.handles("kv"):
            handle.close()
        for command in ("plan", "change"):  # the two chunks stay
            found = run_inline(command, "cache", "larger.yaml", **here)
            assert (found.status, "kv moves: pointers and graphs" in found.out) == (0, True)
            assert "waits for" not in found.out
        planned = run_inline("plan", "cache", "other.yaml", "--json", **here).document
        (awaited,) = planned["awaited"]
        assert (awaited["pid"], awaited["bytes"], awaited["exports"]) == (os.getpid(), 4 << 20, ["kv"])
        assert awaited["command"]
        for options in ([], ["--summary"]):
            table = run_inline("plan", "cache", "other.yaml", *options, **here).out.partition("waits for importers")[2]
            assert {str(os.getpid()), "kv"} < {*table.split()}
        refused = run_inline("change", "cache", "other.yaml", "--wait", "1ms", **here)
        keeps = f"process {os.getpid()} (2 of kv, 4 MiB) did not release imported memory within 0.001 s"
        assert (refused.status, keeps in " ".join(refused.err.split())) == (4, True)
        forced = run_inline("change", "cache", "other.yaml", "--wait", "1ms", "--force", **here)
        assert (forced.status, "keeps 4 MiB of memory from being free" in forced.out) == (0, True)


def test_a_change_names_exports_that_a_writer_has_to_commit_again(run_inline: InlineRunner, specs: Path) -> None:
    spec = (ROOT / "specs/weights-server.yaml").read_text()
    (specs / "more.yaml").write_text(spec.replace("shards: 2", "shards: 3"))
    simulator = SimDriver(load("h100x1"))
    simulator.init()
    target = Target("h100x1", load("h100x1"), simulated=True, _opener=lambda: simulator)
    lost = "export weights is not committed any more"
    with held_in_thread(yaml.safe_load(spec), target), connect(endpoint("weights-server")) as client:
        client.write(["weights"])
        client.commit(["weights"])
        planned = run_inline("plan", "weights-server", "more.yaml", XDG_RUNTIME_DIR=str(specs))
        assert "commit lost  export weights: a writer has to commit it again" in planned.out
        changed = run_inline("change", "weights-server", "more.yaml", XDG_RUNTIME_DIR=str(specs))
        assert (changed.status, lost in changed.out) == (0, True)
        again = run_inline("change", "weights-server", "more.yaml", XDG_RUNTIME_DIR=str(specs))
        assert (again.status, lost in again.out) == (0, False)


class Closing(Failing):
    """A failing driver that closes its simulator at the end."""

    def close(self) -> None:
        self._driver.close()


def test_a_change_that_cannot_be_rolled_back_takes_the_layout_down(run_inline: InlineRunner, specs: Path) -> None:
    """The exit status is 5; here nothing of the layout is left."""
    simulator = SimDriver(load("h100x1"))
    simulator.init()
    driver = Closing(simulator, only={"mem_create"}, every=True)
    target = Target("h100x1", load("h100x1"), simulated=True, _opener=lambda: driver)
    other = re.sub(r"\b([24])MiB", lambda size: f"{2 * int(size[1])}MiB", SPEC)
    (specs / "other.yaml").write_text(other)
    with held_in_thread(yaml.safe_load(SPEC), target) as layout:
        driver.at = driver.calls + 1
        lost = run_inline("change", "cache", "other.yaml", XDG_RUNTIME_DIR=str(specs))
        assert (lost.status, "the layout is taken down" in lost.err) == (5, True)
    assert (layout.report.outcome, layout.report.leaks) == ("failed", ())
