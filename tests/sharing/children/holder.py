"""A holder as a process of its own, which says on stdout when it serves, and how it ended."""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from memtopo.cli.process import Stopper
from memtopo.common.errors import MemtopoError
from memtopo.sharing.claims import claim
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder import hold
from memtopo.sharing.holder.state import HolderInfo, Supervision
from memtopo.sharing.status import LocationMemory
from tests.helpers.memfd_exports import GPU, MACHINE, OFFERS, PAGE, PAGES, POOL, Memfds, OneState
from tests.helpers.processes import open_descriptors, print_json


def main(
    name: str = "kv",
    socket: str | None = None,
    pages: int = PAGES.count,
    exports: int = 0,
    differences: int = 0,
    limit: int = 0,
    hard: int = 0,
    uid: int = 0,
    source: str = "",
    asleep: str = "",
    commits: bool = False,
    lends: bool = False,
    **terms: Any,
) -> None:
    """Hold exports as a test needs them, under a limit of open files if one is given; `asleep` is a state's name.

    With `commits` there is an export that a writer commits, and with `lends` one whose objects are lent.
    """
    if limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard or limit))
    if uid:
        os.setresuid(uid, uid, uid)
    broken = replace(PAGES, name="broken", count=1, entry="broken")
    more = (replace(PAGES, name=f"more-{index}", entry=f"more-{index}") for index in range(exports))
    offers = (replace(PAGES, count=pages), *OFFERS[1:], broken, *more)
    if commits:
        offers = (*offers, replace(PAGES, name="weights", count=2, commit="empty", entry="weights"))
    if lends:
        offers = (*offers, POOL)
    changeable = OneState(offers, differences, name=asleep, source=source) if asleep else None
    shelf = changeable or Memfds(offers, differences)
    before = open_descriptors()
    with Stopper(ending=True) as stopper:
        with claim(endpoint(name) if socket is None else endpoint(socket=socket)) as claimed:
            about = HolderInfo(name, "kv.yaml", MACHINE, source)
            held = hold(
                shelf,
                claimed,
                about,
                stop=stopper.signal,
                ready=lambda: print_json({"serving": name}),
                changeable=changeable,
                supervision=Supervision(memory=lambda: (LocationMemory("gpu0", GPU, PAGE, 1),)),
                **terms,
            )
        print_json({"held": to_builtins(held), "fds": open_descriptors() - before})


if __name__ == "__main__":
    try:
        main(**json.loads(sys.argv[1]))
    except MemtopoError as error:
        print_json({"error": error.message, "hint": error.hint, "exit_code": error.exit_code})
