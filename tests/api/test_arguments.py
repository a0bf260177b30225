"""Arguments of the API of a wrong type or value: only errors of memtopo come out, with a hint in their text."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import memtopo
from memtopo.api.live import Live

M = 2 << 20
api: Any = memtopo  # whose arguments are of other types here
SPEC: dict[str, Any] = {
    "memtopo": 1,
    "name": "arguments",
    "ranges": {"r": {"size": "2MiB"}, "kv": {"size": "8MiB", "elastic": {"chunks": ["page"]}}},
    "chunks": {
        "c": {"location": "gpu0", "size": "2MiB", "handles": "fd"},
        "page": {"location": "gpu0", "size": "2MiB", "count": {"max": 4}},
    },
    "map": {"r": ["c"]},
    "access": {"r": {"gpu0": "rw"}, "kv": {"gpu0": "rw"}, "h": {"gpu0": "rw"}},
    "heaps": {"h": {"location": "gpu0", "size": "64MiB"}},
    "buffers": {"b": {"location": "gpu0", "size": "2MiB"}},
    "events": {"e": {"device": "gpu0"}},
    "exports": {"c": {"chunk": "c", "via": "fd"}},
    "states": {"asleep": {"drop": ["r"]}},
}
RANKS = {"memtopo": 1, "name": "ranks", "processes": {"rank": {"count": 1, "buffers": SPEC["buffers"]}}}
NOTHING: tuple[Any, ...] = (None, object(), int, True, -1, 1 << 70, 1.5, math.nan, math.inf)
WRONG = (*NOTHING, "", "x", "a\0b", "\ud800", "n" * 300, b"", b"x", [], ["x"], [3], {}, {3: 3})

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.filterwarnings("ignore::memtopo.ViewOutlived")]


def with_each_wrong(function: Callable[..., object], given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of a call, one of which is wrong in each."""
    for name, parameter in inspect.signature(function).parameters.items():
        values = () if parameter.kind is parameter.VAR_KEYWORD else WRONG
        yield from ({**given, name: each} for each in values if each is not parameter.default)


def foreign_errors(function: Callable[..., Any], given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the calls with a wrong argument that raise an error which is not one of memtopo."""
    for arguments in with_each_wrong(function, given):
        try:
            made = function(**arguments)
            if isinstance(made, AbstractContextManager):
                with made:
                    pass
        except memtopo.MemtopoError:
            continue
        except Exception as error:  # noqa: BLE001 it is listed
            yield f"{function.__qualname__}({arguments}): {type(error).__name__}: {error}"


MACHINE = {"machine": "h200x2"}
FUNCTIONS: dict[str, dict[str, Any]] = {
    "load": {"spec": SPEC},
    "plan": {"spec": SPEC, **MACHINE},
    "applied": {"spec": SPEC, **MACHINE},
    "hold": {"spec": SPEC, **MACHINE},
    "attach": {"layout": "held"},
    "dma_bufs": {"layout": "held"},
    "join": {"spec": RANKS, "process": "rank.7", "timeout": 5, **MACHINE},
    "rank": {},
    "serve": {"where": "served", "exports": {}},
    "mark": {"label": "here"},
    "capturing": {"cupti": "/none"},
}


def test_functions_raise_only_errors_of_memtopo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # "x" is the path of a file
    functions = {name for name in memtopo.__all__ if inspect.isfunction(getattr(memtopo, name))}
    assert functions == FUNCTIONS.keys()
    with memtopo.hold({**SPEC, "name": "held"}, "h200x2"):
        found = [each for name, given in FUNCTIONS.items() for each in foreign_errors(getattr(memtopo, name), given)]
    assert found == []


LIVE: dict[str, dict[str, Any]] = {
    "switch": {"state": "awake"},
    "switched": {"state": "awake"},
    "change": {"spec": SPEC},
    "poll": {},
    "save": {"folder": "/dev/null"},
    "load": {"files": ["/dev/null"]},
    "tensor": {"name": "layers.0.weight"},
    **{name: {"name": "r"} for name in (
        "address", "range", "chunk", "buffer", "allocation", "managed", "pinned", "external", "event", "semaphore",
        "dma_buf", "heap", "heap_device", "chunks",
    )},
}  # fmt: skip


def test_a_layout_that_is_not_entered_says_so() -> None:
    with pytest.raises(AttributeError, match="the layout is built on entering"):
        memtopo.applied(SPEC, "h200x2").range("r")


@pytest.mark.parametrize(("device", "meant"), [("cuda:1", "gpu1"), ("cuda", "gpu0"), ("cpu", "host")])
def test_a_device_of_another_library_has_a_name_here(device: str, meant: str) -> None:
    with memtopo.applied(SPEC, "h200x2") as layout, pytest.raises(memtopo.MemtopoError) as refused:
        layout.range("r", device=device)
    assert refused.value.hint == f"did you mean {meant!r}?"


def test_methods_raise_only_errors_of_memtopo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = {name for name, each in vars(Live).items() if inspect.isfunction(each) and name[0] != "_"}
    assert own - {"begin", "end", "check"} == LIVE.keys()
    with memtopo.applied(SPEC, "h200x2") as layout:
        kv, pages, heap, event = layout.range("kv"), layout.chunks("page"), layout.heap("h"), layout.event("e")
        part, address = {"offset": 0, "size": M}, heap.allocate(M)
        calls: list[tuple[Callable[..., Any], dict[str, Any]]] = [
            *((getattr(layout, name), given) for name, given in LIVE.items()),
            (lambda offset=0, size=None, shape=None, device=None, dtype="uint8": layout.range(
                "r", dtype, offset=offset, size=size, shape=shape, device=device), {}),
            (kv.map, {"offset": 0, "chunk": "page"}), (kv.unmap, part), (kv.view, {}), (kv.seal, {**part, "key": "k"}),
            (kv.adopt, {"offset": 0, "key": "k"}), (pages.create, {"count": 0}), (pages.trim, {}),
            (heap.allocate, {"size": M}), (heap.keep_free, {"margin": 0}), (heap.view, {"address": address}),
            (heap.export, {"address": address}), (heap.backup, {"address": address}), (heap.free, {"address": address}),
            (event.record, {}), (event.wait, {}), (heap.sleep, {}),
        ]  # fmt: skip
        assert [each for call, given in calls for each in foreign_errors(call, given)] == []


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda: api.hold(SPEC, timeout=-1), "timeout=-1 is not a duration",
         "write a number of seconds, or text such as '30s'"),
        (lambda: api.join(SPEC, "rank.0", timeout="2"), "timeout '2' has no unit", "write 2s"),
        (lambda: api.join(SPEC, "rank.0", check="ful"), "check='ful' is not known",
         "write 'none', 'fast' or 'full'"),
        (lambda: api.load(SPEC, params=["n=3"]), "params=['n=3'] is not a mapping from names",
         "write params={'NAME': …}"),
        (lambda: api.load("memtopo: 1\nname: x"), "spec='memtopo: 1\\nname: x' is not a path",
         "write the path of a file, or pass yaml.safe_load(…) of a text"),
        (lambda: api.applied(SPEC, bind={"camera": 3}), "bind['camera']=3 is not a socket or a command",
         "write a path, or a list of words"),
        (lambda: api.hold(SPEC, allow_uids=1000), "allow_uids=1000 is not a list of numbers of users",
         "write allow_uids=[1000]"),
        (lambda: api.attach("x", device=[]), "device=[] is not a device",
         "write 'gpu0', 'host', or the ordinal of a GPU"),
        (lambda: api.plan(SPEC, machine=2), "machine=2 is not a machine",
         "write 'local', a name such as 'h200x2', or a path; for a spec of several nodes {'NODE': 'NAME'}"),
    ],
)  # fmt: skip
def test_an_error_names_the_argument_the_value_and_what_is_right(
    call: Callable[[], object], message: str, hint: str
) -> None:
    with pytest.raises(memtopo.UsageError) as refused:
        call()
    assert str(refused.value) == f"{message} (hint: {hint})"


def test_durations_may_be_text_wherever_they_are_arguments() -> None:
    with memtopo.hold(SPEC, "h200x2", timeout="30s", lasting="1h", grace="5s") as held:
        assert not held.wait("1ms")  # type: ignore[arg-type]


def test_a_part_of_memory_that_is_no_view_is_refused_with_what_views_it() -> None:
    with memtopo.applied(SPEC, "h200x2") as layout:
        with pytest.raises(memtopo.Unsuitable, match=r"range 'h' is a heap \(hint: .*heap\('h'\)\.view\(address\)"):
            layout.range("h", size=M)
        with pytest.raises(memtopo.Unsuitable, match="range 'r' is not elastic"):
            layout.range("r").map(0, "page")
        with pytest.raises(memtopo.Unsuitable, match="write float32, as PyTorch's float, or float64"):
            layout.range("r", dtype="float")
