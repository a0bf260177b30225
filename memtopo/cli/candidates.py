"""Values that a shell completes: machines, held layouts and their states, codes, and other words of options."""

from __future__ import annotations

from collections.abc import Iterable

import typer

_Found = list[tuple[str, str]]
"""Values, each with a description."""


def machines(ctx: typer.Context, incomplete: str) -> _Found:
    """Machines of `--machine`, also after the name of a node: `a=h200x4`."""
    from memtopo.machine import shipped

    node, equals, _ = incomplete.rpartition("=")
    own = [("local", "the GPUs of this computer"), *((name, "recorded") for name in shipped())]
    if ctx.info_name == "validate" and not node:
        own.append(("none", "no machine: what depends on one is not checked"))
    return [(f"{node}{equals}{name}", text) for name, text in own]


def recorded_machines() -> _Found:
    """Machines that come with memtopo."""
    from memtopo.machine import shipped

    return [(name, "recorded") for name in shipped()]


def layouts(ctx: typer.Context) -> _Found:
    """Held layouts, those in the folder of `--socket` if there is one."""
    from memtopo.sharing.surveys import survey

    found = survey(ctx.params.get("socket"), allow_uids=ctx.params.get("allow_uid") or ()).layouts
    return [(each.name, each.spec or each.state) for each in found]


def states(ctx: typer.Context) -> _Found:
    """States of the held layout that the command names."""
    from memtopo.sharing.client import connect
    from memtopo.sharing.endpoints import endpoint
    from memtopo.sharing.surveys import TIMEOUT

    with connect(endpoint(ctx.params["name"], ctx.params.get("socket")), timeout=TIMEOUT) as client:
        return described(client.status().layout_states)


def codes() -> _Found:
    """Codes of diagnostics with their titles."""
    from memtopo.diagnostics.codes import CODES

    return [(name, code.title) for name, code in CODES.items()]


def explained() -> _Found:
    """Codes of diagnostics, and driver facts, by topic."""
    from memtopo.diagnostics.facts import facts

    return [*codes(), *((f"fact-{number}", fact.topic) for number, fact in facts().items())]


def parameters(ctx: typer.Context) -> _Found:
    """Parameters of the specs among the words of the command, as `NAME=`."""
    from pathlib import Path

    from memtopo.language import read_file

    files = [word for word in ctx.obj if Path(word).is_file()]
    return [(f"{name}=", "parameter of the spec") for file in files for name in read_file(file).declared]


def schemas() -> _Found:
    """Kinds of schemas with their titles."""
    from memtopo.output.schemas import KINDS

    return described(KINDS)


def reports() -> _Found:
    """Formats of `--report`, as `FORM=`."""
    from memtopo.output.formats import FORMATS

    return [(f"{name}=", "a report in a file") for name in FORMATS]


def clusters() -> _Found:
    """Clusters of `--on`."""
    return [("ray", "that of RAY_ADDRESS, or of this host"), ("ray://", "another one: ray://HOST:PORT")]


def described(values: Iterable[str]) -> _Found:
    """Values without a description."""
    return [(value, "") for value in values]
