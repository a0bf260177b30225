/* Calls of the driver, each with what it answers. With the argument `wait`, a line of the standard input is awaited
 * after the first calls; with `fork`, a child calls the driver as well; with `close`, all descriptors are closed, as
 * daemons do, and their numbers are those of sockets that nobody answers. */
#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

CUresult cuDeviceGetCount(int *count);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t count);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t count);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuGetErrorString(CUresult error, const char **text);
CUresult cuGetProcAddress_v2(const char *symbol, void **found, int version, cuuint64_t flags, int *status);
CUresult cuLaunchKernel(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
CUresult cuGraphCreate(void **graph, unsigned flags);

enum { SIZE = 2 << 20 };

static CUcontext context;

static void say(const char *what, CUresult status) {
    const char *name = NULL, *text = NULL;
    cuGetErrorName(status, &name);
    cuGetErrorString(status, &text);
    printf("%s: %s (%s)\n", what, name, text);
}

static void *in_thread(void *unused) {
    CUcontext found = context;
    cuCtxGetCurrent(&found);
    printf("a thread begins without a context: %d\n", !found);
    return unused;
}

static void *count_in_thread(void *unused) {
    int gpus;
    say("count in a thread", cuDeviceGetCount(&gpus));
    return unused;
}

int main(int count, char **arguments) {
    const char *mode = count > 1 ? arguments[1] : "";
    char line[16] = "", data[8] = "", *pinned;
    int gpus = 0, fd = -1, found;
    void *function = NULL;
    pthread_t thread;
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle, imported;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    setvbuf(stdout, NULL, _IOLBF, 0);
    say("count before init", cuDeviceGetCount(&gpus));
    CUresult status = cuInit(0);
    say("init", status);
    if (status) return 1;
    cuDeviceGetCount(&gpus);
    printf("gpus: %d\n", gpus);
    if (!strcmp(mode, "wait")) {
        if (!fgets(line, sizeof line, stdin)) return 1;
        say("count", cuDeviceGetCount(&gpus));
        return 0;
    }
    if (!strcmp(mode, "close")) {
        int ends[2];
        for (int each = 3; each < 1024; each++) close(each);
        while (!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) && ends[1] < 1000) continue;
        say("count", cuDeviceGetCount(&gpus));
        pthread_create(&thread, NULL, count_in_thread, NULL);
        pthread_join(thread, NULL);
        for (int each = 3; each < 1000; each++)
            if (recv(each, data, 1, MSG_DONTWAIT | MSG_PEEK) >= 0 || fcntl(each, F_GETFD) < 0) return 2;
        return 0;
    }
    if (!strcmp(mode, "fork")) {
        pid_t child = fork();
        if (!child) {
            say("init of a child", cuInit(0));
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    cuDevicePrimaryCtxRetain(&context, 0);
    say("set current", cuCtxSetCurrent(context));
    pthread_create(&thread, NULL, in_thread, NULL);
    pthread_join(thread, NULL);
    cuMemAddressReserve(&address, SIZE, 0, 0, 0);
    cuMemCreate(&handle, SIZE, &properties, 0);
    say("map", cuMemMap(address, SIZE, 0, handle, 0));
    say("access", cuMemSetAccess(address, SIZE, &access, 1));
    cuMemcpyHtoD_v2(address, "device", 7);
    cuMemcpyDtoH_v2(data, address, 7);
    printf("copied: %s\n", data);
    cuMemHostAlloc((void **)&pinned, 100, 0);
    strcpy(pinned, "pinned");
    cuMemcpyHtoD_v2(address, pinned, 7);
    cuMemsetD8((CUdeviceptr)(uintptr_t)pinned, 'p', 3);
    cuMemcpyDtoH_v2(data, address, 7);
    printf("copied: %s, filled: %s\n", data, pinned);
    cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    say("import", cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    say("import of what is closed", cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    say("unmap a half", cuMemUnmap(address, SIZE / 2));
    say("launch", cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    say("graph", cuGraphCreate(&function, 0));
    say("address of cuMemAlloc", cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &found));
    printf("in the version of the header: %d, status %d\n", function == (void *)cuMemAlloc, found);
    say("address of cuNoFunction", cuGetProcAddress_v2("cuNoFunction", &function, 12000, 0, &found));
    printf("none: %d, status %d\n", !function, found);
    return 0;
}
