"""Settings: values of a spec's parameters from `--set NAME=VALUE` and from variables `MEMTOPO_SET_NAME`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import NamedTuple

from memtopo import language
from memtopo.common.errors import UsageError
from memtopo.language import Document

_VARIABLE = "MEMTOPO_SET"
_PREFIX = f"{_VARIABLE}_"

MOST_COMBINATIONS = 1000
"""Largest number of combinations of settings that one command validates."""


class Settings(NamedTuple):
    """Values of parameters by name: those that were typed, and those of variables, which several specs may use."""

    typed: Mapping[str, str]
    variables: Mapping[str, str]

    def read(self, spec: str) -> Document:
        """Read a spec, or standard input for `-`, with these settings."""
        return self.applied(language.read_stdin() if spec == "-" else language.read_file(spec))

    def applied(self, document: Document) -> Document:
        """Return a document with these settings, which take precedence over its own.

        A variable for a parameter that the document does not declare has no effect; what was typed is an error there.
        """
        used = {name: value for name, value in self.variables.items() if name in document.declared}
        given = {**document.settings, **used, **self.typed}
        return document if given == document.settings else document.with_settings(given)

    def refuse_for_plan(self, name: str) -> None:
        """Raise `UsageError` if values were typed for a saved plan, which has its own."""
        if self.typed:
            hint = "make another plan: memtopo plan SPEC --set NAME=VALUE -o FILE"
            raise UsageError(f"the saved plan {name!r} keeps the values that it was made with", hint=hint)

    def combinations(self) -> tuple[Settings, ...]:
        """Split values at commas, and return all combinations. Raises `UsageError` if there are too many."""
        named = {**self.variables, **self.typed}
        values = [list(dict.fromkeys(value.split(","))) for value in named.values()]
        if (count := prod(map(len, values))) > MOST_COMBINATIONS:
            message = f"{count:,} combinations of settings are more than the {MOST_COMBINATIONS:,} of one command"
            raise UsageError(message, hint="validate them in several commands")
        return tuple(self._chosen(dict(zip(named, each, strict=True))) for each in product(*values))

    def _chosen(self, values: Mapping[str, str]) -> Settings:
        return Settings(
            {name: values[name] for name in self.typed},
            {name: value for name, value in values.items() if name not in self.typed},
        )


NONE_SET = Settings({}, {})
"""Settings that leave all parameters as they are."""


def settings(given: list[str] | None) -> Settings:
    """Settings of the values of `--set` and of the environment. Raises `UsageError`."""
    words = given or []
    if words == os.environ.get(_VARIABLE, "").split():
        return Settings({}, dict(_variables()) | _named(variable_words(_VARIABLE)))
    return Settings(_named(words), dict(_variables()))


def _variables() -> Iterator[tuple[str, str]]:
    for name, value in sorted(os.environ.items()):
        if name.startswith(_PREFIX):
            yield name.removeprefix(_PREFIX), value


def variable_words(variable: str) -> list[str]:
    """The values in a variable, split as by a shell; the option parser splits variables at every blank."""
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise UsageError(f"{variable} cannot be split into words: {str(error).lower()}") from error


def _named(words: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise UsageError(f"--set {word!r} gives no value", hint="write --set NAME=VALUE, such as pages=32")
        if name in found:
            hint = "give one value; 'memtopo validate' takes several: --set pages=1,100"
            raise UsageError(f"parameter {name!r} is set twice", hint=hint)
        found[name] = value
    return found
