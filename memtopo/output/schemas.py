"""JSON Schemas (2020-12) of specs, and of the documents that memtopo writes.

Each schema is generated from the types that read or hold the document, so that the two cannot disagree.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from inspect import cleandoc
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

from memtopo import machine, spec
from memtopo.kinds.kind import Keys
from memtopo.language.arithmetic import PARAMETER_NAME, USE
from memtopo.language.fields import NAME_MESSAGE, Name, ReferringName
from memtopo.language.limits import MOST_PARAMETERS
from memtopo.language.names import NAME
from memtopo.language.scalars import LARGEST_PROCESSES
from memtopo.output.json import DiagnosticsDocument, ErrorDocument, PictureDocument
from memtopo.plans.calls import CallsDocument
from memtopo.plans.report import PlanDifference, Report
from memtopo.plans.trace import TraceSummary
from memtopo.probe.report import ProbeReport
from memtopo.records import RecordSummary
from memtopo.records.comparison import Comparison
from memtopo.records.replay import Replay
from memtopo.session.budget import Budget
from memtopo.session.saved import SavedChange, SavedPlan
from memtopo.sharing.held import Survey
from memtopo.sharing.status import Changed, Looked, Released, Status, Switched
from memtopo.storage.saved import Saved
from memtopo.storage.tensors import Loaded
from memtopo.usage import Usage

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_ID = "urn:memtopo:schema"
"""Start of each schema's `$id`, which names it and is no address; `memtopo schema` prints it."""

_Schema = dict[str, Any]

_DEFINITION = re.compile(r"#/\$defs/(\w+)")


def schema(kind: str) -> _Schema:
    """The schema of one of `KINDS`; each but that of a spec or an error has the marker of its type."""
    type_, words = _DOCUMENTS[kind]
    made = _written(type_) if type_ else _spec()
    if kind not in ("spec", "error") and not any(name.startswith("memtopo_") for name in made["required"]):
        marker = f"memtopo_{kind}"
        rest = {name: field for name, field in made["properties"].items() if name != marker}
        properties = {marker: {"type": "integer", "const": 1}} | rest
        made |= {"properties": properties, "required": [marker, *made["required"]]}
    return {"$schema": DIALECT, "$id": f"{_ID}:{kind}", **made, "title": f"memtopo: {words}"}


class _Generator(GenerateJsonSchema):
    """Generator without titles that only repeat a field's name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        del schema
        return False


class _InputGenerator(_Generator):
    """Generator for specs: without nulls and defaults, which stand for missing keys, and without unknown keys."""

    def nullable_schema(self, schema: Any) -> _Schema:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: Any) -> _Schema:
        return self.generate_inner(schema["schema"])

    def dict_schema(self, schema: Any) -> _Schema:
        found = super().dict_schema(schema)
        if "patternProperties" not in found:
            return found
        message = found.pop("propertyNames")["patternErrorMessage"]
        return found | {"additionalProperties": False, "errorMessage": message}


def _spec() -> _Schema:
    inputs: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = []
    for name, section in spec.SECTIONS.items():
        key = ReferringName if section.keys is Keys.REFERENCES else Name
        entries: Any = dict.__class_getitem__((key, section.entry))
        inputs.append((name, "validation", TypeAdapter(entries)))
    found, definitions = TypeAdapter.json_schemas(inputs, schema_generator=_InputGenerator)
    sections = {
        name: found[name, "validation"] | {"description": kind.description, "type": ["object", "null"]}
        for name, kind in spec.SECTIONS.items()
    }
    used = _used(definitions["$defs"], str(sections))
    sections = {name: _with_uses(section) for name, section in sections.items()}
    version = {"type": "integer", "const": spec.VERSION, "description": "The version of the language."}
    head = {"memtopo": version, "name": _or_use(_NAMED | {"type": "string", "description": "The layout's name."})}
    own = _with_uses(TypeAdapter(spec.ProcessKeys).json_schema(schema_generator=_InputGenerator))
    processes = {
        "type": ["object", "null"],
        "description": "Several processes: the same sections, under a name each.",
        "maxProperties": LARGEST_PROCESSES,
        "propertyNames": _NAMED,
        "additionalProperties": {
            "type": "object",
            "properties": own["properties"] | sections,
            "additionalProperties": False,
            "not": {"required": ["node", "nodes"]},
        },
    }
    top = _with_uses(TypeAdapter(spec.SpecKeys).json_schema(schema_generator=_InputGenerator))
    properties = head | top["properties"] | {"params": _PARAMETERS} | sections | {"processes": processes}
    return {
        "type": "object",
        "properties": {key: _with_hover_text(each, each["description"]) for key, each in properties.items()},
        "required": list(head),
        "additionalProperties": False,
        "if": {"required": ["processes"], "properties": {"processes": {"type": "object"}}},
        "then": {"properties": dict.fromkeys(spec.SECTIONS, False)},
        "$defs": {"Use": _USE} | {name: _with_hover_text(_with_uses(each), "") for name, each in used.items()},
    }


_NAMED: _Schema = {"pattern": f"^{NAME.pattern}$", "patternErrorMessage": NAME_MESSAGE}


def _with_hover_text(given: Any, text: str) -> Any:
    """Schema in which the names of entries have the description of the mapping, or of the one around it."""
    if isinstance(given, list):
        return [_with_hover_text(each, text) for each in given]
    if not isinstance(given, dict):
        return given
    text = given.get("description", text) if isinstance(given.get("description"), str) else text
    found = {key: _with_hover_text(each, text) for key, each in given.items()}
    if named := found.get("patternProperties"):
        found["patternProperties"] = {pattern: _described(each, text) for pattern, each in named.items()}
    if isinstance(found.get("additionalProperties"), dict):
        found["additionalProperties"] = _described(found["additionalProperties"], text)
    return found


def _described(given: _Schema, text: str) -> _Schema:
    return given if "description" in given or "$ref" in given else {"description": text} | given


_PARAMETERS: _Schema = {
    "type": ["object", "null"],
    "description": "Values that others use as $name; an empty one is given by --set NAME=VALUE.",
    "maxProperties": MOST_PARAMETERS,
    "propertyNames": {
        "pattern": f"^{PARAMETER_NAME}$",
        "patternErrorMessage": "A parameter's name begins with a letter and continues with letters, digits and _.",
    },
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}
_USE: _Schema = {
    "type": "string",
    "pattern": USE,
    "patternErrorMessage": "A parameter, $name, or an arithmetic of parameters: $pages * 2MiB.",
    "description": "A parameter, $name, or an arithmetic of parameters, numbers and sizes.",
}
_SCALARS = ("string", "integer", "boolean")


def _or_use(given: Any) -> Any:
    """Schema of a value that may be written as a parameter, if it is a scalar."""
    if not isinstance(given, dict) or "$ref" in given:
        return given
    if "anyOf" in given:
        each = [_with_uses(other) for other in given["anyOf"]]
        return given | {"anyOf": [*each, _USED] if any(map(_is_scalar, each)) else each}
    if not _is_scalar(given):
        return _with_uses(given)
    value = {key: other for key, other in given.items() if key != "description"}
    described = {"description": given["description"]} if "description" in given else {}
    return {"anyOf": [value, _USED]} | described


_USED: _Schema = {"$ref": "#/$defs/Use"}


def _is_scalar(given: _Schema) -> bool:
    return given.get("type") in _SCALARS or ("type" not in given and ("enum" in given or "const" in given))


def _with_uses(given: _Schema) -> _Schema:
    """Schema of a mapping or a list in which each scalar may be written as a parameter."""
    found = dict(given)
    for key in ("properties", "patternProperties"):
        if key in given:
            found[key] = {name: _or_use(each) for name, each in given[key].items()}
    for key in ("items", "additionalProperties"):
        if key in given:
            found[key] = _or_use(given[key])
    if "allOf" in given:
        found["allOf"] = [each | {"then": _with_uses(each["then"])} for each in given["allOf"]]
    return found


def _used(definitions: _Schema, text: str) -> _Schema:
    """The definitions that a schema refers to; pydantic also gives those of the validated values."""
    names: set[str] = set()
    while new := {*_DEFINITION.findall(text)} - names:
        names |= new
        text = str([definitions[name] for name in new])
    return {name: definitions[name] for name in definitions if name in names}


def _written(type_: Any) -> _Schema:
    """Schema of a document that memtopo writes: every field is required, and there are no others."""
    if type_ is machine.Machine:
        return TypeAdapter(type_).json_schema(schema_generator=_Generator)
    definitions: _Schema = {}
    _value(type_, definitions)
    document = definitions.pop(type_.__name__)
    return {"$defs": dict(sorted(definitions.items())), **document} if definitions else document


_TYPES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def _value(given: Any, definitions: _Schema) -> _Schema:  # noqa: PLR0911 one form each
    """Schema of a value without its bounds, which are those of packets; those of structs are added to `definitions`."""
    found, inner = get_origin(given) or given, get_args(given)
    if found is Any:
        return {}
    if found in _TYPES:
        return {"type": _TYPES[found]}
    if found is Literal:
        words: _Schema = {"enum": [*inner]} if len(inner) > 1 else {"const": inner[0]}
        return words | {"type": _TYPES[type(inner[0])]}
    if found is UnionType or found is Union:
        return {"anyOf": [_value(each, definitions) for each in inner]}
    if found is tuple and inner[-1] is not Ellipsis:
        items = [_value(each, definitions) for each in inner]
        return {"maxItems": len(items), "minItems": len(items), "prefixItems": items, "type": "array"}
    if found is tuple or found is list:
        return {"items": _value(inner[0], definitions), "type": "array"}
    if inner:
        return {"additionalProperties": _value(inner[1], definitions) or True, "type": "object"}
    make = _recorded if found is machine.Machine else partial(_struct, found)
    return _reference(found.__name__, definitions, make)


def _reference(name: str, definitions: _Schema, make: Callable[[_Schema], _Schema]) -> _Schema:
    if name not in definitions:
        definitions[name] = {}
        definitions[name] = make(definitions)
    return {"$ref": f"#/$defs/{name}"}


def _struct(given: Any, definitions: _Schema) -> _Schema:
    hints, drawn = get_type_hints(given), getattr(given, "drawn", ())
    names = [name for name in given.__struct_fields__ if name not in drawn]
    return {
        "additionalProperties": False,
        "description": cleandoc(given.__doc__),
        "properties": {name: _value(hints[name], definitions) for name in names},
        "required": names,
        "title": given.__name__,
        "type": "object",
    }


def _recorded(definitions: _Schema) -> _Schema:
    """Schema of a recorded machine, whose unknown fields are absent instead of null."""
    recorded = _written(machine.Machine)
    definitions |= recorded.pop("$defs")
    return recorded


_DOCUMENTS: dict[str, tuple[Any, str]] = {
    "spec": (None, "a layout of GPU memory"),
    "machine": (machine.Machine, "a recorded machine"),
    "plan": (SavedPlan, "what plan --json prints and plan -o saves"),
    "calls": (CallsDocument, "what plan --calls --json prints"),
    "probe": (ProbeReport, "what probe --json prints"),
    "report": (Report, "what apply --json prints"),
    "diagnostics": (DiagnosticsDocument, "what validate --json prints, and of a spec with errors also plan and apply"),
    "picture": (PictureDocument, "what draw --json prints"),
    "layouts": (Survey, "what ls --json prints"),
    "layout": (Status, "what show --json prints"),
    "check": (Looked, "what check --json prints"),
    "switch": (Switched, "what switch --json prints"),
    "change": (Changed, "what change --json prints"),
    "change-plan": (SavedChange, "what plan NAME SPEC --json prints and -o saves"),
    "load": (Loaded, "what load --json prints"),
    "save": (Saved, "what save --json prints"),
    "release": (Released, "what release --json prints"),
    "trace": (TraceSummary, "what trace --json prints"),
    "usage": (Usage, "what who --json prints"),
    "replay": (Replay, "what replay --json prints"),
    "budget": (Budget, "what budget --json prints"),
    "record": (RecordSummary, "what show RECORD --json prints"),
    "comparison": (Comparison, "what diff SPEC RECORD --json prints"),
    "difference": (PlanDifference, "what diff --json prints"),
    "error": (ErrorDocument, "what --json prints where there is no result"),
}
"""Types of documents, and what they are."""
KINDS = tuple(_DOCUMENTS)
