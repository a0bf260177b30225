/* 100,000 calls that are recorded, and others that are not: 200,000 memsets and a million queries. Prints the seconds of
 * the start, µs of a recorded call, seconds of the others, and the free bytes of the GPU. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int main(void) {
    double begin = now();
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context, *event;
    if (!library) return 1;
    int (*init)(unsigned int) = (int (*)(unsigned int))dlsym(library, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(library, "cuDevicePrimaryCtxRetain");
    int (*use)(void *) = (int (*)(void *))dlsym(library, "cuCtxSetCurrent");
    int (*create)(void **, unsigned int) = (int (*)(void **, unsigned int))dlsym(library, "cuEventCreate");
    int (*destroy)(void *) = (int (*)(void *))dlsym(library, "cuEventDestroy_v2");
    int (*query)(void *) = (int (*)(void *))dlsym(library, "cuStreamQuery");
    int (*allocate)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))dlsym(library, "cuMemAlloc_v2");
    int (*set)(uint64_t, unsigned char, size_t, void *) = (int (*)(uint64_t, unsigned char, size_t, void *))dlsym(library, "cuMemsetD8Async");
    int (*synchronize)(void) = (int (*)(void))dlsym(library, "cuCtxSynchronize");
    int (*info)(size_t *, size_t *) = (int (*)(size_t *, size_t *))dlsym(library, "cuMemGetInfo_v2");
    uint64_t address;
    size_t left, total;
    if (init(0) || retain(&context, 0) || use(context)) return 1;
    double start = now() - begin;
    for (int at = 0; at < 1000; at++)
        if (create(&event, 0) || destroy(event)) return 1;
    begin = now();
    for (int at = 0; at < 50000; at++)
        if (create(&event, 0) || destroy(event)) return 1;
    double call = (now() - begin) / 100000 * 1e6;
    if (allocate(&address, 256)) return 1;
    begin = now();
    for (int at = 0; at < 1000000; at++) query(NULL);
    for (int at = 0; at < 200000; at++)
        if (set(address, 1, 256, NULL) || (at % 1000 == 0 && synchronize())) return 1;
    if (synchronize()) return 1;
    double other = now() - begin;
    if (info(&left, &total)) return 1;
    printf("{\"start\": %f, \"call\": %f, \"other\": %f, \"free\": %zu}\n", start, call, other, left);
    return 0;
}
