"""Keys that have their value, too, since no space is after the colon."""

from __future__ import annotations

import pytest

from tests.helpers.specs import diagnose

SPEC = """
ranges: {kv: {size: 2MiB}}
chunks: {hot: {location: gpu0, size: 2MiB}}
map: {kv: hot}
access: {kv: {gpu0: rw}}
"""


@pytest.mark.parametrize(
    ("right", "wrong", "meant"),
    [
        ("{gpu0: rw}", "{gpu0:rw}", "gpu0: rw"),
        ("{gpu0: rw}", "{gpu0: rw, host:r}", "host: r"),
        ("{gpu0: rw}", "{gpu0: rw, host:0:r}", "host:0: r"),
        ("{size: 2MiB}", "{size:2MiB}", "size: 2MiB"),
    ],
)
def test_a_value_without_a_space_before_it_has_help(right: str, wrong: str, meant: str) -> None:
    helps = [each.help for each in diagnose(SPEC.replace(right, wrong, 1)) if each.code in ("MT101", "MT103")]
    assert helps == [f"write {meant!r}, with a space after the colon"]
