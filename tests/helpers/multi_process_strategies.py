"""Random valid multi-process specs that share memory and events."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.helpers import resource_strategies
from tests.helpers.strategies import GPUS, Draw, Spec, sizes, written

_ORDERS = st.just("own-first") | st.lists(
    st.sampled_from(["own", "next", "previous"]), unique=True, min_size=1, max_size=3
)
NAMES = ["server", "reader", "chunks", "pe", "B-2"]


class _Created(NamedTuple):
    """Entry that a process may export: kind, name, count, and granules of each."""

    kind: str
    name: str
    counted: int | None
    granules: int


class _Offer(NamedTuple):
    """Export of a process, with its count: its name, the handles of each instance, and the exported entry."""

    process: str
    counted: int | None
    name: str
    each: int
    made: _Created


class _Process(NamedTuple):
    name: str
    counted: int | None
    gpus: list[str]
    """Names of the devices that it may use."""
    made: list[_Created]
    spec: Spec


@st.composite
def specs(draw: Draw, gpus: int = GPUS) -> str:
    """A valid spec's text; see `dicts`."""
    return draw(written(draw(dicts(gpus))))


@st.composite
def dicts(draw: Draw, gpus: int = GPUS) -> Spec:
    """A valid spec of two to four processes, each with or without a count, for a machine with `gpus` GPUs, all peers.

    They export chunks via fd and buffers and events via ipc, import from one another and from themselves, and map what
    they create and import, some of it twice. No import is from a holder, and validation gives no warning.
    """
    return draw(_dicts(draw(_heads()), gpus))


@st.composite
def pairs(draw: Draw, gpus: int = GPUS) -> tuple[Spec, Spec]:
    """Two valid specs as of `dicts`, of the same processes, or one and the same with other properties of chunks."""
    heads = draw(_heads())
    one = draw(_dicts(heads, gpus))
    if draw(st.booleans()):
        return one, draw(_dicts(heads, gpus))
    other = deepcopy(one)
    for process in other["processes"].values():
        for chunk in process.get("chunks", {}).values():
            if draw(st.booleans()):
                chunk["rdma"] = True
    return one, other


@st.composite
def _heads(draw: Draw) -> list[tuple[str, int | None]]:
    """Names and counts of two to four processes."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=2, max_size=4))
    return [(name, draw(st.none() | st.integers(1, 3))) for name in names]


@st.composite
def _dicts(draw: Draw, heads: list[tuple[str, int | None]], gpus: int) -> Spec:
    made = [draw(_process(name, count, gpus)) for name, count in heads]
    offers = [offer for process in made for offer in draw(_exports(process))]
    for process in made:
        taken = draw(_imports(process, offers))
        draw(_views(process, taken))
    return {"processes": {process.name: process.spec for process in made}}


@st.composite
def _process(draw: Draw, name: str, count: int | None, gpus: int) -> _Process:
    """A process with the entries that it creates."""
    plain = [f"gpu{index}" for index in range(gpus)]
    spec: Spec = {} if count is None else {"count": str(count)}
    usable = plain
    if draw(st.booleans()):
        spec["devices"] = {"mine": draw(_devices(plain, count))}
        usable = [*plain, "mine", "mine"]
    made: list[_Created] = []
    for kind in draw(st.lists(st.sampled_from(["chunk", "chunk", "buffer", "event", "allocation"]), max_size=4)):
        if kind == "allocation":
            made.append(draw(_pooled(spec, f"a{len(made)}", plain)))
            continue
        each, entry = draw(_entry(kind, f"{kind[0]}{len(made)}", usable))
        spec.setdefault(f"{kind}s", {})[each.name] = entry
        made.append(each)
    if usable is not plain and "mine" not in str(spec.get("chunks", "")):
        # A name that nothing uses would be a warning.
        each, entry = draw(_entry("chunk", "own", ["mine"]))
        spec.setdefault("chunks", {})["own"] = entry
        made.append(each)
    others = {"managed": draw(resource_strategies.managed(usable))}
    others["pinned"] = draw(resource_strategies.pinned(usable)) if draw(st.booleans()) else {}
    spec |= {section: found for section, found in others.items() if found}
    return _Process(name, count, usable, made, spec)


@st.composite
def _devices(draw: Draw, gpus: list[str], count: int | None) -> Any:
    if count is None:
        return draw(st.sampled_from(gpus))
    return draw(st.lists(st.sampled_from(gpus), min_size=1, max_size=3))


@st.composite
def _entry(draw: Draw, kind: str, name: str, gpus: list[str]) -> tuple[_Created, Spec]:
    if kind == "event":
        return _Created(kind, name, None, 0), {"device": draw(st.sampled_from(gpus))}
    count = draw(st.none() | st.integers(1, 4))
    places = draw(st.lists(st.sampled_from(gpus), min_size=1, max_size=min(2, count or 1)))
    granules = draw(st.integers(1, 3))
    entry: Spec = {"location": places if len(places) > 1 else places[0]}
    if count is not None:
        entry["count"] = str(count)
    if kind == "chunk":
        entry |= {"size": draw(sizes(granules)), "handles": draw(st.sampled_from(["fd", ["fd"]]))}
    else:
        entry["size"] = draw(st.sampled_from(["4096B", "64KiB", "2MiB", "3MiB"]))
    return _Created(kind, name, count, granules), entry


@st.composite
def _pooled(draw: Draw, spec: Spec, name: str, gpus: list[str]) -> _Created:
    """Add a pool with an entry of allocations to a process."""
    pool, entry = draw(resource_strategies.pool_with_allocation(f"q{name}", gpus, shared=True))
    places = pool["location"] if isinstance(pool["location"], list) else [pool["location"]]
    spec.setdefault("pools", {})[f"q{name}"] = pool
    spec.setdefault("allocations", {})[name] = entry
    counted = int(entry.get("count", len(places)))
    return _Created("allocation", name, counted if "count" in entry or len(places) > 1 else None, 0)


@st.composite
def _exports(draw: Draw, process: _Process) -> list[_Offer]:
    """Exports of some entries of a process, whole or in part."""
    offers: list[_Offer] = []
    for made in process.made:
        if draw(st.integers(0, 3)) == 0:
            continue
        name = f"x{len(offers)}"
        reference, count = draw(_reference(made))
        via = "fd" if made.kind in ("chunk", "allocation") else "ipc"
        process.spec.setdefault("exports", {})[name] = {made.kind: reference, "via": via}
        if made.kind == "buffer" and draw(st.integers(0, 3)) == 0:  # for devices, so that no process imports it
            process.spec["exports"][f"{name}-nic"] = {made.kind: reference, "via": "dmabuf"}
        offers.append(_Offer(process.name, process.counted, name, count, made))
    return offers


@st.composite
def _reference(draw: Draw, made: _Created) -> tuple[str, int]:
    if made.counted is None or draw(st.booleans()):
        return made.name, made.counted or 1
    first = draw(st.integers(0, made.counted - 1))
    stop = draw(st.integers(first + 1, made.counted))
    return f"{made.name}.{first}:{stop}", stop - first


@st.composite
def _imports(draw: Draw, process: _Process, offers: list[_Offer]) -> list[tuple[str, int]]:
    """Add imports to a process; return names and granules of the imported chunks."""
    possible = [each for each in offers if each.made.kind == "chunk" or each.process != process.name or each.counted]
    taken = []
    for index, offer in enumerate(draw(st.lists(st.sampled_from(possible), max_size=3)) if possible else []):
        entry: Spec = {"from": f"{offer.process}.{offer.name}"}
        if offer.made.kind == "allocation":  # one process imports each of them once
            if draw(st.booleans()):
                entry["accessed_by"] = draw(st.sampled_from(["gpus", "gpu0"]))
            if entry["from"] not in [each["from"] for each in process.spec.get("imports", {}).values()]:
                process.spec.setdefault("imports", {})[f"i{index}"] = entry
            continue
        chunk, instances = offer.made.kind == "chunk", offer.counted or 1
        if offer.counted and offer.counted == process.counted and draw(st.booleans()):
            entry["order"] = draw(_ORDERS)
            instances = offer.counted if entry["order"] == "own-first" else len(entry["order"])
        handles = offer.each * instances
        if chunk and draw(st.booleans()):
            entry |= {"size": draw(sizes(offer.made.granules)), "count": str(handles), "via": "fd"}
        process.spec.setdefault("imports", {})[f"i{index}"] = entry
        if chunk:
            taken.append((f"i{index}", handles * offer.made.granules))
    return taken


@st.composite
def _views(draw: Draw, process: _Process, imported: list[tuple[str, int]]) -> None:
    """Add a range over all chunks of a process, created and imported, and possibly a second one over some of them."""
    own = [(each.name, (each.counted or 1) * each.granules) for each in process.made if each.kind == "chunk"]
    chunks = draw(st.permutations([*own, *imported]))
    if not chunks:
        return
    views = [chunks, *([chunks[: draw(st.integers(1, len(chunks)))]] if draw(st.booleans()) else [])]
    for index, view in enumerate(views):
        granules = sum(each for _, each in view) + draw(st.integers(0, 1))
        process.spec.setdefault("ranges", {})[f"r{index}"] = {"size": draw(sizes(granules))}
        process.spec.setdefault("map", {})[f"r{index}"] = [name for name, _ in view]
        grants = st.dictionaries(st.sampled_from(process.gpus[:GPUS]), st.sampled_from(["r", "rw"]), min_size=1)
        process.spec.setdefault("access", {})[f"r{index}"] = draw(grants)
