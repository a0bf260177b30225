"""`memtopo explain` and `memtopo schema`: diagnostic codes, and the JSON Schemas of specs and documents."""

from __future__ import annotations

import re
import sys
from importlib import resources
from typing import Annotated, Any, Literal

import typer

from memtopo.cli.driver_messages import NamedError, error_names, named_error, unknown_error
from memtopo.cli.options import AsJson, Values, argument, described, option
from memtopo.cli.results import pages, show
from memtopo.common.errors import UsageError
from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics import CODES, errors, explanations, messages
from memtopo.diagnostics.explanations import Explanation, Fact, facts
from memtopo.output import explain as rendering
from memtopo.output import json, plain

_NUMBERED = re.compile(r"MT[0-9]{3}")
_FACT = re.compile(r"(?:fact-?)?([0-9]{1,4})", re.IGNORECASE)
_NAMED_CODE = re.compile(r"MT[0-9]{3}|fact-?[0-9]{1,4}", re.IGNORECASE)
_SPACED = re.compile(r"\bfact ([0-9])", re.IGNORECASE)
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OPTION = re.compile("--[a-z-]+=")
_WITH_CODE = re.compile(r"\bMT[0-9]{3}\b(?=\])")
_LONGEST = 80


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
Shell = Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]
CommandLine = Annotated[str | None, typer.Argument(hidden=True, help="The command line up to the cursor.")]


def explain_command(codes: Codes = None, all_: All = False, markdown: Markdown = False, as_json: AsJson = False) -> int:
    """Explain codes, driver facts and errors of the driver.

    'memtopo explain cuMemMap INVALID_VALUE' lists the causes of an error, the most likely first; so does one of both.
    A message of memtopo or the driver can be given as a whole.
    """
    text = " ".join(codes or ())
    coded = [*dict.fromkeys(_WITH_CODE.findall(text))]
    if not coded and (named := named_error(text)):
        if all_ or markdown or any(_NAMED_CODE.fullmatch(word) for word in codes or ()):
            message = "an error of the driver is explained by itself, as text or JSON"
            raise UsageError(message, hint=f"write 'memtopo explain {named}'")
        return _explain_error(named, text, as_json=as_json)
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


def schema_command(kind: SchemaKind) -> int:
    """Print the JSON Schema of specs or of memtopo's documents."""
    from memtopo.output import schemas

    if kind not in schemas.KINDS:
        raise UsageError(f"there is no schema {kind!r}", hint=messages.choose(kind, schemas.KINDS))
    plain.print_document(json.dumps(schemas.schema(kind)).splitlines())
    return 0


def _explain_error(named: NamedError, text: str, *, as_json: bool) -> int:
    """Print the causes of an error, of a call or of both, and the facts that name the call; see `errors.stated`."""
    if not named.meant and (unknown := unknown_error(named, text)):
        meant = nearest(unknown.upper(), error_names())
        hint = messages.did_you_mean(meant) if meant else f"write 'memtopo explain {named.call}'"
        raise UsageError(f"the driver has no error {shorten(unknown)}", hint=hint)
    causes = errors.stated(errors.of(*named), text)
    cited = explanations.naming(named.call) if named.call else []
    if named.meant or not (causes or cited):
        hint = (
            "docs/errors.md lists the calls with known causes; 'memtopo explain cuMemMap' lists the causes of one call"
        )
        hint = messages.did_you_mean(named.meant) if named.meant else hint
        raise UsageError(f"there are no known causes for {str(named)!r}", hint=hint)
    if as_json:
        lines = json.dumps({"causes": causes, "facts": cited}).splitlines()
    else:
        width, colour = plain.width(sys.stdout), plain.colour(sys.stdout)
        lines = rendering.causes(causes, cited, width=width, colour=colour)
        if named.error and not causes:
            lines = [f"no cause of {named.error} is known for {named.call}", "", *lines]
    plain.print_lines(lines, styled=True)
    return 0


def _known(code: str) -> Explanation | Fact:
    if code.upper() in CODES:
        return explanations.explanation(code.upper())
    if match := _FACT.fullmatch(code):
        return _fact(int(match[1]))
    meant = None if _NUMBERED.fullmatch(code.upper()) else nearest(code.upper(), CODES)
    hint = f"did you mean {meant}? 'memtopo explain' lists them all" if meant else "'memtopo explain' lists them all"
    raise UsageError(f"there is no code {code!r}", hint=hint)


def _fact(number: int) -> Fact:
    known = facts()
    if number not in known:
        raise UsageError(f"there is no fact {number}", hint=f"facts are fact-1 to fact-{max(known)}")
    return known[number]


def trace_command(files: TraceFiles, as_json: AsJson = False) -> int:
    """Summarize the driver calls of a run that apply --trace wrote.

    A call that failed comes first, or one that did not return, with the calls before it. Then all calls by function:
    their number, errors, and total, median and longest time.
    """
    from memtopo.plans.trace import read_traces, summary

    found = summary(read_traces(files))
    show(found, lambda: pages("calls").trace_page(found), as_json=as_json, marker="trace")
    return 0


def completion_command(shell: Shell, line: CommandLine = None) -> int:
    """Print the script that completes command lines in a shell.

    In bash: eval "$(memtopo completion bash)".
    """
    if line is None:
        plain.print_document(resources.files(__package__).joinpath(f"completion.{shell}").read_text().splitlines())
    else:
        plain.print_document(_line(shell, line, *each) for each in completions(line))
    return 0


def completions(line: str) -> list[tuple[str, str]]:
    """Return the words that may stand in place of the last word of a command line, each with a description.

    None for a word that is not known, and where something fails: a shell then completes the names of files.
    """
    from typer._completion_classes import BashComplete

    from memtopo.cli import app

    *words, last = _words(line)
    try:
        group: Any = typer.main.get_command(app.program(words[0] if words else None))
        # Functions for completions find all words in `ctx.obj`.
        completer = BashComplete(group, {"obj": words}, "memtopo", "_MEMTOPO_COMPLETE")
        found = {each.value: each.help or "" for each in completer.get_completions(words, last)}
    except Exception:  # noqa: BLE001 an error must not be printed into a line that is being written
        return []
    if not words:
        found |= {name: group.commands[name].help.partition("\n")[0] for name in found if name in group.commands}
    option = match[0] if (match := _OPTION.match(last)) else ""
    lines = {value: " ".join(text.split()).removesuffix(".") for value, text in found.items()}
    return [(option + value, shorten(line, _LONGEST)) for value, line in lines.items()]


def _words(line: str) -> list[str]:
    """Words after the name of the program; the last one is the one to complete, and may be empty."""
    from shlex import shlex

    reader = shlex(line, posix=True, punctuation_chars=False)
    reader.whitespace_split, reader.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(reader)
    except ValueError:  # an open quote, or a \ at the end
        words.append(reader.token)
    if line[-1:].isspace() and not line.endswith("\\ "):
        words.append("")
    while words and _ASSIGNED.match(words[0]):
        del words[0]
    return words[1:] or [""]


def _line(shell: str, line: str, value: str, text: str) -> str:
    """Return a completion as the script of a shell reads it. bash replaces only what follows the last = or :."""
    if shell == "bash":
        before = re.match(r".*[=:]", _words(line)[-1])
        return value[before.end() :] if before else value
    return f"{value}\t{text}"
