"""Wheels have the C libraries for the processors that there is a compiler for; they need nothing but the C library."""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeLibrary(BuildHookInterface):
    """Compile the libraries for x86-64 and aarch64 into the wheel, which stays one for all processors."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add a file for each processor with a compiler. Without any, they are compiled where they are needed."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from memtopo.native import LIBRARIES  # noqa: PLC0415 of the source that is built

        self._folder = tempfile.mkdtemp()
        for processor in ("x86_64", "aarch64"):
            own = processor == platform.machine()
            if compiler := shutil.which("cc" if own else f"{processor}-linux-gnu-gcc"):
                for library in LIBRARIES:
                    file = Path(self._folder, library.file_name(processor))
                    library.compile(compiler, file)
                    build_data["force_include"][str(file)] = f"memtopo/native/{file.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled."""
        del build_data, artifact_path
        if version != "editable":
            shutil.rmtree(self._folder)
