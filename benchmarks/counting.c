/* Counts the memory of tensors on a CPU: blocks of 32 KiB and more that torch's allocator (libc10) and our programs (_program) ask malloc
   and its kin for; and beside it the blocks of all others, such as the scratch memory of libraries. Preloaded (LD_PRELOAD), it is asked by
   ctypes. Linux with glibc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LEAST ((size_t)32 << 10)
#define SLOTS ((size_t)1 << 18) /* of a table of blocks that are tensors */

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static long live[2], peak[2]; /* of tensors, and of all else */
static void *tensors[SLOTS];  /* open addressing; freed ones leave GONE */
static int lock;
#define GONE ((void *)1)

static void add(int kind, long bytes) {
    long now = __atomic_add_fetch(&live[kind], bytes, __ATOMIC_RELAXED), most = __atomic_load_n(&peak[kind], __ATOMIC_RELAXED);
    while (now > most && !__atomic_compare_exchange_n(&peak[kind], &most, now, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

static size_t slot(void *p) { return ((uintptr_t)p >> 6) * 0x9E3779B97F4A7C15u % SLOTS; }

static void enter(void) { while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) {} }
static void leave(void) { __atomic_store_n(&lock, 0, __ATOMIC_RELEASE); }

static void put(void *p) {
    enter();
    size_t k = slot(p);
    while (tensors[k] && tensors[k] != GONE) k = (k + 1) % SLOTS;
    tensors[k] = p;
    leave();
}

static int take(void *p) {
    enter();
    int found = 0;
    for (size_t k = slot(p); tensors[k]; k = (k + 1) % SLOTS)
        if (tensors[k] == p) { tensors[k] = GONE; found = 1; break; }
    leave();
    return found;
}

static int makes_tensors(void *caller) {
    Dl_info about;
    return dladdr(caller, &about) && about.dli_fname && (strstr(about.dli_fname, "libc10.") || strstr(about.dli_fname, "/_program."));
}

static void *made(void *p, void *caller) {
    size_t size = p ? malloc_usable_size(p) : 0;
    if (size >= LEAST) {
        int tensor = makes_tensors(caller);
        if (tensor) put(p);
        add(!tensor, (long)size);
    }
    return p;
}

static void gone(void *p) {
    size_t size = p ? malloc_usable_size(p) : 0;
    if (size >= LEAST) add(!take(p), -(long)size);
}

long counted_live(int kind) { return __atomic_load_n(&live[kind], __ATOMIC_RELAXED); }
long counted_peak(int kind) { return __atomic_load_n(&peak[kind], __ATOMIC_RELAXED); }
void counted_reset(void) { for (int kind = 0; kind < 2; ++kind) __atomic_store_n(&peak[kind], counted_live(kind), __ATOMIC_RELAXED); }

#define CALLER __builtin_return_address(0)
void *malloc(size_t n) { return made(__libc_malloc(n), CALLER); }
void *calloc(size_t k, size_t n) { return made(__libc_calloc(k, n), CALLER); }
void free(void *p) { gone(p); __libc_free(p); }
void *memalign(size_t a, size_t n) { return made(__libc_memalign(a, n), CALLER); }
void *aligned_alloc(size_t a, size_t n) { return made(__libc_memalign(a, n), CALLER); }
int posix_memalign(void **out, size_t a, size_t n) {
    void *p = made(__libc_memalign(a, n), CALLER);
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}
void *realloc(void *p, size_t n) {
    gone(p);
    void *moved = __libc_realloc(p, n);
    if (moved || !n) return made(moved, CALLER);
    made(p, CALLER);
    return NULL;
}
