"""The pages of the documentation: their fenced blocks, their anchors, and their commands, run one after another."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.command_line import CommandResult, environment, run_shell, without_crash
from tests.helpers.python_process import run_python
from tests.helpers.specs import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MADE = [ROOT / "docs" / "rules.md", *(ROOT / "docs" / "rules").glob("*.md"), ROOT / "docs" / "gallery.md"]
"""Pages that `make docs` writes, from texts that have tests of their own."""
_BLOCK = re.compile(r"^```(\S+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_MACHINE = re.compile(r" (?:--machine )?h[12]00x([1248])\b")
_LINKED = ("specs", "examples", "tests", "docs")
_SHELL = set("|&;<>$`'*=")


@dataclass(frozen=True)
class Block:
    """One fenced example of a page: its line, its language, the words after that, and its text."""

    page: Path
    line: int
    language: str
    info: str
    text: str

    @property
    def where(self) -> str:
        """Page and line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def title(self) -> str:
        """Path of the file that the block shows; empty if it shows none."""
        found = _TITLE.search(self.info)
        return found[1] if found else ""


def blocks(*pages: Path) -> list[Block]:
    """Blocks of pages in order; of all that are written by hand, if none is named."""
    return [
        Block(page, text[: match.start()].count("\n") + 1, match[1], match[2].strip(), match[3])
        for page in pages or [page for page in PAGES if page not in MADE]
        for text in [page.read_text(encoding="utf-8")]
        for match in _BLOCK.finditer(text)
    ]


def family(name: str) -> list[Path]:
    """Page `docs/NAME.md` and the pages in the folder of its name."""
    docs = ROOT / "docs"
    return [docs / f"{name}.md", *sorted((docs / name).glob("*.md"))]


def text_of(name: str) -> str:
    """Text of a page and of those in the folder of its name."""
    return "\n".join(page.read_text(encoding="utf-8") for page in family(name))


def of(language: str) -> list[Block]:
    """Blocks of a language."""
    return [block for block in blocks() if block.language == language]


def run_page(page: Path, folder: Path, gpus: int | None = None) -> Iterator[tuple[Block, str, str, CommandResult]]:
    """Write the files of a page and run its commands, in order; yield block, command, expected output and result.

    The folder has the specs and the examples of the repository, and a runtime directory of its own. With `gpus`, the
    commands are for that many real GPUs, and those for more are left out.
    """
    (folder / "run").mkdir(mode=0o700)
    for name in _LINKED:
        (folder / name).symlink_to(ROOT / name)
    for block in blocks(page):
        if block.title and not (ROOT / block.title).exists():
            (folder / block.title).write_text(block.text, encoding="utf-8")
        if block.language == "console":
            for command, expected in commands(block.text):
                if found := command if gpus is None else on_gpus(command, gpus):
                    yield block, found, expected, _run(found, folder)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Commands of a block with the output below each; a line that ends with a backslash goes on in the next one."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        match = re.match(r"((?:[^\n]*\\\n)*[^\n]*)\n?(.*)", part, re.DOTALL)
        assert match
        yield match[1].replace("\\\n", " "), match[2].strip()


def on_gpus(command: str, gpus: int) -> str:
    """Return a command without its recorded machine; nothing if that has more GPUs than there are."""
    named = [int(count) for count in _MACHINE.findall(command)]
    return "" if max(named, default=0) > gpus else _MACHINE.sub("", command)


def matches(expected: str, output: str) -> bool:
    """Return whether an output is as expected, where … stands for any text."""
    pattern = ".*".join(re.escape(part) for part in expected.split("…"))
    return bool(re.fullmatch(pattern, output.strip(), re.DOTALL))


def memtopo_commands(page: Path) -> list[str]:
    """Every line of a page that is a command of memtopo, in a block of any language but Python, and indented ones."""
    text = re.sub(r"^```python.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    joined = text.replace("\\\n", " ")
    lines = re.findall(
        r"^(?: {4,}| *\$ )?(?:[A-Z_]+=\S+ +)*(memtopo [a-z].*)$", "\n".join(_quoted(joined)), re.MULTILINE
    )
    return [line for line in lines if not line.startswith("memtopo: ")]


def _quoted(text: str) -> Iterator[str]:
    """Lines in fenced blocks, and indented lines."""
    fenced = False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield line


def anchors(page: Path) -> set[str]:
    """Targets of links within a page: its ids, and those that its headings get."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {*re.findall(r'<a id="([^"]+)"', text), *map(_slug, headings)}


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _run(command: str, folder: Path) -> CommandResult:
    variables = {"COLUMNS": "80", "NO_COLOR": "1", "GITHUB_ACTIONS": "", "XDG_RUNTIME_DIR": str(folder / "run")}
    variables["PYTHONUNBUFFERED"] = ""  # a line is one write, so that lines of several processes stay whole
    words = shlex.split(command)
    is_own = words[0] == "memtopo" or (words[0] == "python" and not words[1].startswith("-"))
    if is_own and not _SHELL & set(command):
        python = [sys.executable, *(["-m", "memtopo"] if words[0] == "memtopo" else [str(folder / words[1])])]
        arguments = words[1 if words[0] == "memtopo" else 2 :]
        done = run_python(
            [*python, *arguments], cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=120
        )
        return without_crash(CommandResult(done.returncode, done.stdout, done.stderr))
    script = f'cd "$1"; python() {{ "{sys.executable}" "$@"; }}\n{command}'
    return run_shell(script, str(folder), **variables)
