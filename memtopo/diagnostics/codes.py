"""The codes of all diagnostics: stable once released, never given a second meaning."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Code(NamedTuple):
    """A code's name in words and how much it weighs."""

    title: str
    severity: Literal["error", "warning"] = "error"


CODES = {
    # reading the text
    "MT001": Code("the file cannot be read"),
    "MT002": Code("the text is larger or deeper than a spec may be"),
    "MT003": Code("the text is not UTF-8"),
    "MT004": Code("a character that a spec may not hold"),
    "MT005": Code("the text is not YAML"),
    "MT006": Code("anchors and aliases are not part of the language"),
    "MT007": Code("tags are not part of the language"),
    "MT008": Code("merge keys are not part of the language"),
    "MT009": Code("a key is given twice"),
    "MT010": Code("the document is not one mapping"),
    # the shape of the entries
    "MT101": Code("an unknown key"),
    "MT102": Code("a required key is missing"),
    "MT103": Code("a value of another kind is expected"),
    "MT104": Code("not a valid name"),
    "MT105": Code("not a size"),
    "MT106": Code("not a number that may stand here"),
    "MT107": Code("not one of the words that may stand here"),
    "MT108": Code("a version of the language that is not known"),
    "MT109": Code("more than one spec may ask for"),
    "MT110": Code("a section beside the processes"),
    # names and their use
    "MT201": Code("a name that is not declared"),
    "MT202": Code("an index outside of what was counted"),
    "MT203": Code("a name that is taken"),
    "MT204": Code("the same thing is given twice"),
    # arithmetic of the layout
    "MT301": Code("a chunk's size is no multiple of its granularity"),
    "MT302": Code("a range's size is no multiple of its granularity"),
    "MT303": Code("an offset is no multiple of the granularity"),
    "MT304": Code("two mappings overlap"),
    "MT305": Code("a mapping runs past the end of its range"),
    "MT306": Code("not an alignment"),
    "MT307": Code("an address that cannot be reserved"),
    "MT308": Code("an access entry splits a mapping"),
    "MT309": Code("an access entry reaches past the end of its range"),
    "MT310": Code("more address space than there is"),
    # what the machine can do
    "MT401": Code("a device that the machine does not have"),
    "MT402": Code("more memory than the device has"),
    "MT403": Code("no peer access between two devices"),
    "MT404": Code("a handle type that the machine cannot give"),
    "MT405": Code("a property that the device does not support"),
    "MT406": Code("an access that the driver cannot grant"),
    # what is shared between processes
    "MT601": Code("an export that its transport cannot carry"),
    "MT602": Code("an import that is exported again"),
    "MT603": Code("an import that does not say what it takes"),
    "MT604": Code("an import that is not what is exported"),
    "MT605": Code("an import that its own process exports"),
    "MT606": Code("a GPU that the process does not see"),
    # memory of other kinds
    "MT701": Code("managed memory that the machine cannot give"),
    "MT702": Code("a handle of another API that the machine cannot take"),
    "MT703": Code("a part of an external object that cannot be mapped"),
    "MT704": Code("a timeline that does not go forward"),
    "MT705": Code("a wait that nothing signals", "warning"),
    "MT706": Code("a use that only chunks have"),
    "MT707": Code("one thing of another API that is declared in two ways"),
    # what is valid and probably not meant
    "MT501": Code("a chunk is mapped nowhere", "warning"),
    "MT502": Code("a range holds nothing", "warning"),
    "MT503": Code("a range is accessible to nobody", "warning"),
    "MT504": Code("a device name is not used", "warning"),
    "MT505": Code("a comment ignores nothing", "warning"),
}
