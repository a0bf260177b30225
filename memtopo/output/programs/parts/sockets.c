/* Handles go from process to process over Unix sockets: the bytes as a packet, and the descriptor as SCM_RIGHTS. */
enum { MOST_PEERS = 256 };

static struct {
    const char *name;
    int socket, importer;
} peers[MOST_PEERS];
static int peer_count;

static void fail(const char *what, const char *peer) {
    fprintf(stderr, "%s %s: %s\n", what, peer, strerror(errno));
    exit(1);
}

static struct sockaddr_un address_of(const char *name) {
    const char *folder = getenv("MEMTOPO_SOCKETS");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/%s.sock", folder ? folder : ".", name);
    if (length >= (int)sizeof address.sun_path) fail("too long a path of the socket of", name);
    return address;
}

static int new_socket(const char *name) {
    const int found = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (found < 0) fail("no socket for", name);
    return found;
}

static int socket_of(const char *name, int importer) {
    for (int i = 0; i < peer_count; i++)
        if (peers[i].importer == importer && !strcmp(peers[i].name, name)) return peers[i].socket;
    fail("not connected to", name);
    return -1;
}
