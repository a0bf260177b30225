"""`memtopo.driver.external.ExternalResources` by `cuda.bindings.driver`."""

from __future__ import annotations

from cuda.bindings import driver as cuda

from memtopo.driver.cuda.calling import call, fitting, named
from memtopo.driver.types import DriverError, MemoryHandleType, SemaphoreHandleType

_DEDICATED = 1


class CudaExternal:
    """What the real driver does with what another API made, and with streams."""

    def stream_create(self, flags: int = 1) -> int:
        return int(call(cuda.cuStreamCreate, flags)[1])

    def stream_destroy(self, stream: int) -> None:
        call(cuda.cuStreamDestroy, stream)

    def stream_query(self, stream: int) -> bool:
        try:
            call(cuda.cuStreamQuery, stream)
        except DriverError as error:
            if error.name != "CUDA_ERROR_NOT_READY":
                raise
            return False
        return True

    def import_external_memory(self, fd: int, kind: MemoryHandleType, size: int, *, dedicated: bool = False) -> int:
        function = cuda.cuImportExternalMemory
        described = cuda.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
        described.type = named(cuda.CUexternalMemoryHandleType, kind, function)
        described.flags = _DEDICATED * dedicated
        with fitting(function):
            described.handle.fd, described.size = fd, size
        return int(call(function, described)[1])

    def external_memory_get_mapped_buffer(self, memory: int, offset: int, size: int) -> int:
        function = cuda.cuExternalMemoryGetMappedBuffer
        described = cuda.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
        with fitting(function):
            described.offset, described.size = offset, size
        return int(call(function, memory, described)[1])

    def destroy_external_memory(self, memory: int) -> None:
        call(cuda.cuDestroyExternalMemory, memory)

    def import_external_semaphore(self, fd: int, kind: SemaphoreHandleType) -> int:
        function = cuda.cuImportExternalSemaphore
        described = cuda.CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC()
        described.type = named(cuda.CUexternalSemaphoreHandleType, kind, function)
        with fitting(function):
            described.handle.fd = fd
        return int(call(function, described)[1])

    def signal_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        function = cuda.cuSignalExternalSemaphoresAsync
        parameters = cuda.CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS()
        with fitting(function):
            parameters.params.fence.value = value
        call(function, [cuda.CUexternalSemaphore(semaphore)], [parameters], 1, stream)

    def wait_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        function = cuda.cuWaitExternalSemaphoresAsync
        parameters = cuda.CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS()
        with fitting(function):
            parameters.params.fence.value = value
        call(function, [cuda.CUexternalSemaphore(semaphore)], [parameters], 1, stream)

    def destroy_external_semaphore(self, semaphore: int) -> None:
        call(cuda.cuDestroyExternalSemaphore, semaphore)
