"""A process that opens files, says how many, and stays until its standard input ends."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.helpers.processes import print_json


def main(names: list[str]) -> None:
    """Open each file once for each time that it is named."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(Path(name).open("rb"))
        print_json(len(names))
        sys.stdin.read()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
