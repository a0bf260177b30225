"""Several command lines of memtopo in one process, whose statuses and outputs are printed as JSON."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from memtopo.cli.app import run


def main(command_lines: list[list[str]]) -> None:
    """Run each with files in place of its standard streams, which memtopo writes to by their numbers."""
    kept = os.dup(1)
    found = []
    with TemporaryDirectory() as folder:
        for line in command_lines:
            files = [Path(folder, name) for name in ("out", "err")]
            for number, file in enumerate(files, 1):
                with file.open("wb") as opened:
                    os.dup2(opened.fileno(), number)
            sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
            status = run(line)
            found.append([status, *(file.read_text() for file in files)])
    os.write(kept, json.dumps(found).encode())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
