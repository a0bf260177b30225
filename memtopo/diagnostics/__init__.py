"""Diagnostics: the codes of all, and in modules their model, messages and explanations.

A released code never changes its meaning.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Code(NamedTuple):
    """Title and severity of a code."""

    title: str
    severity: Literal["error", "warning"] = "error"


CODES = {
    # reading the text
    "MT001": Code("the file cannot be read"),
    "MT002": Code("the text is too large or too deeply nested"),
    "MT003": Code("the text is not UTF-8"),
    "MT004": Code("a character that is not allowed in a spec"),
    "MT005": Code("the text is not YAML"),
    "MT006": Code("anchors and aliases are not part of the language"),
    "MT007": Code("tags are not part of the language"),
    "MT008": Code("merge keys are not part of the language"),
    "MT009": Code("a key is given twice"),
    "MT010": Code("the document is not one mapping"),
    # the shape of the entries
    "MT101": Code("an unknown key"),
    "MT102": Code("a required key is missing"),
    "MT103": Code("a value of another type is expected"),
    "MT104": Code("not a valid name"),
    "MT105": Code("not a size"),
    "MT106": Code("not a valid number"),
    "MT107": Code("not one of the allowed words"),
    "MT108": Code("an unknown version of the language"),
    "MT109": Code("more than the limit of one spec"),
    "MT110": Code("a section outside of the processes"),
    # names and references
    "MT201": Code("a name that is not declared"),
    "MT202": Code("an index out of range"),
    "MT203": Code("a name that is already used"),
    "MT204": Code("a duplicate entry"),
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
    "MT310": Code("not enough address space"),
    "MT311": Code("too few chunks for every range"),
    "MT312": Code("keys of a mapping that do not go together"),
    "MT313": Code("parts that do not fit into their chunk"),
    "MT314": Code("a size or count that follows from nothing that is known"),
    # capabilities of the machine
    "MT401": Code("a device that the machine does not have"),
    "MT402": Code("more memory than the device has"),
    "MT403": Code("no peer access between two devices"),
    "MT404": Code("a handle type that the machine does not support"),
    "MT405": Code("a property that the device does not support"),
    "MT406": Code("an access that the driver cannot grant"),
    "MT407": Code("a share of memory that cannot be taken"),
    "MT408": Code("alternatives of which none works"),
    # sharing between processes
    "MT601": Code("an export that its transport cannot carry"),
    "MT602": Code("an import that is exported again"),
    "MT603": Code("an incompletely declared import"),
    "MT604": Code("an import that does not match its export"),
    "MT605": Code("an import of the process's own export"),
    "MT606": Code("a GPU that the process does not see"),
    "MT607": Code("an export that cannot be committed"),
    "MT608": Code("an order that an import cannot have"),
    "MT609": Code("an address that no processes have in common"),
    "MT611": Code("a process without a node beside others with one"),
    "MT612": Code("instances that cannot be divided among nodes"),
    "MT613": Code("an import from another node by handles of one node"),
    "MT614": Code("nodes between which fabric is not known to work"),
    "MT615": Code("a node without a machine, or a machine without a node"),
    "MT616": Code("an import among processes that are not built together"),
    # managed, external and pinned memory
    "MT701": Code("managed memory that the machine does not support"),
    "MT702": Code("an external handle that the machine cannot import"),
    "MT703": Code("a part of an external object that cannot be mapped"),
    "MT704": Code("a timeline value that does not increase"),
    "MT705": Code("a wait without a signal", "warning"),
    "MT706": Code("a use that is only possible for chunks"),
    "MT707": Code("contradictory declarations of an external object"),
    # memory pools
    "MT710": Code("a pool that cannot be created"),
    "MT711": Code("allocations that exceed the maximum size of their pool"),
    "MT712": Code("an allocation that a process imports twice"),
    # dma-bufs
    "MT713": Code("an export via dmabuf of memory without addresses of its own"),
    "MT714": Code("an export via dmabuf that is not of whole pages"),
    "MT715": Code("keys of pinned memory that do not go together"),
    "MT716": Code("a part of a file that cannot be registered"),
    "MT717": Code("pinned memory that cannot keep offloaded bytes"),
    "MT718": Code("multicast that was never tried on the machine", "warning"),
    "MT719": Code("a team that lacks a GPU, or a GPU outside of the team"),
    "MT720": Code("memory that cannot be bound to a multicast object"),
    "MT721": Code("more multicast objects than a switch has slots", "warning"),
    # states, elastic ranges and changes
    "MT801": Code("a reserved name of a state"),
    "MT802": Code("memory that cannot be offloaded"),
    "MT803": Code("a smallest count above the largest"),
    "MT804": Code("elastic chunks in place of fixed ones, or fixed ones in place of elastic ones"),
    "MT805": Code("a zero chunk that cannot back a range"),
    "MT806": Code("a change of a layout's name"),
    "MT807": Code("a change of a layout's processes"),
    "MT808": Code("a wait or a signal that a change would add"),
    "MT809": Code("memory that is offloaded to where it is"),
    "MT810": Code("a range at the same address in all processes that a change would reserve"),
    # parameters
    "MT901": Code("a parameter that is not declared"),
    "MT902": Code("not an arithmetic"),
    "MT903": Code("an arithmetic without a value"),
    "MT904": Code("a parameter that refers to itself"),
    "MT905": Code("a parameter without a value"),
    "MT906": Code("a parameter in a part of a text"),
    "MT907": Code("a parameter is not used", "warning"),
    # probably unintended
    "MT501": Code("a chunk is not mapped", "warning"),
    "MT502": Code("nothing is mapped in a range", "warning"),
    "MT503": Code("no device has access to a range", "warning"),
    "MT504": Code("a device name is not used", "warning"),
    "MT505": Code("a comment ignores nothing", "warning"),
    "MT506": Code("more locations than the count"),
}
