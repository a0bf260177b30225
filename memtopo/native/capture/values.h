#pragma once
#include <stddef.h>
#include <stdio.h>

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

static int (*properties_of)(properties_t *properties, uint64_t chunk);

/* The location of a chunk that was imported, by which it is told from others of its size. */
static void put_origin(line_t *line, uint64_t chunk) {
    properties_t properties = {0};
    if (!properties_of || properties_of(&properties, chunk)) return;
    put_name(line, "location");
    put_location(line, properties.location);
}

static void put_argument(line_t *line, const function_t *function, const void *all, int index, int failed) {
    const parameter_t *each = function->parameters + index;
    const void *at = parameter(function, all, index), *to = *(void *const *)at;
    location_t place = {1, *(const int *)at};
    if (each->type == IMPORTED && !failed) put_origin(line, *(const uint64_t *)to);
    if (!each->name || each->type == IMPORTED || (each->type == MADE_TOO && (failed || !to)) || put_members(line, each->type, to)) return;
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
        if (type == MADE || type == IMPORTED) put_number(line, *(const uint64_t *)to);
        if (type == MADE_INT) put_signed(line, *(const int *)to);
        if (type == MADE_VALUE) put_attribute(line, value_named(function, all, "attribute"), to);
        if (type == MADE_SHARED) put_shared(line, value_named(function, all, "kind"), to, 1);
        if (type == MADE_SECRET) put_secret(line, to);
        return;
    }
    put(line, "null");
}
