/* Heaps: reserved addresses in which a program allocates memory, each allocation one chunk.
 *
 * Allocators of other libraries call this code from any of their threads, some while they hold locks that a thread with
 * Python's interpreter lock waits for. So it calls nothing of Python, and waits for nothing but its own mutex and the
 * driver. The functions of the driver come from the caller: libcuda's, or the simulator's in tests.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "heaps/holes.h"

/* As in cuda.h. */
typedef struct { int type, id; } location_t; /* type 1 is a GPU */
typedef struct { location_t location; int flags; } access_t;
typedef struct {
    int type, handles;
    location_t location;
    void *win32;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
} properties_t;

typedef struct {
    int (*create)(uint64_t *handle, size_t size, const properties_t *properties, unsigned long long flags);
    int (*release)(uint64_t handle);
    int (*map)(uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags);
    int (*unmap)(uint64_t address, size_t size);
    int (*set_access)(uint64_t address, size_t size, const access_t *access, size_t count);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*synchronize)(void);
    int (*info)(size_t *free, size_t *total);
} driver_t;

typedef struct { uint64_t limit, used, peak; } budget_t;

/* Results of functions: 0, an error of the driver (above 0), or one of these. */
enum { CLOSED = -1, NO_ADDRESSES = -2, OVER_LIMIT = -3, NOT_ALLOCATED = -4, NO_MARGIN = -5 };

enum { MAPPED = 1, FREED = 2 }; /* of an allocation; a freed one is still mapped, and is released later */

typedef struct {
    uint64_t address, size, handle, number;
    uint32_t flags, reserved;
} allocation_t;

/* The allocations of a heap, in any order, in memory that other processes may map to read them. There is room for one of
 * each granule. The version is odd while entries move. */
typedef struct {
    uint64_t version, count, mapped, backed; /* backed: bytes of host memory that keep those of allocations */
    int32_t open, reserved;
    allocation_t entries[];
} table_t;

enum { MOST_ACCESS = 64, MOST_HEAPS = 64 };

typedef struct {
    uint64_t base, size, granule;
    properties_t properties;
    access_t access[MOST_ACCESS];
    uint64_t grants;
    void *context;
    budget_t *budget;
    driver_t driver;
    uint64_t margin; /* bytes of the GPU that stay free */
    table_t *table;
    int64_t process; /* that has the heap; one that it forks shares the table, and must not change it */
    holes_t holes;   /* made when memory is first allocated */
    /* The rest begins as zeros. */
    uint64_t next_number, freed_late;
    int32_t failed;       /* last result of an allocation that was not 0, for a message */
    uint32_t failed_call; /* number of the driver's function in driver_t that returned it */
    uint64_t failed_size, failures;
} heap_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static heap_t *slots[MOST_HEAPS];
static uint64_t outstanding[MOST_HEAPS]; /* allocations that the library with the functions of a slot has not freed */

enum { CREATE, RELEASE, MAP, UNMAP, SET_ACCESS, PUSH, POP, SYNCHRONIZE, INFO };

/* A process that is forked has copies of heaps whose memory is not its own, and of a lock that nobody opens. */
static void after_fork(void) {
    pthread_mutex_init(&mutex, NULL);
    memset(slots, 0, sizeof slots);
    memset(outstanding, 0, sizeof outstanding);
}

__attribute__((constructor)) static void start(void) { pthread_atfork(NULL, NULL, after_fork); }

static int is_own(const heap_t *heap) { return heap->process == getpid(); }

static int fail(heap_t *heap, int result, int call, uint64_t size) {
    heap->failed = result;
    heap->failed_call = (uint32_t)call;
    heap->failed_size = size;
    heap->failures += 1;
    return result;
}

static int unmap(heap_t *heap, allocation_t *each) {
    int result = heap->driver.unmap(each->address, each->size);
    if (!result) {
        each->flags &= ~(uint32_t)MAPPED;
        heap->table->mapped -= each->size;
    }
    return result;
}

/* Map a chunk that exists, with its access. After an error it is not mapped, unless unmapping fails as well. */
static int map(heap_t *heap, allocation_t *each, int *call) {
    int result;
    if (!(each->flags & MAPPED)) {
        *call = MAP;
        if ((result = heap->driver.map(each->address, each->size, 0, each->handle, 0))) return result;
        each->flags |= MAPPED;
        heap->table->mapped += each->size;
    }
    if (!heap->grants) return 0;
    *call = SET_ACCESS;
    if ((result = heap->driver.set_access(each->address, each->size, heap->access, heap->grants))) unmap(heap, each);
    return result;
}

static int release(heap_t *heap, allocation_t *each) {
    int result = each->handle ? heap->driver.release(each->handle) : 0;
    if (!result) each->handle = 0;
    return result;
}

static int create_and_map(heap_t *heap, allocation_t *each, int *call) {
    *call = CREATE;
    int result = heap->driver.create(&each->handle, each->size, &heap->properties, 0);
    if (result) {
        each->handle = 0;
        return result;
    }
    if ((result = map(heap, each, call)) && !(each->flags & MAPPED)) release(heap, each);
    return result;
}

/* Places of granules begin at 1. */

static uint64_t granules(const heap_t *heap) { return heap->size / heap->granule; }

static uint32_t place_of(const heap_t *heap, uint64_t address) { return (uint32_t)((address - heap->base) / heap->granule) + 1; }

static granule_t *granule_of(const heap_t *heap, const allocation_t *each) {
    return heap->holes.granules + place_of(heap, each->address);
}

/* Begin with one hole. */
static void begin_holes(heap_t *heap) {
    if (!heap->holes.root && !heap->table->count) add_hole(&heap->holes, 1, (uint32_t)granules(heap));
}

/* Add an entry to the end of the table. */
static allocation_t *add_entry(heap_t *heap, const allocation_t *new) {
    table_t *table = heap->table;
    __atomic_fetch_add(&table->version, 1, __ATOMIC_SEQ_CST);
    allocation_t *added = table->entries + table->count++;
    *added = *new;
    __atomic_fetch_add(&table->version, 1, __ATOMIC_SEQ_CST);
    take_granules(&heap->holes, place_of(heap, new->address), (uint32_t)(new->size / heap->granule));
    granule_of(heap, added)->entry = (uint32_t)table->count;
    heap->budget->used += new->size;
    return added;
}

/* Remove an entry, in whose place the last one moves. */
static void forget(heap_t *heap, allocation_t *each) {
    table_t *table = heap->table;
    allocation_t removed = *each;
    __atomic_fetch_add(&table->version, 1, __ATOMIC_SEQ_CST);
    *each = table->entries[--table->count];
    __atomic_fetch_add(&table->version, 1, __ATOMIC_SEQ_CST);
    granule_of(heap, each)->entry = (uint32_t)(each - table->entries) + 1;
    granule_of(heap, &removed)->entry = 0; /* also if it was the last one */
    give_granules(&heap->holes, place_of(heap, removed.address), (uint32_t)(removed.size / heap->granule), granules(heap));
    heap->budget->used -= removed.size;
}

static allocation_t *find(const heap_t *heap, uint64_t address) {
    uint64_t offset = address - heap->base;
    if (address < heap->base || offset % heap->granule || offset / heap->granule >= granules(heap)) return NULL;
    uint32_t entry = heap->holes.granules[place_of(heap, address)].entry;
    return entry ? heap->table->entries + entry - 1 : NULL;
}

/* Wait for the work of the GPU, since unmapping does not (fact 18). */
static int await_work(heap_t *heap) {
    void *popped;
    int result = heap->driver.push(heap->context);
    if (result) return result;
    result = heap->driver.synchronize();
    heap->driver.pop(&popped);
    return result;
}

/* Free bytes of the GPU; 0 if that is unknown. */
static uint64_t free_bytes(heap_t *heap) {
    size_t left = 0, total = 0;
    void *popped;
    if (heap->driver.push(heap->context)) return 0;
    int result = heap->driver.info(&left, &total);
    heap->driver.pop(&popped);
    return result ? 0 : left;
}

/* Whether the GPU would keep its margin after an allocation. */
static int leaves_margin(heap_t *heap, uint64_t size) {
    if (!heap->margin) return 1;
    uint64_t left = free_bytes(heap);
    return left >= heap->margin && left - heap->margin >= size;
}

static int end_allocation(heap_t *heap, allocation_t *each) {
    int result = each->flags & MAPPED ? unmap(heap, each) : 0;
    if (!result) result = release(heap, each);
    if (!result) forget(heap, each);
    return result;
}

/* Release what was freed while that was not possible: during a capture, or while the heap was closed. */
static void end_freed(heap_t *heap) {
    if (!heap->freed_late || await_work(heap)) return;
    heap->freed_late = 0;
    for (uint64_t index = heap->table->count; index-- > 0;)
        if (heap->table->entries[index].flags & FREED && end_allocation(heap, heap->table->entries + index)) heap->freed_late = 1;
}

static void free_later(heap_t *heap, allocation_t *each) {
    each->flags |= FREED;
    heap->freed_late = 1;
}

/* Add an allocation in the smallest hole that has room for it, if the limit and the margin admit it. */
static int place(heap_t *heap, uint64_t bytes, allocation_t **added) {
    if (!is_own(heap) || !heap->table->open) return CLOSED;
    end_freed(heap);
    begin_holes(heap);
    if (bytes > heap->size) return NO_ADDRESSES;
    allocation_t new = {.size = (bytes + heap->granule - 1) / heap->granule * heap->granule, .number = heap->next_number};
    new.size = new.size ? new.size : heap->granule;
    uint32_t hole = smallest_hole(&heap->holes, new.size / heap->granule);
    if (!hole) return NO_ADDRESSES;
    new.address = heap->base + (hole - 1) * heap->granule;
    if (heap->budget->used > heap->budget->limit || new.size > heap->budget->limit - heap->budget->used) return OVER_LIMIT;
    if (!leaves_margin(heap, new.size)) return NO_MARGIN;
    *added = add_entry(heap, &new);
    return 0;
}

static int allocate(heap_t *heap, uint64_t bytes, uint64_t *address) {
    allocation_t *new;
    int call = 0, result = place(heap, bytes, &new);
    if (result) return fail(heap, result, 0, bytes);
    if ((result = create_and_map(heap, new, &call))) {
        if (new->handle) free_later(heap, new);
        else forget(heap, new);
        return fail(heap, result, call, bytes);
    }
    heap->next_number += 1;
    if (heap->budget->used > heap->budget->peak) heap->budget->peak = heap->budget->used;
    *address = new->address;
    return 0;
}

static int free_allocation(heap_t *heap, uint64_t address) {
    allocation_t *each = is_own(heap) ? find(heap, address) : NULL;
    if (!each || each->flags & FREED) return NOT_ALLOCATED;
    int is_later = !heap->table->open || await_work(heap), result = is_later ? 0 : end_allocation(heap, each);
    if (is_later || result) free_later(heap, each);
    return result;
}

/* Functions for Python. A heap is the caller's memory, which stays where it is until memtopo_heap_end. */

int memtopo_heap_size(void) { return sizeof(heap_t); }

int memtopo_heap_allocate(heap_t *heap, uint64_t bytes, uint64_t *address) {
    pthread_mutex_lock(&mutex);
    int result = allocate(heap, bytes, address);
    pthread_mutex_unlock(&mutex);
    return result;
}

int memtopo_heap_free(heap_t *heap, uint64_t address) {
    pthread_mutex_lock(&mutex);
    int result = free_allocation(heap, address);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Refuse allocations, and defer frees, until the heap is opened again. */
void memtopo_heap_close(heap_t *heap) {
    pthread_mutex_lock(&mutex);
    if (is_own(heap)) heap->table->open = 0;
    pthread_mutex_unlock(&mutex);
}

void memtopo_heap_open(heap_t *heap) {
    pthread_mutex_lock(&mutex);
    if (is_own(heap)) {
        heap->table->open = 1;
        end_freed(heap);
    }
    pthread_mutex_unlock(&mutex);
}

/* Largest hole among the addresses. */
uint64_t memtopo_heap_largest_hole(heap_t *heap) {
    pthread_mutex_lock(&mutex);
    begin_holes(heap);
    uint64_t largest = largest_hole(&heap->holes) * heap->granule;
    pthread_mutex_unlock(&mutex);
    return largest;
}

/* Release the chunks of a heap that are not mapped; return how many of the bytes others keep in use. A chunk that cannot
 * be released stays with its handle. */
static uint64_t release_all(heap_t *heap) {
    uint64_t before = free_bytes(heap), released = 0;
    for (uint64_t index = heap->table->count; index-- > 0;) {
        allocation_t *each = heap->table->entries + index;
        uint64_t size = each->handle ? each->size : 0;
        if (release(heap, each)) continue;
        released += size;
        if (each->flags & FREED) forget(heap, each);
    }
    uint64_t after = free_bytes(heap), gained = after > before ? after - before : 0;
    int is_known = heap->properties.location.type == 1 && before && after;
    return is_known && gained < released ? released - gained : 0;
}

/* Unmap and release all allocations of a closed heap, which keep their addresses. After an error, all are mapped with
 * their bytes, or `*broken` is the number of the others. `*held` is the number of bytes that others keep in use. */
int memtopo_heap_unmap(heap_t *heap, uint32_t *call, uint64_t *broken, uint64_t *held) {
    int result = 0, again;
    *held = 0;
    if (!is_own(heap)) return 0;
    pthread_mutex_lock(&mutex);
    allocation_t *first = heap->table->entries, *end = first + heap->table->count;
    *broken = 0;
    *call = UNMAP;
    for (allocation_t *each = first; each < end && !result; each++)
        if (each->flags & MAPPED) result = unmap(heap, each);
    for (allocation_t *each = first; each < end && result; each++)
        if (each->handle && !(each->flags & MAPPED) && map(heap, each, &again)) *broken += 1;
    if (!result) *held = release_all(heap);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Create chunks for all allocations that have none, and map them. After an error, none of them is created, but those
 * that cannot be unmapped: the next call gives them their access. */
int memtopo_heap_map(heap_t *heap, uint32_t *call) {
    int result = 0, at = 0;
    if (!is_own(heap)) return 0;
    pthread_mutex_lock(&mutex);
    allocation_t *each = heap->table->entries, *end = each + heap->table->count;
    for (; each < end && !result; each++)
        if (!(each->flags & FREED)) result = each->handle ? map(heap, each, &at) : create_and_map(heap, each, &at);
    *call = (uint32_t)at;
    while (result && each-- > heap->table->entries)
        if (!(each->flags & MAPPED) || !unmap(heap, each)) release(heap, each);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Unmap one allocation of a closed heap, whose chunk stays. After an error it is mapped. */
int memtopo_heap_unmap_one(heap_t *heap, uint64_t address) {
    pthread_mutex_lock(&mutex);
    allocation_t *each = is_own(heap) ? find(heap, address) : NULL;
    int result = each && each->flags & MAPPED ? unmap(heap, each) : 0;
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Create the chunk of one allocation, if it has none, and map it. After an error it is not mapped. */
int memtopo_heap_map_one(heap_t *heap, uint64_t address, uint32_t *call) {
    int at = 0, result = NOT_ALLOCATED;
    pthread_mutex_lock(&mutex);
    allocation_t *each = is_own(heap) ? find(heap, address) : NULL;
    if (each && !(each->flags & FREED)) result = each->handle ? map(heap, each, &at) : create_and_map(heap, each, &at);
    *call = (uint32_t)at;
    pthread_mutex_unlock(&mutex);
    return result;
}

/* End all allocations, those whose end is refused once more; return how many are left, and the first error. */
uint64_t memtopo_heap_end(heap_t *heap, int *error) {
    *error = 0;
    if (!is_own(heap)) return 0;
    pthread_mutex_lock(&mutex);
    heap->table->open = 0;
    for (int again = 0; again < 2; again++)
        for (uint64_t index = heap->table->count; index-- > 0;) {
            int result = end_allocation(heap, heap->table->entries + index);
            if (result && !*error) *error = result;
        }
    uint64_t left = heap->table->count;
    pthread_mutex_unlock(&mutex);
    return left;
}

/* Functions for allocators that pass no argument of ours: a pair for each of so many heaps. */

static void *allocate_in_slot(int slot, ssize_t bytes) {
    uint64_t address = 0;
    pthread_mutex_lock(&mutex);
    int failed = bytes < 0 || !slots[slot] || allocate(slots[slot], (uint64_t)bytes, &address);
    outstanding[slot] += !failed;
    pthread_mutex_unlock(&mutex);
    return failed ? NULL : (void *)(uintptr_t)address;
}

static void free_in_slot(int slot, void *address) {
    pthread_mutex_lock(&mutex);
    if (slots[slot]) free_allocation(slots[slot], (uint64_t)(uintptr_t)address);
    if (outstanding[slot]) outstanding[slot] -= 1;
    pthread_mutex_unlock(&mutex);
}

#define PAIR(n) \
    static void *allocate_##n(ssize_t size, int device, void *stream) { \
        (void)device, (void)stream; \
        return allocate_in_slot(n, size); \
    } \
    static void free_##n(void *address, ssize_t size, int device, void *stream) { \
        (void)size, (void)device, (void)stream; \
        free_in_slot(n, address); \
    }
#define EIGHT(do, n) do(n##0) do(n##1) do(n##2) do(n##3) do(n##4) do(n##5) do(n##6) do(n##7)
#define ALL(do) EIGHT(do, 0) EIGHT(do, 01) EIGHT(do, 02) EIGHT(do, 03) EIGHT(do, 04) EIGHT(do, 05) EIGHT(do, 06) EIGHT(do, 07)
ALL(PAIR) /* in octal */
#define ALLOCATE(n) allocate_##n,
#define FREE(n) free_##n,
static void *(*const allocates[MOST_HEAPS])(ssize_t, int, void *) = {ALL(ALLOCATE)};
static void (*const frees[MOST_HEAPS])(void *, ssize_t, int, void *) = {ALL(FREE)};

/* The slot of a heap, or a free one for NULL; MOST_HEAPS if there is none. A slot is not free before all allocations of
 * its former heap were freed: their addresses may be those of another heap now. */
static int slot_of(const heap_t *heap) {
    int slot = 0;
    while (slot < MOST_HEAPS && (slots[slot] != heap || (!heap && outstanding[slot]))) slot++;
    return slot;
}

/* The pair of functions of a heap, which takes a slot once; return 0, or NO_ADDRESSES if all are taken. */
int memtopo_heap_functions(heap_t *heap, void **allocate_function, void **free_function) {
    pthread_mutex_lock(&mutex);
    int slot = slot_of(heap);
    if (slot == MOST_HEAPS) slot = slot_of(NULL);
    if (slot < MOST_HEAPS) {
        slots[slot] = heap;
        *allocate_function = (void *)allocates[slot];
        *free_function = (void *)frees[slot];
    }
    pthread_mutex_unlock(&mutex);
    return slot < MOST_HEAPS ? 0 : NO_ADDRESSES;
}

void memtopo_heap_forget(heap_t *heap) {
    pthread_mutex_lock(&mutex);
    int slot = slot_of(heap);
    if (slot < MOST_HEAPS) slots[slot] = NULL;
    pthread_mutex_unlock(&mutex);
}
