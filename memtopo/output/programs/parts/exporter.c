static int listener = -1;

static void listen_as(const char *name) {
    const struct sockaddr_un address = address_of(name);
    listener = new_socket(name);
    unlink(address.sun_path);
    if (bind(listener, (const struct sockaddr *)&address, sizeof address) || listen(listener, MOST_PEERS))
        fail("cannot listen as", name);
}

/* Accepts connections until each of some processes that import from this one has connected. */
static void accept_importers(const char *own, const char *const *names, int count) {
    const struct sockaddr_un address = address_of(own);
    for (int left = count; left; left--) {
        char name[128] = "";
        const int from = accept(listener, NULL, NULL);
        int index = 0;
        if (from < 0 || recv(from, name, sizeof name - 1, 0) <= 0) fail("cannot accept", "an importer");
        while (index < count && strcmp(names[index], name)) index++;
        if (index == count) fail("not expected:", name);
        peers[peer_count].name = names[index];
        peers[peer_count].importer = 1;
        peers[peer_count++].socket = from;
    }
    close(listener);
    unlink(address.sun_path);
}

/* Sends the handle that was exported last, which ends here. */
static void send_to(const char *name) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {shared.bytes, sizeof shared.bytes};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    if (shared.fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *const header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &shared.fd, sizeof(int));
    }
    if (sendmsg(socket_of(name, 1), &message, MSG_NOSIGNAL) < 0) fail("cannot send a handle to", name);
    close_handle();
}

/* Waits until all that import from this process have released what they imported, or have ended. */
static void await_importers(void) {
    char byte;
    for (int i = 0; i < peer_count; i++)
        while (peers[i].importer && recv(peers[i].socket, &byte, 1, 0) > 0) continue;
}
