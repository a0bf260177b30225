/* Imports a chunk from a held layout, with sockets and libcuda alone.
 *
 *     attach [--follow] LAYOUT EXPORT[.INDEX] [TEXT]
 *
 * LAYOUT is a layout's name or the path of its socket. A TEXT is written to where the chunk begins. Then its bytes are
 * read, and their checksum (FNV-1a, 64 bits) is printed. With --follow, the chunk stays mapped until the holder releases
 * the layout: when the holder takes its memory back, the program lets go of it and keeps the address, and when it is
 * there again, the program maps it at the same address and prints its checksum. The memory may also be gone at first. The exit status is 0, 1 where something
 * failed, 2 for wrong usage. Everything that was made is undone in reverse order, whatever fails. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "wire.h"

enum { BLOCK = 1 << 20 };

/* One imported chunk: its address is reserved, and memory is mapped there while `handle` is not 0. */
struct chunk {
    const struct cuda *cuda;
    struct offer offer;
    uint64_t index;
    int device;
    CUdeviceptr address;
    CUhandle handle;
    const char *text; /* to be written once memory is mapped */
};

static void shut(int fd) {
    if (fd >= 0) close(fd);
}

static bool checksum(const struct chunk *chunk) {
    const uint64_t size = chunk->offer.size;
    uint64_t sum = 0xcbf29ce484222325;
    unsigned char *block = malloc(BLOCK);
    if (!block) return false;
    bool ok = true;
    for (uint64_t at = 0, count; ok && at < size; at += count) {
        count = size - at < BLOCK ? size - at : BLOCK;
        ok = cuda_ok(chunk->cuda, chunk->cuda->to_host(block, chunk->address + at, count), "cuMemcpyDtoH");
        for (uint64_t i = 0; ok && i < count; i++) sum = (sum ^ block[i]) * 0x100000001b3;
    }
    free(block);
    if (ok) printf("checksum %016" PRIx64 " of %" PRIu64 " bytes at %#llx\n", sum, size, chunk->address);
    return ok;
}

static bool store(struct chunk *chunk) {
    const char *text = chunk->text;
    chunk->text = NULL;
    if (!text) return true;
    if (strlen(text) > chunk->offer.size) return fprintf(stderr, "attach: the text is longer than the chunk\n"), false;
    return cuda_ok(chunk->cuda, chunk->cuda->to_device(chunk->address, text, strlen(text)), "cuMemcpyHtoD");
}

/* Unmapping does not wait for work that uses the memory, so that is waited for. */
static bool let_go(struct chunk *chunk) {
    const struct cuda *cuda = chunk->cuda;
    if (!chunk->handle) return true;
    bool ok = cuda_ok(cuda, cuda->synchronize(), "cuCtxSynchronize");
    ok &= cuda_ok(cuda, cuda->unmap(chunk->address, chunk->offer.size), "cuMemUnmap");
    ok &= cuda_ok(cuda, cuda->release(chunk->handle), "cuMemRelease");
    chunk->handle = 0;
    return ok;
}

/* Imports a descriptor and maps it at the chunk's address. The imported handle has a reference of its own, so the
 * descriptor is closed at once: while it is open, in whatever process, the memory cannot be freed. An importer sets its
 * own access: a handle has none. */
static bool map(struct chunk *chunk, int fd) {
    const struct cuda *cuda = chunk->cuda;
    const CUmemAccessDesc grant = {{LOCATION_DEVICE, chunk->device}, ACCESS_READWRITE};
    CUhandle handle;
    const CUresult imported = cuda->import(&handle, (void *)(intptr_t)fd, HANDLE_POSIX_FD);
    close(fd);
    if (!cuda_ok(cuda, imported, "cuMemImportFromShareableHandle")) return false;
    if (!cuda_ok(cuda, cuda->map(chunk->address, chunk->offer.size, 0, handle, 0), "cuMemMap"))
        return cuda_ok(cuda, cuda->release(handle), "cuMemRelease"), false;
    chunk->handle = handle;
    return cuda_ok(cuda, cuda->access(chunk->address, chunk->offer.size, &grant, 1), "cuMemSetAccess");
}

/* Maps the memory that the holder has now, at the same address; none if it has none at present. */
static bool come_back(int sock, struct chunk *chunk, const struct notice *notice) {
    if (!let_go(chunk)) return false; /* of old memory, if the holder did not wait for us */
    struct offer offer;
    if (!wire_offer(sock, chunk->offer.name, &offer)) return false;
    if (offer.size != chunk->offer.size || strcmp(offer.gpu, chunk->offer.gpu))
        return fprintf(stderr, "attach: %s is not what it was\n", offer.name), false;
    const int fd = wire_descriptor(sock, &chunk->offer, chunk->index);
    if (fd == NOT_NOW) return printf("%s has no memory in state %s\n", offer.name, notice->state), true;
    return fd >= 0 && map(chunk, fd) && store(chunk) && checksum(chunk);
}

/* Follows the notices of the holder until it releases the layout, or is gone. */
static bool follow(int sock, struct chunk *chunk) {
    struct notice notice;
    while (wire_notice(sock, chunk->offer.name, &notice)) {
        if (!strcmp(notice.kind, "releasing")) return true;
        if (!notice.concerned) continue;
        if (!strcmp(notice.kind, "changing")) {
            if (!let_go(chunk) || !wire_let_go(sock, chunk->offer.name)) return false;
            printf("let go of %s\n", chunk->offer.name);
        } else if (!strcmp(notice.kind, "changed") && !come_back(sock, chunk, &notice)) {
            return false;
        }
    }
    return true;
}

static bool use(int sock, struct chunk *chunk, int fd, bool following) {
    const struct cuda *cuda = chunk->cuda;
    const bool reserved =
        cuda_ok(cuda, cuda->reserve(&chunk->address, chunk->offer.size, 0, 0, 0), "cuMemAddressReserve");
    if (!reserved) return shut(fd), false;
    const bool mapped = fd == NOT_NOW || (map(chunk, fd) && store(chunk) && checksum(chunk));
    bool ok = mapped && (!following || follow(sock, chunk));
    ok &= let_go(chunk);
    return cuda_ok(cuda, cuda->unreserve(chunk->address, chunk->offer.size), "cuMemAddressFree") && ok;
}

static bool with_context(int sock, struct chunk *chunk, int fd, bool following) {
    const struct cuda *cuda = chunk->cuda;
    CUcontext context;
    if (!cuda_ok(cuda, cuda->retain(&context, chunk->device), "cuDevicePrimaryCtxRetain")) return shut(fd), false;
    bool ok = cuda_ok(cuda, cuda->push(context), "cuCtxPushCurrent");
    if (ok) {
        ok = use(sock, chunk, fd, following);
        cuda->pop(&context);
    } else {
        shut(fd);
    }
    return cuda_ok(cuda, cuda->release_context(chunk->device), "cuDevicePrimaryCtxRelease") && ok;
}

static bool attach(int sock, char *export, const char *text, bool following) {
    struct cuda cuda;
    struct chunk chunk = {.cuda = &cuda, .text = text};
    struct offer *offer = &chunk.offer;
    char *dot = strchr(export, '.');
    chunk.index = dot ? strtoull(dot + 1, NULL, 10) : 0;
    if (dot) *dot = 0;
    if (!wire_offer(sock, export, offer)) return false;
    printf("%s: %" PRIu64 " x %" PRIu64 " bytes via %s%s%s\n", offer->name, offer->count, offer->size, offer->via,
           *offer->gpu ? " on GPU " : "", offer->gpu);
    if (!strcmp(offer->via, "dmabuf"))
        return fprintf(stderr, "attach: '%s' is a dma-buf: ./dmabuf takes it\n", offer->name), false;
    if (strcmp(offer->kind, "chunk") || strcmp(offer->via, "fd"))
        return fprintf(stderr, "attach: '%s' is of kind %s via %s, and this program imports chunks over fd alone\n",
                       offer->name, offer->kind, offer->via), false;
    int fd = wire_descriptor(sock, offer, chunk.index);
    if (fd == FAILED || (fd == NOT_NOW && !following)) return false;
    if (fd == NOT_NOW) printf("%s has no memory at present\n", offer->name);
    else printf("descriptor of %s.%" PRIu64 " received\n", offer->name, chunk.index);
    chunk.device = cuda_open(&cuda) ? cuda_device(&cuda, offer->gpu) : -1;
    if (chunk.device >= 0) return with_context(sock, &chunk, fd, following);
    shut(fd);
    return false;
}

int main(int count, char **words) {
    const bool following = count > 1 && !strcmp(words[1], "--follow");
    words += following;
    count -= following;
    if (count < 3 || count > 4) {
        fprintf(stderr, "usage: attach [--follow] LAYOUT EXPORT[.INDEX] [TEXT]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    int sock = wire_connect(words[1]);
    if (sock < 0) return 1;
    const bool ok = attach(sock, words[2], count == 4 ? words[3] : NULL, following);
    close(sock); /* ends the lease */
    return ok ? 0 : 1;
}
