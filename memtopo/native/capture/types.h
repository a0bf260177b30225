#pragma once
/* Functions: the parameters in the order of the C declaration, each with its name in memtopo's protocol, and their types. */

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
