"""Markup from values: every text is escaped here, and nowhere else, so no name can become an element."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from memtopo.common.text import printable

Value = str | float


def text(told: str) -> str:
    """A text as it may stand in an element or an attribute. What XML has no place for is shown escaped."""
    return escape(printable(told))


def element(name: str, attributes: Mapping[str, Value], *content: str) -> str:
    """An element of escaped attributes; `content` is markup."""
    head = name + "".join(f' {key}="{_value(value)}"' for key, value in attributes.items())
    return f"<{head}>{''.join(content)}</{name}>" if content else f"<{head}/>"


def number(amount: float) -> str:
    """A length in a drawing, to a tenth of a pixel."""
    return f"{round(amount, 1) + 0:.1f}".removesuffix(".0")  # adding 0 makes -0 one


def _value(value: Value) -> str:
    return text(value) if isinstance(value, str) else number(value)
