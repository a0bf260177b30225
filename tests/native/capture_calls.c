/* Captured calls that a test describes on the standard input, each in blocks of exactly their sizes. Included after
 * capture.c. A call is `NAME RESULT SIZE COUNT`, and for each of so many parameters its offset, `=` for a value and `*`
 * for a pointer, and the bytes in hexadecimal digits; `-` for a null pointer, `5` for a pointer to no memory. */
#include <ctype.h>

int memtopo_capture_start(const char *, const char *, const char *, const char *, char *, size_t);

/* Bytes in a block of their own size, behind which a sanitizer finds each read. */
static unsigned char *block_of(const char *digits, size_t *size) {
    *size = strlen(digits) / 2;
    unsigned char *block = malloc(*size);
    for (size_t at = 0; at < *size; at++) {
        char pair[3] = {digits[2 * at], digits[2 * at + 1], 0};
        block[at] = (unsigned char)strtoul(pair, NULL, 16);
    }
    return block;
}

static void put_parameter(unsigned char *at, char kind, const char *digits, void **made) {
    size_t size;
    void *pointer = !strcmp(digits, "5") ? (void *)5 : NULL;
    if (isxdigit(digits[0]) && digits[1]) pointer = *made = block_of(digits, &size);
    if (kind == '*') memcpy(at, &pointer, sizeof pointer);
    else memcpy(at, pointer, size);
}

int main(int count, char **arguments) {
    char message[512], name[64], kind, digits[1024];
    int result, parameters;
    size_t size, offset;
    if (count < 3) return 1;
    void *library = dlopen(arguments[2], RTLD_NOW);
    int (*make_call)(const char *, const void *, int) = (int (*)(const char *, const void *, int))dlsym(library, "stub_call");
    if (memtopo_capture_start(arguments[1], arguments[2], "none", "0", message, sizeof message)) return fprintf(stderr, "%s\n", message), 1;
    while (scanf("%63s %d %zu %d", name, &result, &size, &parameters) == 4) {
        void *made[MOST_PARAMETERS + 1] = {0};
        unsigned char *all = calloc(1, size);
        for (int at = 0; at < parameters; at++) {
            if (scanf("%zu %c %1023s", &offset, &kind, digits) != 3) return 2;
            put_parameter(all + offset, kind, digits, made + at);
        }
        if (!make_call(name, all, result)) return fprintf(stderr, "%s is not captured\n", name), 3;
        for (int at = 0; at < parameters; at++) free(made[at]);
        free(all);
    }
    memtopo_capture_mark("\"the end\"");
    memtopo_capture_stop();
    if (memtopo_capture_runs() || !InitializeInjection()) return 4;
    puts("ok");
    return 0;
}
