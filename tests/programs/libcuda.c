/* libcuda.so.1 that appends a line of JSON for each call to the file CUDA_CALLS, as a trace has it.
 *
 * With REAL_LIBCUDA, the path of a driver, it makes the calls; without, it answers as a driver that refuses nothing:
 * numbers for handles, addresses that are not mapped, files in memory for exported allocations. It lacks the function of
 * the driver, or the kernel, that CUDA_LACKS names. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *log_path, *real_path;
static void *real_library;
static uint64_t numbers, next_address = 1ULL << 44;

__attribute__((constructor)) static void start(void) {
    log_path = getenv("CUDA_CALLS");
    real_path = getenv("REAL_LIBCUDA");
    if (real_path && !(real_library = dlopen(real_path, RTLD_NOW | RTLD_LOCAL))) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
}

static int is_lacking(const char *name) {
    const char *lacks = getenv("CUDA_LACKS");
    return lacks && !strcmp(lacks, name);
}

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define FORWARD(name, ...) ((__typeof__(&name))dlsym(real_library, TEXT(name)))(__VA_ARGS__)
#define ANSWER(name, made, ...) (real_library ? FORWARD(name, __VA_ARGS__) : ((void)(made), CUDA_SUCCESS))

static CUresult note(CUresult status, const char *name, uint64_t result, const char *format, ...) {
    char line[4096], arguments[3072];
    va_list values;
    va_start(values, format);
    vsnprintf(arguments, sizeof arguments, format, values);
    va_end(values);
    int length = snprintf(line, sizeof line, "{\"pid\": %d, \"call\": \"%s\", \"arguments\": {%s}, \"result\": %llu, \"status\": %d}\n",
                          (int)getpid(), name, arguments, (unsigned long long)result, (int)status);
    int file = log_path ? open(log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (file >= 0) {
        if (write(file, line, (size_t)length) != length) abort();
        close(file);
    }
    return status;
}

#define N(value) ((unsigned long long)(uintptr_t)(value))

static const char *location(CUmemLocation where) {
    static char texts[8][32];
    static int at;
    char *text = texts[at++ % 8];
    switch (where.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: snprintf(text, 32, "\"gpu%d\"", where.id); break;
    case CU_MEM_LOCATION_TYPE_HOST: snprintf(text, 32, "\"host\""); break;
    default: snprintf(text, 32, "\"host:%d\"", where.id);
    }
    return text;
}

static const char *handles(int types) {
    return types == 1 ? "[\"fd\"]" : types == 8 ? "[\"fabric\"]" : types == 9 ? "[\"fd\", \"fabric\"]" : "[]";
}

static const char *grants(const CUmemAccessDesc *desc, size_t count) {
    static char text[2048];
    size_t length = 0;
    text[0] = 0;
    for (size_t i = 0; i < count; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s{\"location\": %s, \"access\": \"%s\"}",
                                   i ? ", " : "", location(desc[i].location),
                                   desc[i].flags == 3 ? "rw" : desc[i].flags == 1 ? "r" : "none");
    return text;
}

static uint64_t number(void) { return ++numbers; }

static uint64_t place(size_t size, size_t alignment, uint64_t hint) {
    const uint64_t unit = alignment > 32 << 20 ? alignment : 32 << 20;
    const uint64_t found = hint ? hint : (next_address + unit - 1) / unit * unit;
    if (!hint) next_address = found + size;
    return found;
}

static int file(void) { return memfd_create("allocation", MFD_CLOEXEC); }

CUresult cuInit(unsigned int flags) { return real_library ? FORWARD(cuInit, flags) : CUDA_SUCCESS; }

CUresult cuGetErrorName(CUresult error, const char **name) {
    if (real_library) return FORWARD(cuGetErrorName, error, name);
    *name = error == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_OUT_OF_MEMORY";
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CUresult status = ANSWER(cuDevicePrimaryCtxRetain, *context = (CUcontext)(uintptr_t)number(), context, device);
    return note(status, "cuDevicePrimaryCtxRetain", N(*context), "\"device\": %d", device);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return note(ANSWER(cuDevicePrimaryCtxRelease, 0, device), "cuDevicePrimaryCtxRelease", 0, "\"device\": %d", device);
}

CUresult cuCtxPushCurrent(CUcontext context) {
    return note(ANSWER(cuCtxPushCurrent, 0, context), "cuCtxPushCurrent", 0, "\"context\": %llu", N(context));
}

CUresult cuCtxPopCurrent(CUcontext *context) {
    return note(ANSWER(cuCtxPopCurrent, 0, context), "cuCtxPopCurrent", 0, "%s", "");
}

CUresult cuCtxSynchronize(void) {
    return note(real_library ? FORWARD(cuCtxSynchronize) : CUDA_SUCCESS, "cuCtxSynchronize", 0, "%s", "");
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags) {
    CUresult status = ANSWER(cuMemAddressReserve, *ptr = place(size, alignment, addr), ptr, size, alignment, addr, flags);
    return note(status, "cuMemAddressReserve", *ptr, "\"size\": %zu, \"alignment\": %zu, \"address\": %llu, \"flags\": %llu",
                size, alignment, addr, flags);
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    return note(ANSWER(cuMemAddressFree, 0, ptr, size), "cuMemAddressFree", 0, "\"address\": %llu, \"size\": %zu", ptr,
                size);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
    CUresult status = prop->type == CU_MEM_ALLOCATION_TYPE_PINNED
                          ? ANSWER(cuMemCreate, *handle = number(), handle, size, prop, flags)
                          : CUDA_ERROR_INVALID_VALUE;
    return note(status, "cuMemCreate", *handle,
                "\"size\": %zu, \"properties\": {\"location\": %s, \"handles\": %s, \"rdma\": %s, \"compressible\": %s}, "
                "\"flags\": %llu",
                size, location(prop->location), handles((int)prop->requestedHandleTypes),
                prop->allocFlags.gpuDirectRDMACapable ? "true" : "false",
                prop->allocFlags.compressionType ? "true" : "false", flags);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    return note(ANSWER(cuMemRelease, 0, handle), "cuMemRelease", 0, "\"handle\": %llu", handle);
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    return note(ANSWER(cuMemMap, 0, ptr, size, offset, handle, flags), "cuMemMap", 0,
                "\"address\": %llu, \"size\": %zu, \"offset\": %zu, \"handle\": %llu, \"flags\": %llu", ptr, size, offset,
                handle, flags);
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    return note(ANSWER(cuMemUnmap, 0, ptr, size), "cuMemUnmap", 0, "\"address\": %llu, \"size\": %zu", ptr, size);
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
    return note(ANSWER(cuMemSetAccess, 0, ptr, size, desc, count), "cuMemSetAccess", 0,
                "\"address\": %llu, \"size\": %zu, \"grants\": [%s]", ptr, size, grants(desc, count));
}

CUresult cuMemExportToShareableHandle(void *shared, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType kind,
                                      unsigned long long flags) {
    CUresult status = ANSWER(cuMemExportToShareableHandle, kind == 8 ? memset(shared, 1, 64) : memcpy(shared, &(int){file()}, 4),
                             shared, handle, kind, flags);
    return note(status, "cuMemExportToShareableHandle", 0, "\"handle\": %llu, \"kind\": %d, \"flags\": %llu", handle,
                (int)kind, flags);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared,
                                        CUmemAllocationHandleType kind) {
    if (!real_library && kind == 1 && fcntl((int)(intptr_t)shared, F_GETFD) < 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = ANSWER(cuMemImportFromShareableHandle, *handle = number(), handle, shared, kind);
    return note(status, "cuMemImportFromShareableHandle", *handle, "\"kind\": %d", (int)kind);
}

CUresult cuMemGetHandleForAddressRange(void *shared, CUdeviceptr ptr, size_t size, CUmemRangeHandleType kind,
                                       unsigned long long flags) {
    CUresult status = ANSWER(cuMemGetHandleForAddressRange, *(int *)shared = file(), shared, ptr, size, kind, flags);
    return note(status, "cuMemGetHandleForAddressRange", 0, "\"address\": %llu, \"size\": %zu, \"flags\": %llu", ptr, size,
                flags);
}

CUresult cuMemAlloc(CUdeviceptr *ptr, size_t size) {
    CUresult status = ANSWER(cuMemAlloc, *ptr = place(size, 0, 0), ptr, size);
    return note(status, "cuMemAlloc", *ptr, "\"size\": %zu", size);
}

CUresult cuMemFree(CUdeviceptr ptr) { return note(ANSWER(cuMemFree, 0, ptr), "cuMemFree", 0, "\"address\": %llu", ptr); }

CUresult cuMemHostAlloc(void **ptr, size_t size, unsigned int flags) {
    CUresult status = ANSWER(cuMemHostAlloc, *ptr = (void *)(uintptr_t)place(size, 0, 0), ptr, size, flags);
    return note(status, "cuMemHostAlloc", N(*ptr), "\"size\": %zu, \"flags\": %u", size, flags);
}

CUresult cuMemFreeHost(void *ptr) {
    return note(ANSWER(cuMemFreeHost, 0, ptr), "cuMemFreeHost", 0, "\"address\": %llu", N(ptr));
}

CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t size, unsigned int flags) {
    CUresult status = ANSWER(cuMemAllocManaged, *ptr = place(size, 0, 0), ptr, size, flags);
    return note(status, "cuMemAllocManaged", *ptr, "\"size\": %zu, \"flags\": %u", size, flags);
}

CUresult cuMemAdvise_v2(CUdeviceptr ptr, size_t size, CUmem_advise advice, CUmemLocation where) {
    return note(ANSWER(cuMemAdvise_v2, 0, ptr, size, advice, where), "cuMemAdvise", 0,
                "\"address\": %llu, \"size\": %zu, \"advice\": %d, \"location\": %s", ptr, size, (int)advice,
                location(where));
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr ptr, size_t size, CUmemLocation where, unsigned int flags, CUstream stream) {
    return note(ANSWER(cuMemPrefetchAsync_v2, 0, ptr, size, where, flags, stream), "cuMemPrefetchAsync", 0,
                "\"address\": %llu, \"size\": %zu, \"location\": %s, \"stream\": %llu", ptr, size, location(where),
                N(stream));
}

CUresult cuMemsetD8(CUdeviceptr ptr, unsigned char value, size_t count) {
    return note(ANSWER(cuMemsetD8, 0, ptr, value, count), "cuMemsetD8", 0,
                "\"address\": %llu, \"value\": %d, \"count\": %zu", ptr, value, count);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
    CUresult status = ANSWER(cuMemPoolCreate, *pool = (CUmemoryPool)(uintptr_t)number(), pool, props);
    return note(status, "cuMemPoolCreate", N(*pool),
                "\"properties\": {\"location\": %s, \"handles\": %s, \"max_size\": %zu}", location(props->location),
                handles((int)props->handleTypes), props->maxSize);
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    return note(ANSWER(cuMemPoolDestroy, 0, pool), "cuMemPoolDestroy", 0, "\"pool\": %llu", N(pool));
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    const unsigned long long given = attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? *(cuuint64_t *)value
                                                                                    : (unsigned)*(int *)value;
    return note(ANSWER(cuMemPoolSetAttribute, 0, pool, attribute, value), "cuMemPoolSetAttribute", 0,
                "\"pool\": %llu, \"attribute\": %d, \"value\": %llu", N(pool), (int)attribute, given);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *desc, size_t count) {
    return note(ANSWER(cuMemPoolSetAccess, 0, pool, desc, count), "cuMemPoolSetAccess", 0,
                "\"pool\": %llu, \"grants\": [%s]", N(pool), grants(desc, count));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream) {
    CUresult status = ANSWER(cuMemAllocFromPoolAsync, *ptr = place(size, 0, 0), ptr, size, pool, stream);
    return note(status, "cuMemAllocFromPoolAsync", *ptr, "\"size\": %zu, \"pool\": %llu, \"stream\": %llu", size, N(pool),
                N(stream));
}

CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream) {
    return note(ANSWER(cuMemFreeAsync, 0, ptr, stream), "cuMemFreeAsync", 0, "\"address\": %llu, \"stream\": %llu", ptr,
                N(stream));
}

CUresult cuMemPoolExportToShareableHandle(void *shared, CUmemoryPool pool, CUmemAllocationHandleType kind,
                                          unsigned long long flags) {
    CUresult status = ANSWER(cuMemPoolExportToShareableHandle, *(int *)shared = file(), shared, pool, kind, flags);
    return note(status, "cuMemPoolExportToShareableHandle", 0, "\"pool\": %llu, \"kind\": %d, \"flags\": %llu", N(pool),
                (int)kind, flags);
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shared, CUmemAllocationHandleType kind,
                                            unsigned long long flags) {
    if (!real_library && fcntl((int)(intptr_t)shared, F_GETFD) < 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = ANSWER(cuMemPoolImportFromShareableHandle, *pool = (CUmemoryPool)(uintptr_t)number(), pool, shared,
                             kind, flags);
    return note(status, "cuMemPoolImportFromShareableHandle", N(*pool), "\"kind\": %d, \"flags\": %llu", (int)kind, flags);
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr ptr) {
    CUresult status = ANSWER(cuMemPoolExportPointer, memset(data, 2, sizeof *data), data, ptr);
    return note(status, "cuMemPoolExportPointer", 0, "\"address\": %llu", ptr);
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr, CUmemoryPool pool, CUmemPoolPtrExportData *data) {
    if (!real_library && ((unsigned char *)data)[63] != 2) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = ANSWER(cuMemPoolImportPointer, *ptr = place(1ULL << 40, 0, 0), ptr, pool, data);
    return note(status, "cuMemPoolImportPointer", *ptr, "\"pool\": %llu", N(pool));
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr) {
    CUresult status = ANSWER(cuIpcGetMemHandle, memset(handle, 3, sizeof *handle), handle, ptr);
    return note(status, "cuIpcGetMemHandle", 0, "\"address\": %llu", ptr);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags) {
    if (!real_library && handle.reserved[63] != 3) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = ANSWER(cuIpcOpenMemHandle, *ptr = place(1ULL << 40, 0, 0), ptr, handle, flags);
    return note(status, "cuIpcOpenMemHandle", *ptr, "\"flags\": %u", flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr ptr) {
    return note(ANSWER(cuIpcCloseMemHandle, 0, ptr), "cuIpcCloseMemHandle", 0, "\"address\": %llu", ptr);
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
    CUresult status = ANSWER(cuIpcGetEventHandle, memset(handle, 4, sizeof *handle), handle, event);
    return note(status, "cuIpcGetEventHandle", 0, "\"event\": %llu", N(event));
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
    if (!real_library && handle.reserved[63] != 4) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = ANSWER(cuIpcOpenEventHandle, *event = (CUevent)(uintptr_t)number(), event, handle);
    return note(status, "cuIpcOpenEventHandle", N(*event), "%s", "");
}

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    CUresult status = ANSWER(cuEventCreate, *event = (CUevent)(uintptr_t)number(), event, flags);
    return note(status, "cuEventCreate", N(*event), "\"flags\": %u", flags);
}

CUresult cuEventDestroy(CUevent event) {
    return note(ANSWER(cuEventDestroy, 0, event), "cuEventDestroy", 0, "\"event\": %llu", N(event));
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    return note(ANSWER(cuEventRecord, 0, event, stream), "cuEventRecord", 0, "\"event\": %llu, \"stream\": %llu", N(event),
                N(stream));
}

CUresult cuEventSynchronize(CUevent event) {
    return note(ANSWER(cuEventSynchronize, 0, event), "cuEventSynchronize", 0, "\"event\": %llu", N(event));
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    CUresult status = ANSWER(cuStreamCreate, *stream = (CUstream)(uintptr_t)number(), stream, flags);
    return note(status, "cuStreamCreate", N(*stream), "\"flags\": %u", flags);
}

CUresult cuStreamDestroy(CUstream stream) {
    return note(ANSWER(cuStreamDestroy, 0, stream), "cuStreamDestroy", 0, "\"stream\": %llu", N(stream));
}

CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr ptr, size_t length, unsigned int flags) {
    return note(ANSWER(cuStreamAttachMemAsync, 0, stream, ptr, length, flags), "cuStreamAttachMemAsync", 0,
                "\"stream\": %llu, \"address\": %llu, \"flags\": %u", N(stream), ptr, flags);
}

/* What no program calls, but the driver of memtopo: without a driver behind it. A number is in JSON as it is in memory. */

static const char *numbers_at(const void *data, size_t count, size_t width) {
    static char texts[4][640];
    static int at;
    char *text = texts[at++ % 4];
    size_t length = 0;
    text[0] = 0;
    for (size_t i = 0; i < count; i++) {
        unsigned long long value = 0;
        memcpy(&value, (const char *)data + i * width, width);
        length += (size_t)snprintf(text + length, 640 - length, "%s%llu", i ? ", " : "", value);
    }
    return text;
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    return note(CUDA_SUCCESS, "cuMemcpyAsync", 0, "\"to\": %llu, \"from\": %llu, \"size\": %zu, \"stream\": %llu", to, from,
                size, N(stream));
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, const int *attributes,
                               size_t *first, size_t attribute_count, CUstream stream) {
    return note(CUDA_SUCCESS, "cuMemcpyBatchAsync", 0,
                "\"to\": [%s], \"from\": [%s], \"sizes\": [%s], \"order\": %d, \"first\": [%s], \"stream\": %llu",
                numbers_at(to, count, 8), numbers_at(from, count, 8), numbers_at(sizes, count, 8), attributes[0],
                numbers_at(first, attribute_count, 8), N(stream));
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    return note(CUDA_SUCCESS, "cuMemcpyHtoDAsync", 0, "\"to\": %llu, \"words\": [%s], \"size\": %zu, \"stream\": %llu", to,
                numbers_at(from, 4, 8), size, N(stream));
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
    return note(CUDA_SUCCESS, "cuMemcpyHtoD", 0, "\"to\": %llu, \"words\": [%s]", to, numbers_at(from, size / 8, 8));
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
    memset(to, 0, size);
    return note(CUDA_SUCCESS, "cuMemcpyDtoH", 0, "\"from\": %llu, \"size\": %zu", from, size);
}

CUresult cuMemsetD8Async(CUdeviceptr ptr, unsigned char value, size_t count, CUstream stream) {
    return note(CUDA_SUCCESS, "cuMemsetD8Async", 0, "\"address\": %llu, \"value\": %d, \"count\": %zu, \"stream\": %llu", ptr,
                value, count, N(stream));
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *where, CUdeviceptr ptr) {
    *flags = 3;
    return note(CUDA_SUCCESS, "cuMemGetAccess", 3, "\"location\": %s, \"address\": %llu", location(*where), ptr);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
    memset(prop, 0, sizeof *prop);
    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop->location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, (int)handle};
    return note(CUDA_SUCCESS, "cuMemGetAllocationPropertiesFromHandle", 0, "\"handle\": %llu", handle);
}

CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = (CUcontext)1;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(void **module, const void *image) {
    *module = (void *)(image ? 2UL : 0UL);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(const char **function, void *module, const char *name) {
    *function = strdup(name); /* a kernel's handle is its name */
    return module && !is_lacking(name) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuModuleUnload(void *module) {
    return note(CUDA_SUCCESS, "cuModuleUnload", 0, "\"module\": %llu", N(module));
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *ptr, size_t *size, void *module, const char *name) {
    *ptr = (CUdeviceptr)name[0]; /* a global's address is its first letter */
    *size = 8;
    return module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLaunchKernel(const char *kernel, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                        unsigned threads_z, unsigned shared, CUstream stream, void **parameters, void **extra) {
    const int is_word = !strcmp(kernel, "store") || !strcmp(kernel, "load");
    const size_t count = !strcmp(kernel, "fill") ? 0 : !strcmp(kernel, "store") ? 2 : 1;
    unsigned long long values[2] = {0, 0};
    for (size_t i = 0; i < count; i++) memcpy(&values[i], parameters[i], is_word ? 8 : 4);
    const unsigned rest[] = {z, threads_y, threads_z, shared, extra != NULL};
    return note(CUDA_SUCCESS, "cuLaunchKernel", 0,
                "\"kernel\": \"%s\", \"blocks\": %u, \"areas\": %u, \"threads\": %u, \"rest\": [%s], \"parameters\": [%s], "
                "\"stream\": %llu",
                kernel, x, y, threads, numbers_at(rest, 5, 4), numbers_at(values, count, 8), N(stream));
}

/* How cuda-python finds the functions: by their names without a version. */
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
    char versioned[128];
    Dl_info own;
    dladdr((void *)start, &own);
    void *library = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    Dl_info defined;
    *function = dlsym(library, versioned);
    if (!*function) *function = dlsym(library, name);
    if (*function && dladdr(*function, &defined) && strcmp(defined.dli_fname, own.dli_fname)) *function = NULL;
    if (found) *found = 0;
    if (is_lacking(name)) *function = NULL;
    if (*function) return CUDA_SUCCESS;
    if (!real_library) return (CUresult)500;
    CUresult (*real)(const char *, void **, int, uint64_t, int *) = dlsym(real_library, "cuGetProcAddress_v2");
    return real(name, function, version, flags, found);
}

CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
