/* Eight threads make calls of the stub of CUPTI while a ninth starts, marks and ends captures of them. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

int memtopo_capture_start(const char *, const char *, const char *, const char *, char *, size_t);

static int (*make_call)(const char *, const void *, int);
static atomic_int ended;

static void *work(void *number) {
    uint64_t made = (uint64_t)(uintptr_t)number, size = made;
    location_t where = {1, 0};
    access_t grants[2] = {{where, 3}, {where, 1}};
    char secret[64] = "secret";
    struct { uint64_t *made, size; } allocation = {&made, size};
    struct { uint64_t address, size; access_t *grants; uint64_t count; } access = {made, size, grants, 2};
    struct { char *handle; uint64_t address; } exported = {secret, made};
    while (!atomic_load(&ended)) {
        make_call("cuMemAlloc_v2", &allocation, 0);
        make_call("cuMemSetAccess", &access, 2);
        make_call("cuIpcGetMemHandle", &exported, 0);
    }
    return NULL;
}

int main(int count, char **arguments) {
    static const char *const kinds[] = {"none", "c", "none"};
    pthread_t threads[8];
    char message[512];
    if (count < 3) return 1;
    void *library = dlopen(arguments[2], RTLD_NOW);
    make_call = (int (*)(const char *, const void *, int))dlsym(library, "stub_call");
    for (int round = 0; round < 12; round++) {
        int result = memtopo_capture_start(arguments[1], arguments[2], kinds[round % 3], "0", message, sizeof message);
        if (result) return fprintf(stderr, "%d %s\n", result, message), 1;
        for (int mark = 0; mark < 20; mark++) memtopo_capture_mark("\"a mark\"");
        memtopo_capture_stop();
        for (uintptr_t each = 0; !round && each < 8; each++) pthread_create(threads + each, NULL, work, (void *)(each + 1));
    }
    atomic_store(&ended, 1);
    for (int each = 0; each < 8; each++) pthread_join(threads[each], NULL);
    puts("ok");
    return 0;
}
