#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "json.h"

enum { PATIENCE = 5 /* seconds for each answer */, MOST_NOTICES = 16 /* that are kept until they are read */ };

struct packet {
    char text[LARGEST + 1];
    int fds[MOST_FDS];
    int count;
};

/* Notices that came before the answer to a request, in order. */
static struct {
    char *text[MOST_NOTICES];
    int count;
} early;

static void drop(struct packet *packet) {
    for (int i = 0; i < packet->count; i++) close(packet->fds[i]);
    packet->count = 0;
}

/* Path of the socket of a layout. */
static bool socket_path(const char *layout, char *path, size_t room) {
    struct stat found;
    const char *run = getenv("XDG_RUNTIME_DIR"), *temporary = getenv("TMPDIR");
    int length;
    if (strchr(layout, '/'))
        length = snprintf(path, room, "%s", layout);
    else if (run && *run == '/' && !stat(run, &found) && S_ISDIR(found.st_mode))
        length = snprintf(path, room, "%s/memtopo/%s.sock", run, layout);
    else
        length = snprintf(path, room, "%s/memtopo-%u/%s.sock", temporary && *temporary == '/' ? temporary : "/tmp",
                          (unsigned)geteuid(), layout);
    return length > 0 && (size_t)length < room;
}

/* A path may be longer than an address: the socket's file is opened, and reached by its descriptor. Its owner is
 * looked at there, and no link is followed. */
static int dial(int file) {
    struct stat found;
    if (fstat(file, &found) || !S_ISSOCK(found.st_mode) || found.st_uid != geteuid()) {
        errno = EACCES;
        return -1;
    }
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0) return -1;
    struct timeval patience = {.tv_sec = PATIENCE};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d", file);
    if (setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) ||
        setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) ||
        connect(sock, (struct sockaddr *)&address, sizeof address)) {
        const int why = errno;
        close(sock);
        errno = why;
        return -1;
    }
    return sock;
}

int wire_connect(const char *layout) {
    char path[4096];
    if (!socket_path(layout, path, sizeof path)) return fprintf(stderr, "%s: the path is too long\n", program_invocation_short_name), -1;
    int file = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    int sock = file < 0 ? -1 : dial(file);
    if (sock < 0) fprintf(stderr, "%s: no holder answers at %s: %s\n", program_invocation_short_name, path, strerror(errno));
    if (file >= 0) close(file);
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (sock >= 0 && (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &length) || peer.uid != geteuid())) {
        fprintf(stderr, "%s: the holder at %s is another user's\n", program_invocation_short_name, path);
        close(sock);
        return -1;
    }
    return sock;
}

static void take_descriptors(struct msghdr *header, struct packet *packet) {
    for (struct cmsghdr *each = CMSG_FIRSTHDR(header); each; each = CMSG_NXTHDR(header, each)) {
        if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
        packet->count = (int)((each->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(packet->fds, CMSG_DATA(each), (size_t)packet->count * sizeof(int));
    }
}

/* Receives one packet of the protocol's version; the descriptors of an invalid one are closed. */
static bool receive(int sock, struct packet *packet) {
    union {
        struct cmsghdr aligned;
        char room[CMSG_SPACE(MOST_FDS * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = packet->text, .iov_len = LARGEST};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    packet->count = 0;
    const ssize_t length = recvmsg(sock, &header, MSG_CMSG_CLOEXEC);
    if (length <= 0) {
        fprintf(stderr, "%s: no answer: %s\n", program_invocation_short_name, length ? strerror(errno) : "the holder ended the connection");
        return false;
    }
    take_descriptors(&header, packet);
    packet->text[length] = 0;
    uint64_t version = 0;
    const bool whole = !(header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) && strlen(packet->text) == (size_t)length;
    if (whole && json_complete(packet->text) && json_number(json_member(packet->text, "memtopo"), &version) &&
        version == 1)
        return true;
    fprintf(stderr, "%s: the answer is no packet of version 1, or was cut off\n", program_invocation_short_name);
    drop(packet);
    return false;
}

static bool is_notice(const struct packet *packet) { return json_member(packet->text, "notice") != NULL; }

/* Receives the answer to a request. A notice is no answer, and is kept for wire_notice. */
static bool receive_answer(int sock, struct packet *packet) {
    for (;;) {
        if (!receive(sock, packet)) return false;
        if (!is_notice(packet)) return true;
        drop(packet);
        char *text = early.count < MOST_NOTICES ? strdup(packet->text) : NULL;
        if (!text) return fprintf(stderr, "%s: the holder sends notices and no answer\n", program_invocation_short_name), false;
        early.text[early.count++] = text;
    }
}

/* Sends a request; returns the value of "ok" in its answer, or NULL if it was refused or there is none, which leaves an
 * empty object. */
static const char *ask(int sock, const char *request, struct packet *packet) {
    const bool sent = send(sock, request, strlen(request), MSG_NOSIGNAL) >= 0;
    if (!sent) fprintf(stderr, "%s: the holder does not listen: %s\n", program_invocation_short_name, strerror(errno));
    if (!sent || !receive_answer(sock, packet)) {
        strcpy(packet->text, "{}");
        return NULL;
    }
    const char *ok = json_member(packet->text, "ok");
    if (ok) return ok;
    char message[1024] = "?";
    json_text(json_member(json_member(packet->text, "error"), "message"), message, sizeof message);
    fprintf(stderr, "%s: the holder refuses: %s\n", program_invocation_short_name, message);
    drop(packet);
    return NULL;
}

/* Returns true if the last request was refused since the memory is not there at present. */
static bool not_now(const struct packet *packet) {
    char code[32] = "";
    json_text(json_member(json_member(packet->text, "error"), "code"), code, sizeof code);
    return !strcmp(code, "absent") || !strcmp(code, "changing");
}

static bool read_offer(const char *text, struct offer *offer) {
    *offer = (struct offer){0};
    json_text(json_member(text, "gpu"), offer->gpu, sizeof offer->gpu); /* empty for null and for several GPUs */
    return json_text(json_member(text, "name"), offer->name, sizeof offer->name) &&
           json_text(json_member(text, "kind"), offer->kind, sizeof offer->kind) &&
           json_text(json_member(text, "via"), offer->via, sizeof offer->via) &&
           json_number(json_member(text, "count"), &offer->count) &&
           json_number(json_member(text, "size"), &offer->size);
}

bool wire_offer(int sock, const char *name, struct offer *offer) {
    static struct packet packet;
    char known[256] = "";
    for (uint64_t first = 0, total = 1; first < total;) {
        char request[128];
        snprintf(request, sizeof request, "{\"memtopo\":1,\"request\":\"offers\",\"first\":%" PRIu64 "}", first);
        const char *ok = ask(sock, request, &packet);
        if (!ok) return false;
        drop(&packet);
        const char *each = json_first(json_member(ok, "offers"));
        if (!each || !json_number(json_member(ok, "total"), &total)) break;
        for (; each; each = json_next(each), first++) {
            if (!read_offer(each, offer)) continue;
            if (!strcmp(offer->name, name)) return true;
            const size_t used = strlen(known);
            snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", offer->name);
        }
    }
    fprintf(stderr, "%s: there is no export '%s'; there are: %s\n", program_invocation_short_name, name,
            *known ? known : "none");
    return false;
}

int wire_descriptor(int sock, const struct offer *offer, uint64_t index) {
    static struct packet packet;
    char request[MOST_NAME + 128];
    snprintf(request, sizeof request,
             "{\"memtopo\":1,\"request\":\"handles\",\"export\":\"%s\",\"first\":%" PRIu64 ",\"count\":1}", offer->name,
             index);
    if (!ask(sock, request, &packet)) return not_now(&packet) ? NOT_NOW : FAILED;
    if (packet.count == 1) return packet.fds[0];
    fprintf(stderr, "%s: %d descriptors came where one was asked for\n", program_invocation_short_name, packet.count);
    drop(&packet);
    return FAILED;
}

bool wire_let_go(int sock, const char *name) {
    static struct packet packet;
    char request[MOST_NAME + 128];
    snprintf(request, sizeof request, "{\"memtopo\":1,\"request\":\"let_go\",\"exports\":[\"%s\"]}", name);
    if (!ask(sock, request, &packet)) return false;
    drop(&packet);
    return true;
}

static void read_notice(const char *text, const char *name, struct notice *notice) {
    char each[MOST_NAME + 1];
    *notice = (struct notice){0};
    json_text(json_member(text, "notice"), notice->kind, sizeof notice->kind);
    json_text(json_member(text, "state"), notice->state, sizeof notice->state);
    for (const char *at = json_first(json_member(text, "exports")); at; at = json_next(at))
        notice->concerned |= json_text(at, each, sizeof each) && !strcmp(each, name);
}

bool wire_notice(int sock, const char *name, struct notice *notice) {
    static struct packet packet;
    if (early.count) {
        char *text = early.text[0];
        memmove(early.text, early.text + 1, (size_t)--early.count * sizeof *early.text);
        read_notice(text, name, notice);
        free(text);
        return true;
    }
    struct pollfd readable = {.fd = sock, .events = POLLIN};
    while (poll(&readable, 1, -1) < 0)
        if (errno != EINTR) return false;
    if (!receive(sock, &packet)) return false;
    drop(&packet);
    if (!is_notice(&packet)) return fprintf(stderr, "%s: an answer came without a request\n", program_invocation_short_name), false;
    read_notice(packet.text, name, notice);
    return true;
}
