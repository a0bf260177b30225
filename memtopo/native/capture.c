/* Capture: a line of JSON for each memory call that a program makes of the CUDA driver, written when the call returns.
 *
 * The driver loads this library into a program (CUDA_INJECTION64_PATH) or Python does, and CUPTI calls it at the
 * beginning and the end of each call that it enables. A line is one write() to a file that is opened to append, so lines
 * of threads and processes do not mix, and a process that is killed has lost nothing. No thread is started, no signal
 * handled, and Python's interpreter lock never taken. Declarations are those of cuda.h and of CUPTI's headers.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "files.h"
#include "capture/functions.h"
#include "capture/lines.h"
#include "capture/record.h"
#include "capture/stacks.h"
#include "capture/values.h"

/* As in cupti_callbacks.h. */
typedef struct {
    int site;
    const char *function;
    const void *parameters;
    const int *result;
    const char *symbol;
    void *context;
    uint32_t context_number;
    uint64_t *ours; /* for each call, kept from its beginning to its end */
    uint32_t number;
} callback_t;
typedef void (*callback_function_t)(void *user, int domain, uint32_t id, const callback_t *data);

enum { DRIVER_CALLS = 1, AT_BEGINNING = 0, MOST_IDS = 4096 };

/* The capture of this process. */

static struct {
    int (*get_version)(int *version);
    int (*get_count)(int *count);
    int (*get_device)(int *device, int ordinal);
    int (*get_uuid)(unsigned char *uuid, int device);
    int (*current_device)(int *device);
    int (*error_name)(int error, const char **name);
} driver;

static struct {
    int (*subscribe)(void **subscriber, callback_function_t function, void *user);
    int (*unsubscribe)(void *subscriber);
    int (*enable)(uint32_t enable, void *subscriber, int domain, uint32_t id);
    int (*name_of)(int domain, uint32_t id, const char **name);
    int (*text_of)(int result, const char **text);
} cupti;

static struct {
    char version[64];
    uint64_t start, number;
    pid_t pid;
    pthread_once_t head;
} process;

static const function_t *by_id[MOST_IDS];
static void *subscriber;
static int inside; /* threads that write a line */
static __thread int thread;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static int thread_number(void) {
    if (!thread) thread = (int)syscall(SYS_gettid);
    return thread;
}

/* The first line of a process, when its first call is recorded: the driver is initialised then. */

static void put_started(line_t *line) {
    struct timespec time;
    struct tm parts;
    char text[80];
    uint64_t at = 0, closest = UINT64_MAX;
    for (int reading = 0; reading < 8; reading++) { /* the system may suspend the process between two of them */
        uint64_t before = now();
        clock_gettime(CLOCK_REALTIME, &time);
        uint64_t apart = now() - before;
        if (apart >= closest) continue;
        closest = apart;
        at = (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec - (before + apart / 2 - process.start);
    }
    time_t seconds = (time_t)(at / 1000000000);
    gmtime_r(&seconds, &parts);
    size_t length = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(text + length, sizeof text - length, ".%06d+00:00", (int)(at % 1000000000 / 1000));
    put(line, text);
}

static void put_gpus(line_t *line) {
    int count = 0, device;
    unsigned char uuid[16];
    char text[64];
    put(line, "[");
    if (driver.get_count && driver.get_device && driver.get_uuid && driver.get_count(&count)) count = 0;
    for (int ordinal = 0; ordinal < count && ordinal < 256; ordinal++) {
        if (driver.get_device(&device, ordinal) || driver.get_uuid(uuid, device)) break;
        size_t length = (size_t)snprintf(text, sizeof text, "%s\"GPU-", ordinal ? ", " : "");
        for (int at = 0; at < 16; at++)
            length += (size_t)snprintf(text + length, sizeof text - length, "%s%02x", at == 4 || at == 6 || at == 8 || at == 10 ? "-" : "", uuid[at]);
        put(line, text);
        put(line, "\"");
    }
    put(line, "]");
}

static void write_head(void) {
    line_t line; /* not cleared, since it is long */
    line.length = 0;
    char text[512];
    int version = 0, saved = errno;
    if (driver.get_version) driver.get_version(&version);
    snprintf(text, sizeof text,
             "{\"memtopo_trace_file\": 1, \"memtopo\": \"%s\", \"layout\": \"\", \"process\": \"%d\", \"machine\": \"local\", "
             "\"simulated\": false, \"driver\": \"CUDA %d.%d\", \"pid\": %d, \"started\": \"",
             process.version, (int)process.pid, version / 1000, version % 1000 / 10, (int)process.pid);
    put(&line, text);
    put_started(&line);
    put(&line, "\", \"gpus\": ");
    put_gpus(&line);
    put(&line, "}");
    write_line(&line);
    errno = saved;
}

/* Lines of calls. */

static void put_call(line_t *line, const char *call, size_t length, const char *method, uint64_t began) {
    put(line, "{\"n\": ");
    put_number(line, __atomic_add_fetch(&process.number, 1, __ATOMIC_RELAXED));
    put(line, ", \"time\": ");
    put_seconds(line, began > process.start ? began - process.start : 0);
    put(line, ", \"process\": \"");
    put_number(line, (uint64_t)process.pid);
    put(line, "\", \"phase\": \"\", \"thread\": ");
    put_number(line, (uint64_t)thread_number());
    int device;
    if (driver.current_device && !driver.current_device(&device)) put_named(line, "device", (uint64_t)device);
    put(line, ", \"call\": \"");
    put_bytes(line, call, length);
    put(line, "\", \"method\": \"");
    put(line, method);
    put(line, "\", \"arguments\": {");
}

/* Length of the name of a function without its version. */
static size_t plain_length(const char *name) {
    size_t length = strlen(name);
    return length > 3 && name[length - 3] == '_' && name[length - 2] == 'v' ? length - 3 : length;
}

static void put_error(line_t *line, int result) {
    const char *name = NULL;
    if (driver.error_name && !driver.error_name(result, &name) && name) {
        put(line, "\"");
        put(line, name);
    } else {
        put(line, "\"CUDA_ERROR_");
        put_signed(line, result);
    }
    put(line, "\"");
}

static void write_call(const function_t *function, const callback_t *data, uint64_t began, uint64_t ended) {
    line_t line; /* not cleared, since it is long */
    line.length = 0;
    int result = data->result ? *data->result : 0;
    put_call(&line, function->name, plain_length(function->name), function->method, began);
    for (int at = 0; function->parameters[at].type != END; at++)
        if (function->parameters[at].name) put_argument(&line, function, data->parameters, at, result);
    put(&line, result ? "}, \"error\": " : "}, \"result\": ");
    if (result) put_error(&line, result);
    else put_result(&line, function, data->parameters);
    put(&line, ", \"seconds\": ");
    put_seconds(&line, ended - began);
    if (stacks) put_stack(&line);
    put(&line, "}");
    write_line(&line);
}

/* Begin to write a line, unless the record has ended. What is written until `leave` has a file. */
static int enter(void) {
    __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&recording, __ATOMIC_SEQ_CST)) {
        __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
        return 0;
    }
    pthread_once(&process.head, write_head);
    return 1;
}

static void leave(void) { __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST); }

static void on_call(void *user, int domain, uint32_t id, const callback_t *data) {
    (void)user;
    if (domain != DRIVER_CALLS || id >= MOST_IDS) return;
    if (data->site == AT_BEGINNING) {
        *data->ours = now();
        return;
    }
    int saved = errno;
    uint64_t ended = now(), began = *data->ours && *data->ours <= ended ? *data->ours : ended;
    if (enter()) {
        if (by_id[id]) write_call(by_id[id], data, began, ended);
        leave();
    }
    errno = saved;
}

/* Start and end. */

static void begin_process(void) {
    process.head = (pthread_once_t)PTHREAD_ONCE_INIT;
    process.number = 0;
    process.start = now();
    process.pid = getpid();
    thread = 0;
}

/* A process that is forked is another one in the record, with files in memory of its own. */
static void after_fork(void) {
    inside = 0;
    restart_stacks();
    begin_process();
}

__attribute__((constructor)) static void start(void) { pthread_atfork(NULL, NULL, after_fork); }

#define LOAD(table, library, member, name) table.member = (__typeof__(table.member))(uintptr_t)dlsym(library, name)

static int load_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return 0;
    LOAD(driver, library, get_version, "cuDriverGetVersion");
    LOAD(driver, library, get_count, "cuDeviceGetCount");
    LOAD(driver, library, get_device, "cuDeviceGet");
    LOAD(driver, library, get_uuid, "cuDeviceGetUuid_v2");
    LOAD(driver, library, current_device, "cuCtxGetDevice");
    LOAD(driver, library, error_name, "cuGetErrorName");
    *(void **)&properties_of = dlsym(library, "cuMemGetAllocationPropertiesFromHandle");
    return 1;
}

/* CUPTI, the one that the program has if it has one: two in a process do not go together. */
static int load_cupti(const char *path) {
    void *library = dlopen("libcupti.so.13", RTLD_NOW | RTLD_NOLOAD);
    if (!library) library = dlopen("libcupti.so.12", RTLD_NOW | RTLD_NOLOAD);
    if (!library) library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return 0;
    LOAD(cupti, library, subscribe, "cuptiSubscribe");
    LOAD(cupti, library, unsubscribe, "cuptiUnsubscribe");
    LOAD(cupti, library, enable, "cuptiEnableCallback");
    LOAD(cupti, library, name_of, "cuptiGetCallbackName");
    LOAD(cupti, library, text_of, "cuptiGetResultString");
    return cupti.subscribe && cupti.unsubscribe && cupti.enable && cupti.name_of;
}

static const function_t *function_named(const char *name) {
    size_t length = strlen(name);
    if (length > 5 && !strcmp(name + length - 5, "_ptsz")) length -= 5;
    for (size_t at = 0; at < FUNCTIONS; at++)
        if (strlen(functions[at].name) == length && !strncmp(functions[at].name, name, length)) return functions + at;
    return NULL;
}

/* Enable the calls of the table; return their number. */
static int enable_calls(void) {
    int count = 0;
    for (uint32_t id = 1; id < MOST_IDS; id++) {
        const char *name = NULL;
        const function_t *found = cupti.name_of(DRIVER_CALLS, id, &name) || !name ? NULL : function_named(name);
        by_id[id] = found;
        if (found && !cupti.enable(1, subscriber, DRIVER_CALLS, id)) count++;
    }
    return count;
}

/* Results of functions for Python: 0, an error of CUPTI (above 0), or one of these. */
enum { NO_DRIVER = -1, NO_CUPTI = -2, NO_FILE = -3, NO_PYTHON = -4, NO_CALLS = -5, RUNNING = -6 };

static void describe(char *message, size_t room, const char *text) { snprintf(message, room, "%s", text ? text : ""); }

int memtopo_capture_runs(void) { return subscriber != NULL; }

/* Record this process from now on, in a file that exists. */
int memtopo_capture_start(const char *path, const char *cupti_path, const char *stack_kind, const char *version, char *message, size_t room) {
    struct rlimit limit;
    describe(message, room, "");
    if (subscriber) return RUNNING;
    if (!load_driver()) return describe(message, room, dlerror()), NO_DRIVER;
    if (!load_cupti(cupti_path)) return describe(message, room, dlerror()), NO_CUPTI;
    snprintf(record.path, sizeof record.path, "%s", path);
    snprintf(process.version, sizeof process.version, "%s", version);
    if (!open_record()) return describe(message, room, strerror(errno)), NO_FILE;
    record.limited = getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur != RLIM_INFINITY;
    begin_process();
    int has_stacks = prepare_stacks(stack_kind), result = cupti.subscribe(&subscriber, on_call, NULL);
    if (result) {
        const char *text = NULL;
        if (cupti.text_of) cupti.text_of(result, &text);
        end_file(&record.file);
        subscriber = NULL;
        return describe(message, room, text), result;
    }
    int count = enable_calls();
    __atomic_store_n(&recording, 1, __ATOMIC_SEQ_CST);
    return !count ? NO_CALLS : has_stacks ? 0 : NO_PYTHON;
}

/* End the record of this process, when the calls of other threads are written. */
void memtopo_capture_stop(void) {
    if (!subscriber) return;
    __atomic_store_n(&recording, 0, __ATOMIC_SEQ_CST);
    cupti.unsubscribe(subscriber);
    subscriber = NULL;
    while (__atomic_load_n(&inside, __ATOMIC_SEQ_CST)) sched_yield();
    end_file(&record.file);
    end_stacks();
}

/* Write a line with a label, a string of JSON; return whether a capture runs. */
int memtopo_capture_mark(const char *label) {
    line_t line; /* not cleared, since it is long */
    line.length = 0;
    if (strlen(label) > LONGEST_LABEL || !enter()) return 0;
    put_call(&line, "mark", 4, "mark", now());
    put_name(&line, "label");
    put(&line, label);
    put(&line, "}, \"result\": null, \"seconds\": 0.0}");
    write_line(&line);
    leave();
    return 1;
}

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

/* The driver calls this when it has loaded the library. What fails must not end the program. */
int InitializeInjection(void) {
    char message[512];
    if (!*variable("MEMTOPO_CAPTURE")) return 1;
    int saved = errno;
    int result = memtopo_capture_start(variable("MEMTOPO_CAPTURE"), variable("MEMTOPO_CAPTURE_CUPTI"), variable("MEMTOPO_CAPTURE_STACKS"),
                                       variable("MEMTOPO_CAPTURE_VERSION"), message, sizeof message);
    if (result == NO_PYTHON) fprintf(stderr, "memtopo capture: process %d is recorded without stacks: it has no Python that gives them\n", (int)getpid());
    else if (result && result != RUNNING)
        fprintf(stderr, "memtopo capture: process %d is not recorded: %s (error %d)\n", (int)getpid(), message, result);
    errno = saved;
    return 1;
}
