"""Parameters of specs: where they are replaced, what they are, and settings in their place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtopo.diagnostics.model import Edit
from memtopo.language import Document, read_text
from memtopo.language.limits import LARGEST_SCALAR, MOST_PARAMETERS
from memtopo.language.parameters import uses
from memtopo.machine import load
from memtopo.rules import validate
from memtopo.session.saved import spec_digest
from tests.helpers.specs import clean_geometry, diagnose, document

POOL = """\
params: {pages: 16, page: 2MiB, pool: $pages * $page, where: gpu0}
ranges: {kv: {size: $pool}}
chunks: {page: {location: [$where, gpu1], size: $page, count: $pages}}
map: {kv: [page]}
access: {kv: {gpu0: rw, gpu1: rw}}
"""
PLAIN = POOL.partition("\n")[2]
for name, text in {"pages": "16", "page": "2MiB", "pool": "32MiB", "where": "gpu0"}.items():
    PLAIN = PLAIN.replace(f"${name},", f"{text},").replace(f"${name}}}", f"{text}}}")


def values(**params: object) -> dict[str, str]:
    """Values of the parameters of a spec that uses all of them."""
    uses = {f"d{index}": f"${name}" for index, name in enumerate(params)}
    found = Document.from_object({"memtopo": 1, "name": "test", "params": params, "devices": uses})
    return found.values


def codes_of(found: Document) -> list[str]:
    return [each.code for each in found.diagnostics]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_parameter_is_found_below_comments_with_dollar_signs(end: str) -> None:
    text = end.join(["# $schema=x", "", "  # $y", "devices: {a: $x}", ""])
    assert codes_of(read_text(text.encode(), "x")) == codes_of(read_text(b"devices: {a: $x}", "x")) != []


def test_a_spec_with_parameters_has_the_geometry_of_their_values() -> None:
    assert "$" not in PLAIN
    assert repr(clean_geometry(POOL)) == repr(clean_geometry(PLAIN))


def test_values_are_replaced_and_keys_and_longer_texts_are_not() -> None:
    found = document("params: {n: 3}\nchunks: {a: {count: $n, x: ['$n', {y: ($n + 1) * 2}], z: a$n}}")
    assert found.root["chunks"] == {"a": {"count": "3", "x": ["3", {"y": "8"}]}}
    assert [(each.code, each.path) for each in found.diagnostics] == [("MT906", ("chunks", "a", "z"))]


def test_a_text_with_a_dollar_sign_that_names_no_parameter_is_a_value_as_before() -> None:
    written = "imports: {w: {from: /run/$user/w, location: gpu0, size: 2MiB}}"
    assert document(written).diagnostics == ()
    assert codes_of(document(f"params: {{user: 5}}\n{written}")) == ["MT906"]


def test_parameters_use_others_in_any_order() -> None:
    assert values(c="$b * 2", a="3", b="$a + 1") == {"c": "8", "a": "3", "b": "4"}


def test_a_parameter_is_any_text() -> None:
    assert values(where="gpu0", share="90%", grain="4 granules", copy="$grain") == {
        "where": "gpu0", "share": "90%", "grain": "4 granules", "copy": "4 granules",
    }  # fmt: skip


def test_settings_take_precedence_and_may_use_parameters() -> None:
    found = document(POOL).with_settings({"pages": "8", "page": "32MiB / $pages"})
    assert found.root["ranges"] == {"kv": {"size": "32MiB"}}
    assert found.root["chunks"]["page"] == {"location": ["gpu0", "gpu1"], "size": "4MiB", "count": "8"}  # type: ignore[index,call-overload]
    assert found.values == {"pages": "8", "page": "4MiB", "pool": "32MiB", "where": "gpu0"}
    assert found.with_settings({}).root == document(POOL).root


def test_a_parameter_without_a_value_is_given_one_by_a_setting() -> None:
    found = document("params: {n: }\nchunks: {a: {location: gpu0, size: 2MiB, count: $n}}")
    assert codes_of(found) == ["MT905"]
    assert codes_of(found.with_settings({"n": "2"})) == []
    assert codes_of(found.with_settings({"n": ""})) == ["MT905"]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"pgaes": "1"}, "MT901"),
        ({"pages": "$x"}, "MT901"),
        ({"pages": "a\x1bb"}, "MT004"),
        ({"pages": "$pages"}, "MT904"),
    ],
)
def test_a_wrong_setting_is_diagnosed(settings: dict[str, str], code: str) -> None:
    assert codes_of(document(POOL).with_settings(settings)) == [code]


def test_a_setting_of_a_misspelled_parameter_gets_the_nearest_name() -> None:
    (found,) = document(POOL).with_settings({"pgaes": "1"}).diagnostics
    assert found.help == "did you mean pages?"


def test_a_use_is_reported_at_its_own_place() -> None:
    text = POOL.replace("count: $pages", "count: $pgaes")
    (found,) = diagnose(text)
    assert (found.code, found.help) == ("MT901", "did you mean $pages?")
    span = document(text).span(found.path, found.at)
    assert span is not None
    assert document(text).line(span.line)[span.column - 1 : span.end_column - 1] == "$pgaes"


def test_each_use_without_a_value_is_reported_at_its_own_place() -> None:
    found = document("params: {n: 1}\nchunks: {a: {count: $n / 0}, b: {count: $n / 0}}\nranges: {r: [$m, $m]}")
    assert [(each.code, each.path) for each in found.diagnostics] == [
        ("MT903", ("chunks", "a", "count")),
        ("MT903", ("chunks", "b", "count")),
        ("MT901", ("ranges", "r", 0)),
        ("MT901", ("ranges", "r", 1)),
    ]


def test_a_value_of_a_wrong_form_is_reported_and_corrected_where_it_is_written() -> None:
    """Once for all uses, which are labels. A value that is computed or was set is reported where it is used."""
    text = "params: {size: 65MB, same: $size, twice: $size}\nranges: {a: {size: $size}, b: {size: $same}}\n"
    (found,) = (each for each in validate(document(text), load("h200x2")).diagnostics if each.code == "MT105")
    assert (found.path, found.notes, found.help) == (("params", "size"), (), "write 65MiB")
    assert found.edit == Edit(("params", "size"), "value", "65MB", "65MiB")
    assert [each.path for each in found.labels] == [("ranges", "a", "size"), ("ranges", "b", "size")]
    given = document(text).with_settings({"size": "66MB"})
    where = [each.path for each in validate(given, load("h200x2")).diagnostics if each.code == "MT105"]
    assert where == [("ranges", "a", "size"), ("ranges", "b", "size")]


def test_several_values_in_one_setting_are_explained() -> None:
    text = "params: {pages: 16}\nchunks: {page: {location: gpu0, size: 2MiB, count: $pages}}"
    (found,) = validate(document(text).with_settings({"pages": "1,2"}), load("h200x2")).diagnostics
    assert found.help is None
    assert found.notes == ("$pages is 1,2 as set, and only 'memtopo validate' accepts several values",)


def test_a_setting_makes_no_other_parameter_unused() -> None:
    text = POOL.replace("pages: 16", "half: 8, pages: $half * 2")
    assert codes_of(document(text).with_settings({"pages": "16", "pool": "32MiB"})) == []
    text = POOL.replace("pages: 16", "half: 8, pages: 16")
    assert codes_of(document(text).with_settings({"pages": "$half * 2"})) == []


def test_documents_of_mappings_have_parameters_too() -> None:
    root = {"memtopo": 1, "name": "t", "params": {"n": 3, "on": True}, "ranges": {"a": {"count": "$n", "fixed": "$on"}}}
    assert Document.from_object(root).root["ranges"] == {"a": {"count": "3", "fixed": "true"}}
    assert Document.from_object(root, settings={"n": "5"}).root["ranges"] == {"a": {"count": "5", "fixed": "true"}}


def test_the_digest_is_that_of_the_values_in_effect() -> None:
    default = document(POOL)
    assert spec_digest(default) == spec_digest(
        default.with_settings({"pages": "8 * 2 * ($pool / $pool)", "pool": "32MiB"})
    )
    assert spec_digest(default) != spec_digest(default.with_settings({"pages": "8"}))


def test_parameters_are_bounded_in_number_and_their_chains_are_not() -> None:
    chain = {"p0": "1"} | {f"p{index}": f"$p{index - 1} + 1" for index in range(1, MOST_PARAMETERS)}
    assert values(**dict(reversed(chain.items())))[f"p{MOST_PARAMETERS - 1}"] == str(MOST_PARAMETERS)
    root = {"memtopo": 1, "name": "t", "params": chain | {"more": 1}, "ranges": {"a": {"count": "$p3"}}}
    assert codes_of(Document.from_object(root)) == ["MT109"]


def test_the_value_of_a_parameter_has_the_limit_of_a_text() -> None:
    root = {"memtopo": 1, "name": "t", "params": {"n": 1}, "devices": {"a": "$n"}}
    for length, codes in ((LARGEST_SCALAR, []), (LARGEST_SCALAR + 1, ["MT002"])):
        assert codes_of(Document.from_object(root, settings={"n": "x" * length})) == codes


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('params: {n: 1}\na: "\\e$n"', "MT004"),
        ("params: {n: 1}\n<<: *x\na: $n\nb: $m", "MT008"),
        ("params: {<<: *x}\na: $n", "MT008"),
    ],
)
def test_nothing_is_said_of_parameters_that_what_was_refused_may_declare_or_use(text: str, code: str) -> None:
    assert codes_of(read_text(text.encode(), "spec.yaml")) == [code]
    assert codes_of(read_text(text.encode(), "spec.yaml", {"n": "2"})) == [code]


def test_values_without_a_parameter_are_left_out_beside_those_that_were_refused() -> None:
    assert read_text(b"params: {n: 1}\na: *x\nb: $n\nc: $m\n", "spec.yaml").left_out == {("a",), ("c",)}


def test_the_version_has_no_parameters() -> None:
    assert read_text(b"memtopo: $v\nparams: {v: 1}\na: $v", "spec.yaml").root["memtopo"] == "$v"


def test_every_circle_is_reported_once() -> None:
    circles = {f"a{index}": f"$b{index}" for index in range(300)} | {f"b{index}": f"$a{index}" for index in range(300)}
    root = {"memtopo": 1, "name": "t", "params": circles | {"x": "$a7"}, "ranges": {"a": {"count": "$x"}}}
    assert codes_of(Document.from_object(root)) == ["MT904"] * 300


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.text("$abcd+*/() 012MiB", max_size=12)), st.data())
def test_any_parameters_are_replaced_or_diagnosed(params: dict[str, str], data: st.DataObject) -> None:
    """No value of the document has a use of a declared parameter afterwards."""
    written = data.draw(st.lists(st.text("$abcd+*/() 012MiB", max_size=12), max_size=4))
    settings = data.draw(st.dictionaries(st.sampled_from(["a", "b"]), st.text("$abcd+*/() 012MiB", max_size=12)))
    root = {"memtopo": 1, "name": "t", "params": params, "ranges": {"r": {"count": written}}}
    found = read_text(json.dumps(root).encode(), "test.yaml", settings)
    left = {key: value for key, value in found.root.items() if key != "params"}
    assert not {*uses(json.dumps(left))} & {*found.values}
    assert all(found.span(each.path, each.at) for each in found.diagnostics)
