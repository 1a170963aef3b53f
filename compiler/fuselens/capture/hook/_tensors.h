/* Facts of tensors, read from memory through the addresses that tensor_layout.py tested. A part of _hook.c, included there once. */

typedef int32_t (*ReadInt32)(void *, int32_t *);
typedef int32_t (*ReadInt64)(void *, int64_t *);
typedef int32_t (*ReadArray)(void *, int64_t **);

/* Addresses of torch's C shim. `ready` only after tensor_layout.py compared every one with torch's Python answers. */
typedef struct {
    int ready;
    Py_ssize_t tensor_offset;  /* bytes from the PyObject to its at::Tensor, whose address is the shim's handle */
    Py_ssize_t keyset_offset;  /* bytes from the TensorImpl to its dispatch key set */
    /* The words of a TensorImpl from the number of dimensions to the key set, see same_metadata. */
    Py_ssize_t metadata_offset, n_metadata;
    /* Where the TensorImpl points to its autograd metadata (0: unknown), and the word and bit there that say requires_grad;
     * of results of operations it is true without. */
    Py_ssize_t autograd_offset, flag_offset;
    uint64_t flag_mask;
    ReadInt32 dtype, device_type, device_index;
    ReadInt64 dim;
    ReadArray sizes, strides;
    bool (*requires_grad)(void *);
    bool (*grad_mode)(void);
    PyObject *slow_check;      /* (tensor, spec) -> bool, when there is no fast way */
    PyObject *slow_grad_mode;  /* () -> bool */
} TorchAccess;

static TorchAccess torch_access;

static inline void *tensor_handle(PyObject *o) { return (char *)o + torch_access.tensor_offset; }
static inline void *tensor_impl(PyObject *o) { return *(void **)tensor_handle(o); }
static inline uint64_t tensor_keyset(void *impl) { return *(uint64_t *)((char *)impl + torch_access.keyset_offset); }
static inline const Raw *tensor_metadata(void *impl) { return (const Raw *)((char *)impl + torch_access.metadata_offset); }
/* Words of the metadata: the number of dimensions, MAX_INLINE_DIMS sizes and as many strides, of which those beyond the
 * number of dimensions mean nothing, and the rest. */
#define MAX_INLINE_DIMS 5  /* with more, sizes and strides are in an allocation of their own */
#define SIZES_AT 1
#define STRIDES_AT (SIZES_AT + MAX_INLINE_DIMS)
#define REST_AT (STRIDES_AT + MAX_INLINE_DIMS)
static inline int same_metadata(const Raw *a, const uint64_t *b) {
    if (UNLIKELY(a[0] != b[0])) return 0;
    uint64_t different = 0;
    for (uint64_t i = 0; i < b[0]; i++) different |= (a[SIZES_AT + i] ^ b[SIZES_AT + i]) | (a[STRIDES_AT + i] ^ b[STRIDES_AT + i]);
    for (Py_ssize_t i = REST_AT; i < torch_access.n_metadata; i++) different |= a[i] ^ b[i];
    return different == 0;
}
static inline int tensor_requires_grad(void *impl) {
    if (torch_access.autograd_offset == 0) return torch_access.requires_grad(impl);
    const char *autograd = *(char **)((char *)impl + torch_access.autograd_offset);
    if (autograd == NULL) return 0;
    return (*(const Raw *)(autograd + torch_access.flag_offset) & torch_access.flag_mask) || torch_access.requires_grad(impl);
}

#define ANY_SIZE INT64_MIN

typedef struct {
    PyTypeObject *type;   /* borrowed from the check's operand, as is `source` */
    PyObject *source;
    uint64_t keyset;
    int32_t dtype, device_type, device_index;
    int8_t requires_grad; /* -1: any */
    int32_t ndim;         /* -1: any */
    int64_t *strides;     /* NULL: any */
    int64_t sizes[];      /* n >= 0: exactly n; -n: at least n; ANY_SIZE */
} TensorSpec;

static int tensor_passes(PyObject *o, const TensorSpec *s) {
    void *handle = tensor_handle(o), *impl = *(void **)handle;
    if (impl == NULL || tensor_keyset(impl) != s->keyset) return 0;
    int32_t code;
    if (torch_access.dtype(handle, &code) || code != s->dtype) return 0;
    if (s->device_type != 0) {  /* the key set tells CPU from the rest; an index only matters off the CPU */
        if (torch_access.device_type(handle, &code) || code != s->device_type) return 0;
        if (torch_access.device_index(handle, &code) || code != s->device_index) return 0;
    }
    if (s->requires_grad >= 0 && tensor_requires_grad(impl) != s->requires_grad) return 0;
    if (s->ndim < 0) return 1;
    int64_t ndim, *have;
    if (torch_access.dim(handle, &ndim) || ndim != s->ndim) return 0;
    if (ndim == 0) return 1;
    if (torch_access.sizes(handle, &have)) return 0;
    for (int64_t i = 0; i < ndim; i++) {
        int64_t want = s->sizes[i];
        if (LIKELY(have[i] == want) || want == ANY_SIZE) continue;
        if (want >= 0 || have[i] < -want) return 0;
    }
    if (s->strides != NULL) {
        if (torch_access.strides(handle, &have)) return 0;
        for (int64_t i = 0; i < ndim; i++)
            if (have[i] != s->strides[i] && s->strides[i] != ANY_SIZE) return 0;
    }
    return 1;
}
