"""Specs to which something happened."""

from __future__ import annotations

import re

from hypothesis import strategies as st

from tests.helpers import strategies

Draw = st.DrawFn
_HOSTILE = [
    "", "-1", "0", "1e3", "010", "yes", "~", "null", "&x", "*x", "!!int 1", "<<", "{", "}", "[", "]", ":", "- ", "? ",
    "|", ">", "%", "@", "`", "'", '"', '"\\e[31m"', "\t", "\r", "\0", "\x1b", "\x85", "\u202e", "\ufeff", "😀", "#",
    "2MB", "64", "1.5GiB", "3B", "64KiB", "999999999999", "18446744073709551615 granules", "0x10", "gpu9", "gpu0",
    "host", "host:7", "c0", "r0", "r0.9", "c0.1:1", "c0.0:2", "page", "none", "count", "size", "offset", "grant", "---",
    "...", "<<<<<<< HEAD", "a:1", "[]", "{}", "{a: {b: [c]}}", "fabric", "true", "server.x0", "reader.0.x0", "pe/x0",
    "ipc", "processes", "exports", "imports", "from", "via", "chunk", "buffer", "event", "visible", "mine", "x0", "i0",
    "pools", "allocations", "allocation", "pool", "accessed_by", "q0", "a0",
    "129", "managed", "external", "semaphores", "attach", "prefer", "accessed_by", "prefetch", "read_mostly", "single",
    "dedicated", "buffers", "wait", "signal", "opaque_fd", "timeline_fd", "dma_buf", "d3d12_fence", "camera",
    "pinned", "write_combined", "file", "/dev/shm/none", "read_only", "p0",
    "multicast", "bind", "devices", "team", "range", "dmabuf", "part", "mapping", "pcie",
    "camera/frame", "/run/x.sock", "m0", "s0", "18446744073709551615", "18446744073709551616",
]  # fmt: skip
_WORD = re.compile(r"[A-Za-z0-9_.:-]+")


@st.composite
def corruptions(draw: Draw, specs: st.SearchStrategy[str] | None = None) -> str:
    """A valid spec's text to which something happened: often invalid, sometimes still a spec."""
    text = draw(strategies.specs(identified=True, external=True) if specs is None else specs)
    for _ in range(draw(st.integers(1, 3))):
        text = draw(st.sampled_from([_characters, _lines, _words, _swap]))(draw, text)
    return text


def _characters(draw: Draw, text: str) -> str:
    at = draw(st.integers(0, len(text)))
    length = draw(st.integers(0, 3))
    put = draw(st.sampled_from(["", text[at : at + length] * 2, *_HOSTILE]) | st.text(max_size=3))
    return text[:at] + put + text[at + length :]


def _lines(draw: Draw, text: str) -> str:
    lines = text.split("\n")
    at = draw(st.integers(0, len(lines) - 1))
    put = draw(
        st.sampled_from([[], [lines[at]] * 2, ["  " + lines[at]], [lines[at].strip()], lines[at : at + 2][::-1]])
    )
    return "\n".join([*lines[:at], *put, *lines[at + 1 :]])


def _words(draw: Draw, text: str) -> str:
    words = list(_WORD.finditer(text))
    if not words:
        return text
    word = draw(st.sampled_from(words))
    return text[: word.start()] + draw(st.sampled_from(_HOSTILE)) + text[word.end() :]


def _swap(draw: Draw, text: str) -> str:
    words = list(_WORD.finditer(text))
    if len(words) < 2:
        return text
    one, other = sorted(draw(st.lists(st.sampled_from(range(len(words))), min_size=2, max_size=2, unique=True)))
    first, second = words[one], words[other]
    between = text[first.end() : second.start()]
    return text[: first.start()] + second[0] + between + first[0] + text[second.end() :]
