"""`make bench`: every benchmark that this machine can run."""

from __future__ import annotations

import sys

from bench import building, coldstart, drawing, proving, scaling, sharing, validating

BENCHMARKS = {
    "building": building.main,
    "coldstart": coldstart.main,
    "drawing": drawing.main,
    "proving": proving.main,
    "scaling": scaling.main,
    "sharing": sharing.main,
    "validating": validating.main,
}


def main() -> None:
    """Run the benchmarks that are named, or all of them."""
    for name in sys.argv[1:] or BENCHMARKS:
        print(f"== {name}", flush=True)
        BENCHMARKS[name]()


if __name__ == "__main__":
    main()
