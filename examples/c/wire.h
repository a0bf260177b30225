/* Connection to the process that holds a layout: requests, answers, and descriptors.
 *
 * docs/protocol.md describes the packets. A function that fails prints the reason on stderr. */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stdint.h>

enum { LARGEST = 64 << 10, MOST_FDS = 253, MOST_NAME = 128, UUID_TEXT = 32 };
enum { FAILED = -1, NOT_NOW = -2 /* the memory of the export is gone, or is being changed */ };

struct offer {
    char name[MOST_NAME + 1], kind[16], via[16];
    char gpu[UUID_TEXT + 1]; /* the GPU's UUID in hexadecimal digits; empty if it is not on one GPU */
    uint64_t count, size;    /* `count` objects of `size` bytes each */
};

/* A notice of the holder: its `kind`, and whether it is about an export. `changing`: the memory of the export goes;
 * `changed`: it can be requested again, if it exists in the `state` of the layout, which is empty if it has no states. */
struct notice {
    char kind[16], state[MOST_NAME + 1];
    bool concerned;
};

/* Connects to the socket of a layout, by its path or the layout's name. The connection is the importer's lease: as
 * long as it is open, the holder counts us as attached. Returns -1 if no process listens, or one of another user. */
int wire_connect(const char *layout);

/* Gets the offer of an export by its name. */
bool wire_offer(int sock, const char *name, struct offer *offer);

/* Returns the descriptor of an export with an index, which the caller closes, FAILED or NOT_NOW. */
int wire_descriptor(int sock, const struct offer *offer, uint64_t index);

/* Reports that nothing is imported of an export any more: the holder waits for that before its memory goes. */
bool wire_let_go(int sock, const char *name);

/* Waits for the next notice; returns false at the end of the connection. */
bool wire_notice(int sock, const char *name, struct notice *notice);

#endif
