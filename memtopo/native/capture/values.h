#pragma once
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "digest.h"
#include "functions.h"
#include "lines.h"

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

/* What a pointer of a call leads to. */
typedef union {
    location_t location;
    access_t access;
    properties_t properties;
    pool_t pool;
    memory_t memory;
    part_t part;
    semaphore_t semaphore;
    multicast_t multicast;
    uint64_t number;
    int narrow;
    unsigned char secret[SECRET_BYTES];
} pointed_t;

/* Copy memory of the program; return whether it can be read. The driver has read it in a call that succeeded. A pointer
 * of a call that failed may be any number, so the system copies then: it returns an error where it would send a signal. */
static int fetch(pointed_t *to, const void *from, size_t size, int failed) {
    struct iovec own = {to, size}, theirs = {(void *)(uintptr_t)from, size};
    if (!from) return 0;
    if (failed) return process_vm_readv(getpid(), &own, 1, &theirs, 1, 0) == (ssize_t)size;
    memcpy(to, from, size);
    return 1;
}

static void put_secret(line_t *line, const void *secret) {
    char text[32];
    snprintf(text, sizeof text, "\"handle:%016llx\"", (unsigned long long)digest(secret));
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

static void put_grant(line_t *line, const access_t *grant) {
    int flags = grant->flags;
    put(line, "{\"location\": ");
    put_location(line, grant->location);
    put(line, ", \"access\": \"");
    put(line, flags == 3 ? "rw" : flags == 1 ? "r" : flags ? "flags " : "none");
    if (flags && flags != 1 && flags != 3) put_signed(line, flags);
    put(line, "\"}");
}

static void put_grants(line_t *line, const char *grants, uint64_t count, int failed) {
    uint64_t at = 0;
    pointed_t grant;
    put(line, "[");
    for (; at < count && at < MOST_GRANTS && fetch(&grant, grants, sizeof grant.access, failed); at++) {
        if (at) put(line, ", ");
        put_grant(line, &grant.access);
        grants += sizeof grant.access;
    }
    if (at == MOST_GRANTS && count > at) {
        put(line, ", \"");
        put_number(line, count - at);
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
static size_t attribute_size(int attribute) {
    enum { RELEASE_THRESHOLD = 4, USED_MEM_HIGH = 8, MAX_POOL_SIZE = 13 };
    int wide = (attribute >= RELEASE_THRESHOLD && attribute <= USED_MEM_HIGH) || attribute == MAX_POOL_SIZE;
    return wide ? sizeof(uint64_t) : sizeof(int);
}

static void put_attribute(line_t *line, int attribute, const pointed_t *value) {
    if (attribute_size(attribute) == sizeof value->number) put_number(line, value->number);
    else put_signed(line, value->narrow);
}

/* Parameters lie as in a structure of C, and each is read with its own size: the last one may end the structure. */

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

static uint64_t number_at(const void *parameter) { return *(const uint64_t *)parameter; }

static int int_at(const void *parameter) { return *(const int *)parameter; }

static const void *pointer_at(const void *parameter) { return *(void *const *)parameter; }

static int value_named(const function_t *function, const void *parameters, const char *name) {
    for (int at = 0; function->parameters[at].type != END; at++)
        if (function->parameters[at].name && !strcmp(function->parameters[at].name, name))
            return int_at(parameter(function, parameters, at));
    return 0;
}

enum { FD = 1, FABRIC = 8 }; /* kinds of shareable handles */

/* A shareable handle that was given to a call: a descriptor, bytes of a fabric handle, or a number of another kind. */
static void put_shared(line_t *line, int kind, const void *given, int failed) {
    pointed_t value;
    if (kind == FD) put_signed(line, (int)(intptr_t)given);
    else if (kind != FABRIC) put_number(line, (uint64_t)(uintptr_t)given);
    else if (!failed && fetch(&value, given, SECRET_BYTES, failed)) put_secret(line, value.secret);
    else put(line, "null");
}

/* Bytes of what a pointer of a type leads to; 0 if the type is no pointer to something that is written. */
static size_t pointed_size(type_t type, int attribute) {
    switch (type) {
    case AT_LOCATION: return sizeof(location_t);
    case VALUE: return attribute_size(attribute);
    case PROPERTIES: return sizeof(properties_t);
    case POOL: return sizeof(pool_t);
    case AT_SECRET: return SECRET_BYTES;
    case MEMORY: return sizeof(memory_t);
    case PART: return sizeof(part_t);
    case SEMAPHORE: return sizeof(semaphore_t);
    case MULTICAST: return sizeof(multicast_t);
    case MADE_TOO: return sizeof(uint64_t);
    default: return 0;
    }
}

/* Arguments that are members of a description, each under its own name. */
static int put_members(line_t *line, type_t type, const pointed_t *value) {
    switch (type) {
    case MEMORY: put_memory(line, &value->memory); return 1;
    case MULTICAST: put_multicast(line, &value->multicast); return 1;
    case SEMAPHORE: put_external(line, value->semaphore.kind, value->semaphore.handle.fd); return 1;
    case PART:
        put_named(line, "offset", value->part.offset);
        put_named(line, "size", value->part.size);
        return 1;
    default: return 0;
    }
}

/* An argument that a pointer leads to: null if it leads nowhere; the members of a description are left out then. */
static void put_pointed(line_t *line, const parameter_t *each, const void *to, int attribute, int failed) {
    pointed_t value = {0};
    type_t type = each->type;
    int is_result = type == MADE_TOO, is_secret = type == AT_SECRET;
    int is_read = !((is_result || is_secret) && failed) && fetch(&value, to, pointed_size(type, attribute), failed);
    if (is_read && put_members(line, type, &value)) return;
    if (!is_read && (is_result || !*each->name)) return;
    put_name(line, each->name);
    if (!is_read) put(line, "null");
    else if (type == AT_LOCATION) put_location(line, value.location);
    else if (type == VALUE) put_attribute(line, attribute, &value);
    else if (type == PROPERTIES) put_properties(line, &value.properties);
    else if (type == POOL) put_pool(line, &value.pool);
    else if (is_secret) put_secret(line, value.secret);
    else put_number(line, value.number);
}

static int (*properties_of)(properties_t *properties, uint64_t chunk);

/* The location of a chunk that was imported, by which it is told from others of its size. */
static void put_origin(line_t *line, const char *name, const void *chunk) {
    properties_t properties = {0};
    pointed_t made;
    if (!properties_of || !fetch(&made, chunk, sizeof made.number, 0) || properties_of(&properties, made.number)) return;
    put_name(line, name);
    put_location(line, properties.location);
}

static void put_place(line_t *line, int ordinal) {
    put_location(line, ordinal < 0 ? (location_t){2, 0} : (location_t){1, ordinal});
}

static void put_value(line_t *line, const function_t *function, const void *all, int index, int failed) {
    const void *at = parameter(function, all, index);
    switch (function->parameters[index].type) {
    case UNSIGNED: put_number(line, (unsigned int)int_at(at)); break;
    case SIGNED: put_signed(line, int_at(at)); break;
    case PLACE: put_place(line, int_at(at)); break;
    case LOCATION: put_location(line, *(const location_t *)at); break;
    case GRANTS: put_grants(line, pointer_at(at), number_at(parameter(function, all, index + 1)), failed); break;
    case SHARED: put_shared(line, value_named(function, all, "kind"), pointer_at(at), failed); break;
    case SECRET: put_secret(line, at); break;
    default: put_number(line, number_at(at)); break;
    }
}

static void put_argument(line_t *line, const function_t *function, const void *all, int index, int failed) {
    const parameter_t *each = function->parameters + index;
    const void *at = parameter(function, all, index);
    if (each->type == IMPORTED) {
        if (!failed) put_origin(line, each->name, pointer_at(at));
    } else if (pointed_size(each->type, 0))
        put_pointed(line, each, pointer_at(at), value_named(function, all, "attribute"), failed);
    else {
        put_name(line, each->name);
        put_value(line, function, all, index, failed);
    }
}

/* The result of a call that succeeded. */
static void put_result(line_t *line, const function_t *function, const void *all) {
    int kind = value_named(function, all, "kind"), attribute = value_named(function, all, "attribute");
    pointed_t value;
    for (int at = 0; function->parameters[at].type != END; at++) {
        type_t type = function->parameters[at].type;
        if (type == MADE_TOO || type > MADE_SECRET) continue;
        int is_number = type == MADE || type == IMPORTED, is_value = type == MADE_VALUE;
        int is_int = type == MADE_INT || (type == MADE_SHARED && kind == FD);
        int is_secret = type == MADE_SECRET || (type == MADE_SHARED && kind == FABRIC);
        size_t size = is_number ? sizeof value.number : is_value ? attribute_size(attribute) : is_int ? sizeof(int) : is_secret ? SECRET_BYTES : 0;
        if (!size || !fetch(&value, pointer_at(parameter(function, all, at)), size, 0)) break;
        if (is_number) put_number(line, value.number);
        else if (is_value) put_attribute(line, attribute, &value);
        else if (is_int) put_signed(line, value.narrow);
        else put_secret(line, value.secret);
        return;
    }
    put(line, "null");
}
