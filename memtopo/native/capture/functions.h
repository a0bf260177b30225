#pragma once
/* Functions: the parameters in the order of the C declaration, each with its name in memtopo's protocol. */

typedef enum {
    END,
    MADE,        /* pointer to the 64-bit number that the call makes: an address or a handle */
    IMPORTED,    /* the same, of a chunk of another process: its location is written, which the driver is asked for */
    MADE_TOO,    /* pointer to a second one, which is written as an argument */
    MADE_INT,    /* pointer to a 32-bit number */
    MADE_VALUE,  /* pointer to the value of the attribute of a pool */
    MADE_SHARED, /* pointer to a descriptor or to bytes, by the parameter "kind" */
    MADE_SECRET, /* pointer to the bytes of a handle */
    NUMBER,      /* 64 bits: an address, a size, an object */
    UNSIGNED,    /* 32 bits: flags */
    SIGNED,      /* 32 bits: the ordinal of a GPU, an enumeration */
    PLACE,       /* 32 bits: the ordinal of a GPU as a location, -1 for the host */
    LOCATION,    /* CUmemLocation */
    AT_LOCATION, /* pointer to a CUmemLocation */
    VALUE,       /* pointer to the value of the attribute of a pool */
    GRANTS,      /* pointer to CUmemAccessDesc; their number follows */
    PROPERTIES,  /* pointer to CUmemAllocationProp */
    POOL,        /* pointer to CUmemPoolProps */
    SHARED,      /* a descriptor as a pointer, or a pointer to bytes, by the parameter "kind" */
    SECRET,      /* the 64 bytes of a handle */
    AT_SECRET,   /* pointer to them */
    MEMORY,      /* pointer to CUDA_EXTERNAL_MEMORY_HANDLE_DESC */
    PART,        /* pointer to CUDA_EXTERNAL_MEMORY_BUFFER_DESC */
    SEMAPHORE,   /* pointer to CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC */
    MULTICAST,   /* pointer to CUmulticastObjectProp */
} type_t;

enum { MOST_PARAMETERS = 8, MOST_GRANTS = 64, SECRET_BYTES = 64 };

typedef struct { type_t type; const char *name; } parameter_t; /* one without a name is not written */
typedef struct {
    const char *name, *method;
    parameter_t parameters[MOST_PARAMETERS + 1];
} function_t;

#define ADDRESS {NUMBER, "address"}
#define SIZE {NUMBER, "size"}
#define FLAGS {NUMBER, "flags"} /* of 64 bits */
#define FLAGS_32 {UNSIGNED, "flags"}
#define HANDLE {NUMBER, "handle"}
#define KIND {SIGNED, "kind"}
#define STREAM {NUMBER, "stream"}
#define OF_POOL {NUMBER, "pool"}
#define DEVICE {SIGNED, "device"}
#define RESULT {MADE, NULL}
#define SHARED_RESULT {MADE_SHARED, NULL}
#define NOT_WRITTEN(type) {type, NULL}

static const function_t functions[] = {
    {"cuMemAddressReserve", "mem_address_reserve", {RESULT, SIZE, {NUMBER, "alignment"}, ADDRESS, FLAGS}},
    {"cuMemAddressFree", "mem_address_free", {ADDRESS, SIZE}},
    {"cuMemCreate", "mem_create", {RESULT, SIZE, {PROPERTIES, "properties"}, FLAGS}},
    {"cuMemRelease", "mem_release", {HANDLE}},
    {"cuMemMap", "mem_map", {ADDRESS, SIZE, {NUMBER, "offset"}, HANDLE, FLAGS}},
    {"cuMemUnmap", "mem_unmap", {ADDRESS, SIZE}},
    {"cuMemSetAccess", "mem_set_access", {ADDRESS, SIZE, {GRANTS, "grants"}, NOT_WRITTEN(NUMBER)}},
    {"cuMemRetainAllocationHandle", "mem_retain_allocation_handle", {RESULT, ADDRESS}},
    {"cuMemExportToShareableHandle", "mem_export_to_shareable_handle", {SHARED_RESULT, HANDLE, KIND, FLAGS}},
    {"cuMemImportFromShareableHandle", "mem_import_from_shareable_handle", {{IMPORTED, "location"}, {SHARED, "shared"}, KIND}},
    {"cuMemGetHandleForAddressRange", "mem_get_handle_for_address_range",
     {{MADE_INT, NULL}, ADDRESS, SIZE, NOT_WRITTEN(SIGNED), FLAGS}},
    {"cuMemAlloc_v2", "mem_alloc", {RESULT, SIZE}},
    {"cuMemAllocPitch_v2", "mem_alloc_pitch",
     {RESULT, {MADE_TOO, "pitch"}, {NUMBER, "width"}, {NUMBER, "height"}, {UNSIGNED, "element"}}},
    {"cuMemFree_v2", "mem_free", {ADDRESS}},
    {"cuMemAllocAsync", "mem_alloc_async", {RESULT, SIZE, STREAM}},
    {"cuMemFreeAsync", "mem_free_async", {ADDRESS, STREAM}},
    {"cuMemAllocFromPoolAsync", "mem_alloc_from_pool_async", {RESULT, SIZE, OF_POOL, STREAM}},
    {"cuMemAllocManaged", "mem_alloc_managed", {RESULT, SIZE, FLAGS_32}},
    {"cuMemAllocHost_v2", "mem_alloc_host", {RESULT, SIZE}},
    {"cuMemHostAlloc", "mem_host_alloc", {RESULT, SIZE, FLAGS_32}},
    {"cuMemFreeHost", "mem_free_host", {ADDRESS}},
    {"cuMemHostRegister_v2", "mem_host_register", {ADDRESS, SIZE, FLAGS_32}},
    {"cuMemHostUnregister", "mem_host_unregister", {ADDRESS}},
    {"cuMemPoolCreate", "mem_pool_create", {RESULT, {POOL, "properties"}}},
    {"cuMemPoolDestroy", "mem_pool_destroy", {OF_POOL}},
    {"cuMemPoolSetAttribute", "mem_pool_set_attribute", {OF_POOL, {SIGNED, "attribute"}, {VALUE, "value"}}},
    {"cuMemPoolGetAttribute", "mem_pool_get_attribute", {OF_POOL, {SIGNED, "attribute"}, {MADE_VALUE, NULL}}},
    {"cuMemPoolSetAccess", "mem_pool_set_access", {OF_POOL, {GRANTS, "grants"}, NOT_WRITTEN(NUMBER)}},
    {"cuMemPoolGetAccess", "mem_pool_get_access", {{MADE_INT, NULL}, OF_POOL, {AT_LOCATION, "location"}}},
    {"cuMemPoolTrimTo", "mem_pool_trim_to", {OF_POOL, {NUMBER, "keep"}}},
    {"cuMemPoolExportToShareableHandle", "mem_pool_export_to_shareable_handle", {SHARED_RESULT, OF_POOL, KIND, FLAGS}},
    {"cuMemPoolImportFromShareableHandle", "mem_pool_import_from_shareable_handle",
     {RESULT, {SHARED, "shared"}, KIND, FLAGS}},
    {"cuMemPoolExportPointer", "mem_pool_export_pointer", {{MADE_SECRET, NULL}, ADDRESS}},
    {"cuMemPoolImportPointer", "mem_pool_import_pointer", {RESULT, OF_POOL, {AT_SECRET, "data"}}},
    {"cuDeviceGetDefaultMemPool", "device_get_default_mem_pool", {RESULT, DEVICE}},
    {"cuDeviceGetMemPool", "device_get_mem_pool", {RESULT, DEVICE}},
    {"cuDeviceSetMemPool", "device_set_mem_pool", {DEVICE, OF_POOL}},
    {"cuMemGetDefaultMemPool", "mem_get_default_mem_pool", {RESULT, {AT_LOCATION, "location"}, {SIGNED, "type"}}},
    {"cuMemGetMemPool", "mem_get_mem_pool", {RESULT, {AT_LOCATION, "location"}, {SIGNED, "type"}}},
    {"cuMemSetMemPool", "mem_set_mem_pool", {{AT_LOCATION, "location"}, {SIGNED, "type"}, OF_POOL}},
    {"cuMemAdvise", "mem_advise", {ADDRESS, SIZE, {SIGNED, "advice"}, {PLACE, "location"}}},
    {"cuMemAdvise_v2", "mem_advise", {ADDRESS, SIZE, {SIGNED, "advice"}, {LOCATION, "location"}}},
    {"cuMemPrefetchAsync", "mem_prefetch_async", {ADDRESS, SIZE, {PLACE, "location"}, STREAM}},
    {"cuMemPrefetchAsync_v2", "mem_prefetch_async",
     {ADDRESS, SIZE, {LOCATION, "location"}, NOT_WRITTEN(UNSIGNED), STREAM}},
    {"cuStreamAttachMemAsync", "stream_attach_mem_async", {STREAM, ADDRESS, NOT_WRITTEN(NUMBER), FLAGS_32}},
    {"cuIpcGetMemHandle", "ipc_get_mem_handle", {{MADE_SECRET, NULL}, ADDRESS}},
    {"cuIpcOpenMemHandle", "ipc_open_mem_handle", {RESULT, {SECRET, "handle"}, FLAGS_32}},
    {"cuIpcOpenMemHandle_v2", "ipc_open_mem_handle", {RESULT, {SECRET, "handle"}, FLAGS_32}},
    {"cuIpcCloseMemHandle", "ipc_close_mem_handle", {ADDRESS}},
    {"cuIpcGetEventHandle", "ipc_get_event_handle", {{MADE_SECRET, NULL}, {NUMBER, "event"}}},
    {"cuIpcOpenEventHandle", "ipc_open_event_handle", {RESULT, {SECRET, "handle"}}},
    {"cuEventCreate", "event_create", {RESULT, FLAGS_32}},
    {"cuEventDestroy", "event_destroy", {{NUMBER, "event"}}},
    {"cuEventDestroy_v2", "event_destroy", {{NUMBER, "event"}}},
    {"cuImportExternalMemory", "import_external_memory", {RESULT, {MEMORY, ""}}},
    {"cuExternalMemoryGetMappedBuffer", "external_memory_get_mapped_buffer", {RESULT, {NUMBER, "memory"}, {PART, ""}}},
    {"cuDestroyExternalMemory", "destroy_external_memory", {{NUMBER, "memory"}}},
    {"cuImportExternalSemaphore", "import_external_semaphore", {RESULT, {SEMAPHORE, ""}}},
    {"cuDestroyExternalSemaphore", "destroy_external_semaphore", {{NUMBER, "semaphore"}}},
    {"cuMulticastCreate", "multicast_create", {RESULT, {MULTICAST, ""}}},
    {"cuMulticastAddDevice", "multicast_add_device", {HANDLE, DEVICE}},
    {"cuMulticastBindMem", "multicast_bind_mem",
     {HANDLE, {NUMBER, "offset"}, {NUMBER, "chunk"}, {NUMBER, "chunk_offset"}, SIZE, FLAGS}},
    {"cuMulticastBindMem_v2", "multicast_bind_mem",
     {HANDLE, DEVICE, {NUMBER, "offset"}, {NUMBER, "chunk"}, {NUMBER, "chunk_offset"}, SIZE, FLAGS}},
    {"cuMulticastBindAddr", "multicast_bind_addr", {HANDLE, {NUMBER, "offset"}, ADDRESS, SIZE, FLAGS}},
    {"cuMulticastBindAddr_v2", "multicast_bind_addr", {HANDLE, DEVICE, {NUMBER, "offset"}, ADDRESS, SIZE, FLAGS}},
    {"cuMulticastUnbind", "multicast_unbind", {HANDLE, DEVICE, {NUMBER, "offset"}, SIZE}},
    {"cuDevicePrimaryCtxRetain", "device_primary_ctx_retain", {RESULT, DEVICE}},
    {"cuDevicePrimaryCtxRelease", "device_primary_ctx_release", {DEVICE}},
    {"cuDevicePrimaryCtxRelease_v2", "device_primary_ctx_release", {DEVICE}},
    {"cuDevicePrimaryCtxReset", "device_primary_ctx_reset", {DEVICE}},
    {"cuDevicePrimaryCtxReset_v2", "device_primary_ctx_reset", {DEVICE}},
    {"cuCtxCreate", "ctx_create", {RESULT, FLAGS_32, DEVICE}},
    {"cuCtxCreate_v2", "ctx_create", {RESULT, FLAGS_32, DEVICE}},
    {"cuCtxCreate_v3", "ctx_create", {RESULT, NOT_WRITTEN(NUMBER), NOT_WRITTEN(SIGNED), FLAGS_32, DEVICE}},
    {"cuCtxCreate_v4", "ctx_create", {RESULT, NOT_WRITTEN(NUMBER), FLAGS_32, DEVICE}},
    {"cuCtxDestroy", "ctx_destroy", {{NUMBER, "context"}}},
    {"cuCtxDestroy_v2", "ctx_destroy", {{NUMBER, "context"}}},
};

enum { FUNCTIONS = sizeof functions / sizeof *functions };
