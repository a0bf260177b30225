"""`memtopo.hold` on a simulated machine: a program that holds a layout while it goes on."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import memtopo
from memtopo.common.errors import ExchangeError
from memtopo.language import read_text
from memtopo.machine import load
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.held import survey
from memtopo.sharing.holder.loop import INTERVAL
from memtopo.sharing.wire import layout_source
from tests.api.test_apply import failing
from tests.helpers.child_process import PATIENCE
from tests.helpers.processes import open_descriptors
from tests.helpers.reports import require_taken_down

pytestmark = pytest.mark.usefixtures("runtime")

SPEC: dict[str, Any] = {
    "memtopo": 1,
    "name": "weights",
    "params": {"pages": 2},
    "ranges": {"w": {"size": "4MiB"}},
    "chunks": {"w": {"location": "gpu0", "size": "2MiB", "count": "$pages", "handles": "fd"}},
    "map": {"w": ["w"]},
    "access": {"w": {"gpu0": "rw"}},
    "exports": {"w": {"chunk": "w", "via": "fd"}},
    "states": {"asleep": {"drop": ["w"]}},
}
CHUNKS = {"w": {"location": "gpu0", "size": "2MiB", "count": 2, "handles": "fd"}}
TEAM: dict[str, Any] = {
    "memtopo": 1,
    "name": "team",
    "processes": {
        "worker": {"count": 2, **{key: SPEC[key] for key in ("ranges", "map", "access", "exports")}}
        | {"chunks": CHUNKS}
    },
}


def test_others_attach_while_the_program_goes_on_and_nothing_stays() -> None:
    before = open_descriptors()
    with memtopo.hold(SPEC, "h200x2") as held:
        assert (held.name, held.machine.name, held.report, held.over) == ("weights", "h200x2", None, False)
        assert held.path == endpoint("weights").path
        assert not held.wait(0)
        with memtopo.attach("weights") as shared:
            view = np.from_dlpack(shared.export("w"))
            view[0] = 7
            del view
    assert held.over
    assert held.report
    assert (held.report.outcome, held.report.leaks) == ("ok", ())
    assert any("until the end of its 'with'" in note for note in held.report.notes)
    assert not survey().layouts
    assert open_descriptors() == before


def test_a_look_at_the_heaps_of_a_held_layout_leaves_no_descriptor() -> None:
    heaps = {"heaps": {"h": {"location": "gpu0", "size": "64MiB"}}, "access": {"h": {"gpu0": "rw"}}}
    with memtopo.hold({"memtopo": 1, "name": "weights", **heaps}, "h200x2"), connect(endpoint("weights")) as client:
        (heap,) = client.status().heaps
        before = open_descriptors()
        assert client.status().heaps == (heap,)
        assert open_descriptors() == before


def test_clients_switch_and_change_it() -> None:
    text = json.dumps(SPEC | {"params": {"pages": 3}, "ranges": {"w": {"size": "6MiB"}}}).encode()
    larger = layout_source(read_text(text, "larger.yaml"), load("h200x2"))
    with memtopo.hold(SPEC, "h200x2", params={"pages": 2}) as held, connect(endpoint(held.name)) as client:
        assert client.switch("asleep").checks.different == 0
        client.switch("awake")
        assert client.change(larger).checks.different == 0
        assert (client.status().generation, client.offers()["w"].count) == (4, 3)
    assert held.report
    assert held.report.plan.memory == {"gpu0": 6 << 20}


def test_a_layout_of_several_processes_is_held_by_processes_that_are_started() -> None:
    with memtopo.hold(TEAM, "h200x2") as held, connect(endpoint(held.name)) as client:
        assert set(client.offers()) == {"worker.0.w", "worker.1.w"}
        assert client.check().different == 0
    assert held.report
    assert (held.report.outcome, len(held.report.processes)) == ("ok", 2)


def test_a_client_may_release_it() -> None:
    with memtopo.hold(SPEC, "h200x2") as held:
        with connect(endpoint(held.name)) as client:
            done = client.release(wait=PATIENCE)
            assert (done.outcome, done.gone) == ("ok", True)
        assert held.wait(PATIENCE)
    assert held.report
    assert any("until a release" in note for note in held.report.notes)


def test_it_ends_at_its_deadline() -> None:
    with memtopo.hold(SPEC, "h200x2", lasting=INTERVAL / 10) as held:
        assert held.wait(PATIENCE)
    assert held.report
    assert any("until its deadline" in note for note in held.report.notes)


def test_an_error_of_the_program_takes_the_layout_down() -> None:
    with pytest.raises(ZeroDivisionError), memtopo.hold(SPEC, "h200x2") as held:
        _ = 1 // 0
    require_taken_down(held)
    assert not survey().layouts


def test_the_log_has_a_line_for_each_event(tmp_path: Path) -> None:
    lines: list[str] = []
    with memtopo.hold(SPEC, "h200x2", socket=tmp_path / "w.sock", log=lines.append) as held:
        assert held.path == str(tmp_path / "w.sock")
    assert "layout=weights" in next(line for line in lines if "serving" in line)


def test_an_error_of_the_log_is_shown_and_the_layout_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    def log(line: str) -> None:
        raise BrokenPipeError(line)

    with memtopo.hold(SPEC, "h200x2", log=log) as held, memtopo.attach(held.name):
        assert not held.over
    require_taken_down(held)
    assert "BrokenPipeError" in capfd.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_layout_is_held_in_a_folder_of_another_user_who_is_allowed(tmp_path: Path) -> None:
    os.chown(tmp_path, 1234, -1)
    refused = memtopo.hold(SPEC, "h200x2", socket=tmp_path / "w.sock")
    with pytest.raises(ExchangeError, match="belongs to uid 1234"), refused:
        pass
    with memtopo.hold(SPEC, "h200x2", socket=tmp_path / "w.sock", allow_uids=[1234]) as held:
        assert Path(held.path).is_socket()


def test_parameters_check_and_grace_are_those_of_the_call() -> None:
    with memtopo.hold(SPEC, "h200x2", params={"pages": 1}, check="full", grace=0.25) as held:
        client = connect(endpoint(held.name))
        for each in client.handles("w"):
            each.close()
        assert client.offers()["w"].count == 1
    with client:
        notice = client.notice(PATIENCE)
        assert notice
        assert (notice.kind, notice.grace) == ("releasing", 0.25)
    assert held.report
    assert any("4 KiB" in note for note in held.report.notes)
    _, request = memtopo.hold(SPEC, "h200x2", timeout=7.5)._compose()
    assert request.timeout == 7.5


def test_the_log_says_for_what_a_layout_waits() -> None:
    committed = {"w": SPEC["exports"]["w"] | {"commit": "required"}}
    importing = {
        "memtopo": 1,
        "name": "reader",
        "ranges": {"r": {"size": "4MiB"}},
        "map": {"r": ["w"]},
        "access": {"r": {"gpu0": "r"}},
        "imports": {"w": {"from": "weights/w", "location": "gpu0", "size": "2MiB", "count": 2}},
    }
    lines: list[str] = []
    with memtopo.hold(SPEC | {"exports": committed}, "h200x2"):
        refused = memtopo.hold(importing, "h200x2", timeout=0.25, log=lines.append)
        with pytest.raises(memtopo.NotApplied, match="export 'w' is not committed"), refused:
            pytest.fail("it was built")
    assert any("commit" in line for line in lines)


def test_a_name_is_held_once() -> None:
    with memtopo.hold(SPEC, "h200x2"), pytest.raises(ExchangeError, match="weights"), memtopo.hold(SPEC, "h200x2"):
        pass


def test_a_refused_call_is_raised_on_entering_after_everything_was_undone() -> None:
    before = open_descriptors()
    with pytest.raises(memtopo.NotApplied, match="everything was undone") as raised, memtopo.hold(SPEC, failing(20)):
        pass
    assert raised.value.report.exit_code == 4
    assert not survey().layouts
    assert open_descriptors() == before


def test_ctrl_c_while_the_layout_is_built_undoes_everything() -> None:
    before, target = open_descriptors(), failing(0)

    def opened() -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        assert held._background._stopping.wait(PATIENCE)
        return target.open()

    held = memtopo.hold(SPEC, replace(target, _opener=opened))
    with pytest.raises(KeyboardInterrupt), held:
        pass
    assert held.report
    assert (held.report.outcome, held.report.leaks) == ("interrupted", ())
    assert not survey().layouts
    assert open_descriptors() == before


def test_what_is_left_is_raised_at_the_end() -> None:
    target = failing(0)
    driver: Any = target.open()
    with pytest.raises(memtopo.NotApplied) as raised, memtopo.hold(SPEC, replace(target, _opener=lambda: driver)):
        driver.at, driver._every = driver.calls + 1, True
    assert (raised.value.exit_code, raised.value.report.outcome) == (5, "leaked")


def test_an_error_of_the_program_has_a_note_on_what_is_left() -> None:
    target = failing(0)
    driver: Any = target.open()

    def fail() -> None:
        driver.at, driver._every = driver.calls + 1, True
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised, memtopo.hold(SPEC, replace(target, _opener=lambda: driver)):
        fail()
    assert "layout 'weights' on machine 'failing' was not taken down completely" in raised.value.__notes__[0]


def test_an_invalid_spec_and_a_name_that_it_imports_nothing_from_are_refused() -> None:
    with pytest.raises(memtopo.InvalidSpec), memtopo.hold(SPEC | {"ranges": {"w": {"size": "3B"}}}, "h200x2"):
        pass
    with pytest.raises(memtopo.Unsuitable, match="bind: the spec imports nothing from 'camera'"):  # noqa: SIM117
        with memtopo.hold(SPEC, "h200x2", bind={"camera": "/run/camera.sock"}):
            pass
    assert not os.listdir(Path(endpoint("weights").path).parent)


def test_a_spec_of_several_nodes_is_refused() -> None:
    spec = {"memtopo": 1, "name": "far", "processes": {"p": {"count": 2, "nodes": ["a", "b"], "chunks": CHUNKS}}}
    with pytest.raises(memtopo.Unsuitable, match="several nodes"), memtopo.hold(spec, "h200x2"):
        pass


def test_it_is_entered_once() -> None:
    held = memtopo.hold(SPEC, "h200x2")
    with held:
        pass
    with pytest.raises(memtopo.Unsuitable, match="entered only once"), held:
        pass
