"""`memtopo spec`: a spec of the memory in a record."""

from __future__ import annotations

from typing import Annotated

from memtopo.cli.options import At, argument, option
from memtopo.cli.results import require_replaceable, write
from memtopo.driver.trace_files import is_record
from memtopo.output import plain

RecordFile = Annotated[str, argument("RECORD", "A record of 'memtopo capture' or 'memtopo apply --trace'.")]
_OUTPUT = "Write the spec to a file, in place of a spec that memtopo wrote."
SpecOutput = Annotated[str | None, option("--output -o", _OUTPUT, "FILE", "MEMTOPO_SPEC_OUTPUT")]


def spec_command(record: RecordFile, at: At = None, output: SpecOutput = None) -> int:
    """Write a spec of the memory in a record.

    Equal objects become entries with counts. What a spec cannot say is a comment at its begin.
    """
    from memtopo.plans.trace import no_record
    from memtopo.records.spec import OWN, document

    if not is_record(record):
        raise no_record(record)
    text = document(record, at).text
    if output in (None, "-"):
        plain.print_document(text.splitlines())
    else:
        require_replaceable(output, OWN)
        write(output, text)
        plain.print_message(f"saved to {output}")
    return 0
