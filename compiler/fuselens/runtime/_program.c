/* Compiled graphs as C callables.
 *
 *   Program     calls a host function with a graph's inputs, and hands out its results: a generated unit's, or the one that
 *               runs Steps (_steps.h)
 *   pool        memory of large tensors, kept when they die: fresh pages cost more than most kernels
 *
 * Built without torch. A tensor is known by the address of the at::Tensor inside its PyObject (`tensor_offset`), which is
 * what torch's stable C shim takes; the shim's functions come in by address (`init`, see program.py). The host function
 * sees this file as `struct Runtime`, whose members codegen/cpu/host.py declares in the same order.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

typedef void *Tensor; /* an AtenTensorHandle */
typedef union {
    Tensor tensor;
    long integer;
    double real;
} Value;

/* ------------------------------------------------------------------------------------------------- torch's functions */

static struct {
    int (*empty_strided)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, Tensor *);
    int (*from_blob)(void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t, int32_t, int32_t, Tensor *,
                     int32_t, const uint8_t *, int64_t, void (*)(void *, void *), void *);
    int (*reinterpret)(Tensor, int64_t, const int64_t *, const int64_t *, int64_t, Tensor *);
    int (*alloc_from_pool)(Tensor, int64_t, int32_t, int64_t, const int64_t *, const int64_t *, Tensor *);
    int (*new_handle)(Tensor, Tensor *);
    int (*delete_tensor)(Tensor);
    int (*data_ptr)(Tensor, void **);
    int (*sizes)(Tensor, int64_t **);
    int (*strides)(Tensor, int64_t **);
    int (*storage_offset)(Tensor, int64_t *);
    int (*dim)(Tensor, int64_t *);
    int (*dtype)(Tensor, int32_t *);
    int (*device)(Tensor, int32_t *);
    int (*device_index)(Tensor, int32_t *);
    int (*copy)(Tensor, Tensor, int32_t);
    int (*new_undefined)(Tensor *);
    PyObject *(*wrap)(Tensor);
} torch;
#define N_FUNCTIONS ((int)(sizeof torch / sizeof(void *)))

static Py_ssize_t tensor_offset;          /* from a tensor's PyObject to its at::Tensor */
static PyTypeObject *tensor_type;         /* torch.Tensor */
static Py_ssize_t impl_storage;           /* words from a TensorImpl to its StorageImpl; 0: results do not come from the pool */
static Py_ssize_t counted_storage;        /* the same, where reference counts are known to follow the first word; else 0 */
static Py_ssize_t storage_allocator, storage_grows; /* bytes from a StorageImpl to its allocator, and to whether it may grow */
static void *the_allocator;

static Py_ssize_t impl_keys;              /* bytes from a TensorImpl to its dispatch keys */
static uint64_t ordinary_keys;            /* the keys of tensors whose elements are in memory as they are */
static Py_ssize_t tensor_storage, storage_data; /* words from a TensorImpl to its StorageImpl, and from there to the address */
static PyObject *materialised, *refused, *noted; /* see program.py */

static inline Tensor handle_of(PyObject *o) { return (char *)o + tensor_offset; }

static int is_empty(Tensor tensor);

/* Whether kernels may read a tensor at its address: not so sparse ones, zero tensors, conjugates, wrappers of subclasses and
 * transforms, and those whose storage was resized to nothing. */
static inline int has_memory(Tensor tensor) {
    char *impl = *(char **)tensor;
    if (UNLIKELY(*(uint64_t *)(impl + impl_keys) & ~ordinary_keys)) return 0;
    void **storage = ((void ***)impl)[tensor_storage];
    return LIKELY(storage && storage[storage_data]) || is_empty(tensor);
}

/* --------------------------------------------------------------------------------------------------------------- pool
 * Blocks of whole huge pages. A free block serves requests of its size or a little less; the oldest go back to the
 * system when more than `pool_limit` bytes lie idle. */

#define PAGE ((size_t)2 << 20)
#define LARGE ((size_t)1 << 20) /* smaller ones are malloc's: it keeps them itself */
#define SLOTS 128

typedef struct {
    void *memory;
    size_t bytes;
    unsigned long freed;
} Block;

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static Block idle[SLOTS];
static int n_idle;
static size_t idle_bytes, pool_limit;
static unsigned long pool_clock;

static size_t block_bytes(size_t bytes) { return (bytes + PAGE - 1) & ~(PAGE - 1); }

static void *pool_take(size_t bytes, size_t *got) {
    size_t wanted = block_bytes(bytes);
    pthread_mutex_lock(&pool_lock);
    int best = -1;
    for (int i = 0; i < n_idle; ++i)
        if (idle[i].bytes >= wanted && idle[i].bytes - wanted <= wanted / 4 &&
            (best < 0 || idle[i].bytes < idle[best].bytes ||
             (idle[i].bytes == idle[best].bytes && idle[i].freed > idle[best].freed)))
            best = i;
    if (best >= 0) {
        Block found = idle[best];
        idle[best] = idle[--n_idle];
        idle_bytes -= found.bytes;
        pthread_mutex_unlock(&pool_lock);
        *got = found.bytes;
        return found.memory;
    }
    pthread_mutex_unlock(&pool_lock);
    char *mapped = mmap(NULL, wanted + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return NULL;
    char *start = (char *)(((uintptr_t)mapped + PAGE - 1) & ~(PAGE - 1));
    if (start > mapped) munmap(mapped, start - mapped);
    if (start + wanted < mapped + wanted + PAGE) munmap(start + wanted, mapped + PAGE - start);
#ifdef MADV_HUGEPAGE
    madvise(start, wanted, MADV_HUGEPAGE);
#endif
    *got = wanted;
    return start;
}

static void pool_give(void *memory, size_t bytes) {
    Block gone[SLOTS];
    int n_gone = 0;
    pthread_mutex_lock(&pool_lock);
    while (n_idle && (idle_bytes + bytes > pool_limit || n_idle == SLOTS)) {
        int oldest = 0;
        for (int i = 1; i < n_idle; ++i)
            if (idle[i].freed < idle[oldest].freed) oldest = i;
        gone[n_gone++] = idle[oldest];
        idle_bytes -= idle[oldest].bytes;
        idle[oldest] = idle[--n_idle];
    }
    int keep = bytes <= pool_limit;
    if (keep) {
        idle[n_idle++] = (Block){memory, bytes, ++pool_clock};
        idle_bytes += bytes;
    }
    pthread_mutex_unlock(&pool_lock);
    for (int i = 0; i < n_gone; ++i) munmap(gone[i].memory, gone[i].bytes);
    if (!keep) munmap(memory, bytes);
}

/* A child that was forked keeps no idle memory of its parent: it would be copied when written to. */
static void pool_forked(void) {
    pthread_mutex_init(&pool_lock, NULL);
    for (int i = 0; i < n_idle; ++i) munmap(idle[i].memory, idle[i].bytes);
    n_idle = 0;
    idle_bytes = 0;
}

static void pool_delete(void *memory, void *bytes) { pool_give(memory, (size_t)bytes); }

/* --------------------------------------------------------------------------------------- memory with zones around it */

/* While an edited kernel is tried out, what it writes beside its memory shows: blocks have zones of a pattern around them. */
enum { ZONE = 64, PATTERN = 0xFF, DAMAGED_BEFORE = 1, DAMAGED_BEHIND = 2 };

typedef struct Zoned {
    struct Zoned *next, *previous;
    size_t bytes;
    char padding[40];
    unsigned char before[ZONE];
} Zoned;

static int guarding, zones_damaged;
static Zoned *zoned_blocks;
static pthread_mutex_t zones_lock = PTHREAD_MUTEX_INITIALIZER;

static int damage_of(const Zoned *block) {
    const unsigned char *behind = (const unsigned char *)(block + 1) + block->bytes;
    int found = 0;
    for (int k = 0; k < ZONE; ++k) {
        if (block->before[k] != PATTERN) found |= DAMAGED_BEFORE;
        if (behind[k] != PATTERN) found |= DAMAGED_BEHIND;
    }
    return found;
}

/* What is in it is the pattern, too: no number, so that what was not written shows. */
static void *zoned_allocate(size_t bytes) {
    Zoned *block;
    if (posix_memalign((void **)&block, 64, sizeof(Zoned) + bytes + ZONE)) return NULL;
    memset(block->before, PATTERN, ZONE + bytes + ZONE);
    block->bytes = bytes;
    block->previous = NULL;
    pthread_mutex_lock(&zones_lock);
    block->next = zoned_blocks;
    if (zoned_blocks) zoned_blocks->previous = block;
    zoned_blocks = block;
    pthread_mutex_unlock(&zones_lock);
    return block + 1;
}

static void zoned_delete(void *memory, void *unused) {
    Zoned *block = (Zoned *)memory - 1;
    pthread_mutex_lock(&zones_lock);
    zones_damaged |= damage_of(block);
    if (block->previous) block->previous->next = block->next;
    else zoned_blocks = block->next;
    if (block->next) block->next->previous = block->previous;
    pthread_mutex_unlock(&zones_lock);
    free(block);
}

static int zoned_tensor(long bytes, long dim, const int64_t *sizes, const int64_t *strides, int dtype, Tensor *made) {
    void *memory = zoned_allocate(bytes);
    if (!memory) return 1;
    if (torch.from_blob(memory, dim, sizes, strides, 0, dtype, 0, -1, made, 0, NULL, 0, zoned_delete, NULL)) {
        zoned_delete(memory, NULL);
        return 1;
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------ what host functions call */

typedef struct {
    size_t bytes; /* of a block of the pool; 0 where malloc made it */
    char padding[56];
} Header;

/* Memory that only kernels see, 64-byte aligned. */
static void *host_allocate(long bytes) {
    if (UNLIKELY(guarding)) return zoned_allocate(bytes);
    size_t got = 0;
    Header *header;
    if ((size_t)bytes + sizeof(Header) >= LARGE && pool_limit)
        header = pool_take(bytes + sizeof(Header), &got);
    else if (posix_memalign((void **)&header, 64, bytes + sizeof(Header)))
        header = NULL;
    if (UNLIKELY(!header)) return NULL;
    header->bytes = got;
    return header + 1;
}

static void host_release(void *memory) {
    if (!memory) return;
    if (UNLIKELY(guarding)) return zoned_delete(memory, NULL);
    Header *header = (Header *)memory - 1;
    if (header->bytes) pool_give(header, header->bytes);
    else free(header);
}

/* A tensor in a block of the pool, and the block's size through the tensor's deleter. */
static int pooled_tensor(long bytes, long dim, const int64_t *sizes, const int64_t *strides, int dtype, Tensor *made) {
    size_t got;
    void *memory = pool_take(bytes, &got);
    if (!memory) return 1;
    if (torch.from_blob(memory, dim, sizes, strides, 0, dtype, 0, -1, made, 0, NULL, 0, pool_delete, (void *)got)) {
        pool_give(memory, got);
        return 1;
    }
    return 0;
}

/* An uninitialised tensor on the CPU. */
static int host_new_tensor(long bytes, long dim, const int64_t *sizes, const int64_t *strides, int dtype, Tensor *made) {
    if (UNLIKELY(guarding)) return zoned_tensor(bytes, dim, sizes, strides, dtype, made);
    if (LIKELY(bytes < (long)LARGE || !pool_limit || !impl_storage) ||
        pooled_tensor(bytes, dim, sizes, strides, dtype, made))
        return torch.empty_strided(dim, sizes, strides, dtype, 0, 0, made);
    /* Such a storage refuses to grow, unlike those of torch's allocator. */
    char *storage = (*(char ***)*made)[impl_storage];
    *(void **)(storage + storage_allocator) = the_allocator;
    storage[storage_grows] = 1;
    return 0;
}

static void host_drop(Tensor tensor) {
    if (tensor) torch.delete_tensor(tensor);
}

static int is_empty(Tensor tensor) {
    int64_t rank = 0, *sizes = NULL;
    if (torch.dim(tensor, &rank) || torch.sizes(tensor, &sizes)) return 0;
    for (int64_t d = 0; d < rank; ++d)
        if (!sizes[d]) return 1;
    return 0;
}

static void *host_data(Tensor tensor) {
    void *found = NULL;
    torch.data_ptr(tensor, &found);
    return found;
}

static const int64_t *host_sizes(Tensor tensor) {
    int64_t *found = NULL;
    torch.sizes(tensor, &found);
    return found;
}

static const int64_t *host_strides(Tensor tensor) {
    int64_t *found = NULL;
    torch.strides(tensor, &found);
    return found;
}

/* `offset` elements after the tensor's own first one; a view that autograd does not know. */
static int host_view(Tensor base, long dim, const int64_t *sizes, const int64_t *strides, long offset, Tensor *made) {
    return torch.reinterpret(base, dim, sizes, strides, offset, made);
}

/* Another dtype and shape in the memory of `base`, which starts its storage. */
static int host_over(Tensor base, long dim, const int64_t *sizes, const int64_t *strides, int dtype, Tensor *made) {
    return torch.alloc_from_pool(base, 0, dtype, dim, sizes, strides, made);
}

/* A copy of `tensor` that starts its storage and has these strides. */
static int copy_of(Tensor tensor, long dim, const int64_t *sizes, const int64_t *strides, Tensor *made) {
    int32_t dtype, device, index;
    if (torch.dtype(tensor, &dtype) || torch.device(tensor, &device) || torch.device_index(tensor, &index) ||
        torch.empty_strided(dim, sizes, strides, dtype, device, index, made))
        return 1;
    if (torch.copy(*made, tensor, 0)) {
        torch.delete_tensor(*made);
        return 1;
    }
    return 0;
}

/* Replaces a tensor that does not start its storage or has other strides than kernels were made for. Fails where kernels
 * cannot read it: an operator need not give what its rule for fake tensors says. */
static int host_settle(Tensor *tensor, int dtype, long dim, const int64_t *expected, const int64_t *strides) {
    int64_t *have, *sizes, start = 0, rank = 0;
    int32_t found;
    if (torch.dtype(*tensor, &found) || found != dtype || torch.dim(*tensor, &rank) || rank != dim ||
        torch.sizes(*tensor, &sizes) || memcmp(sizes, expected, dim * sizeof *sizes) || torch.strides(*tensor, &have) ||
        torch.storage_offset(*tensor, &start))
        return 1;
    int same = start == 0;
    for (long d = 0; d < dim; ++d) same &= have[d] == strides[d];
    if (LIKELY(same)) return 0;
    Tensor made;
    if (copy_of(*tensor, dim, sizes, strides, &made)) return 1;
    torch.delete_tensor(*tensor);
    *tensor = made;
    return 0;
}

typedef struct Program Program;
typedef struct {
    int watched; /* a profiler listens; generated code looks at it, too */
    void *event; /* that of the kernel or operator that runs */
    Program *program;
    PyThreadState *thread; /* where the interpreter lock was released */
    char *owned;           /* which inputs are the call's own: each may die when it was read */
    PyObject **objects;    /* those inputs; a tensor's lives as long as the tensor */
} Call;

static int host_operator(Call *call, int which, const Tensor *tensors, const long *numbers, Tensor *results);
static int host_fail(Call *call, int which, const Tensor *tensors, const long *numbers);

/* Events of torch's profilers, which know what happens by the functions that it calls for them; see program.py. */
static struct {
    _Bool (*listens)(void);
    int (*start)(const char *, void *, const void *, uint64_t, void **);
    int (*end)(void *);
} events;

static void *event_begins(PyObject *names, Py_ssize_t which) {
    void *event = NULL;
    if (which < PyTuple_GET_SIZE(names) && events.start(PyBytes_AS_STRING(PyTuple_GET_ITEM(names, which)), NULL, NULL, 0, &event))
        return NULL;
    return event;
}

static void host_end(Call *call) {
    if (call->event) events.end(call->event);
    call->event = NULL;
}

static void host_begin(Call *call, int node);

/* Input `k` is not read any more. */
static void host_done(Call *call, Value *in, long k) {
    if (call->owned[k]) {
        torch.delete_tensor(in[k].tensor);
        in[k].tensor = NULL;
    }
}

static inline uint32_t count_of(const void *counted) { return *(const uint32_t *)((const char *)counted + sizeof(void *)); }

/* Whether a tensor's object and our handle are its only references, nothing refers to the object, and to the storage only
 * the tensor does. */
static int is_sole(Tensor tensor, PyObject *object) {
    char **impl = *(char ***)tensor;
    return counted_storage && count_of(impl) == 2 && Py_REFCNT(object) == 1 && count_of(impl[counted_storage]) == 1;
}

/* Lets the host function write to input `k`: a copy of it if anything else can see its memory. */
static int host_own(Call *call, Value *in, long k) {
    Tensor old = in[k].tensor, made;
    int64_t *sizes, *strides, rank, start;
    if (torch.storage_offset(old, &start)) return 1;
    if (call->owned[k] && !start && is_sole(old, call->objects[k])) return 0;
    if (torch.dim(old, &rank) || torch.sizes(old, &sizes) || torch.strides(old, &strides) || copy_of(old, rank, sizes, strides, &made))
        return 1;
    if (call->owned[k]) torch.delete_tensor(old);
    in[k].tensor = made;
    call->owned[k] = 1;
    return 0;
}

typedef struct { /* as codegen/cpu/host.py declares it */
    void *(*allocate)(long);
    void (*release)(void *);
    int (*new_tensor)(long, long, const int64_t *, const int64_t *, int, Tensor *);
    void (*drop)(Tensor);
    void *(*data)(Tensor);
    const int64_t *(*sizes)(Tensor);
    const int64_t *(*strides)(Tensor);
    int (*view)(Tensor, long, const int64_t *, const int64_t *, long, Tensor *);
    int (*over)(Tensor, long, const int64_t *, const int64_t *, int, Tensor *);
    int (*settle)(Tensor *, int, long, const int64_t *, const int64_t *);
    int (*operator_)(Call *, int, const Tensor *, const long *, Tensor *);
    void (*done)(Call *, Value *, long);
    int (*own)(Call *, Value *, long);
    int (*fail)(Call *, int, const Tensor *, const long *);
    void (*begin)(Call *, int);
    void (*end)(Call *);
} Runtime;

static const Runtime runtime = {host_allocate, host_release, host_new_tensor, host_drop,     host_data, host_sizes,
                                host_strides,  host_view,    host_over,       host_settle,   host_operator, host_done,
                                host_own,      host_fail,     host_begin,     host_end};

/* ------------------------------------------------------------------------------------------------------------ Program */

typedef int (*Entry)(const Runtime *, Call *, Value *, Value *);

struct Program {
    PyObject_HEAD
    vectorcallfunc call;
    Entry entry;
    PyObject *library;   /* keeps the unit loaded */
    PyObject *inputs;    /* bytes: 't' tensor, 'i' integer, 'd' float, 'o' not looked at */
    PyObject *constants; /* tuple of tensors, which follow the inputs */
    PyObject *results;   /* bytes: 't' tensor, 'i' integer, 'd' the float in a tensor of one f64 */
    PyObject *outputs;   /* tuple: k >= 0: result k; k < 0: input or constant -1 - k; None */
    PyObject *operators; /* tuple of (callable, number of tensors, of integers, of results or -1 for a lone tensor, where) */
    PyObject *events;    /* tuple of bytes: names of the graph, and of its kernels and operators in their order */
    PyObject *failed;    /* called with the code that the host function returned; raises */
    int releases_lock;
    PyObject *weak; /* references to it */
};

enum { OPERATOR_RAISED = 1 << 16, WROTE = 1 << 17 };

/* The `node`th kernel or operator begins; what was before it has ended. */
static void host_begin(Call *call, int node) {
    host_end(call);
    call->event = event_begins(call->program->events, node + 1);
}

/* A handle for what an operator gave. Kernels read memory: what has none of its own is made an ordinary tensor, or refused. */
static int tensor_from(PyObject *o, Tensor *made) {
    if (UNLIKELY(!PyObject_TypeCheck(o, tensor_type))) {
        PyErr_Format(PyExc_TypeError, "an operator gave %.80s where a tensor was expected", Py_TYPE(o)->tp_name);
        return -1;
    }
    PyObject *plain = LIKELY(has_memory(handle_of(o))) ? Py_NewRef(o) : PyObject_CallOneArg(materialised, o);
    if (!plain) return -1;
    int status = torch.new_handle(handle_of(plain), made);
    Py_DECREF(plain);
    if (status) PyErr_SetString(PyExc_RuntimeError, "a tensor could not be taken over");
    return status ? -1 : 0;
}

/* Says on the exception that is being raised which operator raised it, on what. */
static void note_operator(PyObject *where, PyObject *const *args, Py_ssize_t n) {
    PyObject *type, *value, *traceback, *operands = PyTuple_New(n);
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    for (Py_ssize_t k = 0; operands && k < n; ++k) PyTuple_SET_ITEM(operands, k, Py_NewRef(args[k]));
    PyObject *done = operands ? PyObject_CallFunctionObjArgs(noted, value, where, operands, NULL) : NULL;
    if (!done) PyErr_Clear();
    Py_XDECREF(done);
    Py_XDECREF(operands);
    PyErr_Restore(type, value, traceback);
}

static int call_operator(Program *self, int which, const Tensor *tensors, const long *numbers, Tensor *results) {
    PyObject *entry = PyTuple_GET_ITEM(self->operators, which);
    Py_ssize_t nt = PyLong_AsSsize_t(PyTuple_GET_ITEM(entry, 1)), nn = PyLong_AsSsize_t(PyTuple_GET_ITEM(entry, 2));
    Py_ssize_t nr = PyLong_AsSsize_t(PyTuple_GET_ITEM(entry, 3)), made = 0;
    PyObject *args[nt + nn + 1], *value = NULL;
    int status = -1;
    for (; made < nt + nn; ++made) {
        args[made] = made < nt ? torch.wrap(tensors[made]) : PyLong_FromLong(numbers[made - nt]);
        if (!args[made]) goto done;
    }
    value = PyObject_Vectorcall(PyTuple_GET_ITEM(entry, 0), args, made, NULL);
    if (!value) goto done;
    if (nr < 0) {
        status = tensor_from(value, results);
    } else if (!nr) {
        status = 0;
    } else {
        PyObject *items = PySequence_Fast(value, "an operator gave no sequence");
        if (!items) goto done;
        status = 0;
        if (PySequence_Fast_GET_SIZE(items) < nr) {
            PyErr_SetString(PyExc_RuntimeError, "an operator gave too few tensors");
            status = -1;
        }
        for (Py_ssize_t k = 0; k < nr && !status; ++k)
            if (PyObject_TypeCheck(PySequence_Fast_GET_ITEM(items, k), tensor_type))
                status = tensor_from(PySequence_Fast_GET_ITEM(items, k), &results[k]);
        Py_DECREF(items);
    }
done:
    if (UNLIKELY(status)) note_operator(PyTuple_GET_ITEM(entry, 4), args, made);
    Py_XDECREF(value);
    for (Py_ssize_t k = 0; k < made; ++k) Py_DECREF(args[k]);
    return status;
}

static int host_operator(Call *call, int which, const Tensor *tensors, const long *numbers, Tensor *results) {
    if (call->thread) PyEval_RestoreThread(call->thread);
    int status = call_operator(call->program, which, tensors, numbers, results);
    if (call->thread) call->thread = PyEval_SaveThread();
    return status ? OPERATOR_RAISED : 0;
}

#include "_steps.h"

/* Torch's function for an operator failed: Python calls it again, which raises torch's own error. */
static int host_fail(Call *call, int which, const Tensor *tensors, const long *numbers) {
    PyObject *entry = PyTuple_GET_ITEM(call->program->operators, which);
    Py_ssize_t count = PyLong_AsSsize_t(PyTuple_GET_ITEM(entry, 3));
    Py_ssize_t n = count < 0 ? 1 : count;
    Tensor made[n + 1];
    memset(made, 0, sizeof made);
    int status = host_operator(call, which, tensors, numbers, made);
    for (Py_ssize_t k = 0; k < n; ++k) host_drop(made[k]);
    return status ? status : OPERATOR_FAILED | (which + 1) << OPERATOR_SHIFT;
}

/* Notes on the exception that is being raised that inputs have been written to: memory.has_written looks for it. */
static void say_written(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (PyObject_SetAttrString(value, "fuselens_wrote", Py_True)) PyErr_Clear();
    PyErr_Restore(type, value, traceback);
}

static PyObject *output_of(Value *value, char kind) {
    if (kind == 'i') return PyLong_FromLong(value->integer);
    Tensor tensor = value->tensor;
    PyObject *made;
    if (kind == 'd') {
        double *number = host_data(tensor);
        made = number ? PyFloat_FromDouble(*number) : NULL;
    } else
        made = torch.wrap(tensor);
    torch.delete_tensor(tensor);
    value->tensor = NULL;
    return made;
}

static PyObject *Program_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    Program *self = (Program *)object;
    PyObject *given = PyVectorcall_NARGS(nargsf) == 1 && !kwnames ? args[0] : NULL;
    if (UNLIKELY(!given || !(PyTuple_Check(given) || PyList_CheckExact(given)))) {
        PyErr_SetString(PyExc_TypeError, "a compiled graph takes its inputs as one tuple or list");
        return NULL;
    }
    const char *kinds = PyBytes_AS_STRING(self->inputs), *result_kinds = PyBytes_AS_STRING(self->results);
    Py_ssize_t n = PyBytes_GET_SIZE(self->inputs), nc = PyTuple_GET_SIZE(self->constants);
    Py_ssize_t nr = PyBytes_GET_SIZE(self->results), no = PyTuple_GET_SIZE(self->outputs);
    int owned = PyList_CheckExact(given);
    char owns[n + 1];
    PyObject *objects[n + 1];
    memset(owns, owned, n);
    if (UNLIKELY(PySequence_Fast_GET_SIZE(given) != n)) {
        PyErr_Format(PyExc_TypeError, "a compiled graph takes %zd inputs, not %zd", n, PySequence_Fast_GET_SIZE(given));
        return NULL;
    }
    PyObject **items = PySequence_Fast_ITEMS(given), *made = NULL;
    Value in[n + nc + 1], out[nr + 1];
    memset(out, 0, sizeof out);
    Py_ssize_t taken = 0;
    for (; taken < n; ++taken) {
        PyObject *item = objects[taken] = items[taken];
        Value *v = &in[taken];
        if (LIKELY(kinds[taken] == 't')) {
            if (UNLIKELY(!PyObject_TypeCheck(item, tensor_type))) {
                PyErr_Format(PyExc_TypeError, "input %zd of a compiled graph is no tensor but %.80s", taken, Py_TYPE(item)->tp_name);
                goto taken_back;
            }
            v->tensor = handle_of(item);
            if (UNLIKELY(!has_memory(v->tensor))) {
                Py_XDECREF(PyObject_CallFunction(refused, "nO", taken, item)); /* raises */
                if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "an input of a compiled graph has no memory");
                goto taken_back;
            }
            if (owned && torch.new_handle(v->tensor, &v->tensor)) {
                PyErr_SetString(PyExc_RuntimeError, "a tensor could not be taken over");
                goto taken_back;
            }
        } else if (kinds[taken] == 'i') {
            v->integer = PyLong_AsLong(item);
            if (UNLIKELY(v->integer == -1 && PyErr_Occurred())) goto taken_back;
        } else if (kinds[taken] == 'd') {
            v->real = PyFloat_AsDouble(item);
            if (UNLIKELY(v->real == -1 && PyErr_Occurred())) goto taken_back;
        } else
            v->tensor = NULL;
    }
    for (Py_ssize_t k = 0; k < nc; ++k) in[n + k].tensor = handle_of(PyTuple_GET_ITEM(self->constants, k));
    PyObject *kept = owned ? PyList_AsTuple(given) : NULL;
    if (owned) {
        /* The caller gives them up: each lives as long as the host function holds it. Outputs that are inputs stay. */
        char needed[n + 1];
        memset(needed, 0, n);
        for (Py_ssize_t k = 0; k < no; ++k) {
            PyObject *which = PyTuple_GET_ITEM(self->outputs, k);
            long number = which == Py_None ? 0 : PyLong_AsLong(which);
            if (number < 0 && -1 - number < n) needed[-1 - number] = 1;
        }
        for (Py_ssize_t k = 0; kept && k < n; ++k)
            if (!needed[k]) Py_SETREF(PyTuple_GET_ITEM(kept, k), Py_NewRef(Py_None));
        PyList_SetSlice(given, 0, n, NULL);
        items = kept ? &PyTuple_GET_ITEM(kept, 0) : NULL;
    }
    Call call = {events.listens && events.listens(), NULL, self, NULL, owns, objects};
    void *whole = UNLIKELY(call.watched) ? event_begins(self->events, 0) : NULL;
    if (self->releases_lock) call.thread = PyEval_SaveThread();
    int status = self->entry(&runtime, &call, in, out);
    if (call.thread) PyEval_RestoreThread(call.thread);
    if (UNLIKELY(call.watched)) {
        host_end(&call); /* where it failed */
        if (whole) events.end(whole);
    }
    if (UNLIKELY(status)) {
        if (!(status & OPERATOR_RAISED)) {
            PyObject *raised = PyObject_CallFunction(self->failed, "iO", status & ~WROTE, self->operators);
            Py_XDECREF(raised);
            if (!PyErr_Occurred()) PyErr_Format(PyExc_RuntimeError, "a compiled graph failed with code %d", status);
        }
        if (status & WROTE) say_written();
    } else {
        made = PyTuple_New(no);
        for (Py_ssize_t k = 0; made && k < no; ++k) {
            PyObject *which = PyTuple_GET_ITEM(self->outputs, k), *value;
            long number = which == Py_None ? 0 : PyLong_AsLong(which);
            if (which == Py_None) value = Py_NewRef(Py_None);
            else if (number < 0)
                value = Py_NewRef(-1 - number < n ? items[-1 - number] : PyTuple_GET_ITEM(self->constants, -1 - number - n));
            else if (result_kinds[number] != 'i' && !out[number].tensor) { /* the same one again */
                value = NULL;
                for (Py_ssize_t e = 0; e < k && !value; ++e) {
                    PyObject *other = PyTuple_GET_ITEM(self->outputs, e);
                    if (other != Py_None && PyLong_AsLong(other) == number) value = Py_NewRef(PyTuple_GET_ITEM(made, e));
                }
            } else
                value = output_of(&out[number], result_kinds[number]);
            if (!value) Py_CLEAR(made);
            else PyTuple_SET_ITEM(made, k, value);
        }
        if (!made && !PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "a result of a compiled graph is missing");
    }
    for (Py_ssize_t k = 0; k < nr; ++k)
        if (UNLIKELY(result_kinds[k] != 'i' && out[k].tensor)) torch.delete_tensor(out[k].tensor);
    for (Py_ssize_t k = 0; k < n; ++k)
        if (owns[k] && kinds[k] == 't' && in[k].tensor) torch.delete_tensor(in[k].tensor);
    Py_XDECREF(kept);
    return made;
taken_back:
    if (owned)
        for (Py_ssize_t k = 0; k < taken; ++k)
            if (kinds[k] == 't') torch.delete_tensor(in[k].tensor);
    return NULL;
}

static PyObject *Program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"entry", "library", "inputs", "constants", "results", "outputs", "operators", "failed",
                            "releases_lock", "events", NULL};
    Program given = {0};
    Py_ssize_t entry;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nOSO!SO!O!Op|O!:Program", names, &entry, &given.library, &given.inputs,
                                     &PyTuple_Type, &given.constants, &given.results, &PyTuple_Type, &given.outputs,
                                     &PyTuple_Type, &given.operators, &given.failed, &given.releases_lock,
                                     &PyTuple_Type, &given.events))
        return NULL;
    for (Py_ssize_t k = 0; given.events && k < PyTuple_GET_SIZE(given.events); ++k)
        if (!PyBytes_Check(PyTuple_GET_ITEM(given.events, k))) {
            PyErr_SetString(PyExc_TypeError, "events are named by bytes");
            return NULL;
        }
    if (!tensor_type) {
        PyErr_SetString(PyExc_RuntimeError, "the runtime was not initialised");
        return NULL;
    }
    Program *self = (Program *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->call = Program_call;
    self->entry = (Entry)entry;
    self->library = Py_NewRef(given.library);
    self->inputs = Py_NewRef(given.inputs);
    self->constants = Py_NewRef(given.constants);
    self->results = Py_NewRef(given.results);
    self->outputs = Py_NewRef(given.outputs);
    self->operators = Py_NewRef(given.operators);
    self->failed = Py_NewRef(given.failed);
    self->events = given.events ? Py_NewRef(given.events) : PyTuple_New(0);
    self->releases_lock = given.releases_lock;
    return (PyObject *)self;
}

static PyObject *Program_enter(PyObject *object, PyObject *address) {
    Program *self = (Program *)object;
    Entry before = self->entry;
    void *entry = PyLong_AsVoidPtr(address);
    if (!entry) return PyErr_Occurred() ? NULL : (PyErr_SetString(PyExc_ValueError, "a null address"), NULL);
    self->entry = (Entry)entry;
    return PyLong_FromVoidPtr((void *)before);
}

static PyMethodDef Program_methods[] = {
    {"enter", Program_enter, METH_O, "enter(address) -> the address before: calls from now on go to another host function of the same graph."},
    {NULL},
};

static int Program_traverse(Program *p, visitproc visit, void *arg) {
    Py_VISIT(p->library);
    Py_VISIT(p->constants);
    Py_VISIT(p->operators);
    Py_VISIT(p->failed);
    return 0;
}

static int Program_clear(Program *p) {
    Py_CLEAR(p->library);
    Py_CLEAR(p->inputs);
    Py_CLEAR(p->constants);
    Py_CLEAR(p->results);
    Py_CLEAR(p->outputs);
    Py_CLEAR(p->operators);
    Py_CLEAR(p->failed);
    Py_CLEAR(p->events);
    return 0;
}

static void Program_dealloc(Program *p) {
    PyObject_GC_UnTrack(p);
    if (p->weak) PyObject_ClearWeakRefs((PyObject *)p);
    Program_clear(p);
    Py_TYPE(p)->tp_free((PyObject *)p);
}

static PyTypeObject ProgramType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fuselens.runtime._program.Program",
    .tp_doc = "Program(entry, library, inputs, constants, results, outputs, operators, failed, releases_lock, events): a graph.",
    .tp_basicsize = sizeof(Program),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Program, call),
    .tp_weaklistoffset = offsetof(Program, weak),
    .tp_call = PyVectorcall_Call,
    .tp_new = Program_new,
    .tp_methods = Program_methods,
    .tp_traverse = (traverseproc)Program_traverse,
    .tp_clear = (inquiry)Program_clear,
    .tp_dealloc = (destructor)Program_dealloc,
};

/* ------------------------------------------------------------------------------------------------------------- module */

static PyObject *init(PyObject *module, PyObject *args) {
    PyObject *functions, *type;
    Py_ssize_t offset;
    if (!PyArg_ParseTuple(args, "nOO!:init", &offset, &type, &PyTuple_Type, &functions)) return NULL;
    if (PyTuple_GET_SIZE(functions) != N_FUNCTIONS) {
        PyErr_Format(PyExc_ValueError, "expected %d addresses", N_FUNCTIONS);
        return NULL;
    }
    for (int k = 0; k < N_FUNCTIONS; ++k) {
        void *address = PyLong_AsVoidPtr(PyTuple_GET_ITEM(functions, k));
        if (!address) return PyErr_Occurred() ? NULL : (PyErr_SetString(PyExc_ValueError, "a null address"), NULL);
        ((void **)&torch)[k] = address;
    }
    if (!undefined_tensor && torch.new_undefined(&undefined_tensor)) {
        PyErr_SetString(PyExc_RuntimeError, "no tensor could be made");
        return NULL;
    }
    tensor_offset = offset;
    tensor_type = (PyTypeObject *)Py_NewRef(type);
    Py_RETURN_NONE;
}

static PyObject *init_memory(PyObject *module, PyObject *args) {
    unsigned long long keys;
    PyObject *callables[3];
    if (!PyArg_ParseTuple(args, "nKnnOOO:init_memory", &impl_keys, &keys, &tensor_storage, &storage_data, &callables[0], &callables[1],
                          &callables[2]))
        return NULL;
    ordinary_keys = keys;
    Py_XSETREF(materialised, Py_NewRef(callables[0]));
    Py_XSETREF(refused, Py_NewRef(callables[1]));
    Py_XSETREF(noted, Py_NewRef(callables[2]));
    Py_RETURN_NONE;
}

static PyObject *init_events(PyObject *module, PyObject *args) {
    Py_ssize_t listens, start, end;
    if (!PyArg_ParseTuple(args, "nnn:init_events", &listens, &start, &end)) return NULL;
    events.start = (void *)start;
    events.end = (void *)end;
    events.listens = (void *)listens;
    Py_RETURN_NONE;
}

static PyObject *ready(PyObject *module, PyObject *unused) { return PyBool_FromLong(tensor_type != NULL); }

static PyObject *init_storage(PyObject *module, PyObject *args) {
    unsigned long long allocator;
    if (!PyArg_ParseTuple(args, "nnKn:init_storage", &impl_storage, &storage_allocator, &allocator, &storage_grows)) return NULL;
    the_allocator = (void *)(uintptr_t)allocator;
    Py_RETURN_NONE;
}

static PyObject *init_counts(PyObject *module, PyObject *words) {
    counted_storage = PyLong_AsSsize_t(words);
    if (counted_storage == -1 && PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *new_tensor(PyObject *module, PyObject *args) {
    long n;
    int foreign = 0;
    if (!PyArg_ParseTuple(args, "l|p:new_tensor", &n, &foreign)) return NULL;
    int64_t sizes[1] = {n}, strides[1] = {1};
    Tensor made;
    if ((foreign ? pooled_tensor : host_new_tensor)(n * 4, 1, sizes, strides, 6, &made)) {
        PyErr_SetString(PyExc_RuntimeError, "no tensor could be made");
        return NULL;
    }
    PyObject *result = torch.wrap(made);
    torch.delete_tensor(made);
    return result;
}

static PyObject *keep(PyObject *module, PyObject *limit) {
    size_t bytes = PyLong_AsSize_t(limit);
    if (bytes == (size_t)-1 && PyErr_Occurred()) return NULL;
    pthread_mutex_lock(&pool_lock);
    pool_limit = bytes;
    pthread_mutex_unlock(&pool_lock);
    Py_RETURN_NONE;
}

static PyObject *pool_facts(PyObject *module, PyObject *unused) {
    pthread_mutex_lock(&pool_lock);
    PyObject *facts = Py_BuildValue("in", n_idle, (Py_ssize_t)idle_bytes);
    pthread_mutex_unlock(&pool_lock);
    return facts;
}

static PyObject *pool_empty(PyObject *module, PyObject *unused) {
    pthread_mutex_lock(&pool_lock);
    for (int i = 0; i < n_idle; ++i) munmap(idle[i].memory, idle[i].bytes);
    n_idle = 0;
    idle_bytes = 0;
    pthread_mutex_unlock(&pool_lock);
    Py_RETURN_NONE;
}

static PyObject *guard(PyObject *module, PyObject *wanted) {
    int found = PyObject_IsTrue(wanted);
    if (found < 0) return NULL;
    guarding = found;
    Py_RETURN_NONE;
}

static PyObject *damage(PyObject *module, PyObject *unused) {
    pthread_mutex_lock(&zones_lock);
    int found = zones_damaged;
    for (Zoned *block = zoned_blocks; block; block = block->next) found |= damage_of(block);
    pthread_mutex_unlock(&zones_lock);
    return PyLong_FromLong(found);
}

static PyMethodDef methods[] = {
    {"init", init, METH_VARARGS, "init(tensor_offset, torch.Tensor, addresses): where tensors and torch's functions are."},
    {"ready", ready, METH_NOARGS, "ready() -> whether init was called."},
    {"init_storage", init_storage, METH_VARARGS, "init_storage(words to the storage, bytes to its allocator, that, bytes to its flag): results may lie in the pool."},
    {"init_gpu", init_gpu, METH_O, "init_gpu(addresses): of the GPU's allocator, its current stream, and the launch of a kernel."},
    {"steps_entry", steps_entry, METH_NOARGS, "steps_entry() -> the address of the host function that runs Steps."},
    {"init_memory", init_memory, METH_VARARGS, "init_memory(bytes to the keys, ordinary keys, words to the storage, words to its address, materialised, refused, noted)"},
    {"init_events", init_events, METH_VARARGS, "init_events(addresses: whether a profiler listens, an event starts, it ends)"},
    {"init_counts", init_counts, METH_O, "init_counts(words to the storage): where reference counts are, so that donated inputs need no copy."},
    {"new_tensor", new_tensor, METH_VARARGS, "new_tensor(n, foreign=False): an uninitialised f32 tensor of n elements, as host functions make them; in the pool's\n"
     "memory as torch sees it."},
    {"keep", keep, METH_O, "keep(bytes): how much idle memory the pool holds."},
    {"pool_facts", pool_facts, METH_NOARGS, "pool_facts() -> (idle blocks, idle bytes)."},
    {"pool_empty", pool_empty, METH_NOARGS, "pool_empty(): gives idle memory back."},
    {"guard", guard, METH_O, "guard(wanted): whether host functions make memory with zones around it from now on. No call may be under way."},
    {"damage", damage, METH_NOARGS, "damage() -> what was written beside such memory so far: 1 before it, 2 behind it."},
    {NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "fuselens.runtime._program", "Compiled graphs as C callables.", -1, methods};

PyMODINIT_FUNC PyInit__program(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    if (PyModule_AddType(module, &ProgramType) < 0 || PyModule_AddType(module, &StepsType) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    pthread_atfork(NULL, NULL, pool_forked);
    return module;
}
