"""Command lines for tests of records."""

from tests.cli.conftest import run_inline

__all__ = ["run_inline"]
