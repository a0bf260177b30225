"""Random valid specs of one process, over every form of the language, and the same in another order."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import strategies as st

from memtopo.machine import Machine
from tests.helpers import resource_strategies
from tests.helpers.machines import invented, with_multicast

MIB = 1 << 20
GRANULE = 2 * MIB
GPUS = 4
Spec = dict[str, Any]
Draw = st.DrawFn


def machine(gpus: int = GPUS) -> Machine:
    """A machine whose GPUs have identities, so that specs can name them in every way."""
    plain = with_multicast(invented(gpus))
    named = [
        device.model_copy(update={"uuid": f"GPU-00000000-0000-0000-0000-00000000000{index}", "bus_id": bus(index)})
        for index, device in enumerate(plain.devices)
    ]
    return plain.model_copy(update={"devices": named})


def bus(ordinal: int) -> str:
    return f"0000:{0x1B + ordinal:02x}:00.0"


def sizes(granules: int) -> st.SearchStrategy[str]:
    """The ways to write a size."""
    amount = granules * GRANULE
    forms = [f"{amount >> 20}MiB", f"{amount >> 10}KiB", f"{amount}B", f"{amount >> 20} MiB"]
    return st.sampled_from([*forms, f"{granules} granule{'' if granules == 1 else 's'}"])


class _Chunk(NamedTuple):
    name: str
    granules: int
    counted: int | None
    host: bool


class _Mapped(NamedTuple):
    """Contents of one reservation: bounds of its mappings in granules, and a flag for host memory."""

    bounds: list[tuple[int, int]]
    host: bool


@st.composite
def dicts(
    draw: Draw, gpus: int = GPUS, *, identified: bool = False, external: bool = False, multicast: bool = True
) -> Spec:
    """A valid spec as plain data, without `memtopo` and `name`, for a machine of so many GPUs and one NUMA node.

    Where they are `identified`, as those of `machine()` are, they may be named by UUID and bus id. With `external`, it
    has entries of external producers, which its build requires; without `multicast` it can be built on GPUs.
    """
    devices = draw(_devices(gpus, identified=identified))
    usable = _gpus(devices, gpus)
    chunks = draw(st.lists(st.booleans(), min_size=1, max_size=4))
    made = [draw(_chunk(f"c{index}", usable, host=host)) for index, host in enumerate(chunks)]
    spec: Spec = {"devices": devices, "chunks": {chunk.name: entry for chunk, entry in made}}
    sections: dict[str, dict[str, Any]] = {"ranges": {}, "map": {}, "access": {}}
    for index in range(draw(st.integers(1, 3))):
        name = f"r{index}"
        entry, mapped, keyed = draw(_range(name, [chunk for chunk, _ in made]))
        sections["ranges"][name] = entry
        sections["map"] |= keyed
        sections["access"] |= draw(_access(name, entry, mapped, usable))
    sections["managed"] = draw(resource_strategies.managed(usable))
    sections["pinned"] = draw(resource_strategies.pinned(usable)) if draw(st.booleans()) else {}
    sections |= draw(resource_strategies.external_sections(usable)) if external else {}
    sections |= draw(resource_strategies.pools(usable))
    for section, found in (draw(resource_strategies.heaps(usable)) if draw(st.booleans()) else {}).items():
        sections[section] = {**sections.get(section, {}), **found}
    sections["exports"] = draw(_dma_bufs(made, sections["map"])) | draw(_allocations(sections))
    whole = spec | sections
    teams = draw(resource_strategies.multicast(usable)) if multicast and draw(st.booleans()) else {}
    for section, found in teams.items():
        whole[section] = {**whole.get(section, {}), **found}
    return {section: entries for section, entries in whole.items() if entries}


@st.composite
def _dma_bufs(draw: Draw, made: list[tuple[_Chunk, Spec]], keyed: Spec) -> Spec:
    """Exports via dmabuf of chunks that are mapped as a whole, on GPUs and without compression (fact 83)."""
    lists = [entries if isinstance(entries, list) else [entries] for entries in keyed.values()]
    mapped = {entry for entries in lists for entry in entries if isinstance(entry, str)}
    possible = [
        chunk.name
        for chunk, entry in made
        if chunk.name in mapped and not chunk.host and entry.get("compressible", "false") == "false"
    ]
    taken = draw(st.lists(st.sampled_from(possible), unique=True, max_size=2)) if possible else []
    return {f"nic-{name}": {"chunk": name, "via": "dmabuf"} for name in taken}


@st.composite
def _allocations(draw: Draw, sections: dict[str, dict[str, Any]]) -> Spec:
    """Exports of allocations whose pools can be shared."""
    pools = sections.get("pools", {})
    possible = [name for name, entry in sections.get("allocations", {}).items() if "handles" in pools[entry["pool"]]]
    taken = draw(st.lists(st.sampled_from(possible), unique=True)) if possible else []
    return {f"shared-{name}": {"allocation": name, "via": "fd"} for name in taken}


@st.composite
def _devices(draw: Draw, gpus: int, *, identified: bool) -> dict[str, str]:
    names = draw(st.lists(st.sampled_from(["prefill", "decode", "a", "B-2", "n_0"]), unique=True, max_size=3))
    ordinals = draw(st.permutations(range(gpus)))
    return {
        name: draw(_identity(ordinal, identified=identified)) for name, ordinal in zip(names, ordinals, strict=False)
    }


def _identity(ordinal: int, *, identified: bool) -> st.SearchStrategy[str]:
    if not identified:
        return st.sampled_from([str(ordinal), f"gpu{ordinal}"])
    full = bus(ordinal)
    uuid = f"GPU-00000000-0000-0000-0000-00000000000{ordinal}"
    return st.sampled_from([str(ordinal), f"gpu{ordinal}", uuid, full, full[5:], full.upper(), f"0000{full}"])


def _gpus(devices: dict[str, str], gpus: int) -> list[str]:
    """One name for each GPU: the spec's own where there is one."""
    own = {_ordinal(value): name for name, value in devices.items()}
    return [own.get(ordinal, f"gpu{ordinal}") for ordinal in range(gpus)]


def _ordinal(value: str) -> int:
    if ":" in value:
        return int(value.split(":")[-2], 16) - 0x1B
    return int(value[-1])


@st.composite
def _chunk(draw: Draw, name: str, gpus: list[str], *, host: bool) -> tuple[_Chunk, Spec]:
    known: list[Any] = ["host", "host:0", {"near": "gpu0"}] if host else [*gpus, "gpu0"]
    count = draw(st.none() | st.integers(1, 5))
    places = draw(st.lists(st.sampled_from(known), min_size=1, max_size=min(3, count or 1)))
    location: Any = places if len(places) > 1 or draw(st.booleans()) else places[0]
    if not host and (count or 0) >= len(gpus) and draw(st.booleans()):
        location = "gpus"
    size, rounded = draw(_sized(st.integers(1, 3)))
    entry: Spec = {"location": location, **rounded}
    if count is not None:
        entry["count"] = str(count)
    if "host" not in places and draw(st.booleans()):
        entry["handles"] = draw(st.sampled_from(["fd", ["fd"], "fabric else fd", ["fd", "fabric else fd"]]))
    if not host:
        # Not both: compression is left out of memory that network cards can reach (fact 41).
        entry |= {
            draw(st.sampled_from(["rdma", "compressible"])): draw(st.sampled_from(["true", "false", "true else false"]))
        }
    return _Chunk(name, size, count, host), entry


@st.composite
def _sized(draw: Draw, granules: st.SearchStrategy[int]) -> tuple[int, Spec]:
    size = draw(granules)
    if draw(st.integers(0, 4)):
        return size, {"size": draw(sizes(size))}
    return size, {"size": f"{size * GRANULE - draw(st.integers(1, GRANULE - 1))}B", "round": "up"}


@st.composite
def _range(draw: Draw, name: str, chunks: list[_Chunk]) -> tuple[Spec, list[_Mapped], Spec]:
    """A range's entry, what each of its reservations holds, and its keys of `map`."""
    count = draw(st.none() | st.integers(1, 3))
    form = draw(st.sampled_from(["filled", "alike", "each"])) if count is not None else "each"
    if form == "filled":
        size, mapped, keyed = draw(_filled(name, count or 1, draw(st.sampled_from(chunks))))
    elif form == "alike":
        size, mapped, keyed = draw(_alike(name, count or 1, chunks))
    else:
        size, mapped, keyed = draw(_each(name, count, chunks))
    entry = draw(_sized(st.just(size)))[1]
    end = max((high for each in mapped for _, high in each.bounds), default=0)
    if (form == "alike" or count is None) and end == size and draw(st.booleans()):
        entry = {"size": "fill"}
    if count is not None:
        entry["count"] = str(count)
    if draw(st.booleans()):
        entry["align"] = draw(st.sampled_from(["64KiB", "2MiB", "4MiB", "1 granule", "1GiB"]))
    if draw(st.booleans()):
        # A multiple of every alignment above: an address hint requires the alignment of its range (fact 11).
        entry["address"] = hex(draw(st.integers(1 << 11, 1 << 15)) << 30)
        entry |= draw(st.sampled_from([{}, {"fixed": "false"}]))
    return entry, mapped, keyed


@st.composite
def _filled(draw: Draw, name: str, count: int, chunk: _Chunk) -> tuple[int, list[_Mapped], Spec]:
    """A counted range that one entry fills, one reservation after another."""
    fits = -(-(chunk.counted or 1) // count) + draw(st.integers(0, 1))
    left = chunk.counted or 1
    mapped = []
    for _ in range(count):
        here = min(fits, left)
        left -= here
        bounds = [(index * chunk.granules, (index + 1) * chunk.granules) for index in range(here)]
        mapped.append(_Mapped(bounds, chunk.host))
    key = draw(st.sampled_from([name, f"{name}.0:{count}"]))
    return fits * chunk.granules, mapped, {key: draw(st.sampled_from([chunk.name, [chunk.name]]))}


@st.composite
def _each(draw: Draw, name: str, count: int | None, chunks: list[_Chunk]) -> tuple[int, list[_Mapped], Spec]:
    """A range of which each reservation has its own entries, or none."""
    mapped: list[_Mapped] = []
    keyed: Spec = {}
    for instance in range(count or 1):
        kind = draw(st.sampled_from(chunks)).host
        entries, bounds = draw(_entries([chunk for chunk in chunks if chunk.host == kind]))
        mapped.append(_Mapped(bounds, kind))
        if entries:
            keyed[name if count is None else f"{name}.{instance}"] = entries
    end = max((high for each in mapped for _, high in each.bounds), default=0)
    return max(1, end + draw(st.integers(0, 2))), mapped, keyed


@st.composite
def _alike(draw: Draw, name: str, count: int, chunks: list[_Chunk]) -> tuple[int, list[_Mapped], Spec]:
    """A counted range whose reservations have mappings of their own, at the same offsets."""
    host = draw(st.sampled_from(chunks)).host
    entries: list[Spec] = []
    bounds: list[tuple[int, int]] = []
    cursor = 0
    for _ in range(draw(st.integers(1, 2))):
        chunk = draw(st.sampled_from([chunk for chunk in chunks if chunk.host == host]))
        entry, number = draw(_distributed(chunk, count))
        stride = chunk.granules + draw(st.integers(0, 2))
        if stride > chunk.granules or draw(st.booleans()):
            entry["stride"] = draw(sizes(stride))
        entries.append(entry)
        starts = [cursor + nth * stride for nth in range(number)]
        bounds += [(start, start + chunk.granules) for start in starts]
        cursor = starts[-1] + chunk.granules
    return cursor + draw(st.integers(0, 2)), [_Mapped(bounds, host)] * count, {name: entries}


@st.composite
def _distributed(draw: Draw, chunk: _Chunk, count: int) -> tuple[Spec, int]:
    """An entry with `each`, and the number of mappings that each of `count` reservations has."""
    number = chunk.counted or 1
    forms = ["repeated", "all", *(["next"] if number >= count and chunk.counted else [])]
    form = draw(st.sampled_from(forms))
    if form == "all":
        return {"chunk": chunk.name, "each": "all"}, number
    if form == "next":
        each = draw(st.integers(1, number // count))
        order = draw(st.sampled_from([{}, {"order": "round-robin"}]))
        return {"chunk": chunk.name, "each": str(each), **order}, each
    each = draw(st.integers(1, 4))
    reference = chunk.name if chunk.counted is None else f"{chunk.name}.{draw(st.integers(0, number - 1))}"
    return {"chunk": reference, "each": str(each)}, each


@st.composite
def _entries(draw: Draw, chunks: list[_Chunk]) -> tuple[list[Any], list[tuple[int, int]]]:
    entries: list[Any] = []
    bounds: list[tuple[int, int]] = []
    cursor = 0
    for _ in range(draw(st.integers(0, 3))):
        chunk = draw(st.sampled_from(chunks))
        reference, count = draw(_reference(chunk))
        if draw(st.booleans()):
            cursor += draw(st.integers(0, 2))
            written = draw(sizes(cursor)) if cursor else "0"
            entries.append({"chunk": reference, "offset": written})
        else:
            entries.append(draw(st.sampled_from([reference, {"chunk": reference}])))
        for _ in range(count):
            bounds.append((cursor, cursor + chunk.granules))
            cursor += chunk.granules
    return entries, bounds


@st.composite
def _reference(draw: Draw, chunk: _Chunk) -> tuple[str, int]:
    if chunk.counted is None or draw(st.booleans()):
        return chunk.name, chunk.counted or 1
    first = draw(st.integers(0, chunk.counted - 1))
    stop = draw(st.integers(first + 1, chunk.counted))
    if stop == first + 1 and draw(st.booleans()):
        return f"{chunk.name}.{first}", 1
    return f"{chunk.name}.{first}:{stop}", stop - first


@st.composite
def _access(draw: Draw, name: str, entry: Spec, mapped: list[_Mapped], gpus: list[str]) -> Spec:
    keyed: Spec = {}
    if "count" not in entry:
        spans = [(name, 0, 1)]
    else:
        cuts = [0, *sorted(draw(st.sets(st.integers(1, len(mapped)), max_size=2))), len(mapped)]
        spans = [(f"{name}.{low}:{high}", low, high) for low, high in pairwise(cuts) if low < high]
        if len(spans) == 1 and draw(st.booleans()):
            spans = [(name, 0, len(mapped))]
    for key, low, high in spans:
        if draw(st.integers(0, 4)):
            keyed[key] = draw(_asked(mapped[low:high], entry, gpus))
    return keyed


@st.composite
def _asked(draw: Draw, mapped: list[_Mapped], entry: Spec, gpus: list[str]) -> Any:
    grants = _grants(draw, gpus, host=all(each.host for each in mapped))
    if draw(st.booleans()):
        return draw(grants)
    end = max(high for each in mapped for _, high in each.bounds) if entry["size"] == "fill" else _granules(entry)
    inside = {at for each in mapped for low, high in each.bounds for at in range(low + 1, high)}
    cuts = sorted(set(range(end + 1)) - inside)
    found = []
    for _ in range(draw(st.integers(1, 4))):
        low = draw(st.sampled_from(cuts[:-1]))
        high = draw(st.sampled_from([cut for cut in cuts if cut > low]))
        part: Spec = {"size": draw(sizes(high - low)), "grant": draw(grants)}
        if low or draw(st.booleans()):
            part["offset"] = draw(sizes(low)) if low else "0"
        found.append(part)
    return found


def _grants(draw: Draw, gpus: list[str], *, host: bool) -> st.SearchStrategy[dict[str, str]]:
    names = [*gpus, draw(st.sampled_from(["gpus", "peers"]))]
    names += [draw(st.sampled_from(["host", "host:0"]))] if host else []
    return st.dictionaries(st.sampled_from(names), st.sampled_from(["r", "rw", "none"]), max_size=4)


def _granules(entry: Spec) -> int:
    number, unit = re.findall(r"[0-9]+|[A-Za-z]+", entry["size"])
    amount = int(number) * {"MiB": MIB, "KiB": 1024, "B": 1}.get(unit, GRANULE)
    return -(-amount // GRANULE)


@st.composite
def shuffled(draw: Draw, spec: Spec) -> Spec:
    """The same spec with its sections, and what is in a section that has no order, in another order."""
    mixed: Spec = {}
    for section in draw(st.permutations(list(spec))):
        entries = spec[section]
        mixed[section] = {key: _unordered(draw, entries[key]) for key in draw(st.permutations(list(entries)))}
    return mixed


def _unordered(draw: Draw, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unordered(draw, value[key]) for key in draw(st.permutations(list(value)))}
    return [_unordered(draw, each) for each in value] if isinstance(value, list) else value


@st.composite
def written(draw: Draw, spec: Spec) -> str:
    """Text of a spec: each section and entry in block or flow style, with comments between them."""
    lines = ["memtopo: 1", "name: random"]
    for section, entries in spec.items():
        lines += draw(st.sampled_from([[], [""], ["# a comment: with a colon"]]))
        if draw(st.booleans()):
            lines.append(f"{section}: {_flow(entries)}")
        else:
            lines += [f"{section}:", *(line for key, value in entries.items() for line in _block(draw, key, value, 1))]
    return "\n".join(lines) + draw(st.sampled_from(["\n", "", "\n\n", "  # the end\n"]))


def _block(draw: Draw, key: str, value: Any, depth: int) -> list[str]:
    space = "  " * depth
    if isinstance(value, str) or not value or draw(st.booleans()):
        return [f"{space}{key}: {_flow(value)}"]
    if isinstance(value, dict):
        inner = [line for name, each in value.items() for line in _block(draw, name, each, depth + 1)]
    else:
        inner = [f"{space}- {_flow(each)}" for each in value]
    return [f"{space}{key}:", *inner]


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in value.items()) + "}"
    return "[" + ", ".join(_flow(each) for each in value) + "]" if isinstance(value, list) else str(value)


@st.composite
def specs(
    draw: Draw, gpus: int = GPUS, *, identified: bool = False, external: bool = False, multicast: bool = True
) -> str:
    """A valid spec's text; see `dicts`."""
    return draw(written(draw(dicts(gpus, identified=identified, external=external, multicast=multicast))))
