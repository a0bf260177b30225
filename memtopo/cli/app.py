"""The program: its commands, and errors as messages, documents and exit statuses."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import takewhile
from typing import Any

import typer

from memtopo.cli.process import REPORT_VARIABLES, Interrupted, RefusedSpec, StandardStreams, option_values
from memtopo.common import __version__
from memtopo.common.errors import MemtopoError, UsageError, reason
from memtopo.common.text import only_near
from memtopo.output import plain

# typer does not export click's exceptions; this is the common base of those for a wrong command line.
_WrongUsage: Any = typer.BadParameter.__mro__[2]
_UNWRITTEN = 4
_FORMAT_VARIABLES = {
    "validate": "MEMTOPO_FORMAT", "draw": "MEMTOPO_DRAW_FORMAT", "probe": "MEMTOPO_PROBE_FORMAT",
    "budget": "MEMTOPO_BUDGET_FORMAT", "diff": "MEMTOPO_DIFF_FORMAT",
}  # fmt: skip
_TRUE = ("1", "true", "t", "yes", "y", "on")

GROUPS = {
    "Specs": {
        "init": ("init", "Write a first spec, a workflow for GitHub and a hook."),
        "validate": ("validate", "Report every error in specs, without building anything."),
        "plan": ("plan", "Show what apply would do, or a change of a held layout."),
        "draw": ("draw", "Draw a layout: ranges, mappings, and the memory that they map."),
        "diff": ("diff", "Show how a spec differs from another one, or from a record."),
        "apply": ("apply", "Build a spec, check it, report, and take it down."),
        "budget": ("budget", "Show whether layouts fit on a machine together."),
    },
    "Held layouts": {
        "ls": ("held", "List the layouts that are held."),
        "show": ("held", "Show a held layout, or the memory in a record."),
        "check": ("held", "Check a held layout, by queries only."),
        "switch": ("held", "Bring a held layout to one of its states."),
        "change": ("plan", "Bring a held layout to another spec, in place."),
        "load": ("held", "Copy tensors of files to an export of a held layout."),
        "save": ("held", "Save the bytes of a held layout to a folder."),
        "release": ("held", "Release a held layout, and wait until it is taken down."),
        "metrics": ("held", "Print metrics of held layouts for Prometheus."),
    },
    "Machines": {
        "probe": ("probe", "Read the machine's properties, and try what it advertises."),
        "machines": ("probe", "List the recorded machines, show one, or write a draft."),
        "who": ("held", "List the processes of this machine that use GPU memory."),
        "simulator": ("programs", "Run a program on a simulated machine."),
    },
    "Records of programs": {
        "capture": ("programs", "Run a program, and record its calls for CUDA memory."),
        "spec": ("programs", "Write a spec of the memory in a record."),
        "replay": ("programs", "Make the calls of a record on another machine."),
        "import": ("programs", "Make a record of a memory snapshot of PyTorch."),
        "trace": ("reference", "Summarize the driver calls of a run that apply --trace wrote."),
    },
    "Reference": {
        "explain": ("reference", "Explain codes, facts, and errors of the driver and the system."),
        "schema": ("reference", "Print the JSON Schema of specs or of memtopo's documents."),
        "completion": ("completion", "Print the script that completes command lines in a shell."),
    },
}
"""Commands by subject, as the help lists them: module and summary. The function of `ls` is `ls_command`."""

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}

_EXAMPLE = """\
Example:
  memtopo validate layout.yaml --machine h200x2
  memtopo draw layout.yaml --machine h200x2
  memtopo apply layout.yaml --machine h200x2

"""
_MORE = "'memtopo COMMAND --help' shows the options of a command. The repository has a tutorial: docs/tutorial.md."

_HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
_SETTINGS = {name: {**_HELP, "allow_interspersed_args": False} for name in ("capture", "simulator")}
"""Settings of commands: what follows the first argument is the program's."""


class _Values:
    """Conversion of an option's value by typer where there is something to convert.

    For each option of a command, also those not given, typer builds a validator of pydantic, whose import alone takes
    longer than `memtopo completion`.
    """

    @staticmethod
    def coerce(value: Any, param: Any, ctx: Any) -> Any:
        """Return a value as it is if it is text, one of several words or absent, else as typer converts it."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        described = param.type_descriptor
        if described.annotation in (str, list[str]) or value in (described.choices or ()):
            return value
        param._runtime_param = None  # noqa: SLF001
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


class _Converting:
    """A command or group whose options convert their values so."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments, and `--help`. Earlier releases of typer have no such validators."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            if getattr(each, "_runtime_param", _Values) is None:
                each._runtime_param = _Values  # noqa: SLF001
        return found


class _Modules(Mapping[str, Any]):
    """The commands by name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        module, _ = COMMANDS[name]
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        function = getattr(import_module(f"memtopo.cli.{module}"), f"{name}_command")
        app.command(name=name, cls=_Command, context_settings=_SETTINGS.get(name, _HELP))(function)
        return typer.main.get_command(app)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Commands(_Converting, typer.core.TyperGroup):
    """The group of all commands, whose help lists them by subject, with an example."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        modules: Any = _Modules()
        self.commands = modules

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 as click calls it
        """Return the names of the commands."""
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 as above
        """Write the commands of each subject."""
        widest = max(map(len, COMMANDS))
        for subject, group in GROUPS.items():
            rows = [(name.ljust(widest), summary) for name, (_, summary) in group.items()]
            with formatter.section(subject):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 as above
        """Write the example as it is, and where to read more."""
        formatter.write(f"\n{_EXAMPLE}")
        formatter.write_text(_MORE)


class _Command(_Converting, typer.core.TyperCommand):
    """A command whose help lists the variables of its options once, below them."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options without their variables, and then the variables."""
        options = [each for each in self.get_params(ctx) if getattr(each, "show_envvar", False) and each.envvar]
        for each in options:
            each.show_envvar = False
        super().format_options(ctx, formatter)
        if options:
            with formatter.section("Variables with the values of options"):
                formatter.write_text(", ".join(str(each.envvar) for each in options))


def program() -> Any:
    """Return the group of all commands; each is imported when it is asked for."""
    app = typer.Typer(
        name="memtopo",
        cls=_Commands,
        help="Lay out GPU memory from a file: validate it, plan it, build it, verify it, and take it down.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_HELP,
    )
    app.callback()(_version)
    return typer.main.get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Run a command line, and print its errors. Returns the exit status."""
    streams = StandardStreams()
    try:
        status = _run_command(arguments)
    except MemtopoError as error:
        status = _report(error, arguments)
    except KeyboardInterrupt:
        status = _report(Interrupted(), arguments)
    except Exception as error:  # noqa: BLE001 shown as an error of memtopo
        status = _report(_bug(error), arguments)
    if lost := streams.flush():
        plain.print_error(MemtopoError(f"the results cannot be written: {reason(lost)}"))
        status = status or _UNWRITTEN
    streams.end()
    return status


def _run_command(arguments: Sequence[str]) -> int:
    # Not through typer's main, which handles broken pipes and Ctrl-C itself.
    command = program()
    try:
        with command.make_context("memtopo", [*arguments], obj=arguments) as context:
            if not arguments:
                plain.print_lines(context.get_help().splitlines(), sys.stderr)
                return _document(UsageError("no command was given", hint="see 'memtopo --help'"), arguments)
            status = command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except _WrongUsage as error:
        raise _usage_error(error, arguments) from error
    return status if isinstance(status, int) else 0


def _show_version(requested: bool) -> None:
    if requested:
        plain.print_lines([f"memtopo {__version__}"])
        raise typer.Exit


def _version(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_show_version
    ),
) -> None:
    pass


def _report(error: MemtopoError, arguments: Sequence[str]) -> int:
    if isinstance(error, RefusedSpec):
        from memtopo.cli.specs import print_diagnostics
        from memtopo.session.saved import StalePlan

        print_diagnostics(error.composition)
        if error.composition.saved:
            name = error.composition.origin
            return _report(StalePlan(f"the spec in the saved plan {name!r} is not valid on this machine"), arguments)
    else:
        plain.print_error(error)
    return _document(error, arguments)


def _bug(error: Exception) -> MemtopoError:
    import traceback

    if isinstance(error, FileNotFoundError) and not error.filename:
        try:
            os.getcwd()  # noqa: PTH109 as os.path.abspath does
        except FileNotFoundError:
            return UsageError("the current folder no longer exists", hint="change to another one")
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # also where a path is only looked for
        return UsageError(f"{error.filename!r} is no path: {reason(error)}")
    if os.environ.get("MEMTOPO_TRACEBACK"):
        traceback.print_exception(error)
    return MemtopoError(
        f"internal error: {type(error).__name__}: {error}", hint="this is a bug; MEMTOPO_TRACEBACK=1 shows where it is"
    )


_MEANT = r"\.? (?:\(Possible options: (?P<options>.+)\)|Did you mean (?P<words>.+)\?)$"
_ELSEWHERE = {
    "plan": {
        "--report": "a report is of a run: memtopo apply SPEC -m h200x2 --report FILE.html, on a simulated machine"
    },
    "change": {"--machine": "a held layout has its machine: omit it"},
    "budget": {"--report": "print it to a file: memtopo budget SPEC --format markdown > FILE, or --json > FILE"},
}
"""Options that another command or option stands for, by command."""
_WORDS_ELSEWHERE = {
    "'memtopo apply SPEC'": ("run", "build", "create"),
    "'memtopo apply SPEC --hold'": ("up", "start", "serve", "hold"),
    "'memtopo release NAME'": ("down", "stop", "kill", "rm", "delete", "free"),
    "'memtopo ls', or 'memtopo show NAME'": ("ps", "status", "info", "inspect"),
    "'memtopo validate SPEC'": ("lint", "test"),
    "'memtopo switch NAME STATE'": ("sleep", "wake"),
    "'memtopo change NAME SPEC'": ("update", "resize", "grow"),
    "a function of the Python API": ("attach", "join"),
}
"""Commands and functions, each with words that other tools have for it."""
_SURE = 0.65
"""Similarity, of 1, of an option that is suggested."""
_EXTRA = r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)"


def _usage_error(error: Any, arguments: Sequence[str]) -> MemtopoError:
    """Convert an error of the option parser to memtopo's wording, with a hint."""
    message: str = error.format_message()
    meant = re.search(_MEANT, message, re.IGNORECASE)
    if extra := re.fullmatch(_EXTRA, message.rstrip("."), re.DOTALL):
        message = f"unexpected argument: {extra[1]}"
    text = message[: meant.start()] if meant else message
    text = text[:1].lower() + text[1:].rstrip(".")
    # Without the words of pydantic, which the option parser validates values with.
    text = re.sub(r", unable to parse string as .*", "", text)
    text = text.replace(": Value error, ", ": ").replace(": Input should ", ": it should ")
    command = next((word for word in arguments if word in COMMANDS), None)
    help = f"see 'memtopo {command} --help'" if command else "see 'memtopo --help'"
    if command and arguments[0].startswith("-") and text.startswith("no such option"):
        return UsageError(text, hint=f"options follow the command; {help}")
    elsewhere = _ELSEWHERE.get(command or "", {})
    if other := next((hint for option, hint in elsewhere.items() if text == f"no such option: {option}"), None):
        return UsageError(text, hint=other)
    wrong = text.rpartition(" ")[2].strip("'")
    near = re.split(", | or ", meant["options"] or meant["words"]) if meant else []
    near = [each for each in near if only_near(wrong, [each.strip("'")], sure=_SURE)]
    near = near or [each for each, words in _WORDS_ELSEWHERE.items() if wrong in words and "no such command" in text]
    if near:
        return UsageError(text, hint=f"did you mean {', '.join(near)}? {help}")
    return UsageError(text, hint=help)


def _document(error: MemtopoError, arguments: Sequence[str]) -> int:
    """Print an error in the format that a command line requests, even if it could not be parsed; return its status."""
    words = list(takewhile(lambda word: word != "--", arguments))
    command = words[0] if words else ""
    if variable := REPORT_VARIABLES.get(command):
        file = [os.environ.get(variable, ""), *option_values(words, "--report")][-1]
        if file:
            from memtopo.cli.results import write_error

            write_error(file, command, error)
    requested = [os.environ.get(_FORMAT_VARIABLES.get(command, ""), ""), *option_values(words, "--format")][-1]
    if "--json" in words or os.environ.get("MEMTOPO_JSON", "").lower() in _TRUE:
        requested = "json"
    if isinstance(error, RefusedSpec):
        if requested == "json":
            from memtopo.cli.results import refusal
            from memtopo.output import json

            plain.print_document(json.dumps(refusal(error.composition)).splitlines())
    elif requested:
        from memtopo.output import formats

        if requested in formats.FORMATS:
            plain.print_document(formats.failure(formats.format_named(requested), error))
    return error.exit_code
