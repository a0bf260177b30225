/* Connects to a process that this one imports from, and waits until it listens. */
static void connect_to(const char *name, const char *own) {
    const struct sockaddr_un address = address_of(name);
    const int to = new_socket(name);
    enum { SECONDS = 60 };
    for (int tries = 0; connect(to, (const struct sockaddr *)&address, sizeof address); tries++) {
        if (tries == 100 * SECONDS) fail("cannot connect to", name);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    if (send(to, own, strlen(own), 0) < 0) fail("cannot greet", name);
    peers[peer_count].name = name;
    peers[peer_count++].socket = to;
}

static void receive_from(const char *name) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {shared.bytes, sizeof shared.bytes};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    if (recvmsg(socket_of(name, 0), &message, MSG_CMSG_CLOEXEC) <= 0) fail("no handle from", name);
    struct cmsghdr *const header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_type == SCM_RIGHTS) memcpy(&shared.fd, CMSG_DATA(header), sizeof(int));
}

/* Reports to the processes that this one imported from that it has released all of that. */
static void leave(void) {
    for (int i = 0; i < peer_count; i++)
        if (!peers[i].importer) close(peers[i].socket);
}
