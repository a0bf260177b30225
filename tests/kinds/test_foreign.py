"""What another API made: where it comes from, which parts of it are mapped, and who waits for whom."""

from __future__ import annotations

import pytest

from memtopo.common.units import MiB
from memtopo.driver.types import gpu
from memtopo.kinds.external import ExternalObject, produced
from memtopo.kinds.semaphores import ImportedSemaphore
from memtopo.language.fields import MEMORY_KINDS, SEMAPHORE_KINDS
from memtopo.machine import Trial
from tests.helpers.machines import invented
from tests.helpers.specs import codes, diagnose, geometry_of, validate_text

FAILED = Trial(advertised=True, works=False, error="CUDA_ERROR_UNKNOWN")
NEVER = Trial(advertised=True, note="no Vulkan driver")
FRAME = "external: {frame: {from: camera, via: opaque_fd, device: gpu0, size: 8MiB}}\n"


def semaphores(*entries: str, process: bool = False) -> str:
    """Semaphores `s0`, `s1`, …, each of a timeline of camera's unless it says otherwise."""
    every = [
        f"s{index}: {{from: camera/ready, via: timeline_fd, device: gpu0, {e}}}" for index, e in enumerate(entries)
    ]
    if process:
        return "processes:\n" + "".join(f"  p{n}: {{semaphores: {{{each}}}}}\n" for n, each in enumerate(every))
    return f"semaphores: {{{', '.join(every)}}}\n"


def test_what_is_written_is_what_is_taken() -> None:
    """Objects and semaphores have a place, a size in bytes, and an origin outside of the spec"""
    text = """
devices: {prefill: 1}
external:
  frame: {from: camera, via: opaque_fd, device: prefill, size: 8388609B, buffers: {y: {size: 4MiB},
    uv: {offset: 1B, size: 8MiB}}}
  other: {from: /run/x.sock/frame, via: opaque_fd, device: gpu0, size: 1B, dedicated: true}
semaphores:
  ready: {from: camera, via: timeline_fd, device: prefill, wait: 1, signal: 2}
  taken: {from: camera/done, via: opaque_fd, device: gpu0, signal: true}
"""
    found = geometry_of(text)
    frame, other = found.of(ExternalObject).values()
    assert (frame.size, frame.place, frame.dedicated) == (8 * MiB + 1, gpu(1), False)
    assert [each[:3] for each in frame.mapped] == [
        ("frame", 0, 8 * MiB + 1), ("frame.y", 0, 4 * MiB), ("frame.uv", 1, 8 * MiB)
    ]  # fmt: skip
    assert frame.buffers[1].path == ("external", "frame", "buffers", "uv")
    assert (frame.origin.holders, frame.origin.export, frame.origin.via) == (("camera",), "frame", "opaque_fd")
    assert (other.origin.holders, other.origin.export, other.dedicated) == (("/run/x.sock",), "frame", True)
    ready, taken = found.of(ImportedSemaphore).values()
    assert (ready.place, ready.timeline, ready.wait, ready.signal) == (gpu(1), True, 1, 2)
    assert (ready.origin.export, ready.origin.via) == ("ready", "timeline_fd")
    assert (taken.timeline, taken.wait, taken.signal) == (False, None, 0)
    assert (taken.origin.export, taken.origin.via, taken.origin.each, taken.origin.siblings) == (
        "done", "opaque_fd", 1, False
    )  # fmt: skip
    assert found.gpus == [0, 1]
    assert list(produced(found)) == [frame, other, ready, taken]


def test_each_process_takes_its_own() -> None:
    """The processes of a counted one take the same things; a semaphore may be used on the device that each is dealt"""
    text = "processes:\n  p: {count: 2, devices: {d: [gpu0, gpu1]}, semaphores: {f: {from: camera, via: timeline_fd, "
    text += "device: d}}}"
    assert [each.of(ImportedSemaphore)["f"].place for each in geometry_of(text).processes.values()] == [gpu(0), gpu(1)]
    assert codes(text.replace("semaphores", "external").replace("timeline_fd", "opaque_fd, size: 1MiB")) == ["MT707"]
    hidden = text.replace("semaphores:", "visible: gpu1, semaphores:").replace("device: d", "device: gpu0")
    assert set(codes(hidden)) == {"MT606"}


@pytest.mark.parametrize("via", [via for via in MEMORY_KINDS if via != "opaque_fd"])
def test_memory_that_no_machine_here_takes(via: str) -> None:
    """Kinds of memory that CUDA knows and refuses on Linux are known, and refused with the reason (fact 54)"""
    (fault,) = diagnose(FRAME.replace("opaque_fd", via))
    assert (fault.code, fault.path) == ("MT702", ("external", "frame", "via"))
    assert "NOT_SUPPORTED" in fault.notes[0]
    assert ("Windows" in fault.notes[0]) == (via not in ("dma_buf", "nvscibuf"))


@pytest.mark.parametrize("via", [via for via in SEMAPHORE_KINDS if via not in ("opaque_fd", "timeline_fd")])
def test_semaphores_that_no_machine_here_takes(via: str) -> None:
    """So are kinds of semaphores"""
    (fault,) = diagnose(f"semaphores: {{s: {{from: camera, via: {via}, device: gpu0, wait: 1, signal: true}}}}")
    assert (fault.code, fault.path) == ("MT702", ("semaphores", "s", "via"))
    assert "NOT_SUPPORTED" in fault.notes[0]


TIMELINE = semaphores("signal: 1")
BINARY = TIMELINE.replace("timeline_fd", "opaque_fd").replace("signal: 1", "signal: true")
NO_TIMELINES = {"TIMELINE_SEMAPHORE_INTEROP_SUPPORTED": 0}


@pytest.mark.parametrize(
    ("text", "attributes", "trials", "expected"),
    [
        (FRAME, {}, {"external-memory": FAILED}, ["MT702"]),
        (FRAME, NO_TIMELINES, {"external-memory": NEVER}, []),
        (TIMELINE, {}, {"external-semaphore": FAILED}, ["MT702"]),
        (TIMELINE, NO_TIMELINES, {}, ["MT702"]),
        (TIMELINE, NO_TIMELINES, {"external-semaphore": Trial(works=True)}, []),
        (TIMELINE, {}, {"external-semaphore": NEVER}, []),
        (BINARY, NO_TIMELINES, {}, []),
        (BINARY, {}, {"external-semaphore": FAILED}, ["MT702"]),
    ],
)
def test_what_the_machine_can(
    text: str, attributes: dict[str, int], trials: dict[str, Trial], expected: list[str]
) -> None:
    """A trial decides; without one, timelines are taken where they are advertised, and all else is"""
    assert codes(text, invented(1, attributes=attributes, trials=trials)) == expected


@pytest.mark.parametrize(
    ("part", "help"),
    [
        ("{size: 8388609B}", "write 'size: 8MiB' at most"),
        ("{offset: 4MiB, size: 5MiB}", "write 'size: 4MiB' at most"),
        ("{offset: 8388607B, size: 2B}", "write 'size: 1B' at most"),
        ("{offset: 8MiB, size: 1B}", None),
        ("{offset: 18446744073709551615B, size: 18446744073709551615B}", None),
    ],
)
def test_parts_lie_in_their_object(part: str, help: str | None) -> None:
    """A part that ends past the declared end is refused, and told the size that would fit"""
    (fault,) = diagnose(FRAME.replace("8MiB}", f"8MiB, buffers: {{y: {part}}}}}"))
    assert (fault.code, fault.path, fault.help) == ("MT703", ("external", "frame", "buffers", "y", "size"), help)
    assert fault.labels[0].path == ("external", "frame", "size")
    assert codes(FRAME.replace("8MiB}", "8MiB, buffers: {y: {size: 8MiB}, z: {offset: 8388607B, size: 1B}}}")) == []


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
def test_timelines_go_forward(points: str, where: list[str]) -> None:
    """A timeline begins at 0 and is never set back (fact 56)"""
    found = diagnose(FRAME + semaphores(points))
    assert [(fault.code, fault.path[-1]) for fault in found] == [("MT704", key) for key in where]


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
def test_a_wait_that_nothing_signals(entries: list[str], waiting: list[str], process: bool) -> None:
    """What is waited for is signalled by entries whose own waits end, in whatever process, or a warning says so"""
    found = validate_text(semaphores(*entries, process=process))
    assert found.geometry
    assert [(fault.code, fault.path[-2:]) for fault in found.diagnostics] == [
        ("MT705", (name, "wait")) for name in waiting
    ]


def test_what_signals() -> None:
    """A producer that memory is taken from signals; another producer, another export or a left-out entry do not tell"""
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


def test_a_binary_semaphore_that_nothing_signals() -> None:
    """A binary semaphore is signalled or not, whatever the order of the entries"""
    entry = "{from: camera/s, via: opaque_fd, device: gpu0, %s: true}"
    assert codes(f"semaphores: {{a: {entry % 'wait'}}}") == ["MT705"]
    assert codes(f"semaphores: {{a: {entry % 'wait'}, b: {entry % 'signal'}}}") == []


def test_the_processes_of_a_counted_one_do_not_signal_for_one_another() -> None:
    """Processes that are alike all wait before they signal, and are told so once"""
    text = "processes:\n  p: {count: 3, devices: {d: [gpu0, gpu1]}, semaphores: "
    text += "{s: {from: camera, via: timeline_fd, device: d, wait: 1, signal: 2}}}"
    assert codes(text) == ["MT705"]


def test_a_producer_is_no_process() -> None:
    """What goes by the name of a process of the spec cannot be a producer outside of it"""
    text = f"processes:\n  camera: {{buffers: {{b: {{location: gpu0, size: 1MiB}}}}}}\n  p: {{{FRAME.strip()}}}\n"
    (fault,) = diagnose(text)
    assert (fault.code, fault.path) == ("MT203", ("processes", "p", "external", "frame", "from"))
    assert codes(text.replace("from: camera", "from: camera/frame")) == ["MT203"]
    assert codes(text.replace("from: camera", "from: ./camera/frame")) == []


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (
            "external: {%s: {from: %s, via: opaque_fd, device: gpu0, size: 8MiB}}",
            "size: 4MiB",
            "size is 4MiB here and 8MiB",
        ),
        (
            "external: {%s: {from: %s, via: opaque_fd, device: gpu0, size: 8MiB}}",
            "device: gpu1",
            "device is gpu1 here and gpu0",
        ),
        (
            "external: {%s: {from: %s, via: opaque_fd, device: gpu0, size: 8MiB}}",
            "dedicated: true",
            "is dedicated here",
        ),
        (
            "semaphores: {%s: {from: %s, via: timeline_fd, device: gpu0}}",
            "via: opaque_fd",
            "is a binary semaphore here",
        ),
        ("semaphores: {%s: {from: %s, via: timeline_fd, device: gpu0}}", "device: gpu1", None),
        ("semaphores: {%s: {from: %s, via: timeline_fd, device: gpu0}}", "signal: 4", None),
        ("external: {%s: {from: %s, via: opaque_fd, device: gpu0, size: 8MiB}}", "buffers: {y: {size: 1MiB}}", None),
    ],
)
def test_one_thing_is_declared_in_one_way(one: str, other: str, message: str | None) -> None:
    """Whoever takes the same thing, in whatever process, says the same of it; what is done with it may differ"""
    first, again = one % ("f", "camera"), one % ("g", "camera/f")
    key = other.partition(":")[0]
    written = [each for each in again.removesuffix("}}").split(", ") if not each.startswith(f"{key}:")]
    text = f"processes:\n  a: {{{first}}}\n  b: {{{', '.join([*written, other])}}}}}}}\n"
    found = diagnose(text)
    assert [fault.code for fault in found] == ["MT707"] * (message is not None), found
    assert message is None or message in found[0].message
    assert codes(text.replace("camera/f", "camera/h")) == []


def test_memory_is_no_semaphore() -> None:
    """One export is not both"""
    (fault,) = diagnose(FRAME + "semaphores: {s: {from: camera/frame, via: timeline_fd, device: gpu0}}")
    assert (fault.code, fault.path) == ("MT707", ("semaphores", "s"))
    assert fault.message == "'s' is camera/frame, whose kind is a timeline semaphore here and memory for 'frame'"


OTHERS = {
    "ranges": "ranges: {frame: {size: 2MiB}}  # memtopo: ignore[MT502]\n",
    "chunks": "chunks: {frame: {location: gpu0, size: 2MiB}}  # memtopo: ignore[MT501]\n",
    "buffers": "buffers: {frame: {location: gpu0, size: 2MiB}}\n",
    "events": "events: {frame: {device: gpu0}}\n",
    "imports": "imports: {frame: {from: elsewhere/m, device: gpu0}}\n",
    "managed": "managed: {frame: {size: 2MiB}}\n",
    "external": FRAME,
}


@pytest.mark.parametrize("section", OTHERS)
def test_a_name_is_of_one_thing(section: str) -> None:
    """External objects and semaphores have names of their own; a semaphore has no address that a range could be"""
    for kind, text in (("external", FRAME), ("semaphores", TIMELINE.replace("s0:", "frame:"))):
        if (kind, section) == ("semaphores", "ranges"):
            assert codes(OTHERS[section] + text) == []
        elif kind != section:
            (fault,) = diagnose(OTHERS[section] + text)
            assert (fault.code, fault.path, fault.at) == ("MT203", (kind, "frame"), "key")


@pytest.mark.parametrize("name", ["frame", "s0"])
@pytest.mark.parametrize(
    "use", ["access: {%s: {gpu0: r}}", "exports: {x: {buffer: %s, via: ipc}}", "exports: {x: {event: %s, via: ipc}}"]
)
def test_a_use_that_only_chunks_have(use: str, name: str) -> None:
    """What is granted or exported and was made by another API is told why that cannot be, and what can"""
    (fault,) = diagnose(FRAME + TIMELINE + use % name)
    assert fault.code == "MT706"
    assert fault.notes
    assert fault.help


@pytest.mark.parametrize("entry", ["device: host", "device: host:0", "device: gpu9", "device: nobody"])
def test_it_is_of_a_gpu(entry: str) -> None:
    """An object and a semaphore are of a GPU that is there"""
    for text in (FRAME, TIMELINE):
        assert codes(text.replace("device: gpu0", entry)) in (["MT405"], ["MT401"], ["MT201"])


def test_what_is_not_used_is_no_warning() -> None:
    """An object without parts and a semaphore that nobody waits for are imported and checked, which is enough"""
    assert codes("devices: {d: 0}\n" + (FRAME + semaphores("")).replace("gpu0", "d")) == []
