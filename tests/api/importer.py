"""Program that attaches to a simulated layout and follows it: prints each notice, and the memory after it."""

from __future__ import annotations

import json
import sys

import memtopo
from tests.helpers.processes import print_json


def main(layout: str, machine: str, export: str) -> None:
    """Follow the holder until it releases the layout; write to the memory of an export before the first notice."""
    with memtopo.attach(layout, machine=machine) as shared:
        view = shared.export(export)
        address = shared.address(export)
        view.memory[:5] = b"child"
        print_json({"importing": [*shared.exports]})
        while (notice := shared.poll(60.0)) and notice.kind != "releasing":
            absent = sorted(shared.absent)
            first = None if export in absent else bytes(view.memory[:5]).decode()
            moved = shared.address(export) != address
            print_json({"kind": notice.kind, "state": notice.state, "absent": absent, "first": first, "moved": moved})
        del view
    assert shared.report
    print_json({"outcome": shared.report.outcome})


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
