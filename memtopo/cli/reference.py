"""`memtopo explain` and `memtopo schema`: diagnostic codes, and the JSON Schemas of specs and documents."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable
from typing import Annotated

from memtopo.cli.driver_messages import Message, NamedError, error_names, numbered_errors, read_message
from memtopo.cli.options import AsJson, Values, argument, described, option
from memtopo.cli.results import pages, show
from memtopo.common.errors import UsageError
from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics import CODES, explanations, messages
from memtopo.diagnostics.explanations import Explanation, Fact, facts
from memtopo.output import explain as rendering
from memtopo.output import json, plain

_NUMBERED = re.compile(r"MT[0-9]{3}")
_FACT = re.compile(r"(?:fact-?)?([0-9]{1,4})", re.IGNORECASE)
_NAMED_CODE = re.compile(r"MT[0-9]{3}|fact-?[0-9]{1,4}", re.IGNORECASE)
_SPACED = re.compile(r"\bfact ([0-9])", re.IGNORECASE)
_WITH_CODE = re.compile(r"\bMT[0-9]{3}\b(?=\])")
_WIDTH = 78
_LONGEST_LIST = 4096
_MOST_FACTS = 8


def _explained() -> Values:
    """Codes of diagnostics, and driver facts, by topic."""
    codes = [(name, explanations.explanation(name).title) for name in CODES]
    return [*codes, *((f"fact-{number}", fact.topic) for number, fact in facts().items())]


def _schemas() -> Values:
    from memtopo.output.schemas import KINDS

    return described(KINDS)


Codes = Annotated[list[str] | None, argument("CODE", "MT301, fact-15, …", autocompletion=_explained)]
All = Annotated[bool, option("--all", "Explain every code.")]
Markdown = Annotated[bool, option("--markdown", "Print as Markdown.")]
_KINDS = "spec, machine, plan, report, diagnostics, …"
SchemaKind = Annotated[str, argument("KIND", _KINDS, autocompletion=_schemas)]
TraceFiles = Annotated[list[str], argument("FILE", "A trace, or a folder with traces of several processes.")]


def explain_command(codes: Codes = None, all_: All = False, markdown: Markdown = False, as_json: AsJson = False) -> int:
    """Explain codes, facts, and errors of the driver and the system.

    'memtopo explain cuMemMap INVALID_VALUE' lists the causes of an error, the most likely first; --all lists them all.
    A message of memtopo, the driver, or a program can be given as a whole; - reads it from standard input.
    """
    text = sys.stdin.buffer.read().decode(errors="replace") if codes == ["-"] else " ".join(codes or ())
    coded = [*dict.fromkeys(_WITH_CODE.findall(text))]
    if not coded and not _names_codes(text):
        if markdown:
            raise UsageError("an error of the driver is explained as text or JSON", hint="leave out --markdown")
        return _explain_message(read_message(text), text, every=all_, as_json=as_json)
    given = coded or _SPACED.sub(r"fact-\1", text).split()
    found: list[Explanation | Fact] = [_known(code) for code in (CODES if all_ else given)]
    if markdown:
        whole = len(found) in (0, len(CODES))
        lines = rendering.page(map(explanations.explanation, CODES)) if whole else rendering.markdown(found)
    elif as_json:
        cited = [each for each in found if isinstance(each, Fact)]
        listed = [each for each in found if isinstance(each, Explanation)] if found else rendering.code_list()
        lines = json.dumps({"codes": listed} | ({"facts": cited} if cited else {})).splitlines()
    elif found:
        lines = rendering.text(found, width=plain.width(sys.stdout), colour=plain.colour(sys.stdout))
    else:
        lines = rendering.table(colour=plain.colour(sys.stdout))
    plain.print_lines(lines, styled=True)
    return 0


def _names_codes(text: str) -> bool:
    """Return whether a text is nothing, or a list of codes and facts, and no message."""
    words = _SPACED.sub(r"fact-\1", text[:_LONGEST_LIST]).split()
    numbers = [int(word) for word in words if word.isdigit()]
    if words and len(numbers) == len(words):
        return any(number in facts() or number not in numbered_errors() for number in numbers)
    coded = any(_NAMED_CODE.fullmatch(word) for word in words)
    if not coded and len(words) == 1:
        message = read_message(text)
        return not (message.errors or message.calls or message.foreign)
    return coded or not words


def schema_command(kind: SchemaKind) -> int:
    """Print the JSON Schema of specs or of memtopo's documents."""
    from memtopo.output import schemas

    if kind not in schemas.KINDS:
        raise UsageError(f"there is no schema {kind!r}", hint=messages.choose(kind, schemas.KINDS))
    plain.print_document(json.dumps(schemas.schema(kind)).splitlines())
    return 0


def _explain_message(message: Message, text: str, *, every: bool, as_json: bool) -> int:
    """Print the causes of the error of a message, and the facts that name its call.

    Raises `UsageError` where no cause is known.
    """
    named, alone = message.decisive, len(text.split()) == 1
    misspelt = message.query and named.meant is not None
    causes = [] if misspelt else _causes(message, named, alone=alone)
    cited = explanations.naming(named.call) if named.call else []
    if not causes and not (alone and cited and named.error is None):
        raise _not_known(message, named, text)
    if as_json:
        found = {"causes": causes, "facts": cited, "others": message.others}
        lines = json.dumps(found).splitlines()
    else:
        width, colour = plain.width(sys.stdout), plain.colour(sys.stdout)
        lines = rendering.causes(causes, cited, message.others, width=width, colour=colour)
        lines = lines if every or named.error is None else rendering.first_causes(lines, len(causes))
    plain.print_lines(lines, styled=True)
    return 0


def _causes(message: Message, named: NamedError, *, alone: bool) -> list[explanations.Cause]:
    """Causes of an error of a call, of a reason of the simulator, or of a call, if it is asked for alone."""
    if named.call and named.error and message.reason:
        stated = explanations.causes_with_reason(named.call, named.error, message.reason)
        cited = tuple(map(int, re.findall(r"fact (\d+)", message.reason)))
        refused = f"the simulator refused the call: {message.reason}"
        check = "the arguments, by this rule"
        return stated or [explanations.Cause(named.call, named.error, refused, (message.reason,), check, cited)]
    if named.error is None:
        return explanations.causes_of(named.call, None) if named.call and alone else []
    calls = {cause.call for cause in explanations.causes_of(None, named.error)}
    if named.call is None and len(calls) == 1 and named.error in error_names():
        return explanations.causes_of(None, named.error)
    return explanations.causes_of(named.call or explanations.EVERY, named.error)


def _not_known(message: Message, named: NamedError, text: str) -> UsageError:
    """Return the error for a message whose cause is not known, with the call and the error that were read."""
    if message.query and named.meant:
        return UsageError(f"not known: there is no call {named.call}", hint=messages.did_you_mean(named.meant))
    if named.call and named.error:
        numbers = " ".join(f"fact-{fact.number}" for fact in explanations.naming(named.call)[:_MOST_FACTS])
        hint = f"facts that name the call: memtopo explain {numbers}" if numbers else None
        others = [f"also named: {', '.join(message.others[:_MOST_FACTS])}"] if message.others else []
        known = f"not known: no cause of {named.error} is known for {named.call}"
        return UsageError(known, hint=hint, details=others)
    if (code := f"MT{text.strip()}") in CODES:
        return UsageError(f"not known: no cause of {named.error} is known", hint=messages.did_you_mean(code))
    if named.error is None:
        return _without_error(named.call, text.split())
    causes = reversed(explanations.causes_of(None, named.error))
    calls = [*{cause.cause: cause.call for cause in causes}.values()][::-1]
    if not calls:
        return UsageError(f"not known: no cause of {named.error} is known, and the message names no call")
    known = f"not known: {named.error} has other causes for each call, and the message names none"
    hint = f"find the call that failed in the program's log, and name it: 'memtopo explain CALL {named.error}'"
    return UsageError(known, hint=hint, details=_listed(dict.fromkeys(calls)))


def _without_error(call: str | None, words: list[str]) -> UsageError:
    """Return the error for a message that names no error of the driver or the system."""
    if call is None:
        hint = "name the call and the error: 'memtopo explain cuMemMap INVALID_VALUE'"
        return UsageError("not known: the message names no call and no error of the driver or the system", hint=hint)
    if len(words) == 2:  # noqa: PLR2004 a call and a word
        unknown = next((word for word in words if not read_message(word).calls), words[1])
        meant = nearest(unknown.upper(), error_names())
        hint = messages.did_you_mean(meant) if meant else f"write 'memtopo explain {call}'"
        return UsageError(f"the driver has no error {shorten(unknown)}", hint=hint)
    known = dict.fromkeys(cause.error for cause in explanations.causes_of(call, None))
    if not known:
        return UsageError(f"not known: no causes are known for {call}, and the message names no error")
    hint = f"name the error, or list all causes: 'memtopo explain {call}'"
    return UsageError(f"not known: the message names {call}, and no error", hint=hint, details=_listed(known))


def _listed(names: Iterable[str]) -> list[str]:
    return textwrap.wrap(", ".join(names), _WIDTH)


def _known(code: str) -> Explanation | Fact:
    if code.upper() in CODES:
        return explanations.explanation(code.upper())
    if match := _FACT.fullmatch(code):
        known = facts()
        if int(match[1]) not in known:
            raise UsageError(f"there is no fact {int(match[1])}", hint=f"facts are fact-1 to fact-{max(known)}")
        return known[int(match[1])]
    meant = None if _NUMBERED.fullmatch(code.upper()) else nearest(code.upper(), CODES)
    hint = f"did you mean {meant}? 'memtopo explain' lists them all" if meant else "'memtopo explain' lists them all"
    raise UsageError(f"there is no code {shorten(code)!r}", hint=hint)


def trace_command(files: TraceFiles, as_json: AsJson = False) -> int:
    """Summarize the driver calls of a run that apply --trace wrote.

    A call that failed comes first, or one that did not return, with the calls before it. Then all calls by function:
    their number, errors, and total, median and longest time.
    """
    from memtopo.plans.trace import read_traces, summary

    found = summary(read_traces(files))
    show(found, lambda: pages("calls").trace_page(found), as_json=as_json, marker="trace")
    return 0
