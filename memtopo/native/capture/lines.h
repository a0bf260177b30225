#pragma once
#include <stdint.h>
#include <string.h>

/* A line, which is longer than the buffer in no case: lists and stacks end before. */

enum { LONGEST = 32768, LONGEST_LABEL = 4096, ROOM = 1024 };

typedef struct {
    size_t length;
    char text[LONGEST];
} line_t;

static void put_bytes(line_t *line, const char *text, size_t length) {
    if (length > LONGEST - line->length) length = LONGEST - line->length;
    memcpy(line->text + line->length, text, length);
    line->length += length;
}

static void put(line_t *line, const char *text) { put_bytes(line, text, strlen(text)); }

static void put_number(line_t *line, uint64_t value) {
    char digits[20];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + value % 10);
    while (value /= 10);
    put_bytes(line, digits + at, sizeof digits - at);
}

static void put_signed(line_t *line, int64_t value) {
    if (value < 0) put(line, "-");
    put_number(line, value < 0 ? -(uint64_t)value : (uint64_t)value);
}

/* A number of seconds, from nanoseconds. */
static void put_seconds(line_t *line, uint64_t nanoseconds) {
    uint64_t rest = nanoseconds % 1000000000;
    put_number(line, nanoseconds / 1000000000);
    put(line, ".");
    for (uint64_t digit = 100000000; digit > rest && digit > 1; digit /= 10) put(line, "0");
    put_number(line, rest);
}

/* The text of a string, in which nothing ends its quotation. */
static void put_escaped(line_t *line, const char *text, size_t length) {
    for (size_t at = 0; at < length; at++) {
        unsigned char each = (unsigned char)text[at];
        char one = each < ' ' || each > '~' ? '?' : (char)each;
        if (one == '"' || one == '\\') put(line, "\\");
        put_bytes(line, &one, 1);
    }
}
