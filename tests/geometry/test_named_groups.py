"""Groups of entries that are written alike: copies with another name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from memtopo.geometry.groups import ChunkGroup, RangeGroup


@pytest.mark.parametrize("kind", [ChunkGroup, RangeGroup])
def test_a_named_copy_differs_by_its_name_and_path_alone(kind: Any) -> None:
    names = [each.name for each in fields(kind) if each.init]
    group = kind(*(object() for _ in names))
    copy = group.named("other", ("chunks", "other"))
    assert (copy.name, copy.path) == ("other", ("chunks", "other"))
    assert [name for name in names if getattr(copy, name) is not getattr(group, name)] == ["name", "path"]
