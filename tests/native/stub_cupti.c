/* libcupti.so.13, or with -DCUDA libcuda.so.1, which loads CUDA_INJECTION64_PATH as the driver does.
 *
 * A test makes a call by `stub_call`, with the structure of its parameters as CUPTI's headers declare it. CUPTI_NAMES has
 * the names of the functions, separated by commas; CUPTI_RESULT the result of a subscription, CUDA_RESULT that of cuInit. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef CUDA

static _Thread_local int device = -1;

int cuInit(unsigned int flags) {
    static int done;
    const char *path = getenv("CUDA_INJECTION64_PATH"), *result = getenv("CUDA_RESULT");
    if (result) return atoi(result);
    if (done++ || !path || flags) return 0;
    void *library = dlopen(path, RTLD_NOW);
    int (*initialize)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : NULL;
    if (initialize) initialize();
    return 0;
}

int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuDeviceGetCount(int *count) { return *count = 2, 0; }
int cuDeviceGet(int *found, int ordinal) { return *found = ordinal, 0; }

int cuDeviceGetUuid_v2(unsigned char *uuid, int of) {
    memset(uuid, 0xab, 16);
    uuid[15] = (unsigned char)of;
    return 0;
}

/* Properties of a chunk: fd, of NUMA node 1 of the host. */
int cuMemGetAllocationPropertiesFromHandle(int *properties, unsigned long long chunk) {
    if (!chunk) return 400;
    properties[0] = properties[1] = 1;
    properties[2] = 3;
    properties[3] = 1;
    return 0;
}

int cuCtxGetDevice(int *current) { return device < 0 ? 201 : (*current = device, 0); }
int cuCtxSetCurrent(void *context) { return device = (int)(intptr_t)context - 1, 0; }

int cuGetErrorName(int error, const char **name) {
    if (error != 2) return 1;
    *name = "CUDA_ERROR_OUT_OF_MEMORY";
    return 0;
}

#else

typedef struct {
    int site;
    const char *function;
    const void *parameters;
    const int *result;
    const char *symbol;
    void *context;
    uint32_t context_number;
    uint64_t *ours;
    uint32_t number;
} callback_t;

enum { MOST = 1024 };
static void (*subscribed)(void *, int, uint32_t, const callback_t *);
static char *names[MOST];
static unsigned char enabled[MOST];

int cuptiSubscribe(void **subscriber, void *function, void *user) {
    (void)user;
    const char *result = getenv("CUPTI_RESULT"), *given = getenv("CUPTI_NAMES");
    if (result && atoi(result)) return atoi(result);
    if (subscribed) return 39;
    subscribed = (void (*)(void *, int, uint32_t, const callback_t *))function;
    *subscriber = &subscribed;
    memset(enabled, 0, sizeof enabled);
    if (names[1]) return 0;
    char *rest = strdup(given ? given : "");
    for (int id = 1; id < MOST && rest; id++) names[id] = strsep(&rest, ",");
    return 0;
}

int cuptiUnsubscribe(void *subscriber) { return subscribed = NULL, subscriber ? 0 : 1; }

int cuptiGetCallbackName(int domain, uint32_t id, const char **name) {
    if (domain != 1 || id >= MOST || !names[id]) return 1;
    return *name = names[id], 0;
}

int cuptiEnableCallback(uint32_t enable, void *subscriber, int domain, uint32_t id) {
    if (subscriber != &subscribed || domain != 1 || id >= MOST) return 1;
    return enabled[id] = (unsigned char)enable, 0;
}

int cuptiGetResultString(int result, const char **text) {
    return *text = result == 39 ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : "CUPTI_ERROR_OTHER", 0;
}

/* Make a call that returns a result; return whether CUPTI reports it to a subscriber. */
int stub_call(const char *name, const void *parameters, int result) {
    uint64_t ours = 0;
    for (uint32_t id = 1; id < MOST; id++) {
        if (!names[id] || strcmp(names[id], name) || !enabled[id] || !subscribed) continue;
        callback_t data = {0, name, parameters, NULL, NULL, NULL, 0, &ours, id};
        subscribed(NULL, 1, id, &data);
        data.site = 1;
        data.result = &result;
        if (subscribed) subscribed(NULL, 1, id, &data);
        return 1;
    }
    return 0;
}

/* Make so many calls, with a pause after each. */
int stub_calls(const char *name, const void *parameters, int most) {
    while (most--) {
        stub_call(name, parameters, 0);
        usleep(100);
    }
    return 0;
}

static struct { const char *name; const void *parameters; } other;

static void *call_other(void *unused) { return stub_call(other.name, other.parameters, 0), unused; }

/* Make a call by a thread that is not Python's. */
int stub_thread(const char *name, const void *parameters) {
    pthread_t thread;
    other.name = name;
    other.parameters = parameters;
    return pthread_create(&thread, NULL, call_other, NULL) || pthread_join(thread, NULL);
}

#endif
