"""What every entry of a spec is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Entry(BaseModel):
    """What every entry is: frozen, and with no keys but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
