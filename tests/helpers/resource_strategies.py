"""Random valid entries of managed, pinned and external memory, and of semaphores."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from hypothesis import strategies as st

Draw = st.DrawFn
Spec = dict[str, Any]
HOSTS = ["host", "host:0"]
_KINDS = ["global", "host", "single"]


@st.composite
def managed(draw: Draw, gpus: list[str]) -> Spec:
    """A section of up to three allocations of managed memory, with any advice, for GPUs of these names."""
    return {f"m{index}": draw(_allocation(gpus)) for index in range(draw(st.integers(0, 3)))}


@st.composite
def _allocation(draw: Draw, gpus: list[str]) -> Spec:
    entry: Spec = {"size": draw(st.sampled_from(["1B", "4096B", "64KiB", "2MiB", "3MiB", "5 MiB"]))}
    for key, place in (("prefer", [*gpus, *HOSTS]), ("prefetch", [*gpus, *HOSTS])):
        if draw(st.booleans()):
            entry[key] = draw(st.sampled_from(place))
    if draw(st.booleans()):
        places = draw(st.lists(st.sampled_from([*gpus, "host"]), min_size=1, max_size=3))
        entry["accessed_by"] = places if len(places) > 1 or draw(st.booleans()) else places[0]
    if draw(st.booleans()):
        entry["attach"] = draw(st.sampled_from(_KINDS))
    if draw(st.booleans()):
        entry["read_mostly"] = draw(st.sampled_from(["true", "false"]))
    return entry


@st.composite
def heaps(draw: Draw, gpus: list[str]) -> Spec:
    """Sections of up to two heaps of these GPUs, with access; the second may share the limit of the first."""
    found: Spec = {"heaps": {}, "access": {}}
    for index in range(draw(st.integers(0, 2))):
        at = gpus[0] if index else draw(st.sampled_from(gpus))
        entry = {"location": at, "size": draw(st.sampled_from(["64MiB", "1GiB", "100 granules"]))}
        limits = ["2MiB", "64MiB", *(["h0"] if found["heaps"].get("h0", {}).get("location") == at else [])]
        if draw(st.booleans()) or not index:
            entry["limit"] = draw(st.sampled_from(limits))
        if draw(st.booleans()):
            entry["handles"] = "fd"
        found["heaps"][f"h{index}"] = entry
        found["access"][f"h{index}"] = {at: "rw"}
    return {section: entries for section, entries in found.items() if entries}


@st.composite
def pools(draw: Draw, gpus: list[str], *, shared: bool = False) -> Spec:
    """Sections of up to two pools, of these GPUs or the host, with allocations; exportable if they are `shared`."""
    found: Spec = {"pools": {}, "allocations": {}}
    for index in range(draw(st.integers(0, 2))):
        pool, entry = draw(pool_with_allocation(f"q{index}", gpus, shared=shared))
        found["pools"][f"q{index}"] = pool
        found["allocations"][f"a{index}"] = entry
    return {section: entries for section, entries in found.items() if entries}


@st.composite
def pool_with_allocation(draw: Draw, name: str, gpus: list[str], *, shared: bool) -> tuple[Spec, Spec]:
    """Entries of a pool and of its allocations."""
    places = draw(st.lists(st.sampled_from([*gpus, "host:0"]), min_size=1, max_size=2, unique=True))
    pool: Spec = {"location": places if len(places) > 1 or draw(st.booleans()) else places[0]}
    if shared or draw(st.booleans()):
        pool["handles"] = draw(st.sampled_from(["fd", ["fd"]]))
    for key, values in (("max_size", ["1GiB"]), ("release_threshold", ["1B", "32MiB"])):
        if draw(st.booleans()):
            pool[key] = draw(st.sampled_from(values))
    if draw(st.booleans()):
        pool["reuse_allow_opportunistic"] = draw(st.sampled_from(["true", "false"]))
    if draw(st.booleans()):
        pool["accessed_by"] = draw(st.sampled_from([*gpus, "gpus", gpus]))
    entry: Spec = {"pool": name, "size": draw(st.sampled_from(["1B", "1000B", "64KiB", "8MiB", "33MiB"]))}
    if draw(st.booleans()):
        entry["count"] = str(draw(st.integers(1, 4)))
    return pool, entry


@st.composite
def multicast(draw: Draw, gpus: list[str]) -> Spec:
    """Sections of one multicast object of some GPUs, with memory of each that is bound by handle or by address."""
    team = draw(st.lists(st.sampled_from(gpus), unique=True, min_size=1))
    each, granules = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    size, shared = f"{each * granules} granules", draw(st.booleans())
    handles: Spec = {"handles": draw(st.sampled_from(["fd", "fabric else fd"]))} if shared else {}
    bound: Any = draw(st.sampled_from(["own", ["own"], [{"range": "own-memory"}], [{"chunk": "own", "offset": "0"}]]))
    count = each * len(team)
    devices: Any = team if len(team) > 1 or draw(st.booleans()) else team[0]
    return {
        "chunks": {"own": {"location": team, "size": f"{granules} granules", "count": str(count), **handles}},
        "multicast": {"team": {"devices": devices, "size": size, **handles}},
        "bind": {"team": bound},
        "ranges": {"own-memory": {"size": f"{count * granules} granules"}, "team-address": {"size": size}},
        "map": {"own-memory": ["own"], "team-address": ["team"]},
        "access": {"own-memory": {"gpus": "rw"}, "team-address": {team[0]: "rw"}},
    }


@st.composite
def pinned(draw: Draw, gpus: list[str]) -> Spec:
    """A section of up to three entries of pinned memory, allocated or of a file, for GPUs of these names."""
    return {f"p{index}": draw(_pinned(gpus)) for index in range(draw(st.integers(0, 3)))}


@st.composite
def _pinned(draw: Draw, gpus: list[str]) -> Spec:
    entry: Spec = {"size": draw(st.sampled_from(["1B", "100B", "4096B", "64KiB", "1MiB"]))}
    if draw(st.booleans()):
        entry["count"] = str(draw(st.integers(1, 4)))
    if draw(st.booleans()):
        entry["accessed_by"] = draw(st.lists(st.sampled_from(gpus), min_size=1, max_size=3))
    if draw(st.booleans()):
        entry["file"] = f"/proc/{os.getpid()}/fd/{shared_file()}"
        entry["offset"] = draw(st.sampled_from(["0", "4096B", "2MiB"]))
        if draw(st.booleans()):
            entry["read_only"] = draw(st.sampled_from(["true", "false"]))
    elif draw(st.booleans()):
        entry["write_combined"] = draw(st.sampled_from(["true", "false"]))
    return entry


@cache
def shared_file() -> int:
    """A memfd that all specs of this process register."""
    fd = os.memfd_create("memtopo-specs", os.MFD_CLOEXEC)
    os.ftruncate(fd, 8 << 20)
    return fd


@st.composite
def external_sections(draw: Draw, gpus: list[str]) -> Spec:
    """Sections of external memory and semaphores, of up to two producers."""
    producers = draw(st.lists(st.sampled_from(["camera", "B-2", "/run/x.sock"]), unique=True, max_size=2))
    external = {f"x{index}": draw(_object(producer, gpus)) for index, producer in enumerate(producers)}
    every = draw(st.lists(st.sampled_from(producers), max_size=3)) if producers else []
    semaphores = {f"s{index}": draw(_semaphore(producer, f"done{index}", gpus)) for index, producer in enumerate(every)}
    return {name: found for name, found in (("external", external), ("semaphores", semaphores)) if found}


def _from(producer: str, export: str) -> st.SearchStrategy[str]:
    """A producer with or without the name of an export; a socket's path requires one."""
    return st.sampled_from([f"{producer}/{export}", f"{producer}/{export}" if "/" in producer else producer])


@st.composite
def _object(draw: Draw, producer: str, gpus: list[str]) -> Spec:
    size = draw(st.integers(1, 1 << 20))
    entry: Spec = {"from": draw(_from(producer, "frame")), "via": "opaque_fd", "device": draw(st.sampled_from(gpus))}
    entry["size"] = f"{size}B"
    if draw(st.booleans()):
        entry["dedicated"] = draw(st.sampled_from(["true", "false"]))
    parts: Spec = {}
    for name in draw(st.lists(st.sampled_from(["y", "uv", "A-1"]), unique=True, max_size=3)):
        last = 0 if entry.get("dedicated") == "true" else size - 1  # dedicated memory is mapped from its beginning
        offset = draw(st.integers(0, last))
        parts[name] = {"size": f"{draw(st.integers(1, size - offset))}B"}
        if offset or draw(st.booleans()):
            parts[name]["offset"] = f"{offset}B" if offset else "0"
    return entry | ({"buffers": parts} if parts else {})


@st.composite
def _semaphore(draw: Draw, producer: str, export: str, gpus: list[str]) -> Spec:
    timeline = draw(st.booleans())
    entry: Spec = {"from": draw(_from(producer, export)), "via": "timeline_fd" if timeline else "opaque_fd"}
    entry["device"] = draw(st.sampled_from(gpus))
    wait = draw(st.none() | st.integers(1, 1 << 63))
    if wait is not None:
        entry["wait"] = str(wait) if timeline else "true"
    if draw(st.booleans()):
        entry["signal"] = str((wait or 0) + draw(st.integers(1, 1 << 62))) if timeline else "true"
    return entry
