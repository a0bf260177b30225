"""From a spec and a machine to a request: of a whole layout, of its held part, and of a change of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError
from memtopo.common.files import PATIENCE
from memtopo.drivers.target import of_nodes, recorded
from memtopo.language import SpecText, read_file
from memtopo.machine import Machine
from memtopo.plans.report import Check
from memtopo.session.composition import Composition, InvalidOnMachine, revision
from memtopo.session.saved import SavedPlan, StalePlan, saved_facts
from memtopo.sharing.wire import parsed_source
from tests.helpers.machines import invented, noted
from tests.helpers.specs import composed, document

MACHINE = invented(2)
SPEC = """memtopo: 1
name: kv
params: {pages: 2}
chunks: {page: {location: gpu0, size: 2MiB, count: $pages, handles: fd}}
exports: {pages: {chunk: page, via: fd}}
"""
OF_SPEC = ("plan", "geometry", "spec", "position_of", "warnings", "params", "digest")
"""Fields of a request that are those of its spec."""

JOINED = """
processes:
  weights:
    held: true
    chunks: {w: {location: gpu0, size: 2MiB, handles: fd}}
    exports: {w: {chunk: w, via: fd}}
  engine:
    count: 2
    ranges: {w: {size: 2MiB}, own: {size: 2MiB}}
    chunks: {own: {location: gpu1, size: 2MiB}}
    imports: {w: {from: weights.w}}
    map: {w: [w], own: [own]}
    access: {w: {gpu1: r}, own: {gpu1: rw}}
"""


def test_a_spec_is_read_again_with_the_settings_of_the_layout(tmp_path: Path) -> None:
    file = tmp_path / "kv.yaml"
    file.write_text(SPEC)
    held = Composition.of(read_file(file, settings={"pages": "3"}), recorded("m", MACHINE), str(file))
    file.write_text(SPEC.replace("2MiB", "4MiB"))
    found = parsed_source(held.reread()).document
    assert (found.values, found.root["chunks"]["page"]["size"]) == ({"pages": "3"}, "4MiB")  # type: ignore[index,call-overload]
    file.write_text(SPEC.replace("$pages", "4"))
    assert parsed_source(held.reread()).document.diagnostics, "warnings are no refusal"
    file.write_text(SPEC.replace("location: gpu0, ", ""))
    with pytest.raises(ExchangeError, match="cannot be changed to"):
        revision(held.reread(), held.request(), held.target)
    file.write_text("[")
    with pytest.raises(ExchangeError, match=r"kv\.yaml:1"):
        held.reread()


def test_a_spec_in_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Meanwhile the holder answers nobody."""
    pipe = tmp_path / "kv.yaml"
    os.mkfifo(pipe)
    held = Composition.of(document(SPEC), recorded("m", MACHINE), str(pipe))
    begin = time.monotonic()
    with os.fdopen(os.open(pipe, os.O_RDWR)), pytest.raises(ExchangeError, match="in time"):
        held.reread()
    assert time.monotonic() - begin < PATIENCE / 2


def saved(text: str, machine: Machine = MACHINE) -> SavedPlan:
    made = composed(text, machine)
    facts = saved_facts(machine, made.geometry)
    return SavedPlan(1, made.target.line, made.plan.summary(), SpecText.of(made.document), facts)


def test_a_saved_plan_and_standard_input_are_not_read_again(tmp_path: Path) -> None:
    """A file of that name may be another spec."""
    file = tmp_path / "plan.json"
    file.write_text(SPEC)
    of_plan = Composition.of(document(SPEC), recorded("m", MACHINE), str(file), saved(SPEC))
    for each in (of_plan, Composition.of(document(SPEC), recorded("m", MACHINE), "-")):
        with pytest.raises(ExchangeError, match="is not read again"):
            each.reread()


def test_a_change_keeps_all_of_the_request_but_the_spec() -> None:
    before = composed(SPEC, MACHINE).request(check="full", timeout=7.0, exclusive=False, trace="/tmp/t", rehearse=True)
    after = composed(SPEC.replace("pages: 2", "pages: 5"), MACHINE)
    done = revision(after.source, before, after.target)
    assert (sum(done.request.plan.memory.values()), done.request.params) == (10 << 20, {"pages": "5"})
    assert done.source == after.source
    warned = composed(SPEC + "ranges: {r: {size: 2MiB}}\n", MACHINE)
    assert revision(warned.source, before, after.target).request.warnings == warned.warnings != ()
    without_machine = json.dumps({"spec": after.document.text})
    assert revision(without_machine, before, after.target).request.plan == done.request.plan
    assert replace(done.request, **{name: getattr(before, name) for name in OF_SPEC}) == before


def test_the_source_after_a_change_has_the_machine_of_the_layout_though_that_of_the_change_has_none() -> None:
    """Others attach to a simulated layout by it, and plan the next change."""
    before = composed(SPEC, MACHINE)
    done = revision(json.dumps({"spec": SPEC.replace("pages: 2", "pages: 5")}), before.request(), before.target)
    assert parsed_source(done.source).machine == parsed_source(before.source).machine != ""


def test_a_change_is_refused_that_is_for_another_machine_or_layout_or_invalid() -> None:
    before = composed(SPEC, MACHINE)
    larger = SPEC.replace("pages: 2", "pages: 5")
    for after, words in (
        (composed(larger, invented(2, memory=90 << 30)), "for another machine"),
        (composed(larger.replace("name: kv", "name: other"), MACHINE), "MT806"),
        (composed(larger.replace("2MiB", "3MiB"), MACHINE), "MT301"),
    ):
        with pytest.raises(ExchangeError, match=words) as raised:
            revision(after.source, before.request(), before.target)
        assert (raised.value.hint == "plan it again") is (words == "for another machine")


def test_a_change_to_what_was_never_tried_is_refused() -> None:
    untried = noted("multicast was never tried")
    assert isinstance(untried, Machine)
    chunk = "chunks: {part: {location: [gpu0, gpu1], size: 4MiB, count: 2}}\n"
    before = composed(chunk, untried)
    after = composed(chunk + "multicast: {team: {devices: gpus, size: 4MiB}}\nbind: {team: [part]}\n", untried)
    assert after.valid, after.diagnostics
    with pytest.raises(ExchangeError, match="never tried") as raised:
        revision(after.source, before.request(), before.target)
    assert raised.value.hint == "validate, plan and draw work; no option makes apply build it"


def test_a_request_has_the_machine_in_full_and_the_file_of_its_spec() -> None:
    found = composed(SPEC, MACHINE)
    assert (found.request().machine_facts, found.origin, found.request().spec) == (MACHINE, "test.yaml", "test.yaml")


def test_a_process_of_a_layout_is_one_by_itself_under_its_label() -> None:
    one = composed(JOINED, MACHINE).of_process("engine.1")
    assert (one.geometry.name, one.plan.name, one.plan.memory) == ("engine.1", "engine.1", {"gpu1": 2 << 20})


def test_a_report_has_the_memory_of_states_if_it_goes_through_them_and_the_parameters() -> None:
    states = "ranges: {r: {size: 4MiB}}\nmap: {r: page}\nstates: {gone: {drop: [r]}}\naccess: {r: {gpu0: rw}}\n"
    found = composed(SPEC[: SPEC.index("exports")] + states, MACHINE)
    summaries = [found.request(rehearse=rehearse).summary() for rehearse in (True, False)]
    assert [each.states for each in summaries] == [{"awake": {"gpu0": 4 << 20}, "gone": {"gpu0": 0}}, {}]
    assert summaries[0].params == {"pages": "2"}


@pytest.mark.parametrize(("check", "simulated", "notes"), [("full", True, 1), ("full", False, 0), ("fast", True, 0)])
def test_a_full_check_of_a_simulated_machine_has_a_note(check: Check, simulated: bool, notes: int) -> None:
    request = composed(SPEC, MACHINE).request(check=check)
    line = replace(request.machine, simulated=simulated)
    assert len([*replace(request, machine=line).notes()]) == notes


def test_a_spec_that_cannot_be_changed_to_keeps_its_own_diagnostics() -> None:
    warned = composed("chunks: {c: {location: gpu0, size: 2MiB}}", MACHINE)
    refused = warned.after(composed(SPEC, MACHINE).geometry)
    assert [each.code for each in refused.diagnostics] == ["MT501", "MT806"]
    assert (warned.valid, refused.valid) == (True, False)


def test_a_change_of_held_processes_leaves_processes_that_join_them_out() -> None:
    """They may be others then."""
    held = composed(JOINED, MACHINE).held_part
    assert {*held.request().plan.processes} == {"weights"}
    larger = JOINED.replace("count: 2", "count: 3").replace("gpu0, size: 2MiB", "gpu0, size: 4MiB")
    after = composed(larger.replace("{w: {size: 2MiB}", "{w: {size: 4MiB}"), MACHINE)
    done = revision(after.source, held.request(), held.target).request
    assert ({*done.plan.processes}, done.plan.memory) == ({"weights"}, {"gpu0": 4 << 20})
    with pytest.raises(ExchangeError, match="MT807"):
        revision(after.source, composed(JOINED, MACHINE).request(), held.target)


def test_a_process_that_joins_imports_from_the_held_layout() -> None:
    for joining in (True, False):
        found = Composition.of(document(JOINED), recorded("m", MACHINE), joining=joining)
        assert found.geometry.imports_from_outside is joining


def test_the_held_part_of_a_saved_plan_is_applied_if_the_whole_plan_still_holds() -> None:
    plan = saved(JOINED)
    whole = Composition.of(plan.spec.read(), recorded("m", MACHINE), "plan.json", plan)
    assert {*whole.held_part.request().plan.processes} == {"weights"}
    other = replace(plan, plan=saved(JOINED.replace("own: {location: gpu1", "own: {location: gpu0")).plan)
    with pytest.raises(StalePlan) as raised:
        replace(whole, saved=other).held_part.request()
    assert any("engine" in line for line in raised.value.details)


def test_an_invalid_spec_names_its_first_error_and_counts_the_other_errors() -> None:
    text = SPEC.replace("2MiB", "3MiB") + "buffers: {b: {location: gpu7, size: 2MiB}}\nranges: {r: {size: 2MiB}}\n"
    found = composed(text, MACHINE)
    assert "MT502" in [each.code for each in found.diagnostics]
    with pytest.raises(InvalidOnMachine) as raised:
        found.request()
    assert raised.value.message.startswith("test.yaml:4:")
    assert raised.value.message.endswith("(and 1 more)")


def test_the_request_of_a_process_has_the_processes_of_its_node_beside_it() -> None:
    process = "chunks: {c: {location: gpu0, size: 2MiB}}"
    text = f"processes: {{pe: {{count: 4, nodes: [a, b], {process}}}, other: {{node: b, {process}}}}}"
    nodes = of_nodes({node: recorded(node, MACHINE) for node in ("a", "b")})
    request = Composition.of(document(text), nodes).request()
    assert [*request.of_process("pe.2").processes_of_node] == ["pe.2", "pe.3", "other"]
    one = request.of_process("pe.0")
    assert ([*one.processes_of_node], len(one.processes), one.layout) == (["pe.0", "pe.1"], 5, "test")
    assert one.plan == request.plan.processes["pe.0"]
    assert [*composed(JOINED, MACHINE).request().of_process("engine.0").processes_of_node] == [
        "weights", "engine.0", "engine.1"
    ]  # fmt: skip
    line = request.machine
    about = {"layout": "test", "machine": line.name, "simulated": True, "driver": line.driver}
    assert (one.about_trace, request.about_trace) == (about | {"process": "pe.0"}, about | {"process": ""})
