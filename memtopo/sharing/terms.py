"""Terms of an import from outside of the spec: what it declares, compared with what a holder offers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from memtopo.common.units import NamedPart, exact
from memtopo.driver.types import LocationKind
from memtopo.geometry.groups import Group, declared_as, in_turns, largest_count
from memtopo.kinds.dmabuf import DMABUF
from memtopo.kinds.exports import EXPORTABLE
from memtopo.kinds.external import ExternalObject, ProducedGroup
from memtopo.kinds.imports.entry import LOCATIONS
from memtopo.sharing.offers import Offer

_KIND = "kind"
_LENT = {True: "elastic chunks to lend", False: "not elastic"}


class Comparison(Struct, frozen=True):
    """One property of an import: as the spec declares it by a `key`, and as the holder offers it.

    `right` is the value that the key must have; None if no value of it is right, as of the kind, which has no key.
    """

    key: str
    what: str
    declared: str
    offered: str
    right: str | None = None


def described(each: Group) -> str:
    """Return an import as the spec names it: `import 'w'`, `external 'frame'`, `semaphore 'ready'`."""
    return f"{'external' if isinstance(each, ExternalObject) else declared_as(each)} {each.name!r}"


def correction(wrong: Iterable[Comparison]) -> str:
    """Return the help for declared properties that differ from the offer."""
    found = [*wrong]
    if not all(each.right for each in found):
        return "declare the properties that the holder exports"
    values = [f"'{each.key}: {each.right}'" for each in found]
    return f"write {' and '.join(values)}"


def differences(each: Group, export: str, offer: Offer, gpus: Sequence[str], but: str = "") -> list[Comparison]:
    """Return the declared properties of an import that differ from an offer, `but` one; only the kind if that differs.

    `gpus` are the UUIDs of the GPUs of the importing process.
    """
    wrong = [one for one in _comparisons(each, export, offer, gpus) if one.declared != one.offered and one.what != but]
    return wrong[:1] if wrong and wrong[0].key == _KIND else wrong


def _comparisons(each: Group, export: str, offer: Offer, gpus: Sequence[str]) -> Iterator[Comparison]:
    assert each.origin
    if not (each.memory and each.origin.via == offer.via == DMABUF):  # which any memory may be behind
        kind = _kind(each.offered_as or "", each.origin.via)
        yield Comparison(_KIND, "an" if kind[:1] in "aeiou" else "a", kind, _kind(offer.kind, offer.via))
    yield Comparison("via", "via", each.origin.via, offer.via, offer.via)
    if each.growing or offer.lends:
        right = f"{{max: {offer.count}}}" if offer.lends else str(offer.count)
        yield Comparison("count", "it as", _LENT[each.growing], _LENT[offer.lends is not None], right)
    else:
        yield Comparison("count", "count", f"{each.origin.each:,}", f"{offer.count:,}", str(offer.count))
    if each.memory:
        # An offer of an earlier version has only the size that is allocated.
        allocated = offer.declared is None or each.declared_size == offer.size
        sizes = (each.size, offer.size) if allocated else (each.declared_size, offer.declared or 0)
        yield Comparison("size", "size", exact(sizes[0]), exact(sizes[1]), exact(sizes[1]))
    if each.parts:
        right = "".join(f", {part.name}: {exact(part.size)}" for part in offer.parts)[2:]
        yield Comparison("parts", "parts", _parts(each.parts), _parts(offer.parts) or "none", right and f"{{{right}}}")
    if isinstance(each, ProducedGroup):
        yield from _external_comparisons(each, offer, gpus)
    else:
        yield _locations(each, export, offer, gpus)


def _external_comparisons(each: ProducedGroup, offer: Offer, gpus: Sequence[str]) -> Iterator[Comparison]:
    """Yield properties that no driver checks: the GPU, for a semaphore only if it is offered, and `dedicated`."""
    if each.memory or offer.gpu:
        found = offer.gpu or offer.location
        yield Comparison(
            "device", "device", _gpu(gpus[each.location.id], gpus), _gpu(found, gpus), _own_name(found, gpus)
        )
    if isinstance(each, ExternalObject):
        words = {True: "dedicated memory", False: "memory that is not dedicated"}
        offered = "dedicated" in offer.properties
        yield Comparison("dedicated", "it as", words[each.dedicated], words[offered], str(offered).lower())


def _locations(each: Group, export: str, offer: Offer, gpus: Sequence[str]) -> Comparison:
    """Return the locations of what a group has of an export, by what is the same of them in every process."""
    assert each.origin
    kinds = (kind for kind in EXPORTABLE.values() if kind.group.offered_as == each.offered_as)
    key = next((key for kind in kinds for key in kind.import_keys.required if key in LOCATIONS), LOCATIONS[0])
    sources, number = each.origin.sources, each.origin.each
    own = [index for index in range(largest_count(each)) if sources[index // number][1] == export]
    locations = in_turns([each.location_of(index) for index in own])
    declared = ", ".join(map(str, locations))
    if all(one.kind is LocationKind.GPU for one in locations):
        declared = ", ".join(_gpu(gpus[one.id], gpus) for one in locations)
    if not offer.gpu:
        return Comparison(key, "location", declared, offer.location, _list(offer.location.split(", ")))
    uuids = offer.gpu.split(",")
    names = [_own_name(uuid, gpus) for uuid in uuids]
    right = _list([name for name in names if name]) if all(names) else None
    return Comparison(key, "location", declared, ", ".join(_gpu(uuid, gpus) for uuid in uuids), right)


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]"


def _own_name(uuid: str, gpus: Sequence[str]) -> str | None:
    """Return the name of a GPU in this process; None if it is none of its GPUs."""
    return f"gpu{gpus.index(uuid)}" if uuid in gpus else None


def _gpu(uuid: str, gpus: Sequence[str]) -> str:
    """Return a GPU's UUID, with its name if it is one of this process."""
    name = _own_name(uuid, gpus)
    return f"{name} ({uuid})" if name and name != uuid else uuid


def _parts(parts: Iterable[NamedPart]) -> str:
    return ", ".join(f"{part.name} {exact(part.size)}" for part in parts)


def _kind(kind: str, via: str) -> str:
    """Return a kind, with the type of a semaphore, which no driver checks (fact 55)."""
    types = {"timeline_fd": "timeline semaphore", "opaque_fd": "binary semaphore"}
    return types.get(via, kind) if kind == "semaphore" else kind
