/* As much of JSON as an answer of memtopo's needs: stepping through a value that is complete and in memory.
 *
 * A cursor is where a value begins; NULL stands for a value that is not there, and every function passes it on. */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether a text is one value, and nothing after it. Only of such a text may the other functions be asked. */
bool json_complete(const char *text);

/* The value of a key of an object, or NULL. */
const char *json_member(const char *object, const char *key);

/* The first value of a list, and the one after a value of a list; NULL at the end. */
const char *json_first(const char *list);
const char *json_next(const char *value);

/* Copies a text of plain characters, which names and UUIDs are; false where it is none, or does not fit. */
bool json_text(const char *value, char *copy, size_t room);

/* A whole number from 0 on; false where it is none. */
bool json_number(const char *value, uint64_t *number);

#endif
