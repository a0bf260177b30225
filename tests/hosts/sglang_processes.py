"""SGLang's plugins and its adapter of the memory saver, in this process and in spawned ones: a program of tests.

Arguments: the folder of a release of SGLang, and the names of what is to be different. It imports nothing of memtopo.
It prints which module is the adapter's memory saver, by process, as JSON.
"""

from __future__ import annotations

import importlib
import json
import logging
import multiprocessing
import os
import sys
import tempfile
import types
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

_ADAPTER = "sglang.srt.utils.torch_memory_saver_adapter"


def prepare(release: str) -> None:
    """Let SGLang's own modules be imported one by one: its packages import what needs a GPU."""
    for name in ("sglang", "sglang.srt", "sglang.srt.utils"):
        package = types.ModuleType(name)
        package.__path__ = [str(Path(release, *name.split(".")))]
        sys.modules.setdefault(name, package)
    common: Any = types.ModuleType("sglang.srt.utils.common")
    common.is_xpu = lambda: False
    sys.modules.setdefault(common.__name__, common)


def used() -> str:
    """Name of the module whose regions the adapter enters."""
    adapter = importlib.import_module(_ADAPTER)
    if adapter.import_error is not None:
        return repr(adapter.import_error)
    return type(adapter._memory_saver).__module__  # what it calls


def load_plugins() -> None:
    """As `sglang.launch_server` does in its process, and each scheduler in its own, after its imports."""
    importlib.import_module("sglang.srt.plugins").load_plugins()


def scheduler(release: str, answers: Any) -> None:
    """Imports and plugins of a process that SGLang spawns."""
    prepare(release)
    imported = used()
    load_plugins()
    answers.put((imported, used(), os.environ.get("LD_PRELOAD")))


def _begin_regions() -> None:
    sys.modules["torch_memory_saver"].torch_memory_saver._impl = object()  # its mark of a first region


def _change_adapter() -> None:
    folder = Path(tempfile.mkdtemp())
    Path(folder, "torch_memory_saver_adapter.py").write_text("saver = None\n")
    sys.modules["sglang.srt.utils"].__path__.insert(0, str(folder))


DIFFERENCES: dict[str, Callable[[], None]] = {"in use": _begin_regions, "other adapter": _change_adapter}
"""Changes of the process between its imports and its plugins, by name."""


class _Errors(logging.Handler):
    """Errors that SGLang logs instead of raising them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(str(record.exc_info[1]))


def main() -> None:
    """Start a scheduler as SGLang does, and one outside of `configure_subprocess`."""
    release, *different = sys.argv[1:]
    if "absent" in different:
        sys.path[:] = [each for each in sys.path if not Path(each, "torch_memory_saver").is_dir()]
    errors = _Errors()
    logging.getLogger().addHandler(errors)
    prepare(release)
    found: dict[str, Any] = {"imported": used()}
    for each in different:
        DIFFERENCES.get(each, lambda: None)()
    load_plugins()
    found |= {"loaded": used(), "errors": errors.found}
    if found["loaded"] == "memtopo.torch.saver":
        found |= started(release)
    print(json.dumps(found))


def started(release: str) -> dict[str, Any]:
    """Answers of two schedulers, of which one is started as SGLang's engine and the other as its controller."""
    saver = importlib.import_module(_ADAPTER).TorchMemorySaverAdapter.create(enable=True)
    found = {}
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    for name, configured in (("scheduler", saver.configure_subprocess), ("controller", nullcontext)):
        process = context.Process(target=scheduler, args=(release, answers))
        with configured():
            process.start()
        found[name] = answers.get()
        process.join()
    return found


if __name__ == "__main__":
    main()
