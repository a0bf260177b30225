#pragma once
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../files.h"
#include "lines.h"

/* Stacks of calls, innermost function first, without folders of files. */

enum { NO_STACKS, C_STACKS, PYTHON_STACKS } stacks;
static pthread_mutex_t stack_mutex = PTHREAD_MUTEX_INITIALIZER; /* of the threads that write one, and of nobody else */

enum { MOST_FRAMES = 96, LONGEST_FRAME = 384, CACHED = 2048 };

/* Texts of frames by address: to find a symbol takes the loader long. */
static struct { void *address; char text[LONGEST_FRAME]; } cache[CACHED];

static const char *base_name(const char *path) {
    const char *found = strrchr(path, '/');
    return found ? found + 1 : path;
}

static int is_hidden(const char *module) {
    Dl_info own;
    if (!strncmp(module, "libcupti", 8) || !strncmp(module, "libcuda.so", 10)) return 1;
    return dladdr((void *)(uintptr_t)is_hidden, &own) && !strcmp(module, base_name(own.dli_fname));
}

/* Module and symbol of an address; empty for one that is not shown. */
static void describe_frame(void *address, char text[LONGEST_FRAME]) {
    Dl_info found;
    text[0] = 0;
    if (!dladdr(address, &found) || !found.dli_fname || is_hidden(base_name(found.dli_fname))) return;
    const char *module = base_name(found.dli_fname);
    if (found.dli_sname) snprintf(text, LONGEST_FRAME, "%.100s:%s", module, found.dli_sname);
    else snprintf(text, LONGEST_FRAME, "%.100s:+0x%zx", module, (size_t)((char *)address - (char *)found.dli_fbase));
}

/* Text of an address. The lock is not held while the loader is asked: its own lock may be held by a thread that loads a
 * library whose start makes a call, and waits for this one. */
static void frame_text(void *address, char text[LONGEST_FRAME]) {
    size_t slot = ((uintptr_t)address >> 2 ^ (uintptr_t)address >> 13) % CACHED;
    pthread_mutex_lock(&stack_mutex);
    int is_known = cache[slot].address == address;
    if (is_known) strcpy(text, cache[slot].text);
    pthread_mutex_unlock(&stack_mutex);
    if (is_known) return;
    describe_frame(address, text);
    pthread_mutex_lock(&stack_mutex);
    cache[slot].address = NULL; /* a process may be forked meanwhile */
    strcpy(cache[slot].text, text);
    cache[slot].address = address;
    pthread_mutex_unlock(&stack_mutex);
}

static int has_room(const line_t *line) { return line->length < LONGEST - ROOM; }

static void put_separator(line_t *line) { put(line, line->text[line->length - 1] == '[' ? "\"" : ", \""); }

static void put_c_stack(line_t *line) {
    void *frames[MOST_FRAMES];
    char text[LONGEST_FRAME];
    int count = backtrace(frames, MOST_FRAMES);
    for (int at = 0; at < count && has_room(line); at++) {
        /* The last byte of the call, since what it returns to may be the next function. */
        frame_text((char *)frames[at] - 1, text);
        if (!*text) continue;
        put_separator(line);
        put_escaped(line, text, strlen(text));
        put(line, "\"");
    }
}

static struct {
    void *(*thread_state)(void);
    void (*dump)(int file, void *thread_state);
    int (*is_finalizing)(void);
    file_t file; /* in memory */
    /* Python 3.13 exports no dump, but the offsets of what a debugger reads. */
    const uint64_t *offsets;
    const void *code_type;
    int (*line_of)(const void *code, int offset);
} python = {.file = {.number = -1}};

static void put_python_frame(line_t *line, const char *path, size_t length, uint64_t number, const char *name, size_t name_length) {
    const char *base = path + length;
    while (base > path && base[-1] != '/') base--;
    length -= (size_t)(base - path);
    put_separator(line);
    put_escaped(line, base, length < 128 ? length : 128);
    put(line, ":");
    put_number(line, number);
    put(line, " ");
    put_escaped(line, name, name_length < 256 ? name_length : 256);
    put(line, "\"");
}

/* A line of the interpreter's own dump, such as `  File "/a/b.py", line 3 in run`. */
static void put_dumped_frame(line_t *line, const char *text, const char *end) {
    static const char before[] = "  File \"", middle[] = "\", line ";
    if ((size_t)(end - text) < sizeof before || memcmp(text, before, sizeof before - 1)) return;
    const char *path = text + sizeof before - 1, *quote = memmem(path, (size_t)(end - path), middle, sizeof middle - 1);
    if (!quote) return;
    const char *number = quote + sizeof middle - 1, *after = memmem(number, (size_t)(end - number), " in ", 4);
    if (after) put_python_frame(line, path, (size_t)(quote - path), strtoull(number, NULL, 10), after + 4, (size_t)(end - after - 4));
}

/* The interpreter writes the frames of this thread by a function of its own that is made for crashes: without its lock,
 * without memory, without references. Nobody else changes these frames, since this thread is in a call. */
static void put_dumped_stack(line_t *line, void *state) {
    static char text[LONGEST];
    pthread_mutex_lock(&stack_mutex);
    ssize_t length = -1;
    if (!is_kept(&python.file)) python.file = keep(memfd_create("memtopo", MFD_CLOEXEC));
    int file = python.file.number;
    if (!ftruncate(file, 0) && !lseek(file, 0, SEEK_SET)) {
        python.dump(file, state);
        length = pread(file, text, sizeof text, 0);
    }
    for (const char *at = text, *end; length > 0 && at < text + length && has_room(line); at = end + 1) {
        end = memchr(at, '\n', (size_t)(text + length - at));
        if (!end) break;
        put_dumped_frame(line, at, end);
    }
    pthread_mutex_unlock(&stack_mutex);
}

/* Places in the table of offsets of Python 3.13, _Py_DebugOffsets. */
enum {
    VERSION = 1, CURRENT_FRAME = 23, PREVIOUS = 29, EXECUTABLE = 30, INSTRUCTION = 31, OWNER = 33, FILE_NAME = 35, NAME = 36,
    CODE = 43, TYPE = 45, STATE = 68, LENGTH = 69, TEXT = 70,
};

static const char *member(const char *object, int offset) { return object + python.offsets[offset]; }

static const char *pointer(const char *object, int offset) { return *(const char *const *)member(object, offset); }

/* The characters of a string if they are ASCII. */
static const char *characters(const char *string, size_t *length) {
    enum { COMPACT_ASCII = 1 << 5 | 1 << 6 };
    int is_ascii = (*(const unsigned int *)member(string, STATE) & COMPACT_ASCII) == COMPACT_ASCII;
    *length = is_ascii ? (size_t)*(const uint64_t *)member(string, LENGTH) : 1;
    return is_ascii ? member(string, TEXT) : "?";
}

static void put_walked_stack(line_t *line, const char *state) {
    enum { OF_C = 3, MOST = 100 };
    const char *frame = pointer(state, CURRENT_FRAME);
    for (int count = 0; frame && count < MOST && has_room(line); frame = pointer(frame, PREVIOUS), count++) {
        const char *code = *member(frame, OWNER) == OF_C ? NULL : pointer(frame, EXECUTABLE);
        if (!code || pointer(code, TYPE) != python.code_type) continue;
        size_t length, name_length;
        const char *path = characters(pointer(code, FILE_NAME), &length), *name = characters(pointer(code, NAME), &name_length);
        int number = python.line_of(code, (int)(pointer(frame, INSTRUCTION) - member(code, CODE)));
        put_python_frame(line, path, length, number > 0 ? (uint64_t)number : 0, name, name_length);
    }
}

/* An interpreter that ends frees the states of all threads but the main one, which may make calls meanwhile. */
static void *thread_state(void) {
    int is_main = syscall(SYS_gettid) == getpid();
    if (!python.thread_state || (!is_main && python.is_finalizing && python.is_finalizing())) return NULL;
    return python.thread_state();
}

static void put_python_stack(line_t *line) {
    void *state = thread_state();
    if (state && python.dump) put_dumped_stack(line, state);
    else if (state && python.offsets) put_walked_stack(line, state);
}

static void put_stack(line_t *line) {
    put(line, ", \"stack\": [");
    if (stacks == C_STACKS) put_c_stack(line);
    else put_python_stack(line);
    put(line, "]");
}

static int load_python(void) {
    python.thread_state = (void *(*)(void))(uintptr_t)dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
    python.dump = (void (*)(int, void *))(uintptr_t)dlsym(RTLD_DEFAULT, "_Py_DumpTraceback");
    python.is_finalizing = (int (*)(void))(uintptr_t)dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    if (!python.is_finalizing) python.is_finalizing = (int (*)(void))(uintptr_t)dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    python.code_type = dlsym(RTLD_DEFAULT, "PyCode_Type");
    python.line_of = (int (*)(const void *, int))(uintptr_t)dlsym(RTLD_DEFAULT, "PyCode_Addr2Line");
    python.offsets = dlsym(RTLD_DEFAULT, "_PyRuntime");
    int is_known = python.offsets && !memcmp(python.offsets, "xdebugpy", 8) && python.offsets[VERSION] >> 16 == 0x030d;
    if (!is_known || !python.code_type || !python.line_of) python.offsets = NULL;
    return python.thread_state && (python.dump || python.offsets);
}

/* Return false if stacks of Python are wanted, and this process has no interpreter that gives them. */
static int prepare_stacks(const char *kind) {
    void *frames[4];
    stacks = !strcmp(kind, "c") ? C_STACKS : !strcmp(kind, "python") ? PYTHON_STACKS : NO_STACKS;
    if (stacks == C_STACKS) backtrace(frames, 4); /* the first one loads a library */
    return stacks != PYTHON_STACKS || load_python();
}

/* In a process that was forked: the lock may be another thread's, and the file in memory is shared. */
static void restart_stacks(void) {
    pthread_mutex_init(&stack_mutex, NULL);
    end_file(&python.file);
}

static void end_stacks(void) { end_file(&python.file); }
