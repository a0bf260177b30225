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

#include "../files.h"
#include "lines.h"

/* The file of the record. */

static struct {
    char path[4096];
    file_t file;
    int limited; /* by RLIMIT_FSIZE */
} record = {.file = {.number = -1}};

static int recording; /* whether calls are recorded */

static int open_record(void) {
    record.file = keep(open(record.path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY));
    return record.file.number >= 0;
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
    off_t end = lseek(record.file.number, 0, SEEK_CUR);
    if (!fstat(record.file.number, &found) && end == found.st_size && ftruncate(record.file.number, end - (off_t)written)) return;
}

/* Write without SIGXFSZ, which ends a program whose file is as large as it may be. */
static ssize_t write_limited(const char *text, size_t length) {
    sigset_t one, before, pending;
    sigemptyset(&one);
    sigaddset(&one, SIGXFSZ);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &one, &before);
    ssize_t written = write(record.file.number, text, length);
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
    if (!is_kept(&record.file) && !open_record()) {
        end_record(errno);
        return;
    }
    while (done < line->length) {
        const char *rest = line->text + done;
        size_t left = line->length - done;
        ssize_t written = record.limited ? write_limited(rest, left) : write(record.file.number, rest, left);
        if (written >= 0) done += (size_t)written;
        else if (errno != EINTR) {
            int error = errno;
            if (done) remove_part(done);
            end_record(error);
            return;
        }
    }
}
