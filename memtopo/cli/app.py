"""The program: its commands, and what an error or an exception becomes on stderr, on stdout and as exit status."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import typer

from memtopo.cli import apply, machines, plan, probe, validate
from memtopo.errors import MemtopoError, UsageError
from memtopo.render import json, plain
from memtopo.version import __version__

# typer keeps click's exceptions inside of itself; the common ancestor of what a wrong command line raises is this one.
_WrongUsage: Any = typer.BadParameter.__mro__[2]


def program() -> typer.Typer:
    """The typer application, without side effects."""
    app = typer.Typer(
        name="memtopo",
        help="Lay out GPU memory from a file: validate it, plan it, build it, prove it, and take it down.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for module in (validate, plan, apply, probe, machines):
        app.command(name=module.__name__.rpartition(".")[2])(module.command)
    app.callback()(_version)
    return app


def main() -> NoReturn:
    """Run the command line and exit with its status (see DESIGN.md)."""
    try:
        status = program()(standalone_mode=False)
    except _WrongUsage as error:
        status = _tell(_usage(error))
    except MemtopoError as error:
        status = _tell(error)
    except typer.Abort:
        status = 130
    except BrokenPipeError:
        status = _reader_gone()
    except KeyboardInterrupt:
        status = 130
    except Exception as error:  # noqa: BLE001 a traceback is no message; the report asks for it
        status = _bug(error)
    sys.exit(status if isinstance(status, int) else 0)


def _version(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    if version:
        plain.print_lines([f"memtopo {__version__}"])
        raise typer.Exit


def _usage(error: Any) -> MemtopoError:
    message = error.format_message().rstrip(".")
    command = error.ctx.command_path if getattr(error, "ctx", None) else "memtopo"
    return UsageError(message[:1].lower() + message[1:], hint=f"see '{command} --help'")


def _tell(error: MemtopoError) -> int:
    plain.print_error(error)
    if _json_wanted():
        plain.print_lines(json.dumps(json.error(error)).splitlines())
    return error.exit_code


def _bug(error: Exception) -> int:
    import traceback

    told = MemtopoError(
        f"internal error: {type(error).__name__}: {error}", hint="this is a bug; MEMTOPO_TRACEBACK=1 shows where it is"
    )
    if os.environ.get("MEMTOPO_TRACEBACK"):
        traceback.print_exception(error)
    return _tell(told)


def _reader_gone() -> int:
    """The reader of a pipe has closed it: nothing more can be said there, and the exit must not try."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def _json_wanted() -> bool:
    return "--json" in sys.argv or os.environ.get("MEMTOPO_JSON", "").lower() in ("1", "true", "yes", "on")
