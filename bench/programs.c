/* Time of calls of the driver in µs, the best of many rounds: a query, and chunks that are created and released. */
#include <cuda.h>
#include <stdio.h>
#include <time.h>

CUresult cuMemGetInfo_v2(size_t *unused, size_t *total);
CUresult cuCtxSetCurrent(CUcontext context);

enum { ROUNDS = 60, CALLS = 100, SIZE = 2 << 20 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

int main(void) {
    CUcontext context;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    size_t unused, total;
    double query = 1e9, pair = 1e9;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now();
        for (int at = 0; at < CALLS; at++) cuMemGetInfo_v2(&unused, &total);
        double middle = now();
        for (int at = 0; at < CALLS; at++)
            if (cuMemCreate(&handle, SIZE, &properties, 0) || cuMemRelease(handle)) return 1;
        double end = now();
        if (middle - start < query) query = middle - start;
        if (end - middle < pair) pair = end - middle;
    }
    printf("%f %f\n", query / CALLS, pair / CALLS / 2);
    return 0;
}
