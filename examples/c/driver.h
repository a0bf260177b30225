/* Calls of the CUDA driver that an import needs, found in libcuda at run time: the build needs no header of
 * NVIDIA's. Types and numbers are those of cuda.h, the same in every release since 11.3. */
#ifndef DRIVER_H
#define DRIVER_H

#include <stdbool.h>
#include <stddef.h>

typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr, CUhandle;
typedef struct CUctx *CUcontext;
typedef struct {
    unsigned char bytes[16];
} CUuuid;
typedef struct {
    struct {
        int type, id;
    } location;
    int flags;
} CUmemAccessDesc;

enum { LOCATION_DEVICE = 1, ACCESS_READ = 1, ACCESS_READWRITE = 3, HANDLE_POSIX_FD = 1 };

struct cuda {
    CUresult (*init)(unsigned flags);
    CUresult (*name)(CUresult error, const char **name);
    CUresult (*count)(int *count);
    CUresult (*uuid)(CUuuid *uuid, CUdevice device);
    CUresult (*retain)(CUcontext *context, CUdevice device);
    CUresult (*release_context)(CUdevice device);
    CUresult (*push)(CUcontext context);
    CUresult (*pop)(CUcontext *context);
    CUresult (*synchronize)(void);
    CUresult (*import)(CUhandle *handle, void *descriptor, int kind);
    CUresult (*reserve)(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags);
    CUresult (*map)(CUdeviceptr address, size_t size, size_t offset, CUhandle handle, unsigned long long flags);
    CUresult (*access)(CUdeviceptr address, size_t size, const CUmemAccessDesc *grants, size_t count);
    CUresult (*unmap)(CUdeviceptr address, size_t size);
    CUresult (*release)(CUhandle handle);
    CUresult (*unreserve)(CUdeviceptr address, size_t size);
    CUresult (*to_host)(void *host, CUdeviceptr address, size_t size);
    CUresult (*to_device)(CUdeviceptr address, const void *host, size_t size);
};

/* Finds all calls; returns false, with the reason on stderr, if there is no driver. */
bool cuda_open(struct cuda *cuda);

/* Returns true if a call succeeded; otherwise prints its name and the error on stderr. */
bool cuda_ok(const struct cuda *cuda, CUresult result, const char *call);

/* Returns the ordinal of the GPU with this UUID (32 hexadecimal digits), or -1 if it is not visible. */
int cuda_device(const struct cuda *cuda, const char *uuid);

#endif
