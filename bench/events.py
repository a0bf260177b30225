"""Makes the events of PyYAML, on top of libyaml, of each file in a folder: `python -m bench.events FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml


def main(folder: str) -> None:
    """Parse each file."""
    for file in sorted(Path(folder).iterdir()):
        for _ in yaml.parse(file.read_text(), Loader=yaml.CSafeLoader):
            pass


if __name__ == "__main__":
    main(sys.argv[1])
