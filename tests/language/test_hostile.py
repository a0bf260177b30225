from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtopo.common.files import closing_fd
from memtopo.diagnostics.model import Diagnostic
from memtopo.language import Document, read_file, read_text
from memtopo.language.limits import DEEPEST, LARGEST_FILE, LARGEST_SCALAR, MOST_ENTRIES
from tests.helpers.examples import examples
from tests.helpers.language import only_diagnostic_of

ROOT = Path(__file__).parent.parent.parent
K64 = 64 << 10

# One row of the table of hostile inputs each: the text, the code, and a part of the message.
ROWS: dict[str, tuple[bytes, str, str]] = {
    "list of lists of lists": (b"a:\n  " + b"- " * 30_000, "MT002", "deeper than 64 levels"),
    "keys of keys": (b"a:\n  " + b"? " * 30_000, "MT002", "deeper than 64 levels"),
    "unclosed brackets": (b"a: " + b"[" * 100_000, "MT002", "deeper than 64 levels"),
    "unclosed brackets at the top": (b"[" * 900, "MT010", "found a list"),
    "unclosed braces": (b"a: " + b"{a: " * 30_000, "MT002", "deeper than 64 levels"),
    "a bomb of aliases": (b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "MT006", "anchor '&a'"),
    "a list that holds itself": (b"a: &x [1, *x]", "MT006", "anchor '&x'"),
    "a duplicate key": (b"a: 1\na: 2", "MT009", "key 'a' is given twice"),
    "a number and its text as keys": (b"1: x\n'1': y", "MT009", "key '1' is given twice"),
    "a tag that is no int": (b"a: !!int notanint", "MT007", "tag 'tag:yaml.org,2002:int'"),
    "a tag that is no bool": (b"a: !!bool maybe", "MT007", "tag 'tag:yaml.org,2002:bool'"),
    "a tag on nothing": (b"a: !!int ''", "MT007", "tag 'tag:yaml.org,2002:int'"),
    "a tag that runs a command": (b"a: !!python/object/apply:os.system [x]", "MT007", "is refused"),
    "a merge key": (b"a: {<<: *base}", "MT008", "merge key"),
    "an escaped escape": (b'"\\e[31m": 1', "MT004", "U+001B ESCAPE"),
    "an escaped NUL": (b'a: "\\0"', "MT004", "U+0000 NULL"),
    "an escaped surrogate": (b'a: "\\ud800"', "MT005", "escape"),
    "a NUL": (b"a: \0", "MT004", "U+0000 NULL"),
    "a bell": (b"a: \x07", "MT004", "U+0007 BELL"),
    "invalid UTF-8": (b"a: \xc3\x28", "MT003", "byte 0xc3"),
    "an encoded surrogate": (b"a: \xed\xa0\x80", "MT003", "byte 0xed"),
    "latin-1": ("a: größe".encode("latin-1"), "MT003", "byte 0xf6"),
    "UTF-16": ("a: b".encode("utf-16"), "MT003", "byte 0xff"),
    "two byte order marks": ("\ufeff\ufeffa: b".encode(), "MT004", "U+FEFF BYTE ORDER MARK"),
    "a lone CR": (b"a: 1\rb: 2", "MT004", "U+000D CARRIAGE RETURN"),
    "NEL": ("a: 1\x85b: 2".encode(), "MT004", "U+0085 NEXT LINE"),
    "LS": ("a: 1\u2028b: 2".encode(), "MT004", "U+2028 LINE SEPARATOR"),
    "PS in a comment": ("# \u2029\na: 1".encode(), "MT004", "U+2029 PARAGRAPH SEPARATOR"),
    "a noncharacter": ("a: \uffff".encode(), "MT004", "U+FFFF NONCHARACTER"),
    "an override in a name": ("a: {b\u202e: 1}".encode(), "MT004", "U+202E RIGHT-TO-LEFT OVERRIDE"),
    "an isolate in a value": ("a: b\u2066".encode(), "MT004", "U+2066 LEFT-TO-RIGHT ISOLATE"),
    "tabs": (b"a:\n\tb: 1", "MT005", "tabs are not allowed for indentation"),
    "tabs after spaces": (b"a:\n  b: 1\n  \tc: 1", "MT005", "tabs are not allowed for indentation"),
    "no space after the colon": (b"a:1", "MT010", "is a space missing after ':'?"),
    "several without a space": (b"a:1\nb:2\n", "MT010", "is a space missing after ':'?"),
    "several documents": (b"a: 1\n---\nb: 2", "MT010", "a second document"),
    "an empty file": (b"", "MT010", "the file is empty"),
    "a file of blanks": (b" \n \n", "MT010", "the file is empty"),
    "comments only": (b"# a\n# b\n", "MT010", "only comments"),
    "an empty document": (b"---\n...\n", "MT010", "the document is empty"),
    "a list at the top": (b"- a\n- b\n", "MT010", "found a list"),
    "text at the top": (b"hello\n", "MT010", "found text"),
    "an alias at the top": (b"*a", "MT006", "alias"),
    "merge-conflict markers": (
        b"a: 1\n<<<<<<< HEAD\nb: 1\n=======\nb: 2\n>>>>>>> x\n",
        "MT005",
        "merge-conflict marker",
    ),
    "half of a merge conflict": (b"a: 1\n>>>>>>> x\n", "MT005", "merge-conflict marker"),
    "a 10 MB scalar": (b"a: " + b"x" * 10_000_000, "MT002", "10,000,000 characters"),
    "a 10 MB key": (b"? " + b"x" * 10_000_000 + b"\n: 1", "MT002", "10,000,000 characters"),
    "too many entries": (b"a: [" + b"1," * (MOST_ENTRIES + 1) + b"]", "MT002", "more than 1,000,000 entries"),
    "too many bytes": (b"\n" * (LARGEST_FILE + 1), "MT002", "more than 32 MiB"),
    "directives": (b"%TAG !a! b\n" * 6000, "MT005", "directives"),
    "directives after the document": (b"a: 1\n...\n" + b"%TAG !a! b\n" * 6000, "MT005", "directives"),
}

# What libyaml might be slow on: each is repeated up to a size, and must stay fast, whatever the answer.
REPEATED = [
    ("name: [\n", "x" * 1000, ""),
    ("chunks:\n  c: [}\n  a", " " * 1000, "b\n"),
    ("a: ", "[", ""), ("a: ", "[\n", ""), ("a: ", "{", ""), ("a: ", "[? ", ""), ("a: ", "{a: ", ""), ("", ": ", ""),
    ("", "- ", ""), ("", "? ", ""), ("a:\n  ", ": ", ""), ("", " ", ""), ("", "\n", ""), ("", "\r\n", ""),
    ("", "\t", ""),
    ("", "#\n", ""), ("a: 1\n", "# x\n", ""), ("a: ", "x ", ""), ("a: ", "x\n ", ""), ("a: x", "\n", " b"),
    ('a: "', "x", '"'), ('a: "', "x\\\n", '"'), ('a: "', "\n", '"'), ('a: "', "\\n", '"'), ('a: "', "x", ""),
    ("a: '", "''", "'"), ("a: |\n", "  x\n", ""), ("a: |\n", "\n", ""), ("a: |\n", " ", ""), ("a: >\n", "  x\n\n", ""),
    ("", "%TAG !a! b\n", ""), ("a: 1\n", "%TAG !a! b\n", ""), ("", "---\n", ""), ("", "...\n", ""),
    ("a: 1\n", "...\n", ""), ("", "a: 1\n", ""),
    ("a: ", "&a ", ""), ("a: &", "a", ""), ("a: [", "*a, ", "]"), ("a: !", "a", ""), ("a: !", "%41", ""),
    ("a:\n", "- 1\n", ""), ("a: [", "1,", "]"), ("a: [", "[],", "]"), ("a: [", "a: b,", "]"), ("a: [", "? a : b,", "]"),
    ("a: [", "'a' ", "]"), ("", "<<: *a\n", ""), ("", "? [a]\n: b\n", ""), ("", "# \u202e\n", ""),
    ("a: ", "\u202e", ""),
    ("a: ", "\U0001d4b3", ""), ("", "\0", ""), ("#<<<<<<<\n", "<<<<<<\n", ""), ("a: [", '"\\e",', "]"), ("", ">", ""),
]  # fmt: skip


def assert_places_are_inside(document: Document) -> None:
    """Every place of a fault is one that an editor can go to"""
    lines = document.text.split("\n")
    for fault in document.diagnostics:
        found = fault.span or document.span(fault.path, fault.at)
        for span in (found, *(label.span for label in fault.labels if label.span)):
            assert span
            assert (1, 1) <= (span.line, span.column) <= (span.end_line, span.end_column)
            assert span.end_line <= len(lines)
            assert span.column <= len(lines[span.line - 1]) + 1
            assert span.end_column <= len(lines[span.end_line - 1]) + 1


@pytest.mark.parametrize(("data", "code", "message"), ROWS.values(), ids=ROWS)
def test_hostile_text_gets_a_diagnostic_with_a_position(data: bytes, code: str, message: str) -> None:
    """The message has no raw control character."""
    document = read_text(data, "spec.yaml")
    fault = document.diagnostics[0]
    assert fault.code == code
    assert message in fault.message
    assert fault.span or len(data) > LARGEST_FILE
    assert all(
        text.isprintable() for fault in document.diagnostics for text in (fault.message, fault.help or "", *fault.notes)
    )
    if len(data) <= K64:
        assert_places_are_inside(document)


@pytest.mark.parametrize(
    ("data", "line", "column"),
    [
        (b"a: 1\r\nb: \xff", 2, 4),
        ("a: 1\nb: ßß".encode() + b"\xff", 2, 6),
        ("\ufeffa: \0".encode(), 1, 4),
        ("# 𝒳\r\nb: 𝒳\x85".encode(), 2, 5),
        (b"a: \xff\xfe\n", 1, 4),
    ],
)
def test_a_bad_byte_has_its_position_in_characters(data: bytes, line: int, column: int) -> None:
    """As an editor counts them."""
    span = only_diagnostic_of(read_text(data, "spec.yaml")).span
    assert span
    assert (span.line, span.column) == (line, column)


@pytest.mark.parametrize(("head", "unit", "tail"), REPEATED)
def test_64_kib_are_read_within_a_second(head: str, unit: str, tail: str) -> None:
    text = (head + unit * (K64 // len(unit.encode())) + tail).encode()
    before = time.process_time()
    document = read_text(text, "spec.yaml")
    assert time.process_time() - before < 1
    assert_places_are_inside(document)


@pytest.mark.exhaustive(seconds=2.5)
@pytest.mark.parametrize(("head", "unit", "tail"), REPEATED)
def test_32_mib_are_read_within_half_a_minute(head: str, unit: str, tail: str) -> None:
    text = (head + unit * ((LARGEST_FILE - 100) // len(unit.encode())) + tail).encode()
    before = time.process_time()
    read_text(text, "spec.yaml")
    assert time.process_time() - before < 30


@pytest.mark.parametrize("length", [LARGEST_SCALAR, LARGEST_SCALAR + 1])
def test_a_text_of_the_size_limit_is_read_and_a_longer_one_refused(length: int) -> None:
    assert bool(read_text(b"a: " + b"x" * length, "spec.yaml").diagnostics) == (length > LARGEST_SCALAR)


@pytest.mark.parametrize(
    ("levels", "length"), [(DEEPEST, 1), (DEEPEST + 1, 1), (1, LARGEST_SCALAR), (1, LARGEST_SCALAR + 1)]
)
def test_a_mapping_has_the_limits_of_its_text(levels: int, length: int) -> None:
    given: object = "x" * length
    for _ in range(levels):
        given = {"a": given}
    assert isinstance(given, dict)
    for found in (Document.from_object(given), read_text(json.dumps(given).encode(), "spec.yaml")):
        assert bool(found.diagnostics) == (levels > DEEPEST or length > LARGEST_SCALAR)


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    """A file of 200 MB is refused by its size."""
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(200_000_000)
    assert only_diagnostic_of(read_file(path)) == Diagnostic("MT002", "the file has more than 32 MiB")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/", "is a directory, and a spec is a file"),
        ("/dev/zero", "is a device, and a spec is a file"),
        ("/dev/null", "is a device, and a spec is a file"),
        ("/nowhere/spec.yaml", "the file cannot be read: no such file or directory"),
        ("a\0b", "the file cannot be read: not a path"),
        ("x" * 5000, "the file cannot be read: file name too long"),
        ("", "the file cannot be read: no such file or directory"),
    ],
)
def test_directories_devices_and_missing_files_are_refused(path: str, message: str) -> None:
    """With a diagnostic that says which it is."""
    assert only_diagnostic_of(read_file(path)) == Diagnostic("MT001", message)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture
def write(pipe: Path) -> Iterator[Callable[[bytes], None]]:
    """Writes to the pipe from beside, once its reader is there."""
    threads: list[threading.Thread] = []

    def start(data: bytes) -> None:
        threads.append(threading.Thread(target=_write, args=(pipe, data)))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join()


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except BrokenPipeError:
        return


def test_a_pipe_is_read_to_its_end(pipe: Path, write: Callable[[bytes], None]) -> None:
    """Also if its writer opens it late."""
    write(b"a: " + b"x" * 60_000)
    document = read_file(pipe)
    assert document.root == {"a": "x" * 60_000}


def test_a_pipe_without_writer_is_refused_after_a_timeout(pipe: Path) -> None:
    assert only_diagnostic_of(read_file(pipe, patience=0.05)).message == "the pipe did not end in time"


def test_a_pipe_is_read_up_to_the_size_limit_only(pipe: Path, write: Callable[[bytes], None]) -> None:
    write(b"\n" * (LARGEST_FILE + (1 << 20)))
    assert only_diagnostic_of(read_file(pipe)).code == "MT002"


def test_standard_input_is_read_like_a_file() -> None:
    """And named as standard input."""
    code = "from memtopo.language import read_stdin; document = read_stdin(); print(document.name, document.root)"
    done = subprocess.run([sys.executable, "-c", code], input=b"a: 1", cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == b"<stdin> {'a': '1'}\n"


def test_a_closed_standard_input_is_refused() -> None:
    code = "from memtopo.language import read_stdin; print(read_stdin().diagnostics[0].message)"
    done = subprocess.run(f"{sys.executable} -c '{code}' <&-", shell=True, cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == b"the file cannot be read: bad file descriptor\n"


def read_without_patience(stdin: int) -> bytes:
    """Document, or its diagnostics, of a process that does not wait for its standard input."""
    code = "from memtopo.language import read_stdin; it = read_stdin(patience=0); print(it.diagnostics or it.root)"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, stdin=stdin, cwd=ROOT, capture_output=True, check=True, timeout=60).stdout


def test_a_standard_input_that_does_not_end_is_refused_after_a_timeout() -> None:
    reader, writer = os.pipe()
    with closing_fd(reader), closing_fd(writer):
        assert b"the pipe did not end in time" in read_without_patience(reader)


def test_a_terminal_is_read_until_its_end_without_a_timeout() -> None:
    ours, theirs = pty.openpty()
    with closing_fd(ours), closing_fd(theirs):
        os.write(ours, b"a: 1\n\x04")
        assert read_without_patience(theirs) == b"{'a': '1'}\n"


WORDS = st.sampled_from([
    "a", "b", "x: y", ":", "?", "-", "[", "]", "{", "}", ",", "&", "*", "!", "|", ">", "'", '"', "%", "@", "`", "#",
    "~", "\\", "\\e", "\\x00", "\\ud800", "---", "...", "<<:", "<<<<<<<", "%YAML", "%TAG", "&a", "*a", "!!int",
    "𝒳", "é", " ", "  ", "\n", "\n  ", "\r\n", "\r", "\t", "\0", "\x85", "\u2028", "\u202e", "\ufeff", "a: ", ": ",
    "- ", "? ", "\na: ", "\n---\n", "\n...\n",
])  # fmt: skip


@given(st.lists(WORDS, max_size=60).map("".join) | st.text(max_size=200))
@settings(max_examples=examples(400))
def test_any_text_is_read_without_an_exception(text: str) -> None:
    """All diagnostics have positions inside it."""
    assert_places_are_inside(read_text(text.encode(), "spec.yaml"))
    assert_places_are_inside(read_text(b"a: 1\n" + text.encode(), "spec.yaml"))


@given(st.binary(max_size=4096))
def test_any_bytes_are_read_without_an_exception(data: bytes) -> None:
    """All diagnostics have positions inside them."""
    assert_places_are_inside(read_text(data, "spec.yaml"))
    assert_places_are_inside(read_text(b"a: " + data, "spec.yaml"))
