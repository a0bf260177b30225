/* Receives a dma-buf of a held layout and inspects it: the first step of a program that registers GPU memory at a
 * network card. It needs neither CUDA nor a GPU.
 *
 *     dmabuf [--follow] LAYOUT EXPORT[.INDEX]
 *
 * It prints the size that the descriptor reports, the exporter from /proc/self/fdinfo, the answer of DMA_BUF_IOCTL_SYNC,
 * and whether the CPU can map it. A network card registers it in place of this:
 *
 *     struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, size, iova, fd, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
 *
 * With --follow, it keeps the descriptor until the holder takes the memory back, closes it, reports that, and takes
 * another one when the memory is there again. An open descriptor keeps the memory, as does what is registered with it: so
 * ibv_dereg_mr comes before close. The exit status is 0, 1 where something failed, 2 for wrong usage. */
#include <errno.h>
#include <inttypes.h>
#include <linux/ioctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "wire.h"

/* Of linux/dma-buf.h, which may be older than the calls. */
struct sync {
    uint64_t flags;
};
#define SYNC _IOW('b', 0, struct sync)
enum { SYNC_READ = 1, SYNC_END = 4 };

struct dma_buf {
    struct offer offer;
    uint64_t index;
    int fd; /* -1 while the memory is gone */
};

static void print_fdinfo(int fd) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(path, "re");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        if (!strncmp(line, "size:", 5) || !strncmp(line, "exp_name:", 9)) printf("  %s", line);
    }
    fclose(file);
}

/* The CPU cannot map a dma-buf of a GPU's memory (fact 83); one of a simulator is a file, which it can. */
static void print_cpu_use(int fd, size_t size) {
    struct sync sync = {SYNC_READ};
    const bool begun = !ioctl(fd, SYNC, &sync);
    printf("  sync: %s\n", begun ? "begun" : strerror(errno));
    void *mapped = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    printf("  mmap: %s\n", mapped == MAP_FAILED ? "not by the CPU" : "mapped");
    if (mapped != MAP_FAILED) munmap(mapped, size);
    sync.flags = SYNC_READ | SYNC_END;
    if (begun && ioctl(fd, SYNC, &sync)) printf("  end of sync: %s\n", strerror(errno));
}

/* Takes a descriptor of the memory that there is now. The offer and the kernel agree on its size, or it is refused. */
static bool take(int sock, struct dma_buf *buf) {
    buf->fd = wire_descriptor(sock, &buf->offer, buf->index);
    if (buf->fd == NOT_NOW) return printf("%s has no memory at present\n", buf->offer.name), buf->fd = -1, true;
    if (buf->fd < 0) return buf->fd = -1, false;
    const off_t end = lseek(buf->fd, 0, SEEK_END);
    printf("%s.%" PRIu64 ": a dma-buf of %lld bytes\n", buf->offer.name, buf->index, (long long)end);
    if (end < 0 || (uint64_t)end != buf->offer.size)
        return fprintf(stderr, "dmabuf: %" PRIu64 " bytes were offered\n", buf->offer.size), false;
    print_fdinfo(buf->fd);
    print_cpu_use(buf->fd, (size_t)end);
    return true;
}

static void let_go(struct dma_buf *buf) {
    if (buf->fd >= 0) close(buf->fd); /* after ibv_dereg_mr */
    buf->fd = -1;
}

/* Takes the memory that the holder has now, which may be of another size. */
static bool take_again(int sock, struct dma_buf *buf) {
    struct offer offer;
    if (!wire_offer(sock, buf->offer.name, &offer)) return false;
    buf->offer = offer;
    return take(sock, buf);
}

static bool follow(int sock, struct dma_buf *buf) {
    struct notice notice;
    while (wire_notice(sock, buf->offer.name, &notice)) {
        if (!strcmp(notice.kind, "releasing")) return true;
        if (!notice.concerned) continue;
        const bool goes = !strcmp(notice.kind, "changing");
        if (goes || !strcmp(notice.kind, "changed")) let_go(buf);
        if (goes) {
            if (!wire_let_go(sock, buf->offer.name)) return false;
            printf("let go of %s\n", buf->offer.name);
        } else if (!strcmp(notice.kind, "changed") && !take_again(sock, buf)) {
            return false;
        }
    }
    return true;
}

int main(int count, char **words) {
    const bool following = count > 1 && !strcmp(words[1], "--follow");
    words += following;
    count -= following;
    if (count != 3) {
        fprintf(stderr, "usage: dmabuf [--follow] LAYOUT EXPORT[.INDEX]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct dma_buf buf = {.fd = -1};
    char *dot = strchr(words[2], '.');
    buf.index = dot ? strtoull(dot + 1, NULL, 10) : 0;
    if (dot) *dot = 0;
    const int sock = wire_connect(words[1]);
    if (sock < 0) return 1;
    bool ok = wire_offer(sock, words[2], &buf.offer);
    if (ok && strcmp(buf.offer.via, "dmabuf")) {
        fprintf(stderr, "dmabuf: %s is via %s\n", buf.offer.name, buf.offer.via);
        ok = false;
    }
    ok = ok && take(sock, &buf) && (!following || follow(sock, &buf));
    let_go(&buf);
    close(sock); /* ends the lease */
    return ok ? 0 : 1;
}
