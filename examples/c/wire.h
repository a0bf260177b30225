/* The connection to whoever holds a layout: requests, answers, and the descriptors that come with them.
 *
 * docs/protocol.md describes the packets. Every function that fails has said why on stderr. */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stdint.h>

enum { LARGEST = 64 << 10, MOST_FDS = 253, MOST_NAME = 128, UUID_TEXT = 32 };

struct offer {
    char name[MOST_NAME + 1], kind[16], via[16];
    char gpu[UUID_TEXT + 1]; /* the GPU's UUID in hexadecimal digits; empty where it is not on one GPU */
    uint64_t count, size;    /* `count` like things of `size` bytes each */
};

/* Connects to the socket of a layout, by its path or the layout's name. The connection is the importer's lease: as
 * long as it is open, the holder counts us as attached. -1 where nobody is there, or somebody else's process. */
int wire_connect(const char *layout);

/* What is exported under a name. */
bool wire_offer(int sock, const char *name, struct offer *offer);

/* One descriptor of an export, the one numbered `index`; the caller closes it. -1 where there is none. */
int wire_descriptor(int sock, const struct offer *offer, uint64_t index);

#endif
