/* Each function of the library, answered in this process and then over a socket by a thread that is the simulator: before
 * each answer it has memory mapped and unmapped, and a descriptor stored. Included after libcuda.c. */

enum { THREADS = 4, SIZE = 1 << 16 };
#define FREE_PLACES ((void *)0x200000000000) /* where the system maps nothing by itself */
typedef int (*any_function_t)(word_t, word_t, word_t, word_t, word_t, word_t, word_t, word_t);

static secret_t secret = {"a handle"};
static unsigned answered[LOOKUP + 1]; /* calls of each function, by its number */
static int failures;

static void count(word_t number, word_t first, word_t second) {
    int is_opening = number == NUMBER_cuIpcOpenMemHandle_v2 || number == NUMBER_cuIpcOpenEventHandle;
    if (number > LOOKUP || (number < LOOKUP && first != 1)) __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
    else __atomic_add_fetch(answered + number, 1, __ATOMIC_RELAXED);
    if (is_opening && memcmp((void *)(uintptr_t)second, &secret, sizeof secret)) __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
}

static int look_up(word_t found, word_t number) { return *(uint32_t *)(uintptr_t)found = (uint32_t)number, 0; }

static int answer(word_t number, word_t a, word_t b, word_t c, word_t d, word_t e, word_t f, word_t g, word_t h) {
    (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    count(number, a, b);
    return number == LOOKUP ? look_up(a, NUMBER_cuInit) : 0;
}

#define MADE(name) (any_function_t)(uintptr_t)name,
static const any_function_t every[] = {FUNCTIONS(MADE)};
enum { EVERY = sizeof every / sizeof *every };

static void call_every(void) {
    void *found = NULL;
    const char *text;
    int status;
    for (int at = 0; at < EVERY; at++) every[at](1, 2, 3, 4, 5, 6, 7, 8);
    if (cuIpcOpenMemHandle_v2(1, secret, 0) || cuIpcOpenMemHandle(1, secret, 0) || cuIpcOpenEventHandle(1, secret)) failures++;
    if (cuGetProcAddress("cuInit", &found, 12000, 0) || cuGetProcAddress_v2("cuInit", &found, 12000, 0, &status)) failures++;
    if (cuGetProcAddress_v2("cuInit", NULL, 12000, 0, NULL) != INVALID_VALUE || !found) failures++;
    for (int error = -1; error < 1000; error++) cuGetErrorName(error, &text), cuGetErrorString(error, &text);
    if (cuGetErrorName(0, NULL) != INVALID_VALUE || cuGetErrorString(0, NULL) != INVALID_VALUE) failures++;
}

/* The simulator. */

static int listening, memory;

static void send_order(int to, int32_t kind, void *at, int fd) {
    char control[CMSG_SPACE(sizeof fd)] = {0};
    order_t order = {kind, 0, (word_t)(uintptr_t)at, SIZE, 0};
    struct iovec part = {&order, sizeof order};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
        memcpy(CMSG_DATA(head), &fd, sizeof fd);
    }
    int done = 0;
    if (sendmsg(to, &message, 0) < 0 || (kind != ANSWER && (recv(to, &done, sizeof done, 0) != sizeof done || done))) failures++;
}

static void *serve(void *of) {
    int with = (int)(intptr_t)of, stored = -1;
    word_t number;
    call_t call;
    void *free_place = (char *)FREE_PLACES + (size_t)with * SIZE;
    if (recv(with, &number, sizeof number, 0) != sizeof number) failures++;
    while (recv(with, &call, sizeof call, 0) == sizeof call) {
        count(call.number, call.words[0], call.words[1]);
        if (call.number == LOOKUP) look_up(call.words[0], NUMBER_cuInit);
        send_order(with, MAP, free_place, memory);
        send_order(with, UNMAP, free_place, -1);
        send_order(with, STORE_DESCRIPTOR, &stored, memory);
        if (close(stored)) failures++;
        send_order(with, ANSWER, NULL, -1);
    }
    close(with);
    return NULL;
}

static void *accept_each(void *unused) {
    pthread_t thread;
    for (int fd; (fd = accept(listening, NULL, NULL)) >= 0;) {
        pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd);
        pthread_detach(thread);
    }
    return unused;
}

static void *call_in_thread(void *unused) { return call_every(), unused; }

int main(void) {
    pthread_t accepting, threads[THREADS];
    char name[64];
    memory = memfd_create("memory", 0);
    if (ftruncate(memory, SIZE)) return 1;
    snprintf(name, sizeof name, "@memtopo-test-%d", (int)getpid());
    setenv("MEMTOPO_SIMULATOR", name, 1);
    set_address(name);
    listening = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (bind(listening, (struct sockaddr *)&address, address_length) || listen(listening, 16)) return 2;
    pthread_create(&accepting, NULL, accept_each, NULL);
    call_every();
    for (int at = 0; at < THREADS; at++) pthread_create(threads + at, NULL, call_in_thread, NULL);
    for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
    int fd = dup(memory);
    if (memtopo_map((word_t)(uintptr_t)FREE_PLACES, SIZE, fd, 0)) return 3;
    if (memtopo_map((word_t)(uintptr_t)FREE_PLACES, SIZE, fd, 0) != EEXIST) return 4;
    memtopo_answer(answer);
    call_every();
    signal(SIGINT, SIG_IGN);
    memtopo_interrupt();
    if (every[0](1, 0, 0, 0, 0, 0, 0, 0) || is_interrupted) return 5;
    memtopo_answer(NULL);
    if (every[0](1, 0, 0, 0, 0, 0, 0, 0) != DEINITIALIZED) return 6;
    for (int number = 0; number < LOOKUP; number++)
        if (answered[number] < (number < EVERY || number == NUMBER_cuIpcOpenEventHandle ? THREADS + 2 : 0)) return printf("%d\n", number), 7;
    if (failures) return printf("%d failures\n", failures), 8;
    puts("ok");
    return 0;
}
