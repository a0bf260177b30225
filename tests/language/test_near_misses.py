"""Words that CUDA or other tools have, where the language has others: the help has the right one."""

from __future__ import annotations

import pytest

from memtopo import machine
from memtopo.rules.validation import validate
from memtopo.spec import read
from tests.helpers.specs import document

SPEC = """
memtopo: 1
name: near
ranges: {kv: {size: 8MiB}, weights: {size: 2MiB}}
chunks: {page: {location: gpu0, size: 2MiB, count: 4}, w: {location: gpu0, size: 2MiB}}
map: {kv: page, weights: [w]}
access: {kv: {gpu0: rw}, weights: {gpu0: rw}}
"""


@pytest.mark.parametrize(
    ("written", "instead", "help"),
    [
        ("count: 4", "count: auto", "write fill for as many as fit in the range"),
        ("count: 4", "count: 0-20480", "write {min: 0, max: 20480}"),
        ("count: 4", "count: 1..4", "write {min: 1, max: 4}"),
        ("count: 4", "count: -1", "write fill for as many as fit in the range"),
        ("count: 4", "count: ${pages}", "did you mean '$pages'?"),
        ("kv: page", "kv: 'page[0:4]'", "did you mean 'page.0:4'?"),
        ("kv: page", "kv: [page[0:2], page[2:4]]", "did you mean 'page.0:2'?"),
        ("kv: page", "kv: page.:4", "did you mean 'page.0:4'?"),
        ("kv: page", "kv: 'page[:]'", "did you mean 'page'?"),
        ("kv: page", "kv: page.0-4", "did you mean 'page.0:4'? the end is exclusive: with page.4, it is page.0:5"),
        ("kv: page", "kv: 'page[2:]'", "a slice names both ends, such as page.2:6"),
        ("weights: [w]", "weights: ['w[0]']", "did you mean 'w.0'?"),
        ("count: 4", "count: {{ pages }}", "write $pages"),
        ("count: 4", "count: pages", "write a number, or $pages for a parameter of the spec"),
        ("size: 8MiB", "size: pages * 2MiB", "write $pages for a parameter of the spec"),
        ("count: 4", "count: 0.9", "write 90% for a share of the GPU's free memory"),
        ("size: 8MiB", "size: 4 * 2MiB", "write 8MiB"),
        ("kv: {gpu0: rw}", "kv: {gpu0: wr}", "did you mean 'rw'?"),
        ("location: gpu0", "location: gpu", "known are gpu0, gpu1"),
        ("size: 8MiB", "size:\xa08MiB", "write 'size: 8MiB'"),
        ("access: {kv:", "exports: {pages: page}\naccess: {kv:", "write 'pages: {chunk: page, via: fd}'"),
        ("access: {kv:", "states: {s: [kv]}\naccess: {kv:", "write 's: {drop: [kv]}'"),
        (
            "ranges: {kv: {size: 8MiB}, weights: {size: 2MiB}}",
            "ranges:\n  kv:\n  size: 8MiB\n  weights: {size: 2MiB}",
            "indent the lines of its keys, such as 'size', below it",
        ),
        ("count: 4", "count: 4, shareable: fd", "did you mean 'handles'?"),
        ("{location: gpu0, size: 2MiB}", "{device: gpu0, size: 2MiB}", "did you mean 'location'?"),
        ("{location: gpu0, size: 2MiB}", "{location: gpu0, bytes: 2MiB}", "did you mean 'size'?"),
        ("access: {kv:", "states: {s: {discard: [kv]}}\naccess: {kv:", "did you mean 'drop'?"),
        ("access: {kv:", "access: {kvcache:", "did you mean 'kv'?"),
        ("weights: [w]", "weight: [w]", "did you mean 'weights'?"),
        (
            "weights: {size: 2MiB}",
            "weights: {size: 2MiB, access: {gpu0: rw}}",
            "it is a section of its own: 'access: {kv:",
        ),
        ("{size: 2MiB}", "{size: 2MiB, map: [w]}", "it is a section of its own: 'map: {kv: [hot]}'"),
        ("name: near", "name: near by", "write near-by: a name begins with a letter"),
        ("map: {kv: page", "chunks: {x: {location: gpu0}}\nmap: {kv: page", "write its values under one key"),
    ],
)
def test_the_help_has_the_word_of_the_language(written: str, instead: str, help: str) -> None:
    assert written in SPEC
    found = validate(document(SPEC.replace(written, instead, 1)), machine.load("h200x2")).diagnostics
    (error, *more) = [each for each in found if each.severity == "error"]
    assert error.help
    assert error.help.startswith(help)
    assert not more


def test_a_word_that_begins_like_several_gets_no_suggestion() -> None:
    spec = SPEC.replace("kv", "kv-of-a").replace("weights", "kv-of-b").replace("access: {kv-of-a", "access: {kv")
    (error,) = [
        each for each in validate(document(spec), machine.load("h200x2")).diagnostics if each.severity == "error"
    ]
    assert error.help == "known are kv-of-a, kv-of-b"


@pytest.mark.parametrize(
    ("key", "written", "help", "edit"),
    [
        ("size", "64", "write 64MiB, or 64B for bytes", None),
        ("size", "2097152", "write 2MiB", "2MiB"),
        ("size", "02097152", "write 2MiB", None),
        ("size", "4 page", "write 4 granules", None),
        ("size", ["2MiB"], "write 2MiB without brackets", None),
        ("size", ["2MiB", "4MiB"], None, None),
        ("handles", "posix_fd", "did you mean 'fd'?", "fd"),
        ("handles", "fabrik", "did you mean 'fabric'?", "fabric"),
        ("handles", "fb", "write one of fd, fabric", None),
        ("handles", "fd else fd", "omit one of them", None),
        ("handles", "else fd", "write fabric else fd", None),
        ("rdma", "yes", "write true or false", "true"),
        ("rdma", "false else true", "write 'true else false'", None),
        ("count", "1,000", "write 1000", "1000"),
        ("count", "1e3", "write 1000", "1000"),
        ("count", "8.0", "write 8", "8"),
        ("count", "0o10", "write 8", "8"),
        ("count", "2 * (3 + 1)", "write 8", "8"),
        ("count", "2k", "write 2000 or 2048", None),
        ("count", "32MiB", "write 32: a count has no unit", None),
        ("count", "8.5", "write 8 or 9", None),
        ("count", "0.5", "write 50% for a share of the GPU's free memory", None),
        ("count", "2 * 0", None, None),
        ("count", "9" * 10, "write at most 2000000; fewer objects can be larger", None),
        ("size", "-2MiB", "write a whole number and a unit, such as 2MiB", None),
    ],
)
def test_a_value_is_replaced_only_where_one_must_have_been_meant(
    key: str, written: object, help: str | None, edit: str | None
) -> None:
    chunk = {"location": "gpu0", "size": "2MiB", key: written}
    (fault,) = read({"memtopo": "1", "name": "x", "chunks": {"c": chunk}})[1]
    assert (fault.help, fault.edit and fault.edit.new) == (help, edit)


def test_a_former_word_of_an_access_is_replaced() -> None:
    (fault,) = read({"memtopo": "1", "name": "x", "access": {"kv": {"gpu0": "ro"}}})[1]
    assert fault.edit
    assert (fault.help, fault.edit.new) == ("did you mean 'r'?", "r")
