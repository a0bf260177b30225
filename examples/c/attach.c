/* Imports a chunk from a held layout, with sockets and libcuda alone.
 *
 *     attach LAYOUT EXPORT[.INDEX] [TEXT]
 *
 * LAYOUT is a layout's name or the path of its socket. A TEXT is written to where the chunk begins. Then its bytes are
 * read, and their checksum (FNV-1a, 64 bits) is printed. The exit status is 0, 1 where something failed, 2 for wrong
 * usage. Everything that was made is undone in reverse order, whatever fails. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "wire.h"

enum { BLOCK = 1 << 20 };

static bool checksum(const struct cuda *cuda, CUdeviceptr address, uint64_t size) {
    uint64_t sum = 0xcbf29ce484222325;
    unsigned char *block = malloc(BLOCK);
    if (!block) return false;
    bool ok = true;
    for (uint64_t at = 0, count; ok && at < size; at += count) {
        count = size - at < BLOCK ? size - at : BLOCK;
        ok = cuda_ok(cuda, cuda->to_host(block, address + at, count), "cuMemcpyDtoH");
        for (uint64_t i = 0; ok && i < count; i++) sum = (sum ^ block[i]) * 0x100000001b3;
    }
    free(block);
    if (ok) printf("checksum %016" PRIx64 " of %" PRIu64 " bytes\n", sum, size);
    return ok;
}

static bool use(const struct cuda *cuda, CUdeviceptr address, uint64_t size, const char *text) {
    if (text && strlen(text) > size) return fprintf(stderr, "attach: the text is longer than the chunk\n"), false;
    if (text && !cuda_ok(cuda, cuda->to_device(address, text, strlen(text)), "cuMemcpyHtoD")) return false;
    return checksum(cuda, address, size);
}

/* An importer sets its own access: a handle has none. */
static bool map(const struct cuda *cuda, CUhandle handle, int device, uint64_t size, const char *text) {
    CUdeviceptr address;
    const CUmemAccessDesc grant = {{LOCATION_DEVICE, device}, ACCESS_READWRITE};
    if (!cuda_ok(cuda, cuda->reserve(&address, size, 0, 0, 0), "cuMemAddressReserve")) return false;
    bool ok = cuda_ok(cuda, cuda->map(address, size, 0, handle, 0), "cuMemMap");
    if (ok) {
        ok = cuda_ok(cuda, cuda->access(address, size, &grant, 1), "cuMemSetAccess") && use(cuda, address, size, text);
        ok &= cuda_ok(cuda, cuda->unmap(address, size), "cuMemUnmap");
    }
    return cuda_ok(cuda, cuda->unreserve(address, size), "cuMemAddressFree") && ok;
}

/* The imported handle has a reference of its own, so the descriptor is closed at once: while it is open, in whatever
 * process, the memory cannot be freed. */
static bool import(const struct cuda *cuda, int fd, int device, uint64_t size, const char *text) {
    CUhandle handle;
    CUcontext context;
    const CUresult imported = cuda->import(&handle, (void *)(intptr_t)fd, HANDLE_POSIX_FD);
    close(fd);
    if (!cuda_ok(cuda, imported, "cuMemImportFromShareableHandle")) return false;
    bool ok = cuda_ok(cuda, cuda->retain(&context, device), "cuDevicePrimaryCtxRetain");
    if (ok) {
        ok = cuda_ok(cuda, cuda->push(context), "cuCtxPushCurrent") && map(cuda, handle, device, size, text);
        cuda->pop(&context);
        ok &= cuda_ok(cuda, cuda->release_context(device), "cuDevicePrimaryCtxRelease");
    }
    return cuda_ok(cuda, cuda->release(handle), "cuMemRelease") && ok;
}

static bool attach(int sock, char *export, const char *text) {
    struct cuda cuda;
    struct offer offer;
    char *dot = strchr(export, '.');
    const uint64_t index = dot ? strtoull(dot + 1, NULL, 10) : 0;
    if (dot) *dot = 0;
    if (!wire_offer(sock, export, &offer)) return false;
    printf("%s: %" PRIu64 " x %" PRIu64 " bytes via %s on GPU %s\n", offer.name, offer.count, offer.size, offer.via,
           offer.gpu);
    if (strcmp(offer.kind, "chunk") || strcmp(offer.via, "fd"))
        return fprintf(stderr, "attach: this program imports chunks over fd alone\n"), false;
    int fd = wire_descriptor(sock, &offer, index);
    if (fd < 0) return false;
    printf("descriptor of %s.%" PRIu64 " received\n", offer.name, index);
    int device = cuda_open(&cuda) ? cuda_device(&cuda, offer.gpu) : -1;
    if (device >= 0) return import(&cuda, fd, device, offer.size, text);
    close(fd);
    return false;
}

int main(int count, char **words) {
    if (count < 3 || count > 4) {
        fprintf(stderr, "usage: attach LAYOUT EXPORT[.INDEX] [TEXT]\n");
        return 2;
    }
    int sock = wire_connect(words[1]);
    if (sock < 0) return 1;
    const bool ok = attach(sock, words[2], count == 4 ? words[3] : NULL);
    close(sock); /* ends the lease */
    return ok ? 0 : 1;
}
