"""`memtopo init`: a first spec, a workflow that validates it, and a hook for commits."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from memtopo.cli.results import write
from memtopo.common.errors import NotWritten, UsageError, system_errors
from memtopo.output import plain

_SAMPLE = Path(__file__).parent / "sample"
_FILES = {
    ".github/workflows/memtopo.yml": "workflow.yml",
    ".pre-commit-config.yaml": "pre-commit.yaml",
    "specs/cache.yaml": "spec.yaml",
}
_COPY = "./vendor/memtopo"
"""Copy of the repository, from which the workflow installs memtopo."""


def init_command() -> int:
    """Write a first spec, a workflow for GitHub and a hook.

    None of these files may exist. The workflow installs memtopo from the repository from which it was installed here,
    else from vendor/memtopo. The hook is one for pre-commit.
    """
    if found := [name for name in _FILES if Path(name).exists() or Path(name).is_symlink()]:
        raise UsageError(f"{found[0]!r} exists", hint="run 'memtopo init' in an empty folder, or remove the file")
    source = _COPY
    with suppress(PackageNotFoundError):
        installed = json.loads(distribution("memtopo").read_text("direct_url.json") or "{}")
        version = installed.get("vcs_info", {})
        if version.get("vcs") == "git" and installed["url"].startswith("https://"):
            source = f"git+{installed['url']}@{version['commit_id']}"  # as an argument of `pip install`
    for name, sample in _FILES.items():
        with system_errors(NotWritten, f"the folder of {name!r} cannot be created"):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
        write(name, (_SAMPLE / sample).read_text().replace(_COPY, shlex.quote(source)))
    plain.print_lines(_FILES)
    plain.print_message("check the spec: memtopo validate specs")
    if source == _COPY:
        plain.print_message("before the workflow can run, copy the repository of memtopo to vendor/memtopo")
    return 0
