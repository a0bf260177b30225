"""Names of torch_memory_saver's modes."""

from __future__ import annotations

from typing import Literal

HookMode = Literal["preload", "torch"]
