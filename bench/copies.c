/* Copies between GPUs, and between a GPU and the host, by copy engine: the figures that 'memtopo probe --bandwidth' is
   held against. In nvbandwidth's way: 512 MiB, 16 copies in a row between two events, the median of 5 such series.

   cc -O2 copies.c -ldl -o copies && ./copies                                                                          */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define SIZE ((size_t)512 << 20)
#define COPIES 16
#define SERIES 5

typedef unsigned long long ptr;
#define F(name, ...) static int (*name)(__VA_ARGS__)
F(Init, unsigned); F(Count, int *); F(Retain, void **, int); F(Push, void *); F(Alloc, ptr *, size_t);
F(HostAlloc, void **, size_t, unsigned); F(Enable, void *, unsigned); F(Copy, ptr, ptr, size_t, void *);
F(StreamNew, void **, unsigned); F(EventNew, void **, unsigned); F(Record, void *, void *); F(StreamSync, void *);
F(Elapsed, float *, void *, void *); F(Free, ptr); F(HostFree, void *);

static void *lib;
static void *find(const char *name)
{
    void *found = dlsym(lib, name);
    if (!found) { fprintf(stderr, "libcuda has no %s\n", name); exit(3); }
    return found;
}
static void ok(int status, const char *what)
{
    if (status) { fprintf(stderr, "%s: error %d\n", what, status); exit(4); }
}
static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double rate(ptr to, ptr from)
{
    void *stream, *start, *end;
    double found[SERIES];
    ok(StreamNew(&stream, 1), "stream"); ok(EventNew(&start, 0), "event"); ok(EventNew(&end, 0), "event");
    for (int each = 0; each < SERIES; each++) {
        float ms;
        for (int i = 0; i < 4; i++) ok(Copy(to, from, SIZE, stream), "copy");
        ok(Record(start, stream), "record");
        for (int i = 0; i < COPIES; i++) ok(Copy(to, from, SIZE, stream), "copy");
        ok(Record(end, stream), "record"); ok(StreamSync(stream), "synchronize"); ok(Elapsed(&ms, start, end), "elapsed");
        found[each] = (double)SIZE * COPIES / (ms / 1e3) / 1e9;
    }
    qsort(found, SERIES, sizeof *found, order);
    return found[SERIES / 2];
}
int main(void)
{
    int count;
    void *context[16], *host;
    ptr memory[16];
    if (!(lib = dlopen("libcuda.so.1", RTLD_NOW))) { fprintf(stderr, "no libcuda here\n"); return 3; }
    *(void **)&Init = find("cuInit"); *(void **)&Count = find("cuDeviceGetCount");
    *(void **)&Retain = find("cuDevicePrimaryCtxRetain"); *(void **)&Push = find("cuCtxPushCurrent_v2");
    *(void **)&Alloc = find("cuMemAlloc_v2"); *(void **)&HostAlloc = find("cuMemHostAlloc");
    *(void **)&Enable = find("cuCtxEnablePeerAccess"); *(void **)&Copy = find("cuMemcpyAsync");
    *(void **)&StreamNew = find("cuStreamCreate"); *(void **)&EventNew = find("cuEventCreate");
    *(void **)&Record = find("cuEventRecord"); *(void **)&StreamSync = find("cuStreamSynchronize");
    *(void **)&Elapsed = find("cuEventElapsedTime"); *(void **)&Free = find("cuMemFree_v2");
    *(void **)&HostFree = find("cuMemFreeHost");
    ok(Init(0), "init"); ok(Count(&count), "count");
    for (int i = 0; i < count; i++) {
        ok(Retain(&context[i], i), "context"); ok(Push(context[i]), "push"); ok(Alloc(&memory[i], SIZE), "allocate");
    }
    for (int i = 0; i < count; i++) {
        ok(Push(context[i]), "push");
        ok(HostAlloc(&host, SIZE, 1), "host memory");
        printf("gpu%d host  to %.1f  from %.1f GB/s\n", i, rate(memory[i], (ptr)host), rate((ptr)host, memory[i]));
        ok(HostFree(host), "free");
        for (int j = 0; j < count; j++) {
            if (j == i) continue;
            Enable(context[j], 0);
            printf("gpu%d gpu%d  to %.1f  from %.1f GB/s\n", i, j, rate(memory[j], memory[i]), rate(memory[i], memory[j]));
        }
    }
    for (int i = 0; i < count; i++) ok(Free(memory[i]), "free");
    return 0;
}
