/* 100,000 calls of the driver that create and destroy events. Prints the seconds of the start, µs of a call, and the free
 * bytes of the GPU. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

enum { PAIRS = 50000 };

#define FUNCTION(name, ...) int (*name)(__VA_ARGS__) = (int (*)(__VA_ARGS__))dlsym(library, #name)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int main(void) {
    double begin = now();
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context, *event;
    size_t left, total;
    if (!library) return 1;
    FUNCTION(cuInit, unsigned int);
    FUNCTION(cuDevicePrimaryCtxRetain, void **, int);
    FUNCTION(cuCtxSetCurrent, void *);
    FUNCTION(cuEventCreate, void **, unsigned int);
    FUNCTION(cuEventDestroy_v2, void *);
    FUNCTION(cuMemGetInfo_v2, size_t *, size_t *);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    double start = now() - begin;
    if (cuMemGetInfo_v2(&left, &total)) return 1;
    begin = now();
    for (int at = 0; at < PAIRS; at++)
        if (cuEventCreate(&event, 0) || cuEventDestroy_v2(event)) return 1;
    double call = (now() - begin) / (2 * PAIRS);
    printf("{\"start\": %f, \"call\": %f, \"free\": %zu}\n", start, call * 1e6, left);
    return 0;
}
