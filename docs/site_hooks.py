"""Hooks of mkdocs: pages for files of the repository that documents link to, such as specs and examples.

A link that leaves `docs/` leads to a page below `source/` of the site, which shows the file or lists the folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
_LINK = re.compile(r"(?<=\]\()(?!https?:|#|/)(?P<path>[^)#\s]+)")
_BLOCK = re.compile(r"^(`{3,})[^\n]*\n.*?^\1$", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^(`{3,}\S+)[^\n]*?( title=\"[^\"]*\")?[^\n]*$", re.MULTILINE)
_LANGUAGES = {".yaml": "yaml", ".yml": "yaml", ".py": "python", ".c": "c", ".h": "c", ".json": "json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file and folder outside of `docs/` that pages link to, directly or not."""
    found: set[Path] = set()
    waiting = [target for page in DOCS.rglob("*.md") for target in _outside(page.read_text("utf-8"), page.parent)]
    while waiting:
        if (path := waiting.pop()) not in found:
            found.add(path)
            text = _text(path)
            files.append(File.generated(config, _uri(path), content=text, inclusion=InclusionLevel.NOT_IN_NAV))
            waiting += _outside(text, path if path.is_dir() else path.parent)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page with its links to such files replaced, and fences without words for tests."""
    del config, files
    uri = page.file.src_uri
    origin = _origin(uri)

    def replaced(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(origin / match["path"]))
        known = target.is_relative_to(ROOT) and target.exists()
        return os.path.relpath(_uri(target), Path(uri).parent) if known else match["path"]

    return "".join(_FENCE.sub(r"\1\2", part) if code else _LINK.sub(replaced, part) for code, part in _parts(markdown))


def _outside(text: str, folder: Path) -> Iterator[Path]:
    for code, part in _parts(text):
        for match in () if code else _LINK.finditer(part):
            target = Path(os.path.normpath(folder / match["path"]))
            if target.is_relative_to(ROOT) and not target.is_relative_to(DOCS) and target.exists():
                yield target


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """Parts of a text in order, each with a flag: a fenced block."""
    start = 0
    for match in _BLOCK.finditer(text):
        yield False, text[start : match.start()]
        yield True, match[0]
        start = match.end()
    yield False, text[start:]


def _uri(path: Path) -> str:
    """Path of the page for a file of the repository, below `docs/`."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    within = path.relative_to(ROOT).as_posix()
    return f"source/{within}/index.md" if path.is_dir() else f"source/{within.removesuffix('.md')}.md"


def _origin(uri: str) -> Path:
    """Folder of the repository to which the links of a page are relative."""
    if not uri.startswith("source/"):
        return (DOCS / uri).parent
    within = ROOT / uri.removeprefix("source/")
    return within.parent


def _text(path: Path) -> str:
    if path.is_dir():
        return _listing(path)
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return text
    return f"# {path.relative_to(ROOT)}\n\n`````{_LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n`````\n"


def _listing(folder: Path) -> str:
    kept = [each for each in sorted(folder.iterdir()) if each.name != "__pycache__" and not each.name.startswith(".")]
    return "\n".join([f"# {folder.relative_to(ROOT)}", "", *(f"- [{each.name}]({each.name})" for each in kept), ""])
