"""Arguments and options that several commands share, and the values that a shell completes for them.

Every option has a `MEMTOPO_…` variable.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from msgspec import Struct

from memtopo.common.errors import UsageError
from memtopo.common.units import parse_duration, parsed
from memtopo.diagnostics.messages import choose
from memtopo.driver.trace_files import is_record

if TYPE_CHECKING:
    from memtopo.drivers.target import Target
    from memtopo.language import Document


def option(flags: str, help: str, metavar: str | None = None, variable: str | None = None, **more: Any) -> Any:
    """Return an option of flags such as `--output -o`, whose variable is by default `MEMTOPO_OUTPUT`."""
    first, *others = flags.split()
    variable = variable or f"MEMTOPO_{first.removeprefix('--').replace('-', '_').upper()}"
    return typer.Option(first, *others, envvar=variable, metavar=metavar, help=help, **more)


def format_option(help: str, known: Iterable[str], variable: str | None = None, **more: Any) -> Any:
    """Return the option `--format`, for which a shell completes the `known` formats."""
    return option("--format", help, "FORM", variable, autocompletion=lambda: described(known), **more)


def argument(metavar: str, help: str, **more: Any) -> Any:
    """Return an argument, whose default is not shown."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)


def grouped(command: Callable[..., int]) -> Callable[..., int]:
    """Return a command that has an option for each field of its parameters that are groups: structs of options."""
    parameters: list[Parameter] = []
    groups: dict[str, Any] = {}
    for each in signature(command, eval_str=True).parameters.values():
        if isinstance(group := each.annotation, type) and issubclass(group, Struct):
            groups[each.name] = group
            parameters += signature(group, eval_str=True).parameters.values()
        else:
            parameters.append(each)

    @wraps(command)
    def of_options(**given: Any) -> int:
        made = {name: group(*(given.pop(key) for key in group.__struct_fields__)) for name, group in groups.items()}
        return command(**given, **made)

    shown = Signature([each.replace(kind=Parameter.KEYWORD_ONLY) for each in parameters])
    vars(of_options)["__signature__"] = shown
    return of_options


Values = list[tuple[str, str]]
"""Values that a shell completes, each with a description."""


def described(values: Iterable[str]) -> Values:
    """Values without a description."""
    return [(value, "") for value in values]


def recorded_machines() -> Values:
    """Machines that come with memtopo."""
    from memtopo.machine import shipped

    return [(name, "recorded") for name in shipped()]


def _machines(ctx: typer.Context, incomplete: str) -> Values:
    """Machines of `--machine`, also after the name of a node: `a=h200x4`."""
    node, equals, _ = incomplete.rpartition("=")
    own = [("local", "the GPUs of this computer"), *recorded_machines()]
    if ctx.info_name == "validate" and not node:
        own.append(("none", "no machine: checks that depend on a machine are skipped"))
    return [(f"{node}{equals}{name}", text) for name, text in own]


def _layouts(ctx: typer.Context) -> Values:
    """Held layouts, those in the folder of `--socket` if there is one."""
    from memtopo.sharing.held import survey

    found = survey(ctx.params.get("socket"), allow_uids=ctx.params.get("allow_uid") or ()).layouts
    return [(each.name, each.spec or each.state) for each in found]


def _parameters(ctx: typer.Context) -> Values:
    """Parameters of the specs among the words of the command, as `NAME=`."""
    from pathlib import Path

    from memtopo.language import read_file

    files = [word for word in ctx.obj if Path(word).is_file()]
    return [(f"{name}=", "parameter of the spec") for file in files for name in read_file(file).declared]


SpecFile = Annotated[str, argument("SPEC", "A spec; - reads standard input.")]
_MACHINE = "local, a shipped machine (see 'memtopo machines'), or a file made by 'memtopo probe -o'"
_OF_NODES = "for a spec with nodes, the machine of all nodes, or repeated for each node: a=h200x4."
MachineName = Annotated[str, option("--machine -m", f"{_MACHINE}.", "NAME|FILE", autocompletion=_machines)]
MachineNames = Annotated[
    list[str] | None,
    option(
        "--machine -m", f"{_MACHINE}; {_OF_NODES}", "[NODE=]NAME|FILE", autocompletion=_machines, show_default="local"
    ),
]
_VALUE = "Value of a parameter of the spec, also in MEMTOPO_SET_NAME; can be repeated."
_VALUES = "Values of a parameter; all combinations with values of other parameters are validated."
Set = Annotated[list[str] | None, option("--set", _VALUE, "NAME=VALUE", autocompletion=_parameters)]
SetMany = Annotated[list[str] | None, option("--set", _VALUES, "NAME=VALUE,…", autocompletion=_parameters)]
_MOMENT = "Moment of a record: peak, end, seconds since its start, or a label that its program marked."
At = Annotated[str | None, option("--at", _MOMENT, "MOMENT", show_default="peak")]
_EVERY = "Show every process: those that differ by their numbers and GPUs alone are otherwise one."
Every = Annotated[bool, option("--all", _EVERY, variable="MEMTOPO_ALL_PROCESSES")]
AsJson = Annotated[bool, option("--json", "One JSON document on stdout.")]

# of held layouts

_NAME, _PATH = "A held layout, or the path of its socket.", "Socket of a holder that is not at the default path,"
LayoutName = Annotated[str | None, argument("NAME", _NAME, autocompletion=_layouts)]
LayoutOrRecord = Annotated[
    str | None, argument("NAME", f"{_NAME.removesuffix('.')}; or a record.", autocompletion=_layouts)
]
HeldName = Annotated[str, argument("NAME", "A held layout.", autocompletion=_layouts)]
Socket = Annotated[str | None, option("--socket", f"{_PATH} or a folder that has FOLDER/NAME.sock.", "PATH|FOLDER")]
AllowUid = Annotated[list[int] | None, option("--allow-uid", "Also trust this user.", "UID", min=0)]
Grace = Annotated[str, option("--grace", "Time for importers over ipc to end: 5s.", "TIME")]
ForceChange = Annotated[bool, option("--force", "Continue even if importers keep their memory.")]
WaitForImporters = Annotated[
    str, option("--wait", "Time for importers to release their memory.", "TIME", "MEMTOPO_CHANGE_WAIT")
]


_MACHINE_VARIABLE = "MEMTOPO_MACHINE"


def machine_names(given: list[str] | None) -> list[str]:
    """Names of machines. If the whole variable is the path of a file, its spaces do not separate names."""
    whole = os.environ.get(_MACHINE_VARIABLE, "")
    if given and given == whole.split() and os.path.exists(whole):  # noqa: PTH110 a path as it was written
        return [whole]
    return given or ["local"]


def one_target(given: list[str] | None) -> Target:
    """Return the target of `--machine`, or the machines of the nodes of a spec. Raises `MemtopoError`.

    Of several in the variable, which a job sets for `validate`, it is the last one; several options are an error.
    """
    from memtopo.drivers import target

    *_, last = names = machine_names(given)
    if any(map(target.of_node, names)):
        return target.resolve_nodes(names)
    if len({*names}) > 1 and names != os.environ.get(_MACHINE_VARIABLE, "").split():
        hint = "name one; 'memtopo validate' takes several"
        raise UsageError(f"there are several machines: {', '.join(names)}", hint=hint)
    return target.resolve(last)


def absolute_path(given: str, argument: str) -> str:
    """Return the absolute path of a file or folder, whose links are not followed. Raises `UsageError` for none."""
    if not given:
        raise UsageError(f"{argument} is empty", hint="write a path; a variable of the shell may have none")
    return os.path.abspath(given)  # noqa: PTH100 as it is named


def duration(text: str) -> float:
    """Parse a duration; returns seconds. Raises `UsageError`."""
    return parsed(parse_duration, text)


def stdout_format(form: str | None, known: Sequence[str], *, as_json: bool, hint: str, of: str = "") -> str | None:
    """Format of stdout by `--format` and `--json`; None without either.

    Raises `UsageError` for one that is not `known`, and, with a hint, for two.
    """
    if form is not None and form not in known:
        raise UsageError(f"there is no format {form!r}{of}", hint=choose(form, known))
    if as_json and form not in (None, "json"):
        raise UsageError(f"--json and --format {form} are two formats for one output", hint=hint)
    return "json" if as_json else form


_VARIABLE = "MEMTOPO_SET"

MOST_COMBINATIONS = 1000
"""Largest number of combinations of settings that one command validates."""


class Settings(NamedTuple):
    """Values of parameters by name, from options and from variables, which several specs may use."""

    typed: Mapping[str, str]
    variables: Mapping[str, str]
    at: str | None = None
    """Moment of a record that is read as a spec; by default its peak."""

    def read(self, spec: str) -> Document:
        """Read a spec, or standard input for `-`, with these settings. A record is read as the spec of its memory."""
        if is_record(spec):
            from memtopo.records.spec import document

            return self.applied(document(spec, self.at))
        from memtopo import language

        found = language.read_stdin() if spec == "-" else language.read_file(spec)
        if not found.text:
            from memtopo.sharing.endpoints import is_held

            if is_held(spec):
                message = f"{spec!r} is a held layout, and no file has the name"
                hint = f"'memtopo show {spec}' shows it; the file of a spec belongs here, after NAME in a change"
                raise UsageError(message, hint=hint)
        return self.applied(found)

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
            raise UsageError(f"the saved plan {name!r} keeps the values with which it was made", hint=hint)

    def combinations(self) -> tuple[Settings, ...]:
        """Split values at commas, and return all combinations. Raises `UsageError` if there are too many."""
        named = {**self.variables, **self.typed}
        values = [list(dict.fromkeys(value.split(","))) for value in named.values()]
        if (count := prod(map(len, values))) > MOST_COMBINATIONS:
            message = f"{count:,} combinations of settings are more than the {MOST_COMBINATIONS:,} of one command"
            raise UsageError(message, hint="validate them in several commands")
        chosen = (dict(zip(named, each, strict=True)) for each in product(*values))
        return tuple(
            Settings(
                {name: values[name] for name in self.typed},
                {name: value for name, value in values.items() if name not in self.typed},
                self.at,
            )
            for values in chosen
        )


def settings(given: list[str] | None, at: str | None = None) -> Settings:
    """Settings of the values of `--set` and of the environment, and of the moment of a record. Raises `UsageError`."""
    words = given or []
    prefix = f"{_VARIABLE}_"
    variables = {
        name.removeprefix(prefix): value for name, value in sorted(os.environ.items()) if name.startswith(prefix)
    }
    if words == os.environ.get(_VARIABLE, "").split():
        return Settings({}, variables | _named(variable_words(_VARIABLE)), at)
    return Settings(_named(words), variables, at)


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
