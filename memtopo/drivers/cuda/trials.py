"""Kernels of trials and measurements, in PTX of an old version that drivers for CUDA 12 load too, and trial calls."""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver as cuda

from memtopo.driver.trials import WORD
from memtopo.drivers.cuda.bindings import call

_HEAD = """.version 7.0
.target sm_50
.address_size 64
"""

_STORE = """
.visible .entry store(.param .u64 at, .param .u64 value)
{
    .reg .u64 %rd<4>;
    ld.param.u64 %rd1, [at];
    ld.param.u64 %rd2, [value];
    cvta.to.global.u64 %rd3, %rd1;
    st.global.u64 [%rd3], %rd2;
    ret;
}
"""

# Polls the first word for a value other than 0, a limited number of times, and stores into the second.
_MEET = """
.visible .entry meet(.param .u64 at, .param .u64 value)
{
    .reg .u64 %rd<5>;
    .reg .u32 %r<2>;
    .reg .pred %p<3>;
    ld.param.u64 %rd1, [at];
    ld.param.u64 %rd2, [value];
    cvta.to.global.u64 %rd3, %rd1;
    mov.u32 %r1, 0;
LOOK:
    ld.volatile.global.u64 %rd4, [%rd3];
    setp.ne.u64 %p1, %rd4, 0;
    @%p1 bra FOUND;
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p2, %r1, 2000000;
    @%p2 bra LOOK;
    ret;
FOUND:
    st.global.u64 [%rd3+8], %rd2;
    ret;
}
"""

# Copies 16 bytes at a time, with a grid-stride loop.
_COPY = """
.visible .entry copy(.param .u64 to, .param .u64 from, .param .u64 count)
{
    .reg .u64 %rd<10>;
    .reg .u32 %r<10>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [from];
    ld.param.u64 %rd3, [count];
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %nctaid.x;
    mad.lo.u32 %r5, %r1, %r2, %r3;
    mul.lo.u32 %r6, %r2, %r4;
    cvt.u64.u32 %rd4, %r5;
    cvt.u64.u32 %rd5, %r6;
    shl.b64 %rd6, %rd4, 4;
    shl.b64 %rd7, %rd5, 4;
    add.u64 %rd1, %rd1, %rd6;
    add.u64 %rd2, %rd2, %rd6;
NEXT:
    setp.ge.u64 %p1, %rd4, %rd3;
    @%p1 bra DONE;
    ld.global.v2.u64 {%rd8, %rd9}, [%rd2];
    st.global.v2.u64 [%rd1], {%rd8, %rd9};
    add.u64 %rd4, %rd4, %rd5;
    add.u64 %rd1, %rd1, %rd7;
    add.u64 %rd2, %rd2, %rd7;
    bra NEXT;
DONE:
    ret;
}
"""

# Follows pointers by dependent loads; the store keeps the compiler from removing the loads.
_CHASE = """
.visible .entry chase(.param .u64 at, .param .u64 sink, .param .u64 count)
{
    .reg .u64 %rd<5>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [at];
    ld.param.u64 %rd2, [sink];
    ld.param.u64 %rd3, [count];
NEXT:
    ld.volatile.global.u64 %rd1, [%rd1];
    sub.u64 %rd3, %rd3, 1;
    setp.ne.u64 %p1, %rd3, 0;
    @%p1 bra NEXT;
    st.global.u64 [%rd2], %rd1;
    ret;
}
"""

PTX = {
    name: f"{_HEAD}{body}" for name, body in [("store", _STORE), ("meet", _MEET), ("copy", _COPY), ("chase", _CHASE)]
}


class Kernels:
    """Kernels, each loaded into a context when it is first launched there; unloaded with the context."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[int, str], Any] = {}

    def launch(self, name: str, *arguments: int, blocks: int = 1, threads: int = 1, stream: object = 0) -> None:
        """Launch a kernel in the current context, with arguments of 64 bits each; does not wait for it."""
        types = (ctypes.c_uint64,) * len(arguments)
        grid = (blocks, 1, 1, threads, 1, 1)
        call(cuda.cuLaunchKernel, self._function(name), *grid, 0, stream, (arguments, types), 0)

    def _function(self, name: str) -> Any:
        key = int(call(cuda.cuCtxGetCurrent)[1]), name
        if key not in self._loaded:
            module = call(cuda.cuModuleLoadData, bytearray(PTX[name].encode() + b"\0"))[1]
            self._loaded[key] = call(cuda.cuModuleGetFunction, module, name.encode())[1]
        return self._loaded[key]


_FOUND = (1).to_bytes(WORD, "little")


class CudaTrialCalls:
    """Trial calls of the CUDA driver."""

    def __init__(self) -> None:
        self._kernels = Kernels()

    def store(self, address: int, value: int) -> None:
        self._kernels.launch("store", address, value)
        call(cuda.cuCtxSynchronize)

    def meet(self, address: int, value: int) -> bool:
        ctypes.memset(address, 0, 2 * WORD)
        self._kernels.launch("meet", address, value)
        ctypes.memmove(address, _FOUND, WORD)
        call(cuda.cuCtxSynchronize)
        return ctypes.string_at(address + WORD, WORD) == value.to_bytes(WORD, "little")
