/* The calls of libcuda that examples/c makes, for chunks of the simulator: their descriptors are files in memory, which
 * are mapped into this process at reserved addresses. The only GPU has the UUID in SIMULATED_GPU (32 hexadecimal
 * digits). */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2 };

static int blank(unsigned long long address, size_t size) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    return mmap((void *)address, size, PROT_NONE, flags, -1, 0) == MAP_FAILED ? INVALID_VALUE : 0;
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : 0; }

int cuGetErrorName(int error, const char **name) {
    *name = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_INVALID_VALUE";
    return 0;
}

int cuDeviceGetCount(int *count) { return *count = 1, 0; }

int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    const char *text = getenv("SIMULATED_GPU");
    if (device || !text || strlen(text) != 32) return INVALID_VALUE;
    for (int i = 0; i < 16; i++)
        if (sscanf(text + 2 * i, "%2hhx", uuid + i) != 1) return INVALID_VALUE;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &blank, device; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device; }
int cuCtxPushCurrent_v2(void *context) { return !context; }
int cuCtxPopCurrent_v2(void **context) { return *context = &blank, 0; }
int cuCtxSynchronize(void) { return 0; }

int cuMemImportFromShareableHandle(unsigned long long *handle, void *descriptor, int kind) {
    const int fd = fcntl((int)(intptr_t)descriptor, F_DUPFD_CLOEXEC, 3);
    if (fd < 0 || kind != 1) return INVALID_VALUE;
    *handle = (unsigned long long)fd;
    return 0;
}

int cuMemRelease(unsigned long long handle) { return close((int)handle) ? INVALID_VALUE : 0; }

int cuMemAddressReserve(unsigned long long *address, size_t size, size_t alignment, unsigned long long hint,
                        unsigned long long flags) {
    if (alignment || hint || flags) return INVALID_VALUE;
    void *found = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *address = (uintptr_t)found;
    return found == MAP_FAILED ? OUT_OF_MEMORY : 0;
}

int cuMemAddressFree(unsigned long long address, size_t size) {
    return munmap((void *)address, size) ? INVALID_VALUE : 0;
}

int cuMemMap(unsigned long long address, size_t size, size_t offset, unsigned long long handle,
             unsigned long long flags) {
    if (offset || flags || lseek((int)handle, 0, SEEK_END) != (off_t)size) return INVALID_VALUE;
    void *found = mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, 0);
    return found == MAP_FAILED ? INVALID_VALUE : 0;
}

int cuMemSetAccess(unsigned long long address, size_t size, const void *grants, size_t count) {
    if (!grants || count != 1) return INVALID_VALUE;
    return mprotect((void *)address, size, PROT_READ | PROT_WRITE) ? INVALID_VALUE : 0;
}

int cuMemUnmap(unsigned long long address, size_t size) { return blank(address, size); }

int cuMemcpyDtoH_v2(void *host, unsigned long long address, size_t size) {
    return memcpy(host, (void *)address, size), 0;
}

int cuMemcpyHtoD_v2(unsigned long long address, const void *host, size_t size) {
    return memcpy((void *)address, host, size), 0;
}
