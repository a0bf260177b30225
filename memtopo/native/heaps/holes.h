#pragma once
#include <stdint.h>

/* Holes among the addresses of a heap, which are counted in granules: found by size, and joined with their neighbours,
 * in logarithmic time. They are a treap, a search tree in order of size and then of place, in which each hole has a
 * fixed pseudo-random rank above the ranks of those below it. A hole is named by the place of its first granule, from 1
 * on; 0 is none. */

typedef struct {
    uint32_t entry;       /* of the allocation that begins here, by its index in the table from 1 on */
    uint32_t size;        /* granules of the hole that begins here */
    uint32_t back;        /* granules of the hole whose last one is here */
    uint32_t left, right; /* of the hole that begins here, in the tree */
} granule_t;
_Static_assert(sizeof(granule_t) == 20, "as the caller has room for it");

typedef struct {
    granule_t *granules; /* zeros at first, one more than there are, since places begin at 1 */
    uint32_t root, reserved;
} holes_t;

static uint32_t rank_of(uint32_t hole) {
    hole = (hole ^ hole >> 16) * 0x45d9f3bu;
    hole = (hole ^ hole >> 16) * 0x45d9f3bu;
    return hole ^ hole >> 16;
}

static uint32_t join(granule_t *all, uint32_t low, uint32_t high) {
    if (!low || !high) return low ? low : high;
    if (rank_of(low) > rank_of(high)) {
        all[low].right = join(all, all[low].right, high);
        return low;
    }
    all[high].left = join(all, low, all[high].left);
    return high;
}

/* Split a tree into the holes before a size and a place, and those from there on. */
static void split(granule_t *all, uint32_t tree, uint32_t size, uint32_t place, uint32_t *low, uint32_t *high) {
    if (!tree) *low = *high = 0;
    else if (all[tree].size < size || (all[tree].size == size && tree < place)) {
        *low = tree;
        split(all, all[tree].right, size, place, &all[tree].right, high);
    } else {
        *high = tree;
        split(all, all[tree].left, size, place, low, &all[tree].left);
    }
}

static void add_hole(holes_t *holes, uint32_t place, uint32_t size) {
    granule_t *all = holes->granules;
    uint32_t low, high;
    if (!size) return;
    all[place] = (granule_t){.size = size, .back = all[place].back};
    all[place + size - 1].back = size;
    split(all, holes->root, size, place, &low, &high);
    holes->root = join(all, join(all, low, place), high);
}

static void remove_hole(holes_t *holes, uint32_t place) {
    granule_t *all = holes->granules;
    uint32_t low, hole, high, size = all[place].size;
    split(all, holes->root, size, place, &low, &high);
    split(all, high, size, place + 1, &hole, &high);
    holes->root = join(all, low, high);
    all[place].size = all[place + size - 1].back = 0;
}

/* The smallest hole of at least so many granules, of several the first one; 0 if there is none. */
static uint32_t smallest_hole(const holes_t *holes, uint64_t size) {
    uint32_t found = 0;
    for (uint32_t at = holes->root; at;) {
        int fits = holes->granules[at].size >= size;
        if (fits) found = at;
        at = fits ? holes->granules[at].left : holes->granules[at].right;
    }
    return found;
}

/* Granules of the largest hole. */
static uint32_t largest_hole(const holes_t *holes) {
    uint32_t at = holes->root;
    while (at && holes->granules[at].right) at = holes->granules[at].right;
    return at ? holes->granules[at].size : 0;
}

/* Take the first granules of a hole. */
static void take_granules(holes_t *holes, uint32_t place, uint32_t size) {
    uint32_t whole = holes->granules[place].size;
    remove_hole(holes, place);
    add_hole(holes, place + size, whole - size);
}

/* Make granules a hole, together with the holes at both of their sides; there are `count` granules. */
static void give_granules(holes_t *holes, uint32_t place, uint32_t size, uint64_t count) {
    uint32_t after = place + size <= count ? holes->granules[place + size].size : 0, before = holes->granules[place - 1].back;
    if (after) remove_hole(holes, place + size);
    if (before) remove_hole(holes, place - before);
    add_hole(holes, place - before, before + size + after);
}
