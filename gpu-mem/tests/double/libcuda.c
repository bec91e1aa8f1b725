// Stands for the CUDA driver in tests: the functions that gpu-mem calls, on host memory.
//
// It is stricter than the driver: memory may be touched, freed and asked about only on a thread whose current context is that of
// the memory's device, and what is outstanding at the end is counted. A device's memory is mapped twice: where the caller sees it
// nobody can read or write it, and the double uses the other mapping.
//
// The environment says what driver this is:
//   DOUBLE_VERSION  what cuDriverGetVersion tells (12000)
//   DOUBLE_INIT     the code that cuInit ends with (0)
//   DOUBLE_DEVICES  how many devices there are (1)
//   DOUBLE_BYTES    how much memory there is, in all (no limit)
//   DOUBLE_GIVES    what cuMemAlloc and cuMemHostAlloc give instead of plain memory: managed, vmm, pool
//   DOUBLE_DMA_BUF  whether there are dma-bufs (1)
//   DOUBLE_SHY      whether it says nothing about an address on a thread without a context (0)
// Small pieces of a device's memory share a page with others, as the driver's do.
// Compiled with -DNO_DMA_BUF it lacks cuMemGetHandleForAddressRange.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
       ILLEGAL_ADDRESS = 700, NOT_SUPPORTED = 801 };
enum { HOST = 1, DEVICE = 2 };
enum { PLAIN, MANAGED, VMM, POOL };
enum { DEVICES = 8, ALLOCATIONS = 64, DEPTH = 8, PAGE = 4096, SMALL = 1 << 20, INSIDE = 512 };

typedef struct { int retained; } context;
typedef struct {
    uint8_t *at, *inside;
    size_t size, mapped;
    int type, how, device, fd, synchronous, pending, lent;
} allocation;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static context contexts[DEVICES];
static allocation allocations[ALLOCATIONS];
static size_t used;
static int started, pushed, handles, violations;
static char failing[64];
static __thread context *stack[DEPTH];
static __thread int depth;

static long setting(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value ? atol(value) : otherwise;
}

static int how(const char *name) {
    if (!name) return PLAIN;
    if (!strcmp(name, "managed")) return MANAGED;
    if (!strcmp(name, "vmm")) return VMM;
    return !strcmp(name, "pool") ? POOL : PLAIN;
}

static unsigned violated(unsigned code) {
    __atomic_add_fetch(&violations, 1, __ATOMIC_RELAXED);
    return code;
}

static int current(void) {
    return depth && stack[depth - 1]->retained ? (int)(stack[depth - 1] - contexts) : -1;
}

// The live allocation that holds these bytes.
static allocation *holder(uint64_t address, size_t size) {
    for (allocation *one = allocations; one < allocations + ALLOCATIONS; one++)
        if (one->at && address >= (uint64_t)one->at && address + size <= (uint64_t)one->at + one->size) return one;
    return NULL;
}

// The same, for a thread that touches them: in their device's context, and a device's memory only.
static allocation *touched(uint64_t address, size_t size, unsigned *code) {
    allocation *one = holder(address, size);
    if (!one || one->type != DEVICE) *code = violated(INVALID_VALUE);
    else if (current() != one->device) *code = violated(INVALID_CONTEXT);
    else return one;
    return NULL;
}

static void *allocate(int type, int how, int device, size_t size, int lent) {
    allocation *one = allocations;
    while (one < allocations + ALLOCATIONS && one->at) one++;
    long limit = setting("DOUBLE_BYTES", -1);
    if (one == allocations + ALLOCATIONS || size > (size_t)1 << 40 || (limit >= 0 && used + size > (size_t)limit)) return NULL;
    size_t before = type == DEVICE && size < SMALL && !lent ? INSIDE : 0;
    size_t mapped = (before + size + PAGE - 1) / PAGE * PAGE;
    int fd = memfd_create("double", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, mapped)) abort();
    uint8_t *inside = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint8_t *at = type == HOST ? inside : mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (inside == MAP_FAILED || at == MAP_FAILED) abort();
    memset(inside, 0xee, mapped);
    *one = (allocation){ at + before, inside + before, size, mapped, type, how, device, fd, 0, 0, lent };
    used += size;
    return one->at;
}

static void *page(uint8_t *at) { return at - (uintptr_t)at % PAGE; }

static void release(allocation *one) {
    if (one->inside != one->at) munmap(page(one->inside), one->mapped);
    munmap(page(one->at), one->mapped);
    close(one->fd);
    used -= one->size;
    memset(one, 0, sizeof *one);
}

// Every function: fails if it was told to, and waits for no other thread longer than it must.
#define CALL(...) \
    if (!strcmp(failing, __func__)) return ILLEGAL_ADDRESS; \
    pthread_mutex_lock(&lock); \
    unsigned code = 0; \
    do { if (!started) { code = NOT_INITIALIZED; break; } __VA_ARGS__ } while (0); \
    pthread_mutex_unlock(&lock); \
    return code

unsigned cuDriverGetVersion(int *version) {
    *version = (int)setting("DOUBLE_VERSION", 12000);
    return 0;
}

unsigned cuInit(unsigned flags) {
    unsigned code = (unsigned)setting("DOUBLE_INIT", 0);
    if (flags) return INVALID_VALUE;
    if (!code && !setting("DOUBLE_DEVICES", 1)) code = NO_DEVICE;
    started = !code;
    return code;
}

unsigned cuGetErrorName(unsigned code, const char **name) {
    switch (code) {
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; return 0;
    case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; return 0;
    case ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return 0;
    default: *name = NULL; return INVALID_VALUE;
    }
}

unsigned cuDeviceGetCount(int *count) { CALL(*count = (int)setting("DOUBLE_DEVICES", 1);); }

unsigned cuDeviceGet(int *device, int ordinal) {
    CALL(
        if (ordinal < 0 || ordinal >= setting("DOUBLE_DEVICES", 1)) code = violated(INVALID_DEVICE);
        else *device = ordinal;
    );
}

unsigned cuDeviceGetName(char *name, int room, int device) { CALL(snprintf(name, room, "Double %d", device);); }

unsigned cuDeviceGetUuid_v2(uint8_t *uuid, int device) {
    CALL(for (int at = 0; at < 16; at++) uuid[at] = (uint8_t)(device << 4 | at););
}

unsigned cuDeviceGetPCIBusId(char *id, int room, int device) { CALL(snprintf(id, room, "0000:%02x:00.0", device + 1);); }

unsigned cuDeviceTotalMem_v2(size_t *bytes, int device) { CALL(*bytes = (size_t)(device + 1) << 30;); }

unsigned cuDeviceGetAttribute(int *value, unsigned attribute, int device) {
    CALL(
        if (attribute != 124 || device < 0) code = violated(INVALID_VALUE);
        else *value = (int)setting("DOUBLE_DMA_BUF", 1);
    );
}

unsigned cuDevicePrimaryCtxRetain(void **held, int device) {
    CALL(
        if (device < 0 || device >= setting("DOUBLE_DEVICES", 1)) { code = violated(INVALID_DEVICE); break; }
        contexts[device].retained++;
        *held = &contexts[device];
    );
}

unsigned cuDevicePrimaryCtxRelease_v2(int device) {
    CALL(
        if (!contexts[device].retained) code = violated(INVALID_CONTEXT);
        else contexts[device].retained--;
    );
}

unsigned cuCtxPushCurrent_v2(void *entered) {
    CALL(
        context *one = entered;
        if (!one || !one->retained || depth == DEPTH) { code = violated(INVALID_CONTEXT); break; }
        stack[depth++] = one;
        pushed++;
    );
}

unsigned cuCtxPopCurrent_v2(void **left) {
    CALL(
        if (!depth) { code = violated(INVALID_CONTEXT); break; }
        *left = stack[--depth];
        pushed--;
    );
}

unsigned cuStreamSynchronize(void *stream) {
    CALL(
        if (stream || current() < 0) { code = violated(INVALID_CONTEXT); break; }
        for (int at = 0; at < ALLOCATIONS; at++) if (allocations[at].device == current()) allocations[at].pending = 0;
    );
}

unsigned cuMemAlloc_v2(uint64_t *address, size_t size) {
    CALL(
        if (current() < 0) { code = violated(INVALID_CONTEXT); break; }
        *address = (uint64_t)allocate(DEVICE, how(getenv("DOUBLE_GIVES")), current(), size, 0);
        code = *address ? 0 : OUT_OF_MEMORY;
    );
}

unsigned cuMemFree_v2(uint64_t address) {
    CALL(
        allocation *one = touched(address, 1, &code);
        if (one && (uint64_t)one->at == address && !one->lent) release(one);
        else if (one) code = violated(INVALID_VALUE);
    );
}

unsigned cuMemHostAlloc(void **start, size_t size, unsigned flags) {
    CALL(
        if (current() < 0) { code = violated(INVALID_CONTEXT); break; }
        if (flags != 1) { code = violated(INVALID_VALUE); break; }
        *start = allocate(HOST, how(getenv("DOUBLE_GIVES")), current(), size, 0);
        code = *start ? 0 : OUT_OF_MEMORY;
    );
}

unsigned cuMemFreeHost(void *start) {
    CALL(
        allocation *one = holder((uint64_t)start, 1);
        if (current() < 0 || !one || one->at != start || one->type != HOST || one->lent) code = violated(INVALID_VALUE);
        else release(one);
    );
}

unsigned cuMemsetD8_v2(uint64_t address, uint8_t value, size_t size) {
    CALL(
        allocation *one = touched(address, size, &code);
        if (!one) break;
        memset(one->inside + (address - (uint64_t)one->at), value, size);
        one->pending = !one->synchronous;
    );
}

unsigned cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
    CALL(
        allocation *one = touched(to, size, &code);
        if (!one) break;
        memcpy(one->inside + (to - (uint64_t)one->at), from, size);
        one->pending = !one->synchronous;
    );
}

unsigned cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
    CALL(
        allocation *one = touched(from, size, &code);
        if (one) memcpy(to, one->inside + (from - (uint64_t)one->at), size);
    );
}

unsigned cuPointerGetAttributes(unsigned count, unsigned *asked, void **to, uint64_t address) {
    CALL(
        allocation *one = holder(address, 1);
        if (setting("DOUBLE_SHY", 0) && current() < 0) { code = INVALID_CONTEXT; break; }
        for (unsigned at = 0; at < count; at++) switch (asked[at]) {
        case 2: *(unsigned *)to[at] = one ? one->type : 0; break;
        case 8: *(unsigned *)to[at] = one && one->how == MANAGED; break;
        case 9: *(int *)to[at] = one ? one->device : -2; break;
        case 10: *(unsigned *)to[at] = one && one->type == DEVICE && one->how == PLAIN; break;
        case 11: *(uint64_t *)to[at] = one ? (uint64_t)one->at : 0; break;
        case 12: *(size_t *)to[at] = one ? one->size : 0; break;
        case 17: *(void **)to[at] = one && one->how == POOL ? &lock : NULL; break;
        default: code = violated(INVALID_VALUE);
        }
    );
}

unsigned cuPointerSetAttribute(const void *value, unsigned attribute, uint64_t address) {
    CALL(
        allocation *one = touched(address, 1, &code);
        if (!one) break;
        if (attribute != 6) code = violated(INVALID_VALUE);
        else if (one->how != PLAIN) code = NOT_SUPPORTED;
        else one->synchronous = *(const unsigned *)value;
    );
}

unsigned cuMemRetainAllocationHandle(uint64_t *handle, void *address) {
    CALL(
        allocation *one = touched((uint64_t)address, 1, &code);
        if (!one) break;
        if (one->how != VMM) { code = INVALID_VALUE; break; }
        *handle = (uint64_t)one;
        handles++;
    );
}

unsigned cuMemRelease(uint64_t handle) {
    CALL(
        if (!handle || !handles) code = violated(INVALID_VALUE);
        else handles--;
    );
}

#ifndef NO_DMA_BUF
unsigned cuMemGetHandleForAddressRange(void *handle, uint64_t address, size_t size, unsigned type, unsigned long long flags) {
    CALL(
        allocation *one = touched(address, size, &code);
        if (!one) break;
        if (type != 1 || flags || address % PAGE || size % PAGE || address != (uint64_t)one->at) code = violated(INVALID_VALUE);
        else *(int *)handle = dup(one->fd);
    );
}
#endif

// What follows no driver has: it is how tests steer the double and look into it.

// Memory of somebody else: type 1 is the host's, 2 a device's.
void *double_lend(int type, const char *name, int device, size_t size) {
    pthread_mutex_lock(&lock);
    void *at = allocate(type, how(name), device, size, 1);
    pthread_mutex_unlock(&lock);
    return at;
}

void double_take_back(void *at) {
    pthread_mutex_lock(&lock);
    allocation *one = holder((uint64_t)at, 1);
    if (one && one->lent) release(one);
    else violated(0);
    pthread_mutex_unlock(&lock);
}

// From now on the function of this name fails; the empty name ends that.
void double_fail(const char *name) { snprintf(failing, sizeof failing, "%s", name); }

int double_is_synchronous(uint64_t address) {
    allocation *one = holder(address, 1);
    return one && one->synchronous;
}

int double_is_started(void) { return started; }

// Lets go of whatever is outstanding.
void double_forget(void) {
    for (int at = 0; at < ALLOCATIONS; at++) if (allocations[at].at) release(&allocations[at]);
    memset(contexts, 0, sizeof contexts);
    handles = violations = 0;
}

// Contexts held and entered, allocations, handles, writes nobody waited for, and rules that were broken: all 0 at the end.
void double_outstanding(int out[6]) {
    memset(out, 0, 6 * sizeof *out);
    for (int at = 0; at < DEVICES; at++) out[0] += contexts[at].retained;
    out[1] = pushed;
    out[3] = handles;
    for (int at = 0; at < ALLOCATIONS; at++) {
        out[2] += allocations[at].at != NULL;
        out[4] += allocations[at].pending;
    }
    out[5] = violations;
}
