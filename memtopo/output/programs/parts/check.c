#define KiB (1ULL << 10)
#define MiB (1ULL << 20)
#define GiB (1ULL << 30)
#define CHECK(call) check(call, #call, __LINE__)

static void check(CUresult result, const char *call, int line) {
    const char *name = "an unknown error";
    if (result == CUDA_SUCCESS) return;
    cuGetErrorName(result, &name);
    fprintf(stderr, "line %d: %s: %s\n", line, call, name);
    exit(1);
}
