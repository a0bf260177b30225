/* The part of JSON that memtopo's answers need: steps through a complete value in memory.
 *
 * A cursor is where a value begins; NULL stands for a value that is not there, and every function passes it on. */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns true if a text is exactly one value. The other functions require such a text. */
bool json_complete(const char *text);

/* The value of a key of an object, or NULL. */
const char *json_member(const char *object, const char *key);

/* The first value of a list, and the one after a value of a list; NULL at the end. */
const char *json_first(const char *list);
const char *json_next(const char *value);

/* Copies a string of plain characters, such as a name or a UUID; returns false for others, or if it does not fit. */
bool json_text(const char *value, char *copy, size_t room);

/* Reads a non-negative integer; returns false for other values. */
bool json_number(const char *value, uint64_t *number);

#endif
