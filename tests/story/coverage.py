"""Coverage of stories: requests, errors and notices of the protocol, messages of workers, events and transitions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, get_args

from memtopo.run.messages import FromWorker, ToWorker
from memtopo.sharing import wire
from memtopo.sharing.messages import NOTICES, REQUESTS
from memtopo.sharing.wire import Packet
from tests.helpers.specs import ROOT
from tests.story.layouts import STATES

Reached = Counter[tuple[str, str]]
"""How often each thing of a kind was reached."""


@contextmanager
def listening(reached: Reached) -> Iterator[None]:
    """Count what is in the packets that are received in this process."""
    receive = wire.receive

    def heard(sock: Any) -> Packet | None:
        packet = receive(sock)
        for kind in ("request", "notice", "error", "message") if packet else ():
            assert packet
            value = packet.message.get(kind)
            if name := value.get("code") if isinstance(value, dict) else value:
                reached[kind, str(name)] += 1
        return packet

    wire.receive = heard
    try:
        yield
    finally:
        wire.receive = receive


def every() -> Mapping[str, Sequence[str]]:
    """Return all that stories can reach, by kind, as the documentation and the types of messages have it."""
    codes = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "protocol.md").read_text(), re.MULTILINE)
    actions = [f"{action} {end}" for action in ("switch", "change", "reload") for end in _ENDS]
    return {
        "request": [*REQUESTS],
        "notice": [*NOTICES],
        "error": codes,
        "message": [each.__name__ for each in dict.fromkeys((*get_args(ToWorker), *get_args(FromWorker)))],
        "event": [*actions, *_EVENTS],
        "end": ["signal", "release", "failure", "ended"],
        "transition": [f"{before} to {after}" for before in STATES for after in STATES],
    }


def lines(reached: Reached) -> Iterator[str]:
    """Lines with how much of each kind was reached, and what was not."""
    for kind, names in every().items():
        missing = [name for name in names if not reached[kind, name]]
        found = f"{len(names) - len(missing)} of {len(names)}"
        yield f"{kind:11}{found:>9}" + (f"  not {', '.join(missing)}" if missing else "")


_ENDS = ("requested", "made", "refused", "rolled back", "has broken the layout")
_EVENTS = (
    "serving", "importer attached", "importer let go", "importer detached", "writer attached", "committed",
    "writer ended without a commit", "memory not created for a writer", "leases ended", "check failed", "checked",
    "release requested", "ending", "ended",
)  # fmt: skip
