"""Corrections of a spec's text: edits of errors that have exactly one, made as long as they leave fewer errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice

from memtopo.diagnostics.model import Edit, Path
from memtopo.language import Document, read_text
from memtopo.language.edits import Replacement, edited, replacements
from memtopo.rules.files.results import File

_ROUNDS = 10
"""Rounds of corrections: a corrected name may show errors of the entry that it names."""

_MOST = 50
"""Edits that are tried one by one, if all of a round together do harm."""

_HARM = ("MT0", "MT203", "MT204")
"""Prefixes of the codes that no correction may add: of what is not read, and of what is there twice."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Text of a spec with its corrections, and the number of errors that they end."""

    text: str
    errors: int


def fixed(document: Document, check: Callable[[Document], File]) -> Fixed:
    """Correct a document. `check` validates it on all machines; an edit is made if all of them ask for it.

    Edits of a round are made if an error that they are for is gone, and if they added none of `_HARM`. A text that was
    corrected has no further corrections.
    """
    found, count = check(document), 0
    for _ in range(_ROUNDS):
        edits = replacements(document, _common(found))
        single = ({edit: each} for edit, each in islice(edits.items(), _MOST))
        better = next(filter(None, (_better(document, found, each, check) for each in (edits, *single))), None)
        if better is None:
            break
        count += len(_identities(found, edits) - _identities(better))
        document, found = better.document, better
    return Fixed(document.text, count)


def _common(found: File) -> list[Edit]:
    """Edits that the results on all machines have, in order."""
    each = [{one.edit for one in result.diagnostics if one.edit} for result in found.results]
    wanted = set.intersection(*each) if each else set()
    return list(dict.fromkeys(one.edit for one in found.results[0].diagnostics if one.edit in wanted and one.edit))


def _better(
    document: Document, found: File, edits: Mapping[Edit, Replacement], check: Callable[[Document], File]
) -> File | None:
    """Results of the document with edits; None if nothing was edited, or if the edits do harm."""
    text = edited(document.text, edits.values())
    if text == document.text:
        return None
    after = check(read_text(text.encode(), document.name))
    now = _identities(after)
    harm = [code for code, *_ in now - _identities(found) if code.startswith(_HARM)]
    return after if not harm and _identities(found, edits) - now else None


def _identities(found: File, edits: Collection[Edit] | None = None) -> set[tuple[str, str, Path]]:
    """Codes, messages and paths of all diagnostics, or of those that some edits are for."""
    every = (each for result in found.results for each in result.diagnostics)
    return {(each.code, each.message, each.path) for each in every if edits is None or each.edit in edits}
