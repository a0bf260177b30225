#include "json.h"

#include <ctype.h>
#include <string.h>

enum { DEEPEST = 8 }; /* depth of nested brackets that the protocol allows */

static const char *blanks(const char *at) {
    while (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r') at++;
    return at;
}

/* Position after a string that begins with its quote. */
static const char *past_text(const char *at) {
    if (*at++ != '"') return NULL;
    while (*at && *at != '"') {
        if (*at == '\\' && !*++at) return NULL;
        at++;
    }
    return *at ? at + 1 : NULL;
}

/* Position after a number, true, false or null. */
static const char *past_word(const char *at) {
    const char *start = at;
    while (isalnum((unsigned char)*at) || *at == '+' || *at == '-' || *at == '.') at++;
    return at > start ? at : NULL;
}

static const char *past(const char *at, int depth) {
    at = blanks(at);
    if (*at == '"') return past_text(at);
    if (*at != '{' && *at != '[') return past_word(at);
    if (depth == DEEPEST) return NULL;
    const char end = *at == '{' ? '}' : ']';
    at = blanks(at + 1);
    if (*at == end) return at + 1;
    for (;;) {
        if (end == '}') {
            if (!(at = past_text(at)) || *(at = blanks(at)) != ':') return NULL;
            at++;
        }
        if (!(at = past(at, depth + 1))) return NULL;
        at = blanks(at);
        if (*at == end) return at + 1;
        if (*at != ',') return NULL;
        at = blanks(at + 1);
    }
}

bool json_complete(const char *text) {
    const char *end = past(text, 0);
    return end && !*blanks(end);
}

const char *json_member(const char *object, const char *key) {
    if (!object || *object != '{') return NULL;
    const size_t length = strlen(key);
    const char *at = blanks(object + 1);
    while (*at == '"') {
        const char *end = past_text(at);
        const bool found = (size_t)(end - at) == length + 2 && !memcmp(at + 1, key, length);
        at = blanks(blanks(end) + 1);
        if (found) return at;
        at = json_next(at);
        if (!at) return NULL;
    }
    return NULL;
}

const char *json_first(const char *list) {
    if (!list || *list != '[') return NULL;
    const char *at = blanks(list + 1);
    return *at == ']' ? NULL : at;
}

const char *json_next(const char *value) {
    if (!value) return NULL;
    const char *at = blanks(past(value, 0));
    return *at == ',' ? blanks(at + 1) : NULL;
}

bool json_text(const char *value, char *copy, size_t room) {
    if (!value || *value != '"') return false;
    const size_t length = strcspn(value + 1, "\"\\");
    if (value[1 + length] != '"' || length >= room) return false;
    memcpy(copy, value + 1, length);
    copy[length] = 0;
    return true;
}

bool json_number(const char *value, uint64_t *number) {
    if (!value || !isdigit((unsigned char)*value)) return false;
    *number = 0;
    for (; isdigit((unsigned char)*value); value++) {
        if (*number > (INT64_MAX - 9) / 10) return false;
        *number = *number * 10 + (uint64_t)(*value - '0');
    }
    return *value != '.' && *value != 'e' && *value != 'E';
}
