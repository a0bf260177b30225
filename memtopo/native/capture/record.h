#pragma once
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lines.h"

/* The file of the record. */

static struct {
    char path[4096];
    int file, limited;
    dev_t device;
    ino_t inode;
} record = {.file = -1};

static int recording; /* whether calls are recorded */

static int open_record(void) {
    struct stat found;
    int file = open(record.path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY), high;
    if (file < 0) return -1;
    /* Out of the way of programs that count on the smallest number. */
    if ((high = fcntl(file, F_DUPFD_CLOEXEC, 500)) >= 0) {
        close(file);
        file = high;
    }
    if (fstat(file, &found)) return -1;
    record.device = found.st_dev;
    record.inode = found.st_ino;
    return record.file = file;
}

/* Whether the descriptor is still that of the record: a program may close all that it did not open, and open others. */
static int is_open(void) {
    struct stat found;
    return !fstat(record.file, &found) && found.st_dev == record.device && found.st_ino == record.inode;
}

/* Say once that the record ends here. */
static void end_record(int error) {
    char text[256];
    if (!__atomic_exchange_n(&recording, 0, __ATOMIC_SEQ_CST)) return;
    int length = snprintf(text, sizeof text, "memtopo capture: the record of process %d ends here: %s\n", (int)getpid(), strerror(error));
    if (write(STDERR_FILENO, text, (size_t)length) < 0) return; /* there is nobody to tell */
}

/* Remove the part of a line that was written before a disk was full, if nobody has written behind it. */
static void remove_part(size_t written) {
    struct stat found;
    off_t end = lseek(record.file, 0, SEEK_CUR);
    if (!fstat(record.file, &found) && end == found.st_size && ftruncate(record.file, end - (off_t)written)) return;
}

/* Write without SIGXFSZ, which ends a program whose file is as large as it may be. */
static ssize_t write_limited(const char *text, size_t length) {
    sigset_t one, before, pending;
    sigemptyset(&one);
    sigaddset(&one, SIGXFSZ);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &one, &before);
    ssize_t written = write(record.file, text, length);
    int error = errno;
    const struct timespec at_once = {0, 0};
    if (written < 0 && !sigismember(&pending, SIGXFSZ)) sigtimedwait(&one, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return written;
}

/* One write, if the file takes the line as a whole. */
static void write_line(line_t *line) {
    size_t done = 0;
    put(line, "\n");
    if (!is_open() && open_record() < 0) {
        end_record(errno);
        return;
    }
    while (done < line->length) {
        const char *rest = line->text + done;
        size_t left = line->length - done;
        ssize_t written = record.limited ? write_limited(rest, left) : write(record.file, rest, left);
        if (written >= 0) done += (size_t)written;
        else if (errno != EINTR) {
            int error = errno;
            if (done) remove_part(done);
            end_record(error);
            return;
        }
    }
}
