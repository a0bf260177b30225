/* Calls of the driver that are recorded, and others that are not: 100,000 that create and destroy events, then queries
 * and memsets in blocks. Prints the seconds of the start, µs of a call of each kind (of the fastest block), and the free
 * bytes of the GPU. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { BLOCKS = 8, QUERIES = 100000, SETS = 20000, PAIRS = 50000 };

#define FUNCTION(name, ...) int (*name)(__VA_ARGS__) = (int (*)(__VA_ARGS__))dlsym(library, #name)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static double least(double one, double other) { return one < other ? one : other; }

int main(void) {
    double begin = now(), query = 1e9, set = 1e9;
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context, *event;
    uint64_t address;
    size_t left, total;
    if (!library) return 1;
    FUNCTION(cuInit, unsigned int);
    FUNCTION(cuDevicePrimaryCtxRetain, void **, int);
    FUNCTION(cuCtxSetCurrent, void *);
    FUNCTION(cuCtxSynchronize, void);
    FUNCTION(cuEventCreate, void **, unsigned int);
    FUNCTION(cuEventDestroy_v2, void *);
    FUNCTION(cuStreamQuery, void *);
    FUNCTION(cuMemAlloc_v2, uint64_t *, size_t);
    FUNCTION(cuMemsetD8Async, uint64_t, unsigned char, size_t, void *);
    FUNCTION(cuMemGetInfo_v2, size_t *, size_t *);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    double start = now() - begin;
    if (cuMemGetInfo_v2(&left, &total) || cuMemAlloc_v2(&address, 256)) return 1;
    begin = now();
    for (int at = 0; at < PAIRS; at++)
        if (cuEventCreate(&event, 0) || cuEventDestroy_v2(event)) return 1;
    double call = (now() - begin) / (2 * PAIRS);
    for (int block = 0; block < BLOCKS; block++) {
        begin = now();
        for (int at = 0; at < QUERIES; at++) cuStreamQuery(NULL);
        query = least(query, (now() - begin) / QUERIES);
        begin = now();
        for (int at = 0; at < SETS; at++)
            if (cuMemsetD8Async(address, 1, 256, NULL) || (at % 500 == 0 && cuCtxSynchronize())) return 1;
        if (cuCtxSynchronize()) return 1;
        set = least(set, (now() - begin) / SETS);
    }
    printf("{\"start\": %f, \"call\": %f, \"query\": %f, \"memset\": %f, \"free\": %zu}\n", start, call * 1e6, query * 1e6, set * 1e6, left);
    return 0;
}
