"""Families of calls by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tests.differential.families_of_one import Buffers, Events, Managed
from tests.differential.families_of_two import Chunks, Ipc
from tests.differential.family import FamilyGenerator
from tests.differential.family_external import External
from tests.differential.family_pools import Pools
from tests.differential.generator import LENGTH, MODES, Generator
from tests.differential.host_families import DmaBufs, Pinned
from tests.differential.resources import Needs

FAMILIES: Mapping[str, type[FamilyGenerator]] = MappingProxyType(
    {
        "buffers": Buffers,
        "events": Events,
        "managed": Managed,
        "ipc": Ipc,
        "chunks": Chunks,
        "external": External,
        "pools": Pools,
        "pinned": Pinned,
        "dmabufs": DmaBufs,
    }
)
NAMES = (*MODES, *FAMILIES)
"""Families by name; the first ones are the modes of the VMM's."""


def generator(name: str, seed: int, gpus: int) -> FamilyGenerator | Generator:
    """Generator of one sequence of a family."""
    return FAMILIES[name](seed, gpus) if name in FAMILIES else Generator(seed, gpus, name)


def length(name: str) -> int:
    """Calls of a sequence of a family."""
    return FAMILIES[name].length if name in FAMILIES else LENGTH


def needs(name: str) -> Needs:
    """Resources that sequences of a family need beside a driver."""
    return FAMILIES[name].needs if name in FAMILIES else Needs()
