/* The handle that is exported or imported at present: a descriptor, 64 bytes, or both. An open descriptor pins the
 * memory, so that it is closed at once. */
static struct {
    int fd;
    unsigned char bytes[64];
} shared = {.fd = -1};

static void close_handle(void) {
    if (shared.fd >= 0) close(shared.fd);
    shared.fd = -1;
    memset(shared.bytes, 0, sizeof shared.bytes);
}
