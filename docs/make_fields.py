"""Writes the tables of fields in docs/spec/: the keys of an entry, from the descriptions that editors show, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from memtopo.language.entries import Entry
from memtopo.spec import ProcessKeys

PAGES = Path(__file__).parent / "spec"
_TABLE = re.compile(r"(<!-- fields of (\w+) -->\n).*?(?=<!-- end of fields -->)", re.DOTALL)
_CODE = re.compile(
    r"\{[^}]+\}|[\w-]*/[\w/]+|0x…|\bcu[A-Z]\w+|\w+ else \w+|\w+\.[0-9]+(:[0-9]+)?|host:0|[0-9]+%"
    r"|\b(fd|fabric|ipc|dmabuf|opaque_fd|timeline_fd|fill|gpus)\b"
)
"""What is shown as code in a description: values, addresses, paths and calls."""


def main() -> None:
    """Write every table anew."""
    for page in PAGES.glob("*.md"):
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


def with_tables(page: str) -> str:
    """Return a page with its tables of fields. A comment before each names the class of its entry."""
    entries: list[type[BaseModel]] = [ProcessKeys, *_subclasses(Entry)]  # all kinds are imported by spec
    classes = {each.__name__: each for each in entries}
    return _TABLE.sub(lambda match: match[1] + "\n".join(_table(classes[match[2]])) + "\n", page)


def _subclasses(of: type[Entry]) -> Iterator[type[Entry]]:
    for each in of.__subclasses__():
        yield each
        yield from _subclasses(each)


def _table(entry: type[BaseModel]) -> Iterator[str]:
    yield from ("| field | | meaning |", "|---|---|---|")
    for name, field in entry.model_fields.items():
        meaning = _CODE.sub(r"`\g<0>`", field.description or "")
        yield f"| `{field.alias or name}` | {'required' * field.is_required()} | {meaning} |"


if __name__ == "__main__":
    main()
