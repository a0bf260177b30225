"""`make bench`: every benchmark that this machine can run."""

from __future__ import annotations

import sys

from bench import (
    apply,
    attach,
    build,
    capture,
    diagrams,
    elastic,
    heaps,
    imports,
    joining,
    lending,
    loading,
    pages,
    programs,
    saving,
    scaling,
    simulator,
    sleep,
    startup,
    validation,
    verification,
    workers,
)

BENCHMARKS = {
    "apply": apply.main,
    "attach": attach.main,
    "build": build.main,
    "capture": capture.main,
    "diagrams": diagrams.main,
    "elastic": elastic.main,
    "heaps": heaps.main,
    "imports": imports.main,
    "joining": joining.main,
    "lending": lending.main,
    "loading": loading.main,
    "pages": pages.main,
    "programs": programs.main,
    "saving": saving.main,
    "scaling": scaling.main,
    "simulator": simulator.main,
    "sleep": sleep.main,
    "startup": startup.main,
    "validation": validation.main,
    "verification": verification.main,
    "workers": workers.main,
}


def main() -> None:
    """Run the named benchmarks, or all of them."""
    for name in sys.argv[1:] or BENCHMARKS:
        print(f"== {name}", flush=True)
        BENCHMARKS[name]()


if __name__ == "__main__":
    main()
