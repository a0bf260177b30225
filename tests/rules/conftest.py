"""Specs in folders of their own, and checks of them."""

from __future__ import annotations

from tests.helpers.checked_specs import checked, folder

__all__ = ["checked", "folder"]
