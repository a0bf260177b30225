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

/* As in cuda.h. */
typedef struct { int type, id; } location_t;
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

/* The allocations of a heap, in order of address, in memory that other processes may map to read them. There is room for
 * one of each granule. The version is odd while entries move. */
typedef struct {
    uint64_t version, count, mapped;
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
    /* The rest begins as zeros. */
    uint64_t next_number, freed_late;
    int32_t failed;       /* last result of an allocation that was not 0, for a message */
    uint32_t failed_call; /* number of the driver's function in driver_t that returned it */
    uint64_t failed_size;
} heap_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static heap_t *slots[MOST_HEAPS];

enum { CREATE, RELEASE, MAP, UNMAP, SET_ACCESS, PUSH, POP, SYNCHRONIZE, INFO };

/* A process that is forked has copies of heaps whose memory is not its own, and of a lock that nobody opens. */
static void after_fork(void) {
    pthread_mutex_init(&mutex, NULL);
    memset(slots, 0, sizeof slots);
}

__attribute__((constructor)) static void start(void) { pthread_atfork(NULL, NULL, after_fork); }

static int is_own(const heap_t *heap) { return heap->process == getpid(); }

static int fail(heap_t *heap, int result, int call, uint64_t size) {
    heap->failed = result;
    heap->failed_call = (uint32_t)call;
    heap->failed_size = size;
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

/* Map a chunk that exists, with its access; after an error it is not mapped. */
static int map(heap_t *heap, allocation_t *each, int *call) {
    *call = MAP;
    int result = heap->driver.map(each->address, each->size, 0, each->handle, 0);
    if (result) return result;
    if (heap->grants) {
        *call = SET_ACCESS;
        result = heap->driver.set_access(each->address, each->size, heap->access, heap->grants);
        if (result) {
            heap->driver.unmap(each->address, each->size);
            return result;
        }
    }
    each->flags |= MAPPED;
    heap->table->mapped += each->size;
    return 0;
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
    if ((result = map(heap, each, call))) release(heap, each);
    return result;
}

/* Move the entries from one index on to another one, and put a new one in their place if there is one. */
static void move(table_t *table, uint64_t from, uint64_t to, const allocation_t *new) {
    __atomic_fetch_add(&table->version, 1, __ATOMIC_SEQ_CST);
    memmove(table->entries + to, table->entries + from, (table->count - from) * sizeof(allocation_t));
    table->count += to - from;
    if (new) table->entries[from] = *new;
    __atomic_fetch_add(&table->version, 1, __ATOMIC_SEQ_CST);
}

static void forget(heap_t *heap, uint64_t index) {
    heap->budget->used -= heap->table->entries[index].size;
    move(heap->table, index + 1, index, NULL);
}

static int find(const heap_t *heap, uint64_t address, uint64_t *found) {
    uint64_t low = 0, high = heap->table->count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (heap->table->entries[middle].address < address) low = middle + 1;
        else high = middle;
    }
    *found = low;
    return low < heap->table->count && heap->table->entries[low].address == address;
}

/* The smallest hole of at least `size` bytes; without one, the size of the largest. */
static int find_hole(const heap_t *heap, uint64_t size, uint64_t *address, uint64_t *index, uint64_t *largest) {
    uint64_t at = heap->base, best = UINT64_MAX;
    *largest = 0;
    for (uint64_t each = 0; each <= heap->table->count; each++) {
        uint64_t end = each < heap->table->count ? heap->table->entries[each].address : heap->base + heap->size, hole = end - at;
        if (hole > *largest) *largest = hole;
        if (hole >= size && hole < best) {
            best = hole;
            *address = at;
            *index = each;
        }
        if (each < heap->table->count) at = end + heap->table->entries[each].size;
    }
    return best != UINT64_MAX;
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

/* Whether the GPU would keep its margin after an allocation. */
static int leaves_margin(heap_t *heap, uint64_t size) {
    size_t left = 0, total = 0;
    void *popped;
    if (!heap->margin) return 1;
    if (heap->driver.push(heap->context)) return 0;
    int result = heap->driver.info(&left, &total);
    heap->driver.pop(&popped);
    return !result && left >= heap->margin && left - heap->margin >= size;
}

static int end_allocation(heap_t *heap, uint64_t index) {
    allocation_t *each = heap->table->entries + index;
    int result = each->flags & MAPPED ? unmap(heap, each) : 0;
    if (!result) result = release(heap, each);
    if (!result) forget(heap, index);
    return result;
}

/* Release what was freed while that was not possible: during a capture, or while the heap was closed. */
static void end_freed(heap_t *heap) {
    if (!heap->freed_late || await_work(heap)) return;
    heap->freed_late = 0;
    for (uint64_t index = heap->table->count; index-- > 0;)
        if (heap->table->entries[index].flags & FREED && end_allocation(heap, index)) heap->freed_late = 1;
}

static int allocate(heap_t *heap, uint64_t bytes, uint64_t *address) {
    if (!is_own(heap) || !heap->table->open) return fail(heap, CLOSED, 0, bytes);
    end_freed(heap);
    if (bytes > heap->size) return fail(heap, NO_ADDRESSES, 0, bytes);
    allocation_t new = {.size = (bytes + heap->granule - 1) / heap->granule * heap->granule};
    new.size = new.size ? new.size : heap->granule;
    uint64_t index = 0, largest;
    if (!find_hole(heap, new.size, &new.address, &index, &largest)) return fail(heap, NO_ADDRESSES, 0, bytes);
    if (heap->budget->used > heap->budget->limit || new.size > heap->budget->limit - heap->budget->used)
        return fail(heap, OVER_LIMIT, 0, bytes);
    if (!leaves_margin(heap, new.size)) return fail(heap, NO_MARGIN, 0, bytes);
    new.number = heap->next_number;
    int call = 0, result;
    move(heap->table, index, index + 1, &new);
    heap->budget->used += new.size;
    if ((result = create_and_map(heap, heap->table->entries + index, &call))) {
        if (!heap->table->entries[index].handle) forget(heap, index);
        else heap->table->entries[index].flags |= FREED, heap->freed_late = 1;
        return fail(heap, result, call, bytes);
    }
    heap->next_number += 1;
    if (heap->budget->used > heap->budget->peak) heap->budget->peak = heap->budget->used;
    *address = new.address;
    return 0;
}

static int free_allocation(heap_t *heap, uint64_t address) {
    uint64_t index;
    if (!is_own(heap) || !find(heap, address, &index) || heap->table->entries[index].flags & FREED) return NOT_ALLOCATED;
    if (!heap->table->open || await_work(heap)) {
        heap->table->entries[index].flags |= FREED;
        heap->freed_late = 1;
        return 0;
    }
    int result = end_allocation(heap, index);
    if (result) {
        heap->table->entries[index].flags |= FREED;
        heap->freed_late = 1;
    }
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
    uint64_t address, index, largest;
    pthread_mutex_lock(&mutex);
    find_hole(heap, UINT64_MAX, &address, &index, &largest);
    pthread_mutex_unlock(&mutex);
    return largest;
}

/* Unmap and release all allocations of a closed heap, which keep their addresses. After an error, all are mapped with
 * their bytes, or `*broken` is the number of the others. A chunk that cannot be released stays with its handle. */
int memtopo_heap_unmap(heap_t *heap, uint32_t *call, uint64_t *broken) {
    int result = 0, again;
    if (!is_own(heap)) return 0;
    pthread_mutex_lock(&mutex);
    *broken = 0;
    *call = UNMAP;
    for (uint64_t index = 0; index < heap->table->count && !result; index++)
        if (heap->table->entries[index].flags & MAPPED) result = unmap(heap, heap->table->entries + index);
    for (uint64_t index = 0; result && index < heap->table->count; index++)
        if (heap->table->entries[index].handle && !(heap->table->entries[index].flags & MAPPED) && map(heap, heap->table->entries + index, &again))
            *broken += 1;
    for (uint64_t index = heap->table->count; !result && index-- > 0;) {
        int failed = release(heap, heap->table->entries + index);
        if (!failed && heap->table->entries[index].flags & FREED) forget(heap, index);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Create chunks for all allocations that have none, and map them. After an error, none of them is created. */
int memtopo_heap_map(heap_t *heap, uint32_t *call) {
    int result = 0, at = 0;
    if (!is_own(heap)) return 0;
    pthread_mutex_lock(&mutex);
    uint64_t done = 0;
    for (; done < heap->table->count && !result; done++) {
        allocation_t *each = heap->table->entries + done;
        if (each->flags & (MAPPED | FREED)) continue;
        result = each->handle ? map(heap, each, &at) : create_and_map(heap, each, &at);
    }
    *call = (uint32_t)at;
    for (uint64_t index = result ? done : 0; index-- > 0;)
        if (heap->table->entries[index].flags & MAPPED && !unmap(heap, heap->table->entries + index)) release(heap, heap->table->entries + index);
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
            int result = end_allocation(heap, index);
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
    pthread_mutex_unlock(&mutex);
    return failed ? NULL : (void *)(uintptr_t)address;
}

static void free_in_slot(int slot, void *address) {
    pthread_mutex_lock(&mutex);
    if (slots[slot]) free_allocation(slots[slot], (uint64_t)(uintptr_t)address);
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

/* The slot of a heap, or a free one for NULL; MOST_HEAPS if there is none. */
static int slot_of(const heap_t *heap) {
    int slot = 0;
    while (slot < MOST_HEAPS && slots[slot] != heap) slot++;
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
