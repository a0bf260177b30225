"""Baseline of startup.py: one typer command, one walk over a YAML file, one pydantic model."""

from __future__ import annotations

from typing import Annotated

import typer
import yaml
from pydantic import BaseModel


class Head(BaseModel):
    """Two fields of a spec."""

    memtopo: str
    name: str


def command(path: Annotated[str, typer.Argument()]) -> None:
    """Read a file and validate two of its values."""
    with open(path, "rb") as file:  # noqa: PTH123 pathlib would be one more import
        events = yaml.parse(file, Loader=yaml.CSafeLoader)
        values = [event.value for event in events if isinstance(event, yaml.ScalarEvent)]
    typer.echo(Head(memtopo=values[1], name=values[3]).name)


if __name__ == "__main__":
    typer.run(command)
