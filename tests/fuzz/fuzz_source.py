"""Bytes, read as a text and validated."""

from __future__ import annotations

from tests.fuzz.runner import run

if __name__ == "__main__":
    run("source")
