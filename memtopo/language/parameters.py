"""Parameters of a spec: the values that `params` declares, or that settings give in their place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from graphlib import CycleError, TopologicalSorter
from itertools import islice

from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import Diagnostic, InvalidValue
from memtopo.language.arithmetic import PARAMETER_NAME, USE, evaluate
from memtopo.language.characters import character_name, refused_character
from memtopo.language.limits import LARGEST_SCALAR, MOST_PARAMETERS, PARAMETERS

_NAME = re.compile(PARAMETER_NAME)
_WHOLE = re.compile(rf"\s*\$({PARAMETER_NAME})\s*")


class LeftOut(Exception):
    """A value uses a parameter that has no value, for which there is a diagnostic."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Value of a parameter that is in effect; `given` if a setting has replaced the one in the text."""

    value: str
    given: bool = False


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of a spec: their texts as `declared`, and the `values` of those without errors.

    `settings` are the texts that were given in place of declared ones. If `incomplete`, the section had an error, and
    nothing is known of names that are not in it.
    """

    declared: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Parameter] = field(default_factory=dict)
    incomplete: bool = False

    def replaced(self, text: str, *, suggest: bool = True) -> str:
        """Return the value of a text that is a `$name` or an arithmetic.

        Raises `InvalidValue`, and `LeftOut` if the reason for its lack of a value was reported already. The search for
        the name that is most similar to an undeclared one takes milliseconds; callers `suggest` it for the first ones.
        """
        if whole := _WHOLE.fullmatch(text):
            return self._text(whole[1], suggest=suggest)
        return str(evaluate(text, partial(self._text, suggest=suggest)))

    def origin(self, text: str) -> str | None:
        """Name of the parameter whose declaration has the value of a `$name`; None if it was set, or is computed."""
        while (whole := _WHOLE.fullmatch(text)) and whole[1] in self.declared and whole[1] not in self.settings:
            text = str(self.declared[whole[1]])
            if "$" not in text:
                return whole[1]
        return None

    def described(self, text: str) -> str:
        """List the parameters that a text uses, with their values: `$pages is 16, $page is 2MiB`."""
        names = [name for name in dict.fromkeys(uses(text)) if name in self.values][: messages.LISTED]
        return ", ".join(f"${name} is {_shown(self.values[name])}" for name in names)

    def _text(self, name: str, *, suggest: bool) -> str:
        if found := self.values.get(name):
            return found.value
        if self.incomplete or name in self.declared:
            raise LeftOut
        help = _help(f"${name}", [f"${each}" for each in islice(self.declared, messages.COMPARED)], suggest=suggest)
        help = help or f"declare it: 'params: {{{shorten(name)}: VALUE}}'"
        raise InvalidValue("MT901", f"parameter '${shorten(name)}' is not declared", help=help)


def resolve(section: object, settings: Mapping[str, str], *, unread: bool) -> tuple[Parameters, list[Diagnostic]]:
    """Return the parameters of a section `params`, with the diagnostics of those without a value.

    A setting takes precedence over the text in the section. `unread` says that a part of it was left out when the spec
    was read.
    """
    if wrong := _wrong_section(section):
        return Parameters(settings=settings, incomplete=True), [wrong]
    declared = section if isinstance(section, dict) else {}
    found = [] if unread else list(_undeclared(settings, declared))
    texts, wrong_texts = _texts(declared, settings)
    order, circles = _order(texts)
    values, wrong_values = _values(declared, settings, {name: texts[name] for name in order}, unread=unread)
    return Parameters(declared, settings, values, unread), messages.first(
        [*found, *wrong_texts, *circles, *wrong_values]
    )


def _shown(parameter: Parameter) -> str:
    several = ", and only 'memtopo validate' takes several values" if "," in parameter.value else ""
    return f"{shorten(parameter.value)}{f' as set{several}' if parameter.given else ''}"


def uses(text: str) -> list[str]:
    """Return the names of the parameters that a text uses."""
    return USE.findall(text) if "$" in text else []


def _wrong_section(section: object) -> Diagnostic | None:
    if isinstance(section, dict):
        if len(section) <= MOST_PARAMETERS:
            return None
        message = f"{len(section):,} parameters are more than the {MOST_PARAMETERS:,} that one spec may declare"
        return Diagnostic("MT109", message, (PARAMETERS,), "key")
    if section == "":
        return None
    help = "write 'params: {pages: 64}'"
    return Diagnostic("MT103", f"{PARAMETERS!r} is a mapping from names to values", (PARAMETERS,), help=help)


def _undeclared(settings: Mapping[str, str], declared: Mapping[str, object]) -> Iterator[Diagnostic]:
    undeclared = [name for name in settings if name not in declared]
    for index, name in enumerate(undeclared):
        help = _help(name, list(declared), suggest=index < messages.SUGGESTED) or "it declares none"
        message = f"{shorten(name)!r} is set, and the spec declares no such parameter"
        yield Diagnostic("MT901", message, (PARAMETERS,), "key", help=help)


def _help(name: str, known: Sequence[str], *, suggest: bool) -> str | None:
    meant = nearest(name, known) if suggest else None
    return f"did you mean {meant}?" if meant else messages.listed(known) if known else None


def _texts(declared: Mapping[str, object], settings: Mapping[str, str]) -> tuple[dict[str, str], list[Diagnostic]]:
    """Text of each parameter that has a valid name and a text."""
    texts: dict[str, str] = {}
    found: list[Diagnostic] = []
    for name, written in declared.items():
        text = settings.get(name, written)
        if wrong := _wrong_name(name) or _wrong_text(name, text):
            found.append(wrong)
        else:
            texts[name] = str(text)
    return texts, found


def _wrong_name(name: str) -> Diagnostic | None:
    if _NAME.fullmatch(name):
        return None
    help = "a parameter's name begins with a letter and continues with letters, digits and _"
    if _NAME.fullmatch(name.removeprefix("$")):
        help = f"write {name.removeprefix('$')!r} here, and '{name}' where it is used"
    return Diagnostic("MT104", f"{shorten(name)!r} is not a parameter's name", (PARAMETERS, name), "key", help=help)


def _wrong_text(name: str, text: object) -> Diagnostic | None:
    path = (PARAMETERS, name)
    if not isinstance(text, str):
        what = "a list" if isinstance(text, list) else "a mapping"
        return Diagnostic("MT103", f"expected one value, found {what}", path, help="a parameter is text or a number")
    if not text:
        help = f"write a value here, or give one: --set {shorten(name)}=VALUE"
        return Diagnostic("MT905", f"parameter {shorten(name)!r} has no value", path, "key", help=help)
    if character := refused_character(text):
        return Diagnostic("MT004", f"{character_name(character)} is not allowed in the value of a parameter", path)
    if len(text) > LARGEST_SCALAR:
        return Diagnostic("MT002", f"a text of {len(text):,} characters; at most {LARGEST_SCALAR:,} are allowed", path)
    return None


def _order(texts: Mapping[str, str]) -> tuple[list[str], list[Diagnostic]]:
    """Names of the parameters, each after those that it uses, without those that use one another in a circle."""
    graph = {name: [each for each in uses(text) if each in texts] for name, text in texts.items()}
    found: list[Diagnostic] = []
    while True:
        try:
            return [name for name in TopologicalSorter(graph).static_order() if name in graph], found
        except CycleError as error:
            circle = error.args[1][::-1]
            found.append(_circular(circle))
            for name in circle[1:]:
                del graph[name]


def _circular(circle: Sequence[str]) -> Diagnostic:
    shown = " → ".join(circle if len(circle) <= messages.LISTED else [*circle[: messages.LISTED - 1], "…", circle[-1]])
    message = f"parameter {circle[0]!r} refers to itself: {shown}"
    return Diagnostic("MT904", message, (PARAMETERS, circle[0]))


def _values(
    declared: Mapping[str, object], settings: Mapping[str, str], texts: Mapping[str, str], *, unread: bool
) -> tuple[dict[str, Parameter], list[Diagnostic]]:
    """Values of texts, which are in the order of their dependencies."""
    values: dict[str, Parameter] = {}
    found: list[Diagnostic] = []
    known = Parameters(declared, settings, values, unread)
    for name, text in texts.items():
        try:
            suggest = len(found) < messages.SUGGESTED
            values[name] = Parameter(known.replaced(text, suggest=suggest) if "$" in text else text, name in settings)
        except InvalidValue as wrong:
            notes = tuple(filter(None, [known.described(text)]))
            found.append(Diagnostic(wrong.code, wrong.message, (PARAMETERS, name), notes=notes, help=wrong.help))
        except LeftOut:
            continue
    return {name: values[name] for name in declared if name in values}, found
