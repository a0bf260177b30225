/* libcuda.so.1 of the simulator: the functions of the CUDA driver API, answered by memtopo's simulator.
 *
 * A call is passed with the words of its arguments: to a function that Python has set in this process, or over a socket
 * to a process of the simulator, which reads and writes the memory of this one by itself (/proc/PID/mem). What only
 * this process can do, it is told to do before the answer: map memory of the simulator, or receive a descriptor. Each
 * thread has a connection of its own, as each thread has its own stack of contexts.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files.h"
#include "libcuda/names.h"

#define PUBLIC __attribute__((visibility("default")))

typedef uint64_t word_t;

/* As in cuda.h. */
enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, DEINITIALIZED = 4, STUB_LIBRARY = 34, NOT_FOUND = 500, SYSTEM_NOT_READY = 802 };
typedef struct { char bytes[64]; } secret_t;

enum { MOST_WORDS = 8 };

/* Order of the functions in names.h, by which both sides name them. */
#define NUMBER(name) NUMBER_##name,
enum { FUNCTIONS(NUMBER) OWN_FUNCTIONS(NUMBER) LOOKUP };

typedef struct { word_t number, words[MOST_WORDS]; } call_t;
typedef struct { int32_t order, status; word_t address, size, offset; } order_t;
enum { ANSWER, MAP, UNMAP, STORE_DESCRIPTOR }; /* of an order: only the first one ends the call */

typedef int (*answer_t)(word_t number, word_t, word_t, word_t, word_t, word_t, word_t, word_t, word_t);

static answer_t in_python;
static int is_of_python; /* this process has its own simulator, or had it */
static int is_forked;    /* from a process that has initialised the driver */
static int is_initialized;
static __thread int is_interrupted;

/* The simulator's socket. */

static pthread_once_t started = PTHREAD_ONCE_INIT;
static pthread_key_t of_thread;
static struct sockaddr_un address;
static socklen_t address_length;
static file_t lease = {.number = -1}; /* a connection that ends with the process */
static word_t instance; /* number of this process, which is another one after exec */
static __thread file_t connection = {.number = -1};

static void complain(const char *what) {
    fprintf(stderr, "memtopo simulator: %s\n", what);
}

static void end_connection(void *unused) {
    (void)unused;
    end_file(&connection);
}

static void set_address(const char *name) {
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", name);
    address_length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(address.sun_path));
    if (*name == '@') address.sun_path[0] = 0; /* abstract: no file is left */
}

static file_t connected(void) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, address_length)) {
        close(fd);
        return CLOSED;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) || peer.uid != getuid()) { /* it may write to this memory */
        close(fd);
        return CLOSED;
    }
    prctl(PR_SET_PTRACER, peer.pid, 0, 0, 0);
    send(fd, &instance, sizeof instance, MSG_NOSIGNAL);
    return keep(fd);
}

/* Become the simulator: no child of the program, without its terminal and its descriptors. */
static void run_simulator(const char *program, int made) {
    enum { FIRST = 3 };
    if (fork()) _exit(0);
    setsid();
    dup2(made, FIRST);
    if (syscall(SYS_close_range, FIRST + 1, ~0U, 0))
        for (int fd = FIRST + 1; fd < 1 << 16; fd++) close(fd);
    fcntl(FIRST, F_SETFD, 0);
    unsetenv("LD_LIBRARY_PATH");
    execl(program, program, "3", (char *)NULL);
    fprintf(stderr, "memtopo simulator: %s cannot be run: %s\n", program, strerror(errno));
    _exit(127);
}

/* Start a simulator that ends with this process. The program `simulator` lies beside this library. */
static int start_simulator(void) {
    Dl_info own;
    char program[PATH_MAX + 16], made[128];
    int ends[2];
    if (!dladdr((void *)(uintptr_t)start_simulator, &own) || pipe2(ends, O_CLOEXEC)) return -1;
    snprintf(program, sizeof program, "%s", own.dli_fname);
    char *slash = strrchr(program, '/');
    snprintf(slash ? slash + 1 : program, 16, "simulator");
    pid_t child = fork();
    if (!child) run_simulator(program, ends[1]);
    close(ends[1]);
    if (child > 0) waitpid(child, NULL, 0);
    ssize_t length = child < 0 ? 0 : read(ends[0], made, sizeof made - 1);
    close(ends[0]);
    if (length <= 0) return -1;
    made[length] = 0;
    setenv("MEMTOPO_SIMULATOR", made, 1); /* for the processes that this one starts */
    set_address(made);
    return 0;
}

static void start(void) {
    const char *name = getenv("MEMTOPO_SIMULATOR");
    pthread_key_create(&of_thread, end_connection);
    if (getrandom(&instance, sizeof instance, 0) < 0) instance = (word_t)getpid();
    if (name && *name) set_address(name);
    else if (start_simulator()) {
        complain("the simulator did not start");
        return;
    }
    lease = connected();
    if (lease.number < 0) complain("no simulator is at MEMTOPO_SIMULATOR: it has ended, or is another user's");
}

static void after_fork(void) {
    is_forked = is_forked || is_initialized;
    end_file(&connection);
    end_file(&lease);
    started = (pthread_once_t)PTHREAD_ONCE_INIT;
    in_python = NULL;
    is_of_python = 0;
}

__attribute__((constructor)) static void at_load(void) { pthread_atfork(NULL, NULL, after_fork); }

/* Receive an order, with a descriptor if it has one; return 0 if the simulator has ended, or is none. */
static int receive(order_t *order, int *fd) {
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {order, sizeof *order};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t length;
    do length = recvmsg(connection.number, &message, MSG_CMSG_CLOEXEC);
    while (length < 0 && errno == EINTR);
    struct cmsghdr *found = length > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    *fd = -1;
    if (found && found->cmsg_type == SCM_RIGHTS) memcpy(fd, CMSG_DATA(found), sizeof *fd);
    if (length != (ssize_t)sizeof *order || message.msg_flags & MSG_TRUNC) return 0;
    return order->order >= ANSWER && order->order <= STORE_DESCRIPTOR;
}

static int map(const order_t *order, int fd) {
    int flags = MAP_SHARED | MAP_FIXED_NOREPLACE;
    void *at = (void *)(uintptr_t)order->address;
    void *found = mmap(at, order->size, PROT_READ | PROT_WRITE, flags, fd, (off_t)order->offset);
    int failed = found == MAP_FAILED ? errno : found != at ? EEXIST : 0;
    if (found != MAP_FAILED && failed) munmap(found, order->size);
    return failed;
}

static int follow(const order_t *order, int fd) {
    int failed = 0;
    if (order->order == MAP) failed = map(order, fd);
    else if (order->order == UNMAP) munmap((void *)(uintptr_t)order->address, order->size);
    else *(int *)(uintptr_t)order->address = fd;
    if (fd >= 0 && order->order != STORE_DESCRIPTOR) close(fd);
    return failed;
}

static int over_socket(const call_t *call) {
    order_t order;
    int fd, done;
    pthread_once(&started, start);
    if (lease.number < 0) return STUB_LIBRARY;
    if (connection.number < 0 && is_kept(&lease)) {
        connection = connected();
        pthread_setspecific(of_thread, &of_thread);
    }
    if (!is_kept(&lease) || (connection.number >= 0 && !is_kept(&connection))) {
        complain("the program has closed the connection to the simulator, with descriptors that it did not open");
        return SYSTEM_NOT_READY;
    }
    if (send(connection.number, call, sizeof *call, MSG_NOSIGNAL) == (ssize_t)sizeof *call)
        while (receive(&order, &fd)) {
            if (order.order == ANSWER) return order.status;
            done = follow(&order, fd);
            if (send(connection.number, &done, sizeof done, MSG_NOSIGNAL) != (ssize_t)sizeof done) break;
        }
    shutdown(connection.number, SHUT_RDWR);
    complain("the simulator has ended: no call is answered any more");
    return SYSTEM_NOT_READY;
}

/* What cuInit looks at in the environment of this process, after its own argument. */
static void add_environment(word_t *words) {
    words[1] = (word_t)(uintptr_t)getenv("CUDA_VISIBLE_DEVICES");
    words[2] = (word_t)(uintptr_t)getenv("CUDA_DEVICE_ORDER");
}

static int call(call_t *made) {
    if (is_forked) return NOT_INITIALIZED;
    if (made->number == NUMBER_cuInit) add_environment(made->words);
    const word_t *of = made->words;
    int saved = errno;
    answer_t python = __atomic_load_n(&in_python, __ATOMIC_SEQ_CST);
    if (is_of_python && !python) return DEINITIALIZED;
    int status = python ? python(made->number, of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7]) : over_socket(made);
    if (made->number == NUMBER_cuInit && !status) is_initialized = 1;
    if (is_interrupted) {
        is_interrupted = 0;
        raise(SIGINT);
    }
    errno = saved;
    return status;
}

/* Raise SIGINT on this thread once its call has been answered. */
PUBLIC void memtopo_interrupt(void) { is_interrupted = 1; }

/* Have the calls of this process answered by a function of Python, or refused. */
PUBLIC void memtopo_answer(answer_t function) {
    is_of_python = 1;
    __atomic_store_n(&in_python, function, __ATOMIC_SEQ_CST);
}

/* Map a part of a file at an address where nothing is mapped; return 0 or an error of the system. */
PUBLIC int memtopo_map(word_t at, word_t size, int fd, word_t offset) {
    order_t order = {MAP, 0, at, size, offset};
    return map(&order, fd);
}

/* A function of eight words can be called like one of fewer integers and pointers. */
#define CALL(name)                                                                                                    \
    PUBLIC int name(word_t a, word_t b, word_t c, word_t d, word_t e, word_t f, word_t g, word_t h) {                 \
        call_t made = {NUMBER_##name, {a, b, c, d, e, f, g, h}};                                                      \
        return call(&made);                                                                                           \
    }
FUNCTIONS(CALL)

PUBLIC int cuIpcOpenMemHandle_v2(word_t opened, secret_t handle, word_t flags) {
    call_t made = {NUMBER_cuIpcOpenMemHandle_v2, {opened, (word_t)(uintptr_t)&handle, flags}};
    return call(&made);
}

PUBLIC int cuIpcOpenMemHandle(word_t opened, secret_t handle, word_t flags) { return cuIpcOpenMemHandle_v2(opened, handle, flags); }

PUBLIC int cuIpcOpenEventHandle(word_t opened, secret_t handle) {
    call_t made = {NUMBER_cuIpcOpenEventHandle, {opened, (word_t)(uintptr_t)&handle}};
    return call(&made);
}

/* Errors. */

#define ERROR(code, name, text) {code, #name, text},
static const struct { int code; const char *name, *text; } errors[] = {ERRORS(ERROR)};
enum { MOST_ERRORS = sizeof errors / sizeof *errors };

static int error_at(int error) {
    int at = 0;
    while (at < MOST_ERRORS && errors[at].code != error) at++;
    return at;
}

PUBLIC int cuGetErrorName(int error, const char **name) {
    int at = error_at(error);
    if (!name) return INVALID_VALUE;
    *name = at < MOST_ERRORS ? errors[at].name : NULL;
    return *name ? SUCCESS : INVALID_VALUE;
}

PUBLIC int cuGetErrorString(int error, const char **text) {
    int at = error_at(error);
    if (!text) return INVALID_VALUE;
    *text = at < MOST_ERRORS ? errors[at].text : NULL;
    return *text ? SUCCESS : INVALID_VALUE;
}

/* Addresses of functions: the simulator names the version of a function, as of a version of CUDA. */

PUBLIC int cuGetProcAddress_v2(const char *symbol, void **function, int version, word_t flags, int *status);
PUBLIC int cuGetProcAddress(const char *symbol, void **function, int version, word_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

#define FUNCTION(name) (void *)(uintptr_t)name,
static void *const functions[] = {FUNCTIONS(FUNCTION) OWN_FUNCTIONS(FUNCTION)};

int cuGetProcAddress_v2(const char *symbol, void **function, int version, word_t flags, int *status) {
    enum { FOUND, SYMBOL_NOT_FOUND };
    uint32_t number = LOOKUP;
    (void)flags;
    if (!symbol || !function) return INVALID_VALUE;
    call_t lookup = {LOOKUP, {(word_t)(uintptr_t)&number, (word_t)(uintptr_t)symbol, (word_t)version}};
    *function = !call(&lookup) && number < LOOKUP ? functions[number] : NULL;
    if (status) *status = *function ? FOUND : SYMBOL_NOT_FOUND;
    return *function ? SUCCESS : NOT_FOUND;
}
