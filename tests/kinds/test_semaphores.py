"""Semaphores: handle types, timeline values, and waits without a signal."""

from __future__ import annotations

import pytest

from memtopo.kinds.external.semaphores import SEMAPHORE_KINDS, SEMAPHORES
from memtopo.kinds.external.steps import AwaitStream
from tests.helpers.external_specs import FRAME, semaphores
from tests.helpers.machines import invented
from tests.helpers.specs import codes, diagnose, geometry_of, plan_of, steps_of, validate_text


@pytest.mark.parametrize("via", [via for via in SEMAPHORE_KINDS if via not in ("opaque_fd", "timeline_fd")])
def test_semaphore_handle_types_that_linux_cannot_import_are_refused_with_the_reason(via: str) -> None:
    (diagnostic,) = diagnose(f"semaphores: {{s: {{from: camera, via: {via}, device: gpu0, wait: 1, signal: true}}}}")
    assert (diagnostic.code, diagnostic.path) == ("MT702", ("semaphores", "s", "via"))
    assert "NOT_SUPPORTED" in diagnostic.notes[0]


@pytest.mark.parametrize(
    ("points", "where"),
    [
        ("wait: 0", ["wait"]),
        ("signal: 0", ["signal"]),
        ("wait: 0, signal: 0", ["wait", "signal"]),
        ("wait: 0, signal: 1", ["wait"]),
        ("wait: 5, signal: 5", ["signal"]),
        ("wait: 5, signal: 3", ["signal"]),
        ("wait: 18446744073709551615, signal: 18446744073709551615", ["signal"]),
        ("wait: 5, signal: 6", []),
        ("signal: 18446744073709551615", []),
        ("wait: 1", []),
    ],
)
def test_timeline_values_increase(points: str, where: list[str]) -> None:
    """Fact 56."""
    found = diagnose(FRAME + semaphores(points))
    assert [(diagnostic.code, diagnostic.path[-1]) for diagnostic in found] == [("MT704", key) for key in where]


@pytest.mark.parametrize(
    ("entries", "waiting"),
    [
        (["wait: 1"], ["s0"]),
        (["wait: 1, signal: 2"], ["s0"]),
        (["wait: 1", "signal: 1"], []),
        (["wait: 2", "signal: 1"], ["s0"]),
        (["wait: 2", "signal: 3"], []),
        (["wait: 3", "wait: 1, signal: 3", "signal: 1"], []),
        (["wait: 1, signal: 2", "wait: 2, signal: 3"], ["s0", "s1"]),
        (["signal: 1"], []),
        ([""], []),
    ],
)
@pytest.mark.parametrize("process", [False, True])
def test_a_wait_without_a_reachable_signal_gives_a_warning(
    entries: list[str], waiting: list[str], process: bool
) -> None:
    found = validate_text(semaphores(*entries, process=process))
    assert found.geometry
    assert [(diagnostic.code, diagnostic.path[-2:]) for diagnostic in found.diagnostics] == [
        ("MT705", (name, "wait")) for name in waiting
    ]


def test_a_wait_is_signalled_by_a_memory_producer_or_another_entry() -> None:
    wait = semaphores("wait: 1")
    assert codes(wait + FRAME) == []
    assert codes(wait + FRAME.replace("camera", "camera/other")) == []
    assert codes(wait + FRAME.replace("camera", "display")) == ["MT705"]
    assert codes(semaphores("wait: 1", "signal: 2").replace("s1: {from: camera/ready", "s1: {from: camera")) == [
        "MT705"
    ]
    assert codes(wait + FRAME.replace("opaque_fd", "dma_buf")) == ["MT702"]
    assert codes(semaphores("wait: 1", "signal: 0")) == ["MT704"]
    two = "processes:\n  a: {semaphores: {s: {from: camera, via: timeline_fd, device: gpu0, wait: 1}}}\n  b: {%s}\n"
    assert codes(two % "external: {f: {from: camera, via: opaque_fd, device: gpu0, size: 1MiB}}") == ["MT705"]
    assert codes(two % "semaphores: {x: {from: camera/s, via: timeline_fd, device: gpu1, signal: 1}}") == []


def test_a_binary_wait_without_a_signal_gives_a_warning() -> None:
    entry = "{from: camera/s, via: opaque_fd, device: gpu0, %s: true}"
    assert codes(f"semaphores: {{a: {entry % 'wait'}}}") == ["MT705"]
    assert codes(f"semaphores: {{a: {entry % 'wait'}, b: {entry % 'signal'}}}") == []


def test_a_timeline_stays_at_the_largest_value_that_an_entry_signals() -> None:
    points = {"a": "signal: 5", "b": "wait: 1, signal: 2", "c": "wait: 4", "d": "wait: 6"}
    entries = [f"{name}: {{from: camera/s, via: timeline_fd, device: gpu0, {each}}}" for name, each in points.items()]
    found = diagnose(f"semaphores: {{{', '.join(entries)}}}")
    assert [(each.code, each.path) for each in found] == [("MT705", ("semaphores", "d", "wait"))]


def test_a_wait_is_not_judged_beside_an_entry_with_an_error() -> None:
    assert codes(FRAME.replace("8MiB", "none") + semaphores("wait: 1")) == ["MT105"]


def test_a_gpu_awaits_all_of_its_waits_by_a_step_of_the_first_of_them() -> None:
    entries = [f"{each}: {{from: camera/{each}, via: timeline_fd, device: gpu0, wait: 1}}" for each in "ab"]
    (step,) = steps_of(plan_of(f"{FRAME}semaphores: {{{', '.join(entries)}}}", invented(1)), AwaitStream)
    assert step.path == ("semaphores", "a")


def test_instances_of_a_counted_process_do_not_signal_one_another() -> None:
    text = "processes:\n  p: {count: 3, devices: {d: [gpu0, gpu1]}, semaphores: "
    text += "{s: {from: camera, via: timeline_fd, device: d, wait: 1, signal: 2}}}"
    assert codes(text) == ["MT705"]


@pytest.mark.parametrize(
    ("after", "refused"),
    [
        ("wait: 1, signal: 2", []),
        ("signal: 2", []),
        ("", []),
        ("wait: 1, signal: 3", ["signal"]),
        ("wait: 2, signal: 3", ["wait", "signal"]),
        ("device: gpu1, wait: 1, signal: 2", ["wait", "signal"]),
    ],
)
def test_a_change_makes_no_wait_and_no_signal_that_the_layout_did_not_make(after: str, refused: list[str]) -> None:
    before = geometry_of(semaphores("wait: 1, signal: 2"))
    changed = semaphores(after).replace("device: gpu0, device", "device")
    found = [each.path[-1] for each in SEMAPHORES.refused_changes(before, geometry_of(changed))]
    assert found == refused
    other = geometry_of(semaphores("wait: 1, signal: 2").replace("camera/ready", "camera/other"))
    assert [each.code for each in SEMAPHORES.refused_changes(before, other)] == ["MT808"] * 2
