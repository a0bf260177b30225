/* Threads that allocate in heaps, while another one takes the memory of each and gives it back. Included after heaps.c. */
#include <stdio.h>
#include <stdlib.h>

static int fake_create(uint64_t *handle, size_t size, const properties_t *p, unsigned long long f) {
    static uint64_t next = 1;
    (void)size, (void)p, (void)f;
    *handle = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
    return 0;
}
static int fake_release(uint64_t handle) { return (void)handle, 0; }
static int fake_map(uint64_t a, size_t s, size_t o, uint64_t h, unsigned long long f) {
    return (void)a, (void)s, (void)o, (void)h, (void)f, 0;
}
static int fake_unmap(uint64_t a, size_t s) { return (void)a, (void)s, 0; }
static int fake_grant(uint64_t a, size_t s, const access_t *d, size_t n) { return (void)a, (void)s, (void)d, (void)n, 0; }
static int fake_push(void *c) { return (void)c, 0; }
static int fake_pop(void **c) { return *c = 0, 0; }
static int fake_wait(void) { return 0; }
static int fake_info(size_t *f, size_t *t) { return *f = *t = 1 << 30, 0; }

static budget_t budget = {.limit = 1ull << 40};
enum { HEAPS = MOST_HEAPS, THREADS = 8 };
static heap_t heaps[HEAPS];
static void *allocates_[HEAPS], *frees_[HEAPS];

static void *work(void *at) {
    heap_t *heap = at;
    int index = (int)(heap - heaps);
    void *(*a)(ssize_t, int, void *) = (void *(*)(ssize_t, int, void *))allocates_[index];
    void (*f)(void *, ssize_t, int, void *) = (void (*)(void *, ssize_t, int, void *))frees_[index];
    for (int round = 0; round < (index < THREADS ? 1000 : 20); round++) {
        void *one = a(3 << 20, 0, 0), *two = a(100, 0, 0);
        if (one) f(one, 0, 0, 0);
        if (two) f(two, 0, 0, 0);
    }
    return 0;
}

/* Each function once, with a driver that refuses access and then unmapping. */
static int refusals;
static int refuse(uint64_t a, size_t s) { return refusals ? 1 : fake_unmap(a, s); }
static int refuse_grant(uint64_t a, size_t s, const access_t *d, size_t n) { return refusals ? 1 : fake_grant(a, s, d, n); }

static int try_refusals(heap_t *heap) {
    uint64_t address, used = budget.used;
    driver_t driver = heap->driver;
    heap->driver.unmap = refuse;
    heap->driver.set_access = refuse_grant;
    heap->grants = 1;
    refusals = 1;
    if (memtopo_heap_allocate(heap, 1, &address) != 1 || budget.used != used + heap->granule) return 1;
    refusals = 0;
    if (memtopo_heap_allocate(heap, 1, &address) || address != heap->base || budget.used != used + heap->granule) return 2;
    if (memtopo_heap_largest_hole(heap) != heap->size - heap->granule) return 3;
    if (memtopo_heap_free(heap, address) || memtopo_heap_free(heap, address) != NOT_ALLOCATED) return 4;
    heap->driver = driver;
    heap->grants = 0;
    return memtopo_heap_size() != sizeof *heap;
}

int main(void) {
    pthread_t threads[THREADS];
    driver_t driver = {fake_create, fake_release, fake_map, fake_unmap, fake_grant, fake_push, fake_pop, fake_wait, fake_info};
    for (int n = 0; n < HEAPS; n++) {
        heaps[n] = (heap_t){.base = (uint64_t)(n + 1) << 32, .size = 1 << 28, .granule = 2 << 20, .budget = &budget};
        heaps[n].driver = driver;
        heaps[n].process = getpid();
        heaps[n].table = calloc(1, sizeof(table_t) + 128 * sizeof(allocation_t));
        heaps[n].holes.granules = calloc(129, sizeof(granule_t));
        memtopo_heap_open(&heaps[n]);
        if (memtopo_heap_functions(&heaps[n], &allocates_[n], &frees_[n])) return 1;
        if (try_refusals(&heaps[n])) return 6;
    }
    for (int n = 0; n < THREADS; n++) pthread_create(&threads[n], 0, work, &heaps[n]);
    for (int n = THREADS; n < HEAPS; n++) work(&heaps[n]);
    for (int round = 0; round < 5 * HEAPS; round++) {
        uint32_t call;
        uint64_t broken, held;
        heap_t *heap = &heaps[round % HEAPS];
        memtopo_heap_close(heap);
        if (memtopo_heap_unmap_one(heap, heap->base)) return 2;
        if (memtopo_heap_unmap(heap, &call, &broken, &held)) return 2;
        int one = memtopo_heap_map_one(heap, heap->base, &call);
        if ((one && one != NOT_ALLOCATED) || memtopo_heap_map(heap, &call)) return 2;
        memtopo_heap_open(heap);
    }
    for (int n = 0; n < THREADS; n++) pthread_join(threads[n], 0);
    for (int n = 0; n < HEAPS; n++) {
        int error;
        if (heaps[n].table->count) return 3;
        if (memtopo_heap_end(&heaps[n], &error)) return 4;
        memtopo_heap_forget(&heaps[n]);
        free(heaps[n].table);
        free(heaps[n].holes.granules);
    }
    if (budget.used) return 5;
    puts("ok");
    return 0;
}
