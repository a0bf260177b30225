#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct entry {
    const char *symbol;
    size_t offset;
};

#define ENTRY(member, symbol) {symbol, offsetof(struct cuda, member)}

/* A name without a suffix may be an older form of the call, for other types. */
static const struct entry ENTRIES[] = {
    ENTRY(init, "cuInit"),
    ENTRY(name, "cuGetErrorName"),
    ENTRY(count, "cuDeviceGetCount"),
    ENTRY(uuid, "cuDeviceGetUuid_v2"), /* as memtopo does: each MIG instance has its own UUID */
    ENTRY(retain, "cuDevicePrimaryCtxRetain"),
    ENTRY(release_context, "cuDevicePrimaryCtxRelease_v2"),
    ENTRY(push, "cuCtxPushCurrent_v2"),
    ENTRY(pop, "cuCtxPopCurrent_v2"),
    ENTRY(synchronize, "cuCtxSynchronize"),
    ENTRY(import, "cuMemImportFromShareableHandle"),
    ENTRY(reserve, "cuMemAddressReserve"),
    ENTRY(map, "cuMemMap"),
    ENTRY(access, "cuMemSetAccess"),
    ENTRY(unmap, "cuMemUnmap"),
    ENTRY(release, "cuMemRelease"),
    ENTRY(unreserve, "cuMemAddressFree"),
    ENTRY(to_host, "cuMemcpyDtoH_v2"),
    ENTRY(to_device, "cuMemcpyHtoD_v2"),
};

bool cuda_open(struct cuda *cuda) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "attach: no libcuda: %s\n", dlerror());
        return false;
    }
    for (size_t i = 0; i < sizeof ENTRIES / sizeof *ENTRIES; i++) {
        void *call = dlsym(library, ENTRIES[i].symbol);
        if (!call) {
            fprintf(stderr, "attach: this libcuda has no %s\n", ENTRIES[i].symbol);
            return false;
        }
        memcpy((char *)cuda + ENTRIES[i].offset, &call, sizeof call);
    }
    return cuda_ok(cuda, cuda->init(0), "cuInit");
}

bool cuda_ok(const struct cuda *cuda, CUresult result, const char *call) {
    const char *name = "an unknown error";
    if (!result) return true;
    cuda->name(result, &name);
    fprintf(stderr, "attach: %s: %s\n", call, name);
    return false;
}

int cuda_device(const struct cuda *cuda, const char *uuid) {
    int count = 0;
    if (!cuda_ok(cuda, cuda->count(&count), "cuDeviceGetCount")) return -1;
    for (int device = 0; device < count; device++) {
        CUuuid found;
        char text[33];
        if (!cuda_ok(cuda, cuda->uuid(&found, device), "cuDeviceGetUuid")) return -1;
        for (int i = 0; i < 16; i++) snprintf(text + 2 * i, 3, "%02x", found.bytes[i]);
        if (!strcmp(text, uuid)) return device;
    }
    fprintf(stderr, "attach: no GPU of this process has the UUID '%s'\n", uuid);
    return -1;
}
