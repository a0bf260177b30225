"""docs/protocol.md and docs/protocol/requests.md are what happens: their requests are answered as they say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memtopo.sharing import wire
from memtopo.sharing.messages import REQUESTS
from tests.helpers.command_line import ROOT
from tests.helpers.holders import Holder, asked, heard, raw
from tests.helpers.pages import text_of

PAGE = text_of("protocol")
SECTION = re.compile(r"^## (\w+)\n\n```json\n(.*?)^```\n\n```json\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
PAIRS = {name: (json.loads(request), json.loads(answer)) for name, request, answer in SECTION.findall(PAGE)}

REVISIONS = [ROOT / "memtopo" / name for name in ("run/holder.py", "session/composition.py")]
"""Modules that refuse a change on behalf of a holder."""


def shape(value: Any) -> Any:
    """The keys and types of a message, of a list those of its first entry."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value)


def test_the_page_has_every_request_and_its_answer() -> None:
    assert set(PAIRS) == set(REQUESTS) == {request["request"] for request, _ in PAIRS.values()}


@pytest.mark.parametrize("name", REQUESTS)
def test_answers_have_the_keys_and_types_of_the_page(runtime: Path, start: Callable[..., Holder], name: str) -> None:
    start(asleep="asleep" if name in ("switch", "change", "save") else "", commits=True, lends=name in ("lend", "seal"))
    request, answer = PAIRS[name]
    with raw(runtime / "memtopo" / "kv.sock") as sock:
        if name in ("importers", "let_go"):
            wire.send(sock, json.dumps(PAIRS["handles"][0]).encode())
            given = heard(sock)
            assert given
            given.close()
        if name in ("await", "commit"):
            asked(sock, "write", exports=["weights"])
        if name == "await":
            asked(sock, "commit", exports=[{"name": "weights", "generation": 1}])
        if name == "metrics":
            asked(sock, "check")
        if name == "seal":
            wire.send(sock, json.dumps(PAIRS["lend"][0]).encode())
            given = heard(sock)
            assert given
            given.close()
        wire.send(sock, json.dumps(request).encode())
        packet = heard(sock)
        assert packet
        packet.close()
        assert shape(packet.message) == shape(answer)


def test_a_request_with_an_unknown_key_is_refused(runtime: Path, start: Callable[..., Holder]) -> None:
    """A request must not ask for what the holder does not support; the layout stays as it is."""
    start(asleep="asleep")
    for name, (request, _) in PAIRS.items():
        with raw(runtime / "memtopo" / "kv.sock") as sock:
            wire.send(sock, json.dumps({**request, "surprise": 1}).encode())
            packet = heard(sock)
            assert packet
            packet.close()
            assert (name, packet.message["error"]["code"]) == (name, "request")


def test_the_page_has_every_code_of_a_holders_errors() -> None:
    source = "".join(path.read_text() for path in [*ROOT.glob("memtopo/sharing/**/*.py"), *REVISIONS])
    sent = set(re.findall(r'ExchangeError\(\s*"(\w+)"', source)) | {"packet", "version", "request", "failed", "lost"}
    ours = {"gone", "timeout", "lie", "folder", "held", "starting"}
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == sent - ours
