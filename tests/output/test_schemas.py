"""The schemas describe what is written: what memtopo accepts and prints fits them, and what it would not does not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from memtopo import machine
from memtopo.diagnostics import CODES
from memtopo.diagnostics.explanations import explanation
from memtopo.output import schemas
from tests.helpers.command_line import ROOT, run_memtopo
from tests.helpers.specs import EVERY_SPEC, codes
from tests.rules.test_bad import BAD, expected

MODELINE = "# yaml-language-server: $schema=../docs/spec.schema.json"
SHAPE = {code for code in CODES if "MT101" <= code <= "MT110"}
HEAD = "memtopo: 1\nname: test\n"
M = "--machine=h200x2"
ALIGNED = ", align: 64TiB}, b: {size: 2MiB, align: 64TiB, count: 3"
ONE_CHUNK = (
    HEAD
    + """\
ranges: {{kv: {{size: {size}{wish}}}}}
chunks: {{hot: {{location: gpu0, size: {size}}}}}
map: {{kv: [hot]}}
access: {{kv: {{gpu0: rw}}}}
"""
)
UNKNOWABLE = {
    "count-with-exponent": "YAML 1.2 has 1e3 as the number 1000, and that is all that a schema sees of it",
    "fill-beyond-the-limit": "the chunks that fit into a range are counted",
    "fill-of-too-many-mappings": "the mappings that fit into a range are counted",
    "too-many-mappings": "the mappings of several entries are added up",
    "too-many-processes-together": "the counts of several processes are added up",
    "parameter-of-another-type": "the value of a parameter stands elsewhere",
    "set-misplaced": "a set of devices is a name like any other to a schema, where one device is named",
    "several-devices": "whether a process is counted stands beside its devices, and not in them",
}


Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Editor(Loader):  # type: ignore[misc]
    """YAML as an editor reads it, by the core schema of version 1.2: `no` is text, and 0x10 a number."""


Editor.yaml_implicit_resolvers = {}
for kind, pattern, starts in (
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    Editor.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"(?:{pattern})\\Z"), [*starts])


@cache
def schema_of(kind: str) -> Any:
    return schemas.schema(kind)


@cache
def validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(schema_of(kind))


def schema_errors(kind: str, document: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator(kind).iter_errors(document)]


def fits(spec: str) -> bool:
    """Return true if a spec fits the schema, as an editor would check it."""
    return bool(validator("spec").is_valid(yaml.load(spec, Editor)))


def whole(spec: str) -> str:
    return spec if "memtopo:" in spec else HEAD + spec


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """All schemas within a schema, without conditions on values that others describe."""
    for each in schema if isinstance(schema, list) else [schema]:
        if isinstance(each, dict):
            yield each
            for key, inner in each.items():
                if key not in {"if", "then", "not"}:
                    yield from nodes(inner)


def test_every_key_and_name_of_a_spec_has_hover_text() -> None:
    schema = schema_of("spec")
    described = {f"#/$defs/{name}" for name, each in schema["$defs"].items() if each["description"]}
    keys = [
        (key, each)
        for node in nodes(schema)
        for section in ("properties", "patternProperties")
        for key, each in node.get(section, {}).items()
        if isinstance(each, dict)
    ]
    assert len(keys) > 100
    assert not [key for key, each in keys if not each.get("description") and each.get("$ref") not in described]


def test_every_pattern_of_a_spec_has_a_message_for_editors() -> None:
    found = [*nodes(schema_of("spec"))]
    patterns = [node for node in found if isinstance(node.get("pattern"), str)]
    names = [node for node in found if "patternProperties" in node]
    assert min(len(patterns), len(names)) > 10
    assert all(node["patternErrorMessage"].endswith(".") for node in patterns)
    assert all(node["errorMessage"].endswith(".") for node in names)


def test_every_schema_has_an_id_of_its_own() -> None:
    assert len({schema_of(kind)["$id"] for kind in schemas.KINDS}) == len(schemas.KINDS)


@pytest.mark.parametrize("kind", schemas.KINDS)
def test_schemas_are_of_draft_2020_12_with_title_and_no_unused_definition(kind: str) -> None:
    schema = schema_of(kind)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$schema"]
    assert schema["title"].startswith("memtopo")
    for name in schema.get("$defs", ()):
        assert f"'#/$defs/{name}'" in str(schema)


def test_lists_of_given_values_have_all_of_these() -> None:
    found = [node for kind in schemas.KINDS for node in nodes(schema_of(kind)) if "prefixItems" in node]
    assert found
    assert all(node["minItems"] == node["maxItems"] == len(node["prefixItems"]) for node in found)


def test_spec_schema_in_docs_is_current() -> None:
    """docs/spec.schema.json; `make docs` writes it."""
    assert json.loads((ROOT / "docs" / "spec.schema.json").read_text()) == schema_of("spec")


@pytest.mark.parametrize("path", EVERY_SPEC, ids=lambda path: path.stem)
def test_shipped_specs_name_their_schema_for_editors(path: Path) -> None:
    """In the last line of their first comment."""
    before, _, _ = path.read_text().partition("memtopo: 1")
    assert before.endswith(f"\n#\n{MODELINE}\n")
    assert (path.parent / MODELINE.partition("=")[2]).resolve() == ROOT / "docs" / "spec.schema.json"


@pytest.mark.parametrize("loader", [Loader, Editor])
@pytest.mark.parametrize("path", EVERY_SPEC, ids=lambda path: path.stem)
def test_shipped_specs_fit_the_schema_in_yaml_1_1_and_1_2(path: Path, loader: Any) -> None:
    assert schema_errors("spec", yaml.load(path.read_text(), loader)) == []


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_bad_specs_violate_the_schema_if_it_can_express_the_error(path: Path) -> None:
    shape = bool({*expected(path)} & SHAPE) and path.stem not in UNKNOWABLE
    assert fits(path.read_text()) != shape


def test_listed_exceptions_from_the_schema_exist_and_fit_it() -> None:
    assert {path.stem for path in BAD if {*expected(path)} & SHAPE and fits(path.read_text())} == {*UNKNOWABLE}


@pytest.mark.parametrize("code", [code for code in CODES if code >= "MT1"])
def test_examples_of_explanations_agree_with_the_schema(code: str) -> None:
    each = explanation(code)
    assert fits(whole(each.right.spec))
    assert fits(whole(each.wrong.spec)) == (code not in SHAPE or code == "MT106")  # 1e3 is 1000 to an editor


@pytest.mark.parametrize(
    "field",
    [
        *(f"size: {size}" for size in ("2MiB", "2 MiB", "4 granules", "1 granule", "2097152B", "0", "0MiB", "007MiB")),
        *(f"size: {size}" for size in ("2MB", "-1MiB", "1.5GiB", "2097152", "MiB", "2  MiB", "'2MiB '", "[2MiB]")),
        *(f"size: {share}" for share in ("90%", "0.001%", "100.0%", "0%", "0.0%", "0.000%", "100.1%", "9.1234%")),
        *(f"size: 2MiB, count: {count}" for count in ("1", "2000000", "0", "2000001", "-1", "1.5", "some", "[1]")),
        *(f"size: 2MiB, handles: {word}" for word in ("fd", "[fd]", "[fd, fabric]", "[]", "none", "FD", "{fd: 1}")),
        *(
            f"size: 2MiB, handles: {word}"
            for word in ("fabric else fd", "[fd, fabric else fd]", "fd else", "fd else shm")
        ),
        *(f"size: 2MiB, rdma: {word}" for word in ("true", "false", "yes", "no", "1", "off", "rdma")),
        *(f"size: 2MiB, rdma: {word}" for word in ("true else false", "false else true", "true else", "else false")),
        *(f"size: 2MiB, round: {word}" for word in ("up", "down", "true", "")),
        *(f"size: 2MiB, count: 4, location: {place}" for place in ("gpu0", "[gpu0, gpu1]", "[]", "{}", "''")),
        *(f"size: 2MiB, location: {place}" for place in ("gpus", "{near: gpu0}", "[{near: gpus}]", "{far: gpu0}")),
        *(f"size: 2MiB, {key}: 1" for key in ("sise", "offset", "Count", "align")),
    ],
)
def test_schema_and_memtopo_agree_about_fields_of_chunks(field: str) -> None:
    chunk = field if "location:" in field else f"location: gpu0, {field}"
    spec = f"{HEAD}chunks: {{c: {{{chunk}}}}}\n"
    assert fits(spec) == (not {*codes(spec)} & SHAPE), codes(spec)


@pytest.mark.parametrize(
    "section",
    [
        *(f"ranges: {{r: {{size: 2MiB, address: {text}}}}}" for text in ("0x7f0000000000", "0x7f00_0000", "x", "-1")),
        *(f"ranges: {{{name}: {{size: 2MiB}}}}" for name in ("r", "a-b_9", "9r", "r.0", "ä", "a" * 128, "a" * 129)),
        *(f"ranges: {{r: {{size: 2MiB, align: {text}}}}}" for text in ("2MiB", "0", "1 granule", "2097152")),
        *(f"map: {{r: {text}}}" for text in ("c", "[c]", "[]", "[c.0, c.0:4]", "[c.x]", "{chunk: c}")),
        *(f"map: {{{key}: [c]}}" for key in ("r", "r.0", "r.0:4", "r.")),
        *(f"map: {{r: [{{chunk: c, offset: {text}}}]}}" for text in ("0", "2MiB", "3 granules", "1", "-2MiB", "[]")),
        *(f"access: {{r: {text}}}" for text in ("{gpu0: rw}", "{gpu0: w}", "{}", "[]", "rw", "[{gpu0: rw}]")),
        *(f"access: {{r: [{{{text}}}]}}" for text in ("size: 2MiB, grant: {gpu0: r}", "size: 2MiB", "grant: {}")),
        *(f"devices: {{d: {text}}}" for text in ("0", "gpu1", "GPU-1234", "0000:1b:00.0", "[0]", "{}", "''")),
        *(f"{name}:" for name in ("devices", "ranges", "chunks", "map", "access")),
        *(f"{name}: []" for name in ("devices", "ranges", "chunks", "map", "access")),
        "kernels: {}",
    ],
)
def test_schema_and_memtopo_agree_about_the_other_sections(section: str) -> None:
    spec = f"{HEAD}{section}\n"
    assert fits(spec) == (not {*codes(spec)} & SHAPE), codes(spec)


@pytest.mark.parametrize("head", ["memtopo: 2\nname: x", "memtopo: 1", "name: x", "memtopo: 1\nname: 9", "[]"])
def test_schema_requires_version_and_name(head: str) -> None:
    assert not fits(head)


PRINTED = {
    "planned": ("plan", "plan", "2MiB", "", M),
    "listed": ("calls", "plan --calls", "2MiB", "", M),
    "ok": ("report", "apply", "2MiB", "", M),
    "failed": ("report", "apply", "2MiB", ALIGNED, M),  # more than there are such addresses
    "different": ("report", "apply", "2MiB", ", address: 0x600000000000, fixed: true", M),  # no simulated address
    "drawn": ("picture", "draw", "2MiB", "", M),
    "right": ("diagnostics", "validate", "2MiB", "", M),
    "wrong": ("diagnostics", "validate", "3MiB", ", align: 6MiB", M),
    "refused": ("diagnostics", "apply", "3MiB", ", align: 6MiB", M),
    "unavailable": ("error", "apply", "2MiB", "", "--machine=h9000"),
}


@pytest.fixture(params=PRINTED, scope="module")
def printed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """Type and contents of the document that a command prints with --json."""
    kind, command, size, wish, on = PRINTED[request.param]
    spec = tmp_path_factory.mktemp("schemas") / "spec.yaml"
    spec.write_text(ONE_CHUNK.format(size=size, wish=wish))
    document = run_memtopo(*command.split(), spec, on, "--json").document
    assert document.get("outcome", request.param) == request.param
    return kind, document


def test_json_output_fits_exactly_one_schema(printed: tuple[str, Any]) -> None:
    """Its first key names the kind."""
    kind, document = printed
    assert [each for each in schemas.KINDS if not schema_errors(each, document)] == [kind], schema_errors(
        kind, document
    )
    assert kind == "error" or next(iter(document)) == f"memtopo_{kind}"


def test_changed_json_output_does_not_fit_the_schema(printed: tuple[str, Any]) -> None:
    """An unknown key, a value of another type, or a missing key at the top."""
    kind, document = printed
    if kind == "calls":  # whose arguments may have any name and type
        document = document | {"processes": [{"process": "", "calls": []}]}
    for changed in spoilt(document):
        assert not validator(kind).is_valid(changed), changed
    for key in document:
        assert not validator(kind).is_valid({other: value for other, value in document.items() if other != key})


@pytest.mark.parametrize("name", machine.shipped())
def test_shipped_machines_fit_the_schema_and_changed_ones_do_not(name: str) -> None:
    facts = json.loads(machine.dump(machine.load(name)))
    assert schema_errors("machine", facts) == []
    facts["devices"] = [facts["devices"][0] | {"attributes": {"ECC_ENABLED": 1}}]
    for changed in spoilt(facts | {"peers": facts["peers"][:1], "host": {}}):
        assert not validator("machine").is_valid(changed), changed


def test_schema_command_prints_one_schema() -> None:
    """An unknown kind is wrong usage and is answered with the nearest."""
    assert run_memtopo("schema", "spec").document == schema_of("spec")
    wrong = run_memtopo("schema", "spce")
    assert (wrong.status, wrong.out) == (2, "")
    assert "did you mean 'spec'?" in wrong.err


def spoilt(document: Any) -> Iterator[Any]:
    """The document with one key too many in each of its mappings, and with another type for each of its values.

    Of values of one type at the same place in mappings with the same keys, such as those of a list, one is changed.
    Each is the given one, changed until the next is asked for.
    """
    alike = set()
    for path in [*paths(document)]:
        holder = document
        for step in path[:-1]:
            holder = holder[step]
        there = holder[path[-1]] if path else document
        form = (*("*" if isinstance(step, int) else step for step in path), type(there), *keys(holder), *keys(there))
        if form in alike:
            continue
        alike.add(form)
        if isinstance(there, dict):
            there["surprise"] = ["!"]
            yield document
            del there["surprise"]
        elif path:
            holder[path[-1]] = {"surprise": "!"}
            yield document
            holder[path[-1]] = there


def keys(value: Any) -> list[str]:
    return [*value] if isinstance(value, dict) else []


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in items:
        yield from paths(inner, (*path, step))


@pytest.mark.parametrize("against", [(), ("--against", "h200x4")])
def test_json_of_probe_fits_only_its_schema(against: tuple[str, ...]) -> None:
    """The machine in it is the one that -o writes."""
    document = run_memtopo("probe", M, "--json", *against).document
    assert [kind for kind in schemas.KINDS if not schema_errors(kind, document)] == ["probe"], schema_errors(
        "probe", document
    )
    assert schema_errors("machine", document["machine"]) == []
