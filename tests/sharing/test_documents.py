"""Documents of --json fit their schema and no other; similar documents fit none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from memtopo.output import schemas
from tests.helpers.command_line import run_memtopo
from tests.helpers.holders import Process
from tests.output.test_schemas import schema_errors, spoilt, validator


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("layouts", ["ls"]),
        ("layout", ["show", "kv"]),
        ("check", ["check", "kv"]),
        ("usage", ["who"]),
        ("release", ["release", "kv", "--force", "--grace", "100ms"]),
    ],
)
def test_a_document_is_of_one_kind_which_its_first_key_names(
    start: Callable[..., Process], runtime: Any, kind: str, command: list[str]
) -> None:
    start(differences=2)
    importer = start("importer", export="block")
    importer.read_line()
    document = run_memtopo(*command, "--json", XDG_RUNTIME_DIR=str(runtime)).document
    assert next(iter(document)) == f"memtopo_{kind}"
    assert [each for each in schemas.KINDS if not schema_errors(each, document)] == [kind], schema_errors(
        kind, document
    )
    for changed in spoilt(document):
        assert not validator(kind).is_valid(changed), changed
