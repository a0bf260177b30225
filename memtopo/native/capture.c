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
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Functions: the parameters in the order of the C declaration, each with its name in memtopo's protocol. */

typedef enum {
    END,
    MADE,        /* pointer to the 64-bit number that the call makes: an address or a handle */
    MADE_TOO,    /* pointer to a second one, which is written as an argument */
    MADE_INT,    /* pointer to a 32-bit number */
    MADE_VALUE,  /* pointer to the value of the attribute of a pool */
    MADE_SHARED, /* pointer to a descriptor or to bytes, by the parameter "kind" */
    MADE_SECRET, /* pointer to the bytes of a handle */
    NUMBER,      /* 64 bits: an address, a size, an object */
    UNSIGNED,    /* 32 bits: flags */
    SIGNED,      /* 32 bits: the ordinal of a GPU, an enumeration */
    PLACE,       /* 32 bits: the ordinal of a GPU as a location, -1 for the host */
    LOCATION,    /* CUmemLocation */
    AT_LOCATION, /* pointer to a CUmemLocation */
    VALUE,       /* pointer to the value of the attribute of a pool */
    GRANTS,      /* pointer to CUmemAccessDesc; their number follows */
    PROPERTIES,  /* pointer to CUmemAllocationProp */
    POOL,        /* pointer to CUmemPoolProps */
    SHARED,      /* a descriptor as a pointer, or a pointer to bytes, by the parameter "kind" */
    SECRET,      /* the 64 bytes of a handle */
    AT_SECRET,   /* pointer to them */
    MEMORY,      /* pointer to CUDA_EXTERNAL_MEMORY_HANDLE_DESC */
    PART,        /* pointer to CUDA_EXTERNAL_MEMORY_BUFFER_DESC */
    SEMAPHORE,   /* pointer to CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC */
    MULTICAST,   /* pointer to CUmulticastObjectProp */
} type_t;

enum { MOST_PARAMETERS = 8, MOST_GRANTS = 64, SECRET_BYTES = 64 };

typedef struct { type_t type; const char *name; } parameter_t; /* one without a name is not written */
typedef struct {
    const char *name, *method;
    parameter_t parameters[MOST_PARAMETERS + 1];
} function_t;

#define ADDRESS {NUMBER, "address"}
#define SIZE {NUMBER, "size"}
#define FLAGS {NUMBER, "flags"} /* of 64 bits */
#define FLAGS_32 {UNSIGNED, "flags"}
#define HANDLE {NUMBER, "handle"}
#define KIND {SIGNED, "kind"}
#define STREAM {NUMBER, "stream"}
#define OF_POOL {NUMBER, "pool"}
#define DEVICE {SIGNED, "device"}
#define RESULT {MADE, NULL}
#define SHARED_RESULT {MADE_SHARED, NULL}
#define NOT_WRITTEN(type) {type, NULL}

static const function_t functions[] = {
    {"cuMemAddressReserve", "mem_address_reserve", {RESULT, SIZE, {NUMBER, "alignment"}, ADDRESS, FLAGS}},
    {"cuMemAddressFree", "mem_address_free", {ADDRESS, SIZE}},
    {"cuMemCreate", "mem_create", {RESULT, SIZE, {PROPERTIES, "properties"}, FLAGS}},
    {"cuMemRelease", "mem_release", {HANDLE}},
    {"cuMemMap", "mem_map", {ADDRESS, SIZE, {NUMBER, "offset"}, HANDLE, FLAGS}},
    {"cuMemUnmap", "mem_unmap", {ADDRESS, SIZE}},
    {"cuMemSetAccess", "mem_set_access", {ADDRESS, SIZE, {GRANTS, "grants"}, NOT_WRITTEN(NUMBER)}},
    {"cuMemRetainAllocationHandle", "mem_retain_allocation_handle", {RESULT, ADDRESS}},
    {"cuMemExportToShareableHandle", "mem_export_to_shareable_handle", {SHARED_RESULT, HANDLE, KIND, FLAGS}},
    {"cuMemImportFromShareableHandle", "mem_import_from_shareable_handle", {RESULT, {SHARED, "shared"}, KIND}},
    {"cuMemGetHandleForAddressRange", "mem_get_handle_for_address_range",
     {{MADE_INT, NULL}, ADDRESS, SIZE, NOT_WRITTEN(SIGNED), FLAGS}},
    {"cuMemAlloc_v2", "mem_alloc", {RESULT, SIZE}},
    {"cuMemAllocPitch_v2", "mem_alloc_pitch",
     {RESULT, {MADE_TOO, "pitch"}, {NUMBER, "width"}, {NUMBER, "height"}, {UNSIGNED, "element"}}},
    {"cuMemFree_v2", "mem_free", {ADDRESS}},
    {"cuMemAllocAsync", "mem_alloc_async", {RESULT, SIZE, STREAM}},
    {"cuMemFreeAsync", "mem_free_async", {ADDRESS, STREAM}},
    {"cuMemAllocFromPoolAsync", "mem_alloc_from_pool_async", {RESULT, SIZE, OF_POOL, STREAM}},
    {"cuMemAllocManaged", "mem_alloc_managed", {RESULT, SIZE, FLAGS_32}},
    {"cuMemAllocHost_v2", "mem_alloc_host", {RESULT, SIZE}},
    {"cuMemHostAlloc", "mem_host_alloc", {RESULT, SIZE, FLAGS_32}},
    {"cuMemFreeHost", "mem_free_host", {ADDRESS}},
    {"cuMemHostRegister_v2", "mem_host_register", {ADDRESS, SIZE, FLAGS_32}},
    {"cuMemHostUnregister", "mem_host_unregister", {ADDRESS}},
    {"cuMemPoolCreate", "mem_pool_create", {RESULT, {POOL, "properties"}}},
    {"cuMemPoolDestroy", "mem_pool_destroy", {OF_POOL}},
    {"cuMemPoolSetAttribute", "mem_pool_set_attribute", {OF_POOL, {SIGNED, "attribute"}, {VALUE, "value"}}},
    {"cuMemPoolGetAttribute", "mem_pool_get_attribute", {OF_POOL, {SIGNED, "attribute"}, {MADE_VALUE, NULL}}},
    {"cuMemPoolSetAccess", "mem_pool_set_access", {OF_POOL, {GRANTS, "grants"}, NOT_WRITTEN(NUMBER)}},
    {"cuMemPoolGetAccess", "mem_pool_get_access", {{MADE_INT, NULL}, OF_POOL, {AT_LOCATION, "location"}}},
    {"cuMemPoolTrimTo", "mem_pool_trim_to", {OF_POOL, {NUMBER, "keep"}}},
    {"cuMemPoolExportToShareableHandle", "mem_pool_export_to_shareable_handle", {SHARED_RESULT, OF_POOL, KIND, FLAGS}},
    {"cuMemPoolImportFromShareableHandle", "mem_pool_import_from_shareable_handle",
     {RESULT, {SHARED, "shared"}, KIND, FLAGS}},
    {"cuMemPoolExportPointer", "mem_pool_export_pointer", {{MADE_SECRET, NULL}, ADDRESS}},
    {"cuMemPoolImportPointer", "mem_pool_import_pointer", {RESULT, OF_POOL, {AT_SECRET, "data"}}},
    {"cuDeviceGetDefaultMemPool", "device_get_default_mem_pool", {RESULT, DEVICE}},
    {"cuDeviceGetMemPool", "device_get_mem_pool", {RESULT, DEVICE}},
    {"cuDeviceSetMemPool", "device_set_mem_pool", {DEVICE, OF_POOL}},
    {"cuMemGetDefaultMemPool", "mem_get_default_mem_pool", {RESULT, {AT_LOCATION, "location"}, {SIGNED, "type"}}},
    {"cuMemGetMemPool", "mem_get_mem_pool", {RESULT, {AT_LOCATION, "location"}, {SIGNED, "type"}}},
    {"cuMemSetMemPool", "mem_set_mem_pool", {{AT_LOCATION, "location"}, {SIGNED, "type"}, OF_POOL}},
    {"cuMemAdvise", "mem_advise", {ADDRESS, SIZE, {SIGNED, "advice"}, {PLACE, "location"}}},
    {"cuMemAdvise_v2", "mem_advise", {ADDRESS, SIZE, {SIGNED, "advice"}, {LOCATION, "location"}}},
    {"cuMemPrefetchAsync", "mem_prefetch_async", {ADDRESS, SIZE, {PLACE, "location"}, STREAM}},
    {"cuMemPrefetchAsync_v2", "mem_prefetch_async",
     {ADDRESS, SIZE, {LOCATION, "location"}, NOT_WRITTEN(UNSIGNED), STREAM}},
    {"cuStreamAttachMemAsync", "stream_attach_mem_async", {STREAM, ADDRESS, NOT_WRITTEN(NUMBER), FLAGS_32}},
    {"cuIpcGetMemHandle", "ipc_get_mem_handle", {{MADE_SECRET, NULL}, ADDRESS}},
    {"cuIpcOpenMemHandle", "ipc_open_mem_handle", {RESULT, {SECRET, "handle"}, FLAGS_32}},
    {"cuIpcOpenMemHandle_v2", "ipc_open_mem_handle", {RESULT, {SECRET, "handle"}, FLAGS_32}},
    {"cuIpcCloseMemHandle", "ipc_close_mem_handle", {ADDRESS}},
    {"cuIpcGetEventHandle", "ipc_get_event_handle", {{MADE_SECRET, NULL}, {NUMBER, "event"}}},
    {"cuIpcOpenEventHandle", "ipc_open_event_handle", {RESULT, {SECRET, "handle"}}},
    {"cuEventCreate", "event_create", {RESULT, FLAGS_32}},
    {"cuEventDestroy", "event_destroy", {{NUMBER, "event"}}},
    {"cuEventDestroy_v2", "event_destroy", {{NUMBER, "event"}}},
    {"cuImportExternalMemory", "import_external_memory", {RESULT, {MEMORY, ""}}},
    {"cuExternalMemoryGetMappedBuffer", "external_memory_get_mapped_buffer", {RESULT, {NUMBER, "memory"}, {PART, ""}}},
    {"cuDestroyExternalMemory", "destroy_external_memory", {{NUMBER, "memory"}}},
    {"cuImportExternalSemaphore", "import_external_semaphore", {RESULT, {SEMAPHORE, ""}}},
    {"cuDestroyExternalSemaphore", "destroy_external_semaphore", {{NUMBER, "semaphore"}}},
    {"cuMulticastCreate", "multicast_create", {RESULT, {MULTICAST, ""}}},
    {"cuMulticastAddDevice", "multicast_add_device", {HANDLE, DEVICE}},
    {"cuMulticastBindMem", "multicast_bind_mem",
     {HANDLE, {NUMBER, "offset"}, {NUMBER, "chunk"}, {NUMBER, "chunk_offset"}, SIZE, FLAGS}},
    {"cuMulticastBindMem_v2", "multicast_bind_mem",
     {HANDLE, DEVICE, {NUMBER, "offset"}, {NUMBER, "chunk"}, {NUMBER, "chunk_offset"}, SIZE, FLAGS}},
    {"cuMulticastBindAddr", "multicast_bind_addr", {HANDLE, {NUMBER, "offset"}, ADDRESS, SIZE, FLAGS}},
    {"cuMulticastBindAddr_v2", "multicast_bind_addr", {HANDLE, DEVICE, {NUMBER, "offset"}, ADDRESS, SIZE, FLAGS}},
    {"cuMulticastUnbind", "multicast_unbind", {HANDLE, DEVICE, {NUMBER, "offset"}, SIZE}},
    {"cuDevicePrimaryCtxRetain", "device_primary_ctx_retain", {RESULT, DEVICE}},
    {"cuDevicePrimaryCtxRelease", "device_primary_ctx_release", {DEVICE}},
    {"cuDevicePrimaryCtxRelease_v2", "device_primary_ctx_release", {DEVICE}},
    {"cuDevicePrimaryCtxReset", "device_primary_ctx_reset", {DEVICE}},
    {"cuDevicePrimaryCtxReset_v2", "device_primary_ctx_reset", {DEVICE}},
    {"cuCtxCreate", "ctx_create", {RESULT, FLAGS_32, DEVICE}},
    {"cuCtxCreate_v2", "ctx_create", {RESULT, FLAGS_32, DEVICE}},
    {"cuCtxCreate_v3", "ctx_create", {RESULT, NOT_WRITTEN(NUMBER), NOT_WRITTEN(SIGNED), FLAGS_32, DEVICE}},
    {"cuCtxCreate_v4", "ctx_create", {RESULT, NOT_WRITTEN(NUMBER), FLAGS_32, DEVICE}},
    {"cuCtxDestroy", "ctx_destroy", {{NUMBER, "context"}}},
    {"cuCtxDestroy_v2", "ctx_destroy", {{NUMBER, "context"}}},
};

enum { FUNCTIONS = sizeof functions / sizeof *functions };

/* As in cuda.h. */
typedef struct { int type, id; } location_t;
typedef struct { location_t location; int flags; } access_t;
typedef struct {
    int type, handles;
    location_t location;
    void *win32;
    unsigned char compression, rdma;
} properties_t;
typedef struct {
    int type, handles;
    location_t location;
    void *win32;
    size_t most;
} pool_t;
typedef struct {
    int kind;
    union { int fd; void *both[2]; } handle;
    unsigned long long size;
    unsigned int flags;
} memory_t;
typedef struct { unsigned long long offset, size; } part_t;
typedef struct {
    int kind;
    union { int fd; void *both[2]; } handle;
} semaphore_t;
typedef struct {
    unsigned int devices;
    size_t size;
    unsigned long long handles, flags;
} multicast_t;

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

/* A line, which is longer than the buffer in no case: lists and stacks end before. */

enum { LONGEST = 32768, LONGEST_LABEL = 4096, ROOM = 1024 };

typedef struct {
    size_t length;
    char text[LONGEST];
} line_t;

static void put_bytes(line_t *line, const char *text, size_t length) {
    if (length > LONGEST - line->length) length = LONGEST - line->length;
    memcpy(line->text + line->length, text, length);
    line->length += length;
}

static void put(line_t *line, const char *text) { put_bytes(line, text, strlen(text)); }

static void put_number(line_t *line, uint64_t value) {
    char digits[20];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + value % 10);
    while (value /= 10);
    put_bytes(line, digits + at, sizeof digits - at);
}

static void put_signed(line_t *line, int64_t value) {
    if (value < 0) put(line, "-");
    put_number(line, value < 0 ? -(uint64_t)value : (uint64_t)value);
}

/* A number of seconds, from nanoseconds. */
static void put_seconds(line_t *line, uint64_t nanoseconds) {
    uint64_t rest = nanoseconds % 1000000000;
    put_number(line, nanoseconds / 1000000000);
    put(line, ".");
    for (uint64_t digit = 100000000; digit > rest && digit > 1; digit /= 10) put(line, "0");
    put_number(line, rest);
}

/* The text of a string, in which nothing ends its quotation. */
static void put_escaped(line_t *line, const char *text, size_t length) {
    for (size_t at = 0; at < length; at++) {
        unsigned char each = (unsigned char)text[at];
        char one = each < ' ' || each > '~' ? '?' : (char)each;
        if (one == '"' || one == '\\') put(line, "\\");
        put_bytes(line, &one, 1);
    }
}

/* The beginning of the SHA-256 of a handle's bytes: it pairs an export with its imports, and gives no access. */

static uint32_t turned(uint32_t value, int bits) { return value >> bits | value << (32 - bits); }

/* First 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t roots[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static void digest_block(uint32_t state[8], const unsigned char *block) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + (turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
               (turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t one = s[7] + (turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + roots[i] + w[i];
        uint32_t two = (turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

static uint64_t digest(const unsigned char secret[SECRET_BYTES]) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const unsigned char end[SECRET_BYTES] = {[0] = 0x80, [62] = SECRET_BYTES * 8 >> 8};
    digest_block(state, secret);
    digest_block(state, end);
    return (uint64_t)state[0] << 32 | state[1];
}

static void put_secret(line_t *line, const void *secret) {
    char text[32];
    snprintf(text, sizeof text, "\"handle:%016llx\"", secret ? (unsigned long long)digest(secret) : 0);
    put(line, text);
}

/* Values of parameters. */

static void put_location(line_t *line, location_t where) {
    enum { GPU = 1, HOST = 2, HOST_NUMA = 3 };
    put(line, where.type == GPU ? "\"gpu" : where.type == HOST ? "\"host" : "\"host:");
    if (where.type == GPU || where.type == HOST_NUMA) put_signed(line, where.id);
    put(line, where.type == GPU || where.type == HOST || where.type == HOST_NUMA ? "\"" : "current\"");
}

static void put_handles(line_t *line, int types) {
    static const char *const names[] = {"fd", "win32", "win32_kmt", "fabric"};
    const char *before = "[";
    for (int bit = 0; bit < 4; bit++)
        if (types >> bit & 1) {
            put(line, before);
            put(line, "\"");
            put(line, names[bit]);
            put(line, "\"");
            before = ", ";
        }
    put(line, types & 15 ? "]" : "[]");
}

static void put_grants(line_t *line, const access_t *grants, uint64_t count) {
    put(line, "[");
    for (uint64_t at = 0; grants && at < count && at < MOST_GRANTS; at++) {
        put(line, at ? ", {\"location\": " : "{\"location\": ");
        put_location(line, grants[at].location);
        put(line, ", \"access\": \"");
        int flags = grants[at].flags;
        put(line, flags == 3 ? "rw" : flags == 1 ? "r" : flags ? "flags " : "none");
        if (flags && flags != 1 && flags != 3) put_signed(line, flags);
        put(line, "\"}");
    }
    if (count > MOST_GRANTS) {
        put(line, ", \"");
        put_number(line, count - MOST_GRANTS);
        put(line, " more\"");
    }
    put(line, "]");
}

static void put_properties(line_t *line, const properties_t *properties) {
    put(line, "{\"location\": ");
    put_location(line, properties->location);
    put(line, ", \"handles\": ");
    put_handles(line, properties->handles);
    put(line, ", \"rdma\": ");
    put(line, properties->rdma ? "true" : "false");
    put(line, ", \"compressible\": ");
    put(line, properties->compression ? "true}" : "false}");
}

static void put_pool(line_t *line, const pool_t *pool) {
    put(line, "{\"location\": ");
    put_location(line, pool->location);
    put(line, ", \"handles\": ");
    put_handles(line, pool->handles);
    put(line, ", \"max_size\": ");
    put_number(line, pool->most);
    put(line, "}");
}

static void put_name(line_t *line, const char *name) {
    if (line->text[line->length - 1] != '{') put(line, ", ");
    put(line, "\"");
    put(line, name);
    put(line, "\": ");
}

static void put_named(line_t *line, const char *name, uint64_t value) {
    put_name(line, name);
    put_number(line, value);
}

/* The descriptor of an external object of one of two kinds; objects of other kinds have none. */
static void put_external(line_t *line, int kind, int fd) {
    put_name(line, "fd");
    if (kind == 1 || kind == 9) put_signed(line, fd);
    else put(line, "null");
    put_named(line, "kind", (unsigned int)kind);
}

static void put_memory(line_t *line, const memory_t *memory) {
    put_external(line, memory->kind, memory->handle.fd);
    put_named(line, "size", memory->size);
    put_name(line, "dedicated");
    put(line, memory->flags & 1 ? "true" : "false");
}

static void put_multicast(line_t *line, const multicast_t *object) {
    put_named(line, "devices", object->devices);
    put_named(line, "size", object->size);
    put_named(line, "handles", object->handles);
    put_named(line, "flags", object->flags);
}

/* An attribute of a pool has 64 bits if it is a number of bytes. */
static void put_attribute(line_t *line, int attribute, const void *value) {
    enum { RELEASE_THRESHOLD = 4, USED_MEM_HIGH = 8, MAX_POOL_SIZE = 13 };
    int wide = (attribute >= RELEASE_THRESHOLD && attribute <= USED_MEM_HIGH) || attribute == MAX_POOL_SIZE;
    if (wide) put_number(line, *(const uint64_t *)value);
    else put_signed(line, *(const int *)value);
}

/* Parameters lie as in a structure of C. */

static size_t size_of(type_t type) {
    switch (type) {
    case UNSIGNED: case SIGNED: case PLACE: return 4;
    case SECRET: return SECRET_BYTES;
    default: return 8;
    }
}

static size_t alignment_of(type_t type) {
    return type == SECRET ? 1 : type == LOCATION || size_of(type) == 4 ? 4 : 8;
}

/* Where a parameter lies, by its index. */
static const void *parameter(const function_t *function, const void *parameters, int index) {
    size_t offset = 0;
    for (int at = 0;; at++) {
        size_t alignment = alignment_of(function->parameters[at].type);
        offset = (offset + alignment - 1) / alignment * alignment;
        if (at == index) return (const char *)parameters + offset;
        offset += size_of(function->parameters[at].type);
    }
}

static int value_named(const function_t *function, const void *parameters, const char *name) {
    for (int at = 0; function->parameters[at].type != END; at++)
        if (function->parameters[at].name && !strcmp(function->parameters[at].name, name))
            return *(const int *)parameter(function, parameters, at);
    return 0;
}

static void put_shared(line_t *line, int kind, const void *at, int is_result) {
    enum { FD = 1 };
    if (kind == FD) put_signed(line, is_result ? *(const int *)at : (int)(intptr_t)at);
    else put_secret(line, at);
}

/* An argument that the pointer `to` leads to. */
static void put_pointed(line_t *line, type_t type, const void *to, const function_t *function, const void *all) {
    switch (type) {
    case AT_LOCATION: put_location(line, *(const location_t *)to); break;
    case VALUE: put_attribute(line, value_named(function, all, "attribute"), to); break;
    case PROPERTIES: put_properties(line, to); break;
    case POOL: put_pool(line, to); break;
    case AT_SECRET: put_secret(line, to); break;
    default: put_number(line, *(const uint64_t *)to); break;
    }
}

/* Arguments that are members of a description, each under its own name. */
static int put_members(line_t *line, type_t type, const void *to) {
    if (type != MEMORY && type != PART && type != SEMAPHORE && type != MULTICAST) return 0;
    if (!to) return 1;
    if (type == MEMORY) put_memory(line, to);
    if (type == MULTICAST) put_multicast(line, to);
    if (type == SEMAPHORE) put_external(line, ((const semaphore_t *)to)->kind, ((const semaphore_t *)to)->handle.fd);
    if (type == PART) {
        put_named(line, "offset", ((const part_t *)to)->offset);
        put_named(line, "size", ((const part_t *)to)->size);
    }
    return 1;
}

static void put_argument(line_t *line, const function_t *function, const void *all, int index, int failed) {
    const parameter_t *each = function->parameters + index;
    const void *at = parameter(function, all, index), *to = *(void *const *)at;
    location_t place = {1, *(const int *)at};
    if (!each->name || (each->type == MADE_TOO && (failed || !to)) || put_members(line, each->type, to)) return;
    put_name(line, each->name);
    switch (each->type) {
    case NUMBER: put_number(line, *(const uint64_t *)at); break;
    case UNSIGNED: put_number(line, *(const unsigned int *)at); break;
    case SIGNED: put_signed(line, *(const int *)at); break;
    case PLACE: put_location(line, place.id < 0 ? (location_t){2, 0} : place); break;
    case LOCATION: put_location(line, *(const location_t *)at); break;
    case GRANTS: put_grants(line, to, *(const uint64_t *)((const char *)at + 8)); break;
    case SHARED: put_shared(line, value_named(function, all, "kind"), to, 0); break;
    case SECRET: put_secret(line, at); break;
    default:
        if (to) put_pointed(line, each->type, to, function, all);
        else put(line, "null");
    }
}

static void put_result(line_t *line, const function_t *function, const void *all) {
    for (int at = 0; function->parameters[at].type != END; at++) {
        type_t type = function->parameters[at].type;
        if (type == MADE_TOO || type > MADE_SECRET) continue;
        const void *to = *(void *const *)parameter(function, all, at);
        if (!to) break;
        if (type == MADE) put_number(line, *(const uint64_t *)to);
        if (type == MADE_INT) put_signed(line, *(const int *)to);
        if (type == MADE_VALUE) put_attribute(line, value_named(function, all, "attribute"), to);
        if (type == MADE_SHARED) put_shared(line, value_named(function, all, "kind"), to, 1);
        if (type == MADE_SECRET) put_secret(line, to);
        return;
    }
    put(line, "null");
}

/* The capture of this process. */

enum { NO_STACKS, C_STACKS, PYTHON_STACKS };

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
    char path[4096], version[64];
    int file, stacks, limited;
    dev_t device;
    ino_t inode;
    uint64_t start, number;
    pid_t pid;
    pthread_once_t head;
} process = {.file = -1};

static const function_t *by_id[MOST_IDS];
static void *subscriber;
static int recording, inside; /* whether calls are recorded, and threads that write one */
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

/* Writing. */

static int open_record(void) {
    struct stat found;
    int file = open(process.path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY), high;
    if (file < 0) return -1;
    /* Out of the way of programs that count on the smallest number. */
    if ((high = fcntl(file, F_DUPFD_CLOEXEC, 500)) >= 0) {
        close(file);
        file = high;
    }
    if (fstat(file, &found)) return -1;
    process.device = found.st_dev;
    process.inode = found.st_ino;
    return process.file = file;
}

/* Whether the descriptor is still that of the record: a program may close all that it did not open, and open others. */
static int is_open(void) {
    struct stat found;
    return !fstat(process.file, &found) && found.st_dev == process.device && found.st_ino == process.inode;
}

/* Say once that the record ends here. */
static void end_record(int error) {
    char text[256];
    if (!__atomic_exchange_n(&recording, 0, __ATOMIC_SEQ_CST)) return;
    int length = snprintf(text, sizeof text, "memtopo capture: the record of process %d ends here: %s\n", (int)process.pid, strerror(error));
    if (write(STDERR_FILENO, text, (size_t)length) < 0) return; /* there is nobody to tell */
}

/* Remove the part of a line that was written before a disk was full, if nobody has written behind it. */
static void remove_part(size_t written) {
    struct stat found;
    off_t end = lseek(process.file, 0, SEEK_CUR);
    if (!fstat(process.file, &found) && end == found.st_size && ftruncate(process.file, end - (off_t)written)) return;
}

/* Write without SIGXFSZ, which ends a program whose file is as large as it may be. */
static ssize_t write_limited(const line_t *line) {
    sigset_t one, before, pending;
    sigemptyset(&one);
    sigaddset(&one, SIGXFSZ);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &one, &before);
    ssize_t written = write(process.file, line->text, line->length);
    int error = errno;
    const struct timespec at_once = {0, 0};
    if (written != (ssize_t)line->length && !sigismember(&pending, SIGXFSZ)) sigtimedwait(&one, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return written;
}

static void write_line(line_t *line) {
    put(line, "\n");
    if (!is_open() && open_record() < 0) {
        end_record(errno);
        return;
    }
    ssize_t written;
    do written = process.limited ? write_limited(line) : write(process.file, line->text, line->length);
    while (written < 0 && errno == EINTR);
    if (written == (ssize_t)line->length) return;
    int error = written < 0 ? errno : ENOSPC;
    if (written > 0) remove_part((size_t)written);
    end_record(error);
}

/* The first line of a process, when its first call is recorded: the driver is initialised then. */

static void put_started(line_t *line) {
    struct timespec time;
    struct tm parts;
    char text[80];
    clock_gettime(CLOCK_REALTIME, &time);
    uint64_t passed = now() - process.start;
    uint64_t at = (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec - passed;
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

/* Stacks. */

static struct {
    void *(*thread_state)(void);
    void (*dump)(int file, void *thread_state);
    int file; /* in memory */
    pthread_mutex_t mutex;
} python = {.file = -1, .mutex = PTHREAD_MUTEX_INITIALIZER};

static const char *base_name(const char *path) {
    const char *found = strrchr(path, '/');
    return found ? found + 1 : path;
}

static int is_hidden(const char *module) {
    Dl_info own;
    if (!strncmp(module, "libcupti", 8) || !strncmp(module, "libcuda.so", 10)) return 1;
    return dladdr((void *)(uintptr_t)is_hidden, &own) && !strcmp(module, base_name(own.dli_fname));
}

static void put_frame(line_t *line, void *address) {
    Dl_info found;
    char offset[24];
    if (line->length > LONGEST - ROOM || !dladdr(address, &found) || !found.dli_fname) return;
    const char *module = base_name(found.dli_fname);
    if (is_hidden(module)) return;
    snprintf(offset, sizeof offset, "+0x%zx", (size_t)((char *)address - (char *)found.dli_fbase));
    const char *symbol = found.dli_sname ? found.dli_sname : offset;
    put(line, line->text[line->length - 1] == '[' ? "\"" : ", \"");
    put_escaped(line, module, strnlen(module, 128));
    put(line, ":");
    put_escaped(line, symbol, strnlen(symbol, 256));
    put(line, "\"");
}

static void put_c_stack(line_t *line) {
    void *frames[96];
    int count = backtrace(frames, 96);
    /* The last byte of a call, since what it returns to may be the next function. */
    for (int at = 0; at < count; at++) put_frame(line, (char *)frames[at] - 1);
}

/* A line of the interpreter's own dump, such as `  File "/a/b.py", line 3 in run`. */
static void put_python_frame(line_t *line, const char *text, const char *end) {
    static const char before[] = "  File \"", middle[] = "\", line ";
    if ((size_t)(end - text) < sizeof before || memcmp(text, before, sizeof before - 1)) return;
    const char *path = text + sizeof before - 1, *quote = memmem(path, (size_t)(end - path), middle, sizeof middle - 1);
    if (!quote || line->length > LONGEST - ROOM) return;
    const char *number = quote + sizeof middle - 1, *after = memmem(number, (size_t)(end - number), " in ", 4), *name = quote;
    if (!after) return;
    while (name > path && name[-1] != '/') name--;
    put(line, line->text[line->length - 1] == '[' ? "\"" : ", \"");
    put_escaped(line, name, (size_t)(quote - name) < 128 ? (size_t)(quote - name) : 128);
    put(line, ":");
    put_escaped(line, number, (size_t)(after - number) < 16 ? (size_t)(after - number) : 16);
    put(line, " ");
    put_escaped(line, after + 4, (size_t)(end - after - 4) < 256 ? (size_t)(end - after - 4) : 256);
    put(line, "\"");
}

/* The interpreter writes the frames of this thread by a function of its own that is made for crashes: without its lock,
 * without memory, without references. Nobody else changes these frames, since this thread is in a call. */
static void put_python_stack(line_t *line) {
    static char text[LONGEST];
    void *state = python.thread_state ? python.thread_state() : NULL;
    if (!state || !python.dump) return;
    pthread_mutex_lock(&python.mutex);
    ssize_t length = -1;
    if (!ftruncate(python.file, 0) && !lseek(python.file, 0, SEEK_SET)) {
        python.dump(python.file, state);
        length = pread(python.file, text, sizeof text, 0);
    }
    for (const char *at = text, *end; length > 0 && at < text + length; at = end + 1) {
        end = memchr(at, '\n', (size_t)(text + length - at));
        if (!end) break;
        put_python_frame(line, at, end);
    }
    pthread_mutex_unlock(&python.mutex);
}

static void put_stack(line_t *line) {
    put(line, ", \"stack\": [");
    if (process.stacks == C_STACKS) put_c_stack(line);
    else put_python_stack(line);
    put(line, "]");
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
    if (process.stacks) put_stack(&line);
    put(&line, "}");
    write_line(&line);
}

static void on_call(void *user, int domain, uint32_t id, const callback_t *data) {
    (void)user;
    if (domain != DRIVER_CALLS || id >= MOST_IDS || !by_id[id] || !__atomic_load_n(&recording, __ATOMIC_RELAXED)) return;
    if (data->site == AT_BEGINNING) {
        *data->ours = now();
        return;
    }
    int saved = errno;
    uint64_t ended = now(), began = *data->ours && *data->ours <= ended ? *data->ours : ended;
    __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    pthread_once(&process.head, write_head);
    if (__atomic_load_n(&recording, __ATOMIC_SEQ_CST)) write_call(by_id[id], data, began, ended);
    __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
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
    pthread_mutex_init(&python.mutex, NULL);
    if (python.file >= 0) python.file = memfd_create("memtopo", MFD_CLOEXEC);
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
    if (length > 5 && (!strcmp(name + length - 5, "_ptsz") || !strcmp(name + length - 5, "_ptds"))) length -= 5;
    for (size_t at = 0; at < FUNCTIONS; at++)
        if (strlen(functions[at].name) == length && !strncmp(functions[at].name, name, length)) return functions + at;
    return NULL;
}

/* Enable the calls of the table; return their number. */
static int enable_calls(void) {
    int count = 0;
    for (uint32_t id = 1; id < MOST_IDS; id++) {
        const char *name = NULL;
        if (cupti.name_of(DRIVER_CALLS, id, &name) || !name || !(by_id[id] = function_named(name))) continue;
        if (cupti.enable(1, subscriber, DRIVER_CALLS, id)) by_id[id] = NULL;
        else count++;
    }
    return count;
}

/* Results of functions for Python: 0, an error of CUPTI (above 0), or one of these. */
enum { NO_DRIVER = -1, NO_CUPTI = -2, NO_FILE = -3, NO_PYTHON = -4, NO_CALLS = -5, RUNNING = -6 };

static int load_python(void) {
    LOAD(python, RTLD_DEFAULT, thread_state, "PyGILState_GetThisThreadState");
    LOAD(python, RTLD_DEFAULT, dump, "_Py_DumpTraceback");
    python.file = memfd_create("memtopo", MFD_CLOEXEC);
    return python.thread_state && python.dump && python.file >= 0;
}

static int prepare_stacks(const char *stacks) {
    void *frames[4];
    process.stacks = !strcmp(stacks, "c") ? C_STACKS : !strcmp(stacks, "python") ? PYTHON_STACKS : NO_STACKS;
    if (process.stacks == C_STACKS) backtrace(frames, 4); /* the first one loads a library */
    return process.stacks != PYTHON_STACKS || load_python();
}

static void describe(char *message, size_t room, const char *text) { snprintf(message, room, "%s", text ? text : ""); }

/* Record this process from now on, in a file that exists. */
int memtopo_capture_start(const char *path, const char *cupti_path, const char *stacks, const char *version, char *message, size_t room) {
    struct rlimit limit;
    describe(message, room, "");
    if (subscriber) return RUNNING;
    if (!load_driver()) return describe(message, room, dlerror()), NO_DRIVER;
    if (!load_cupti(cupti_path)) return describe(message, room, dlerror()), NO_CUPTI;
    snprintf(process.path, sizeof process.path, "%s", path);
    snprintf(process.version, sizeof process.version, "%s", version);
    if (open_record() < 0) return describe(message, room, strerror(errno)), NO_FILE;
    process.limited = getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur != RLIM_INFINITY;
    begin_process();
    int has_stacks = prepare_stacks(stacks), result = cupti.subscribe(&subscriber, on_call, NULL);
    if (result) {
        const char *text = NULL;
        if (cupti.text_of) cupti.text_of(result, &text);
        close(process.file);
        subscriber = NULL;
        return describe(message, room, text), result;
    }
    __atomic_store_n(&recording, 1, __ATOMIC_SEQ_CST);
    return !enable_calls() ? NO_CALLS : has_stacks ? 0 : NO_PYTHON;
}

/* End the record of this process, when the calls of other threads are written. */
void memtopo_capture_stop(void) {
    if (!subscriber) return;
    __atomic_store_n(&recording, 0, __ATOMIC_SEQ_CST);
    cupti.unsubscribe(subscriber);
    subscriber = NULL;
    while (__atomic_load_n(&inside, __ATOMIC_SEQ_CST)) sched_yield();
    if (is_open()) close(process.file);
    if (python.file >= 0) close(python.file);
    process.file = python.file = -1;
}

/* Write a line with a label, a string of JSON; return whether a capture runs. */
int memtopo_capture_mark(const char *label) {
    line_t line; /* not cleared, since it is long */
    line.length = 0;
    if (!__atomic_load_n(&recording, __ATOMIC_SEQ_CST) || strlen(label) > LONGEST_LABEL) return 0;
    __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    pthread_once(&process.head, write_head);
    put_call(&line, "mark", 4, "mark", now());
    put_name(&line, "label");
    put(&line, label);
    put(&line, "}, \"result\": null, \"seconds\": 0.0");
    if (process.stacks) put_stack(&line);
    put(&line, "}");
    write_line(&line);
    __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
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
