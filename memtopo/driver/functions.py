"""C functions of the driver calls: their parameters in order and what they make.

This table is the one place that relates a method of the protocol to the C function that it stands for. Listings of
calls, traces, and programs in C and Python are written from it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from memtopo.driver.protocol import call_name
from memtopo.driver.wrappers import parameters


class Function(Struct, frozen=True):
    """C function of a call, with its parameters in order.

    A parameter is the result (`&`), the name of a parameter of the protocol's method, or a constant; `arguments` are
    all but the result. `makes` is the kind of object that the result is: `range`, `chunk`; empty if it is none.
    """

    name: str
    parameters: tuple[str, ...]
    arguments: tuple[str, ...]
    makes: str = ""


RESULT = "&"
DMA_BUF = "CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD"

_SIGNATURES = {
    "init": "flags",
    "device_primary_ctx_retain": "& device -> context",
    "device_primary_ctx_release": "device",
    "ctx_push_current": "context",
    "ctx_pop_current": "&",
    "ctx_synchronize": "",
    "mem_address_reserve": "& size alignment address flags -> range",
    "mem_address_free": "address size",
    "mem_create": "& size properties flags -> chunk",
    "mem_release": "handle",
    "mem_map": "address size offset handle flags",
    "mem_unmap": "address size",
    "mem_set_access": "address size grants",
    "mem_export_to_shareable_handle": "& handle kind flags -> shared",
    "mem_import_from_shareable_handle": "& shared kind -> chunk",
    "mem_get_handle_for_address_range": f"& address size {DMA_BUF} flags -> shared",
    "mem_alloc": "& size -> buffer",
    "mem_free": "address",
    "mem_host_alloc": "& size flags -> pinned",
    "mem_free_host": "address",
    "mem_host_register": "address size flags",
    "mem_host_unregister": "address",
    "mem_pool_create": "& properties -> pool",
    "mem_pool_destroy": "pool",
    "mem_pool_set_attribute": "pool attribute value",
    "mem_pool_set_access": "pool grants",
    "mem_alloc_from_pool_async": "& size pool stream -> allocation",
    "mem_free_async": "address stream",
    "mem_pool_export_to_shareable_handle": "& pool kind flags -> shared",
    "mem_pool_import_from_shareable_handle": "& shared kind flags -> pool",
    "mem_pool_export_pointer": "& address -> secret",
    "mem_pool_import_pointer": "& pool data -> allocation",
    "ipc_get_mem_handle": "& address -> secret",
    "ipc_open_mem_handle": "& handle flags -> buffer",
    "ipc_close_mem_handle": "address",
    "ipc_get_event_handle": "& event -> secret",
    "ipc_open_event_handle": "& handle -> event",
    "event_create": "& flags -> event",
    "event_destroy": "event",
    "event_record": "event stream",
    "event_synchronize": "event",
    "stream_create": "& flags -> stream",
    "stream_destroy": "stream",
    "stream_query": "stream",
    "memset_d8": "address value count",
    "memcpy_async": "destination source count stream",
    "mem_alloc_managed": "& size flags -> managed",
    "mem_advise": "address size advice location",
    "mem_prefetch_async": "address size location 0 stream",
    "stream_attach_mem_async": "stream address 0 flags",
    "multicast_create": "& devices size handles flags -> chunk",
    "import_external_memory": "& fd kind size dedicated -> external",
    "external_memory_get_mapped_buffer": "& memory offset size -> buffer",
    "import_external_semaphore": "& fd kind -> semaphore",
}
"""Parameters of the C functions, and what they make. A function without a line has those of the protocol, in order."""

_VERSIONS = {"mem_advise": "cuMemAdvise_v2", "mem_prefetch_async": "cuMemPrefetchAsync_v2"}
"""Functions whose name without a version takes a GPU in place of a location in headers of CUDA 12."""


def _function(method: str, signature: str) -> Function:
    before, _, makes = signature.partition("->")
    names = tuple(before.split())
    return Function(call_name(method), names, tuple(each for each in names if each != RESULT), makes.strip())


FUNCTIONS: Mapping[str, Function] = {method: _function(method, text) for method, text in _SIGNATURES.items()}


def function(method: str) -> Function:
    """C function of a method of the protocol."""
    return FUNCTIONS.get(method) or Function(call_name(method), parameters(method), parameters(method))


def c_name(method: str) -> str:
    """Name of the C function in a program: with its version where that matters."""
    return _VERSIONS.get(method) or function(method).name
