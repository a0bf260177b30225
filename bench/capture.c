/* 100,000 calls that are recorded, and a million that are not: µs of one of each, and seconds until the first one. */
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
    if (init(0) || retain(&context, 0) || use(context)) return 1;
    double start = now() - begin;
    for (int at = 0; at < 1000; at++)
        if (create(&event, 0) || destroy(event)) return 1;
    begin = now();
    for (int at = 0; at < 50000; at++)
        if (create(&event, 0) || destroy(event)) return 1;
    double call = (now() - begin) / 100000 * 1e6;
    begin = now();
    for (int at = 0; at < 1000000; at++) query(NULL);
    printf("{\"start\": %f, \"call\": %f, \"other\": %f}\n", start, call, now() - begin);
    return 0;
}
