#pragma once
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* An open file, with what tells it from others: a program may close all descriptors that it did not open, and open its own
 * files under their numbers. */
typedef struct {
    int number;
    dev_t device;
    ino_t inode;
} file_t;

#define CLOSED ((file_t){.number = -1})

/* Keep a descriptor, out of the way of programs that count on the smallest number. */
static file_t keep(int number) {
    enum { FIRST = 500 };
    struct stat found;
    if (number < 0) return CLOSED;
    int high = fcntl(number, F_DUPFD_CLOEXEC, FIRST);
    if (high >= 0) close(number);
    file_t kept = {.number = high >= 0 ? high : number};
    if (fstat(kept.number, &found)) return CLOSED;
    kept.device = found.st_dev;
    kept.inode = found.st_ino;
    return kept;
}

static int is_kept(const file_t *file) {
    struct stat found;
    return file->number >= 0 && !fstat(file->number, &found) && found.st_dev == file->device && found.st_ino == file->inode;
}

static void end_file(file_t *file) {
    if (is_kept(file)) close(file->number);
    *file = CLOSED;
}
