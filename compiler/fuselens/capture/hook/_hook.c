/* fuselens.capture.hook._hook: the frame evaluator, the guard machine and the table of compiled code.
 *
 * Bird's-eye view
 *   Region      the outermost entry of compiled code; installs the PEP 523 evaluator while any region is active
 *   evaluator   looks up the entries of the code object about to run, checks their guards, swaps the code in place,
 *               or asks this thread's callback for an entry
 *   Guards      a flat program of "resolve this object" and "check that object" operations, run in one pass
 *   Entry       guards + replacement code; hangs off the original code object through its co_extra slot
 *
 * Invariants, stated as absences
 *   - nothing here links against torch or includes its headers: tensor facts are read through addresses that
 *     Python hands over once torch is imported (tensor_layout.py), and only after these were tested there;
 *   - no entry is looked up in a frame entered without a callback: compiled code only runs inside regions;
 *   - no Python code runs while borrowed references are held: the first operation that may run Python makes the
 *     guard machine take references of its own and hides the callback (see HOLD);
 *   - code objects and co_extra are invisible to the garbage collector, so tables know their code by a borrowed
 *     pointer that the slot's free function clears.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "fuselens knows the frame layouts of CPython 3.11 to 3.14 only"
#endif
#ifdef Py_GIL_DISABLED
#error "fuselens relies on the GIL"
#endif

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  /* ma_version_tag, PyWeakref_GET_OBJECT: there, and right, in all */

#define Py_BUILD_CORE
#undef _PyGC_FINALIZED
#include <internal/pycore_frame.h>
#include <internal/pycore_dict.h>
#include <internal/pycore_interp.h>
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_ceval.h>
#include <internal/pycore_interpframe.h>
#endif
#undef Py_BUILD_CORE

#include <stdint.h>
#include <string.h>
#include <time.h>

typedef uint64_t __attribute__((may_alias)) Raw;  /* a word of memory, whatever it holds */

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* ---------------------------------------------------------------------------------------- CPython versions */

typedef _PyInterpreterFrame Frame;

#if PY_VERSION_HEX >= 0x030D0000
extern void _PyEval_FrameClearAndPop(PyThreadState *, Frame *);
#endif

#if PY_VERSION_HEX >= 0x030E0000
/* A frame's references carry a tag: one that is set says that the frame does not own the object, and NULL is the tag
 * alone. Without it they are pointers, and a pointer is a reference that owns. */
typedef _PyStackRef Slot;
#define NULL_SLOT PyStackRef_NULL
static inline PyObject *untagged(PyObject *o) { return (PyObject *)((uintptr_t)o & ~(uintptr_t)Py_TAG_REFCNT); }
static inline Slot slot_of(PyObject *owned) { return PyStackRef_FromPyObjectSteal(owned); }
static inline PyCodeObject *frame_code(Frame *f) { return (PyCodeObject *)PyStackRef_AsPyObjectBorrow(f->f_executable); }
static inline PyObject *frame_function(Frame *f) { return PyStackRef_AsPyObjectBorrow(f->f_funcobj); }
static inline void frame_set_code(Frame *f, PyCodeObject *code) {
    Slot old = f->f_executable;
    f->f_executable = PyStackRef_FromPyObjectNew(code);
    f->instr_ptr = _PyCode_CODE(code);
    f->stackpointer = f->localsplus + code->co_nlocalsplus;
    PyStackRef_CLOSE(old);
}
#else
typedef PyObject *Slot;
#define NULL_SLOT NULL
static inline PyObject *untagged(PyObject *o) { return o; }
static inline Slot slot_of(PyObject *owned) { return owned; }
#if PY_VERSION_HEX >= 0x030D0000
static inline PyCodeObject *frame_code(Frame *f) { return (PyCodeObject *)f->f_executable; }
#else
static inline PyCodeObject *frame_code(Frame *f) { return f->f_code; }
#endif
#if PY_VERSION_HEX >= 0x030C0000
static inline PyObject *frame_function(Frame *f) { return f->f_funcobj; }
#else
static inline PyObject *frame_function(Frame *f) { return (PyObject *)f->f_func; }
#endif
static inline void frame_set_code(Frame *f, PyCodeObject *code) {
    PyCodeObject *old = frame_code(f);
    Py_INCREF(code);
#if PY_VERSION_HEX >= 0x030D0000
    f->f_executable = (PyObject *)code;
    f->instr_ptr = _PyCode_CODE(code);
#else
    f->f_code = code;
    f->prev_instr = _PyCode_CODE(code) - 1;
#endif
    f->stacktop = code->co_nlocalsplus;
    Py_DECREF(old);
}
#endif

/* The arguments of a frame that has not started. Each is to be read through untagged(). */
static inline PyObject *const *frame_locals(Frame *f) { return (PyObject *const *)f->localsplus; }

#define CALLBACK_RECURSION 4000
#if PY_VERSION_HEX >= 0x030C0000
#define RECURSION_REMAINING py_recursion_remaining
static inline int code_size(PyCodeObject *code) { return code->co_framesize; }
#define GetExtra PyUnstable_Code_GetExtra
#define SetExtra PyUnstable_Code_SetExtra
#define RequestExtraIndex PyUnstable_Eval_RequestCodeExtraIndex
#else
#define RECURSION_REMAINING recursion_remaining
static inline int code_size(PyCodeObject *code) {
    return code->co_nlocalsplus + code->co_stacksize + (int)FRAME_SPECIALS_SIZE;
}
#define GetExtra _PyCode_GetExtra
#define SetExtra _PyCode_SetExtra
#define RequestExtraIndex _PyEval_RequestCodeExtraIndex
#endif

#define ANY_GENERATOR (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE)

static inline int code_argument_slots(PyCodeObject *code) {
    return code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS) +
           !!(code->co_flags & CO_VARKEYWORDS);
}

/* ------------------------------------------------------------------------------------------- shared state */

static struct {
    uint64_t hits, misses, callbacks, rejected, chunk_fallbacks;
} stats;

/* initial-exec: one load instead of a call; the few bytes fit in the room that dlopen keeps for it. */
static __thread PyObject *tls_callback __attribute__((tls_model("initial-exec")));  /* strong */
/* Whose entries apply: those made under the same owner (an object compared by identity). The region keeps it alive. */
static __thread PyObject *tls_owner __attribute__((tls_model("initial-exec")));
static __thread Frame *tls_chained __attribute__((tls_model("initial-exec")));
static __thread int tls_active __attribute__((tls_model("initial-exec")));
static __thread int tls_manual __attribute__((tls_model("initial-exec")));
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
static __thread int tls_depth __attribute__((tls_model("initial-exec")));
#endif
static __thread int tls_hidden __attribute__((tls_model("initial-exec")));  /* how often we hid what this thread runs */

static PyInterpreterState *interpreter;
static Py_ssize_t extra_slot = -1;
static _PyFrameEvalFunction previous_evaluator;  /* NULL: CPython's own */
static int active_regions;                       /* of all threads */
static PyObject *empty_dict;                     /* stands for the __dict__ of an object that has none yet; never written */

static PyObject *hook(PyThreadState *, Frame *, int);

/* Takes the callback out of the thread for a while; give_back_callback drops whatever was set meanwhile. */
static inline PyObject *take_callback(void) {
    PyObject *callback = tls_callback;
    tls_callback = NULL;
    return callback;
}
static inline void give_back_callback(PyObject *callback) {
    PyObject *dropped = tls_callback;
    tls_callback = callback;
    if (UNLIKELY(dropped != NULL)) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        Py_DECREF(dropped);
        PyErr_Restore(type, value, traceback);
    }
}

/* Whether a trace or profile function of this thread, or a monitoring tool, is told of what runs. */
static inline int is_observed(PyThreadState *ts) {
    if (ts->c_tracefunc != NULL || ts->c_profilefunc != NULL) return 1;
#if PY_VERSION_HEX >= 0x030C0000
    for (int tool = 0; tool < PY_MONITORING_SYS_PROFILE_ID; tool++)
        if (ts->interp->monitoring_tool_names[tool] != NULL) return 1;
#endif
    return 0;
}
static int work_is_shown = 0;  /* to who profiles the compiler itself */

/* What runs between these is ours: nobody is told of it. Gives what `show` takes. Without observers nothing happens, so
 * that a debugger can be started in there. */
static inline int hide(PyThreadState *ts) {
    if (LIKELY(!is_observed(ts)) || work_is_shown) return 0;
    PyThreadState_EnterTracing(ts);
    tls_hidden++;
    return 1;
}
static inline void show(PyThreadState *ts, int hidden) {
    if (LIKELY(!hidden)) return;
    tls_hidden--;
    PyThreadState_LeaveTracing(ts);
}

static inline void install(void) {
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (current == hook) return;
    previous_evaluator = current == _PyEval_EvalFrameDefault ? NULL : current;
    _PyInterpreterState_SetEvalFrameFunc(interpreter, hook);
}
static inline void uninstall(void) {
    /* Somebody who installed themselves on top of us keeps us in their chain; without a callback we only forward. */
    if (_PyInterpreterState_GetEvalFrameFunc(interpreter) != hook) return;
    _PyInterpreterState_SetEvalFrameFunc(interpreter, previous_evaluator ? previous_evaluator : _PyEval_EvalFrameDefault);
}
static inline void enter_region(void) {
    /* Always look: the evaluator is also taken out while a callback compiles and no other thread is in a region. */
    install();
    active_regions++;
    tls_active++;
}
static inline void leave_region(void) {
    tls_active--;
    if (--active_regions == 0) uninstall();
}

/* ------------------------------------------------------------------------------------------ tensor access */

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

/* ------------------------------------------------------------------------------------------ guard program */

#define NODE_KINDS(X)                                                                                              \
    X(ROOT_LOCAL) X(ROOT_CLOSURE) X(ROOT_GLOBALS) X(ROOT_BUILTINS) X(ROOT_FUNCTION) X(ROOT_CONST) X(ROOT_WEAK)       \
    X(CELL_CONTENTS) X(INSTANCE_DICT) X(DICT_ITEM) X(SEQ_ITEM) X(GETATTR) X(TYPE) X(FUNC_CODE) X(FUNC_DEFAULTS)      \
    X(FUNC_KWDEFAULTS) X(FUNC_CLOSURE) X(FUNC_GLOBALS) X(METHOD_SELF) X(METHOD_FUNC) X(LENGTH) X(APPLIED)
#define CHECK_KINDS(X)                                                                                             \
    X(TYPE_IS) X(IS) X(ID_IS) X(EQUALS) X(LENGTH_IS) X(DICT_KEYS_ARE) X(MISSING) X(TENSOR) X(GRAD_MODE) X(CALL)      \
    X(GLOBAL_CALL) X(STATE) X(DISTINCT) X(SAME) X(SHAPE)
#define SHAPE_OPERATIONS(X)                                                                                        \
    X(S_CONST) X(S_VAR) X(S_ADD) X(S_SUB) X(S_MUL) X(S_FLOORDIV) X(S_MOD) X(S_MIN) X(S_MAX) X(S_EQ) X(S_NE) X(S_LT)  \
    X(S_LE) X(S_AND) X(S_OR) X(S_NOT)

enum {
#define X(name) name,
    NODE_KINDS(X) FIRST_CHECK, BEFORE_CHECKS = FIRST_CHECK - 1, CHECK_KINDS(X) IS_WEAK, DICT_ITEM_SLOW, MISSING_SLOW,
#undef X
};
enum {
#define X(name) name,
    SHAPE_OPERATIONS(X) N_SHAPE_OPERATIONS
#undef X
};

#define MAX_SHAPE_VARS 32
#define MAX_SHAPE_STACK 32

typedef struct {
    int n_vars, n_steps;
    int32_t *vars;    /* pairs: value slot, and d: size of dimension d; -1: the number itself; -2 - d: stride of d */
    int64_t *steps;   /* pairs: operation, operand */
} ShapeProgram;

/* One operation. A resolving one fills its slot; a check reads slot `a`. Objects are borrowed from the tuples that the
 * Guards object keeps. */
typedef struct {
    uint8_t kind;
    int32_t a;       /* slot of the parent, or of the checked object */
    int32_t slot;    /* of what a resolving operation finds; -1 for a check */
    int32_t check;   /* what to report on failure: index of the check; number of checks + i for gather item i */
    int32_t sibling; /* the next operation of the group that reads the same dictionary; -1: none */
    int64_t n;
    PyObject *object;
    union {
        Py_hash_t hash;
        TensorSpec *tensor;
        int32_t *slots;
        ShapeProgram *shape;
    } u;
} Op;

typedef struct Snapshot Snapshot;

/* Operations that follow one another: those below one root, which depend on nothing else, or the rest. Each group owns
 * a range of slots, at the front those that the last group or the gathering reads. */
typedef struct {
    int32_t first_op, end_op, first_slot, n_slots, n_exported;
    int32_t n_snapshots, last_hit, credit;  /* credit: how many more snapshots may be taken; each hit gives one back */
    int8_t steady;  /* not the last one, which may run Python and rely on the others */
    Snapshot **snapshots;
} Group;

typedef struct {
    PyObject_HEAD
    PyObject *nodes, *checks, *gather;  /* tuples; own every object the program refers to */
    Op *ops;
    Group *groups;
    int32_t *gather_slots;
    Py_ssize_t n_ops, n_groups, n_values, n_gather, max_local;
    int running;  /* runs under way: the order is not changed beneath them */
    int broken;   /* cleared by the collector: never passes again */
} Guards;

static PyTypeObject GuardsType, EntryType, RegionType, DisabledType, HiddenType;

/* Exact equality: the type too, floats bit by bit (nan is itself, 0.0 is not -0.0). */
static int equal_constants(PyObject *a, PyObject *b) {
    if (a == b) return 1;
    if (Py_TYPE(a) != Py_TYPE(b)) return 0;
    if (PyFloat_CheckExact(a)) {
        double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
        return memcmp(&x, &y, sizeof x) == 0;
    }
    if (PyComplex_CheckExact(a))
        return memcmp(&((PyComplexObject *)a)->cval, &((PyComplexObject *)b)->cval, sizeof(Py_complex)) == 0;
    if (PyTuple_CheckExact(a)) {
        Py_ssize_t n = PyTuple_GET_SIZE(a);
        if (n != PyTuple_GET_SIZE(b)) return 0;
        for (Py_ssize_t i = 0; i < n; i++)
            if (!equal_constants(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return 0;
        return 1;
    }
    return PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

/* Whether comparing equal_constants(anything, o) can never run Python. */
static int compares_quietly(PyObject *o) {
    if (PyTuple_CheckExact(o)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++)
            if (!compares_quietly(PyTuple_GET_ITEM(o, i))) return 0;
        return 1;
    }
    return o == Py_None || o == Py_Ellipsis || PyBool_Check(o) || PyLong_CheckExact(o) || PyUnicode_CheckExact(o) ||
           PyBytes_CheckExact(o) || PyFloat_CheckExact(o) || PyComplex_CheckExact(o);
}

/* Lengths that need no Python; -1 for everything else. */
static inline Py_ssize_t quiet_length(PyObject *o) {
    if (PyTuple_Check(o) || PyList_Check(o)) return Py_SIZE(o);
    if (PyDict_Check(o)) return ((PyDictObject *)o)->ma_used;
    if (PyUnicode_Check(o)) return PyUnicode_GET_LENGTH(o);
    if (PyAnySet_Check(o)) return ((PySetObject *)o)->used;
    return -1;
}

/* The __dict__ without running a __dict__ property or __getattribute__. Objects with inline values get a real
 * dictionary here, once: CPython has no public way to look into inline values. Borrowed. */
static PyObject *instance_dict(PyObject *o) {
    if (PyType_Check(o)) {
#if PY_VERSION_HEX >= 0x030C0000
        PyObject *dict = PyType_GetDict((PyTypeObject *)o);
        Py_XDECREF(dict);  /* the type keeps it */
        return dict;
#else
        return ((PyTypeObject *)o)->tp_dict;
#endif
    }
    PyObject **slot = _PyObject_GetDictPtr(o);
    return slot != NULL && *slot != NULL ? *slot : empty_dict;
}

/* Whether looking up a string can never run Python: only strings are keys, so that no user's __eq__ is asked. */
static inline int has_quiet_keys(PyObject *dict) { return DK_IS_UNICODE(((PyDictObject *)dict)->ma_keys); }

static inline int iterates_quietly(PyObject *dict) { return PyDict_CheckExact(dict) || PyODict_CheckExact(dict); }

static int dict_keys_are(PyObject *dict, PyObject *keys) {
    if (((PyDictObject *)dict)->ma_used != PyTuple_GET_SIZE(keys)) return 0;
    if (!PyDict_CheckExact(dict)) {  /* an OrderedDict's order is not that of the dict beneath it */
        PyObject *have = PySequence_Tuple(dict);
        int same = have != NULL && equal_constants(have, keys);
        Py_XDECREF(have);
        return same;
    }
    Py_ssize_t position = 0, i = 0;
    PyObject *key;
    while (PyDict_Next(dict, &position, &key, NULL)) {
        PyObject *want = i < PyTuple_GET_SIZE(keys) ? PyTuple_GET_ITEM(keys, i) : NULL;
        i++;
        if (want == NULL) return 0;
        if (key == want) continue;
        Py_INCREF(key);
        int same = equal_constants(key, want);
        Py_DECREF(key);
        if (!same) return 0;
    }
    return 1;
}

/* Pairwise different objects: quadratic while small, then a set of addresses. */
static int all_distinct(PyObject **values, const int32_t *slots, Py_ssize_t n) {
    if (n <= 8) {
        for (Py_ssize_t i = 1; i < n; i++)
            for (Py_ssize_t j = 0; j < i; j++)
                if (values[slots[i]] == values[slots[j]]) return 0;
        return 1;
    }
    size_t capacity = 16;
    while (capacity < 2 * (size_t)n) capacity *= 2;
    PyObject *small[512], **set = small;
    if (capacity > 512 && (set = PyMem_Malloc(capacity * sizeof *set)) == NULL) return 0;
    memset(set, 0, capacity * sizeof *set);
    int distinct = 1;
    for (Py_ssize_t i = 0; i < n && distinct; i++) {
        PyObject *o = values[slots[i]];
        size_t at = ((uintptr_t)o >> 4) * 0x9E3779B97F4A7C15ull >> 20 & (capacity - 1);
        while (set[at] != NULL && set[at] != o) at = (at + 1) & (capacity - 1);
        distinct = set[at] == NULL;
        set[at] = o;
    }
    if (set != small) PyMem_Free(set);
    return distinct;
}

/* Reads one variable of a shape program. */
static int shape_variable(PyObject *o, int32_t which, int64_t *out) {
    if (which == -1) {
        if (!PyLong_CheckExact(o)) return 0;
        int overflow;
        *out = PyLong_AsLongLongAndOverflow(o, &overflow);
        return !overflow;
    }
    int64_t ndim, *extents, dim = which >= 0 ? which : -2 - which;
    if (LIKELY(torch_access.ready)) {
        void *handle = tensor_handle(o);
        ReadArray read = which >= 0 ? torch_access.sizes : torch_access.strides;
        if (torch_access.dim(handle, &ndim) || dim >= ndim || read(handle, &extents)) return 0;
        *out = extents[dim];
        return 1;
    }
    PyObject *all = which >= 0 ? PyObject_GetAttrString(o, "shape") : PyObject_CallMethod(o, "stride", NULL);
    PyObject *item = all ? PySequence_GetItem(all, dim) : NULL;
    *out = item ? PyLong_AsLongLong(item) : -1;
    Py_XDECREF(all);
    Py_XDECREF(item);
    return !PyErr_Occurred();
}

static int shape_passes(const ShapeProgram *p, PyObject **values) {
    int64_t vars[MAX_SHAPE_VARS], stack[MAX_SHAPE_STACK], r, m;
    int top = -1;
    for (int i = 0; i < p->n_vars; i++)
        if (!shape_variable(values[p->vars[2 * i]], p->vars[2 * i + 1], &vars[i])) return 0;
    for (int i = 0; i < p->n_steps; i++) {
        int64_t op = p->steps[2 * i], n = p->steps[2 * i + 1];
        if (op == S_CONST) { stack[++top] = n; continue; }
        if (op == S_VAR) { stack[++top] = vars[n]; continue; }
        if (op == S_NOT) { stack[top] = !stack[top]; continue; }
        int64_t b = stack[top--], a = stack[top];
        switch (op) {
        case S_ADD: if (__builtin_add_overflow(a, b, &r)) return 0; break;
        case S_SUB: if (__builtin_sub_overflow(a, b, &r)) return 0; break;
        case S_MUL: if (__builtin_mul_overflow(a, b, &r)) return 0; break;
        case S_FLOORDIV:
            if (b == 0 || (a == INT64_MIN && b == -1)) return 0;
            r = a / b;
            r -= a % b != 0 && (a < 0) != (b < 0);
            break;
        case S_MOD:
            if (b == 0 || b == -1) { if (b == 0) return 0; r = 0; break; }
            m = a % b;
            r = m != 0 && (m < 0) != (b < 0) ? m + b : m;
            break;
        case S_MIN: r = a < b ? a : b; break;
        case S_MAX: r = a > b ? a : b; break;
        case S_EQ: r = a == b; break;
        case S_NE: r = a != b; break;
        case S_LT: r = a < b; break;
        case S_LE: r = a <= b; break;
        case S_AND: r = a && b; break;
        default: r = a || b; break;
        }
        stack[top] = r;
    }
    return stack[0] != 0;
}

static int truthy(PyObject *result) {  /* steals */
    int truth = result != NULL && PyObject_IsTrue(result) == 1;
    Py_XDECREF(result);
    return truth;
}

/* One evaluation of the guards. */
typedef struct {
    PyFunctionObject *func;
    PyObject *const *locals;
    PyObject **values;         /* by slot; borrowed until `held` */
    PyObject *saved_callback;
    uint64_t hits;             /* by group: a snapshot passed, so only the exported slots are filled */
    int32_t group;             /* under way */
    int held, hidden;
} Run;

static inline Py_ssize_t filled_slots(const Guards *g, const Run *r, int32_t group) {
    return group < 64 && r->hits >> group & 1 ? g->groups[group].n_exported : g->groups[group].n_slots;
}

/* From here on values own references, and Python that runs for this check is not captured itself, nor observed. */
static __attribute__((noinline)) void hold(const Guards *g, Run *r) {
    for (int32_t i = 0; i <= r->group; i++) {
        PyObject **first = r->values + g->groups[i].first_slot;
        for (Py_ssize_t k = 0, n = filled_slots(g, r, i); k < n; k++) Py_XINCREF(first[k]);
    }
    r->held = 1;
    r->saved_callback = take_callback();
    r->hidden = hide(PyThreadState_Get());
}
static __attribute__((noinline)) void release(const Guards *g, Run *r) {
    for (int32_t i = 0; i <= r->group; i++) {
        PyObject **first = r->values + g->groups[i].first_slot;
        for (Py_ssize_t k = 0, n = filled_slots(g, r, i); k < n; k++) Py_XDECREF(first[k]);
    }
    show(PyThreadState_Get(), r->hidden);
    give_back_callback(r->saved_callback);
}

#define HOLD() do { if (!r->held) hold(g, r); } while (0)
#define REQUIRE(condition) do { if (UNLIKELY(!(condition))) return op; } while (0)
#define PRODUCE(value)                                                                                             \
    do {                                                                                                           \
        PyObject *value_ = (PyObject *)(value);                                                                    \
        REQUIRE(value_ != NULL);                                                                                   \
        if (r->held) Py_INCREF(value_);                                                                            \
        r->values[op->slot] = value_;                                                                              \
    } while (0)
#define PRODUCE_OWNED(value)                                                                                       \
    do {                                                                                                           \
        PyObject *value_ = (value);                                                                                \
        REQUIRE(value_ != NULL);                                                                                   \
        r->values[op->slot] = value_;                                                                              \
    } while (0)

/* Runs the operations one by one. NULL, or the one that failed, possibly with an error set. */
static const Op *run_ops(const Guards *g, Run *r, const Op *op, const Op *end) {
    PyObject **values = r->values;
    for (; op < end; op++) {
        PyObject *o = op->kind > ROOT_WEAK && op->a >= 0 ? values[op->a] : NULL;
        switch (op->kind) {
        case ROOT_LOCAL: PRODUCE(untagged(r->locals[op->n])); break;
        case ROOT_CLOSURE: {
            PyObject *closure = r->func->func_closure;
            REQUIRE(closure != NULL && op->n < PyTuple_GET_SIZE(closure));
            PRODUCE(PyTuple_GET_ITEM(closure, op->n));
            break;
        }
        case ROOT_GLOBALS: PRODUCE(r->func->func_globals); break;
        case ROOT_BUILTINS: PRODUCE(r->func->func_builtins); break;
        case ROOT_FUNCTION: PRODUCE(r->func); break;
        case ROOT_CONST: PRODUCE(op->object); break;
        case ROOT_WEAK: {
            PyObject *referent = PyWeakref_GET_OBJECT(op->object);
            REQUIRE(referent != Py_None);
            PRODUCE(referent);
            break;
        }
        case CELL_CONTENTS: REQUIRE(PyCell_Check(o)); PRODUCE(PyCell_GET(o)); break;
        case INSTANCE_DICT: PRODUCE(instance_dict(o)); break;
        case DICT_ITEM_SLOW: HOLD(); /* fall through */
        case DICT_ITEM:
            REQUIRE(PyDict_Check(o));
            if (UNLIKELY(!has_quiet_keys(o))) HOLD();
            PRODUCE(_PyDict_GetItem_KnownHash(o, op->object, op->u.hash));
            break;
        case SEQ_ITEM:
            if (PyTuple_Check(o)) {
                REQUIRE(op->n < PyTuple_GET_SIZE(o));
                PRODUCE(PyTuple_GET_ITEM(o, op->n));
            } else {
                REQUIRE(PyList_Check(o) && op->n < PyList_GET_SIZE(o));
                PRODUCE(PyList_GET_ITEM(o, op->n));
            }
            break;
        case GETATTR: HOLD(); PRODUCE_OWNED(PyObject_GetAttr(o, op->object)); break;
        case TYPE: PRODUCE(Py_TYPE(o)); break;
        case FUNC_CODE: REQUIRE(PyFunction_Check(o)); PRODUCE(((PyFunctionObject *)o)->func_code); break;
        case FUNC_GLOBALS: REQUIRE(PyFunction_Check(o)); PRODUCE(((PyFunctionObject *)o)->func_globals); break;
        case FUNC_DEFAULTS: case FUNC_KWDEFAULTS: case FUNC_CLOSURE: {
            REQUIRE(PyFunction_Check(o));
            PyFunctionObject *f = (PyFunctionObject *)o;
            PyObject *part = op->kind == FUNC_DEFAULTS ? f->func_defaults
                             : op->kind == FUNC_KWDEFAULTS ? f->func_kwdefaults : f->func_closure;
            PRODUCE(part != NULL ? part : Py_None);
            break;
        }
        case METHOD_SELF: REQUIRE(PyMethod_Check(o)); PRODUCE(PyMethod_GET_SELF(o)); break;
        case METHOD_FUNC: REQUIRE(PyMethod_Check(o)); PRODUCE(PyMethod_GET_FUNCTION(o)); break;
        case LENGTH: {
            Py_ssize_t n = quiet_length(o);
            HOLD();
            if (n < 0) n = PyObject_Size(o);
            REQUIRE(n >= 0);
            PRODUCE_OWNED(PyLong_FromSsize_t(n));
            break;
        }
        case APPLIED: HOLD(); PRODUCE_OWNED(PyObject_CallOneArg(op->object, o)); break;

        case TYPE_IS: REQUIRE((PyObject *)Py_TYPE(o) == op->object); break;
        case IS: REQUIRE(o == op->object); break;
        case IS_WEAK: REQUIRE(o == PyWeakref_GET_OBJECT(op->object) && o != Py_None); break;
        case ID_IS: REQUIRE((int64_t)(intptr_t)o == op->n); break;
        case EQUALS:
            if (o == op->object) break;
            REQUIRE(Py_TYPE(o) == Py_TYPE(op->object));
            if (!op->n) HOLD();
            REQUIRE(equal_constants(o, op->object));
            break;
        case LENGTH_IS: {
            Py_ssize_t n = quiet_length(o);
            if (n < 0) {
                HOLD();
                n = PyObject_Size(o);
            }
            REQUIRE(n == op->n);
            break;
        }
        case DICT_KEYS_ARE:
            REQUIRE(PyDict_Check(o));
            if (!op->n || !iterates_quietly(o)) HOLD();
            REQUIRE(dict_keys_are(o, op->object));
            break;
        case MISSING_SLOW: HOLD(); /* fall through */
        case MISSING:
            REQUIRE(PyDict_Check(o));
            if (UNLIKELY(!has_quiet_keys(o))) HOLD();
            REQUIRE(_PyDict_GetItem_KnownHash(o, op->object, op->u.hash) == NULL && !PyErr_Occurred());
            break;
        case TENSOR:
            REQUIRE(Py_TYPE(o) == op->u.tensor->type);
            if (LIKELY(torch_access.ready)) {
                REQUIRE(tensor_passes(o, op->u.tensor));
            } else {
                HOLD();
                REQUIRE(torch_access.slow_check != NULL);
                REQUIRE(truthy(PyObject_CallFunctionObjArgs(torch_access.slow_check, o, op->object, NULL)));
            }
            break;
        case GRAD_MODE:
            if (LIKELY(torch_access.grad_mode != NULL)) {
                REQUIRE(torch_access.grad_mode() == (bool)op->n);
            } else {
                HOLD();
                REQUIRE(torch_access.slow_grad_mode != NULL);
                REQUIRE(truthy(PyObject_CallNoArgs(torch_access.slow_grad_mode)) == (int)op->n);
                REQUIRE(!PyErr_Occurred());
            }
            break;
        case CALL: HOLD(); REQUIRE(truthy(PyObject_CallOneArg(op->object, o))); break;
        case GLOBAL_CALL: HOLD(); REQUIRE(truthy(PyObject_CallNoArgs(op->object))); break;
        case STATE: {
            PyObject *state = PyObject_CallNoArgs(PyTuple_GET_ITEM(op->object, 0));
            int same = state == PyTuple_GET_ITEM(op->object, 1) ||
                       (op->n && state != NULL && equal_constants(state, PyTuple_GET_ITEM(op->object, 1)));
            Py_XDECREF(state);
            REQUIRE(same);
            break;
        }
        case DISTINCT: REQUIRE(all_distinct(values, op->u.slots, op->n)); break;
        case SAME: REQUIRE(o == values[op->n]); break;
        case SHAPE:
            if (!torch_access.ready) HOLD();
            REQUIRE(shape_passes(op->u.shape, values));
            break;
        default: return op;
        }
    }
    return NULL;
}

/* ---------------------------------------------------------------------------------------------- snapshots */

/* What a group that passed was found to rest on, for the next time: it is enough that the words which it read from
 * memory are unchanged. Words come in the order in which they were read, so that each proves the next address valid:
 * a dictionary's version proves that it holds the module whose type is compared next, and so on. Nothing is kept alive
 * but constants: an address that another object has taken since fails a comparison, or the check holds for that
 * object as well. A dictionary's version is never used again by another one.
 *
 * Tensors change without a trace in their surroundings (`p.data = …`, `p.requires_grad_()`), so that each costs a look
 * at its own metadata; that is why the time is not independent of the number of parameters, and only a few ns each. */
typedef struct {
    const Raw *at;
    uint64_t want;
} Word;

typedef struct {
    PyObject *tensor;
    PyTypeObject *type;
    void *impl;
    const uint64_t *metadata;
    int requires_grad;  /* -1: any */
} TensorWitness;

struct Snapshot {
    PyObject *key;              /* value of the group's first operation; borrowed, only compared */
    Word *words;
    int32_t *dict_ops;          /* for each word: the first operation that reads the dictionary whose version it is, or -1 */
    TensorWitness *tensors;
    uint64_t **metadata;        /* owned; equal ones are shared */
    PyObject **values;          /* by slot of the group; borrowed */
    PyObject *constants;        /* list of those found equal to what an EQUALS check expects */
    Py_ssize_t n_words, n_tensors, n_metadata;
};

#define MAX_SNAPSHOTS 64
#define LEAST_OPS 6  /* for fewer a snapshot does not pay */

static void snapshot_free(Snapshot *s) {
    if (s == NULL) return;
    for (Py_ssize_t i = 0; i < s->n_metadata; i++) PyMem_Free(s->metadata[i]);
    PyMem_Free(s->metadata);
    PyMem_Free(s->words);
    PyMem_Free(s->dict_ops);
    PyMem_Free(s->tensors);
    PyMem_Free(s->values);
    Py_XDECREF(s->constants);
    PyMem_Free(s);
}

static void group_forget(Group *group) {
    for (int32_t i = 0; i < group->n_snapshots; i++) snapshot_free(group->snapshots[i]);
    PyMem_Free(group->snapshots);
    group->snapshots = NULL;
    group->n_snapshots = group->last_hit = 0;
}

/* Where the version of a dictionary is. On 3.14 they have none: there all that a snapshot rests on share one, which
 * CPython's watcher raises at every change of any of them, also when one is freed. */
#if PY_VERSION_HEX >= 0x030E0000
static uint64_t shared_version = 1;
static int dict_watcher = -1;  /* none was left: no dictionary has a version */
static int dict_changed(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value) {
    (void)event, (void)dict, (void)key, (void)value;
    shared_version++;
    return 0;
}
static inline const Raw *version_of(PyObject *dict) { return (void)dict, &shared_version; }
static inline int has_version(PyObject *dict) { return dict_watcher >= 0 && PyDict_Watch(dict_watcher, dict) == 0; }
#else
static inline const Raw *version_of(PyObject *dict) { return &((PyDictObject *)dict)->ma_version_tag; }
static inline int has_version(PyObject *dict) {
#if PY_VERSION_HEX >= 0x030D0000
    return ((PyDictObject *)dict)->ma_values == NULL;  /* 3.13.0 stores into inline values behind the dictionary's back */
#else
    return (void)dict, 1;
#endif
}
#endif

/* 0, which no version is: of a dictionary that may change without a new one. */
static inline uint64_t dict_version(PyObject *dict) {
    if (!PyDict_CheckExact(dict)) return 0;  /* an OrderedDict's order is not that of the dict beneath it */
    return has_version(dict) ? *version_of(dict) : 0;
}

/* Growing arrays; `n` elements are in use. */
static int reserve(void *array, Py_ssize_t n, size_t size) {
    if (n & (n - 1)) return 1;  /* grows at powers of two */
    void *grown = PyMem_Realloc(*(void **)array, (n ? 2 * n : 1) * size);
    if (grown == NULL) return 0;
    *(void **)array = grown;
    return 1;
}

static int add_word(Snapshot *s, const void *at, const void *want, int32_t dict_op) {
    if (!reserve(&s->words, s->n_words, sizeof *s->words) || !reserve(&s->dict_ops, s->n_words, sizeof *s->dict_ops)) return 0;
    s->words[s->n_words] = (Word){at, (uint64_t)(uintptr_t)want};
    s->dict_ops[s->n_words++] = dict_op;
    return 1;
}

/* Adds the metadata of a tensor that passed. 0 when it lies elsewhere. */
static int add_tensor(Snapshot *s, PyObject *o, const TensorSpec *spec) {
    if (!torch_access.ready || torch_access.n_metadata == 0) return 0;
    const Raw *have = tensor_metadata(tensor_impl(o));
    const uint64_t *kept = NULL;
    size_t size = torch_access.n_metadata * sizeof *have;
    if (have[0] > MAX_INLINE_DIMS) return 0;
    for (Py_ssize_t i = s->n_metadata - 1; i >= 0 && i >= s->n_metadata - 4 && kept == NULL; i--)
        if (same_metadata(have, s->metadata[i])) kept = s->metadata[i];
    if (kept == NULL) {
        uint64_t *copy = PyMem_Malloc(size);
        if (copy == NULL || !reserve(&s->metadata, s->n_metadata, sizeof *s->metadata)) return PyMem_Free(copy), 0;
        kept = s->metadata[s->n_metadata++] = memcpy(copy, have, size);
    }
    if (!reserve(&s->tensors, s->n_tensors, sizeof *s->tensors)) return 0;
    s->tensors[s->n_tensors++] = (TensorWitness){o, spec->type, tensor_impl(o), kept, spec->requires_grad};
    return 1;
}

#define WORD(field, value) do { if (!add_word(s, &(field), (const void *)(uintptr_t)(value), -1)) return 0; } while (0)
#define TYPE_WORD(slot)                                                                                            \
    do {                                                                                                           \
        if (!typed[slot]) WORD(values[slot]->ob_type, values[slot]->ob_type);                                    \
        typed[slot] = 1;                                                                                           \
    } while (0)

/* Adds what one operation, which passed, has read. 0 when that cannot be put in words. `typed` tells of which slots
 * the type is compared already, `versioned` of which dictionaries the version is; both are indexed from
 * the group's first slot, like `values`. */
static int add_op(const Guards *g, Snapshot *s, const Group *group, int32_t at, char *typed, char *versioned) {
    const Op *op = &g->ops[at];
    PyObject **values = s->values;
    int32_t a = op->a - group->first_slot;
    PyObject *o = op->kind > ROOT_WEAK && op->a >= 0 ? values[a] : NULL;
    PyObject *found = op->slot >= 0 ? values[op->slot - group->first_slot] : NULL;
    switch (op->kind) {
    case ROOT_LOCAL: case ROOT_CLOSURE: case ROOT_GLOBALS: case ROOT_BUILTINS: case ROOT_FUNCTION: case ROOT_CONST:
    case IS: case ID_IS: case SAME: case DISTINCT:
        return 1;
    case ROOT_WEAK: WORD(((PyWeakReference *)op->object)->wr_object, found); return 1;
    case IS_WEAK: WORD(((PyWeakReference *)op->object)->wr_object, o); return 1;
    case EQUALS: return o == op->object || PyList_Append(s->constants, o) == 0;
    case TYPE: case TYPE_IS: TYPE_WORD(a); return 1;
    case CELL_CONTENTS: TYPE_WORD(a); WORD(((PyCellObject *)o)->ob_ref, found); return 1;
    case INSTANCE_DICT: {
        TYPE_WORD(a);
        typed[op->slot - group->first_slot] = 1;  /* only a dictionary can be there */
        if (PyType_Check(o)) {
            if (((PyTypeObject *)o)->tp_dict == found) WORD(((PyTypeObject *)o)->tp_dict, found);
            return 1;
        }
        PyObject **slot = _PyObject_GetDictPtr(o);
        if (slot != NULL) WORD(*slot, *slot);
        return 1;
    }
    case DICT_ITEM: case MISSING: case DICT_KEYS_ARE: {
        if (versioned[a]) return 1;
        versioned[a] = 1;
        TYPE_WORD(a);
        return add_word(s, version_of(o), (const void *)(uintptr_t)dict_version(o), at);
    }
    case SEQ_ITEM:
        TYPE_WORD(a);
        WORD(((PyVarObject *)o)->ob_size, Py_SIZE(o));
        if (PyTuple_Check(o)) {
            WORD(((PyTupleObject *)o)->ob_item[op->n], found);
        } else {
            WORD(((PyListObject *)o)->ob_item, ((PyListObject *)o)->ob_item);
            WORD(((PyListObject *)o)->ob_item[op->n], found);
        }
        return 1;
    case LENGTH_IS:
        TYPE_WORD(a);
        if (PyTuple_Check(o) || PyList_Check(o)) WORD(((PyVarObject *)o)->ob_size, op->n);
        else if (PyDict_Check(o)) WORD(((PyDictObject *)o)->ma_used, op->n);
        else if (PyAnySet_Check(o)) WORD(((PySetObject *)o)->used, op->n);
        else if (PyUnicode_Check(o)) WORD(((PyASCIIObject *)o)->length, op->n);
        else return 0;
        return 1;
    case FUNC_CODE: TYPE_WORD(a); WORD(((PyFunctionObject *)o)->func_code, found); return 1;
    case FUNC_GLOBALS: TYPE_WORD(a); WORD(((PyFunctionObject *)o)->func_globals, found); return 1;
    case FUNC_DEFAULTS:
        TYPE_WORD(a);
        WORD(((PyFunctionObject *)o)->func_defaults, ((PyFunctionObject *)o)->func_defaults);
        return 1;
    case FUNC_KWDEFAULTS:
        TYPE_WORD(a);
        WORD(((PyFunctionObject *)o)->func_kwdefaults, ((PyFunctionObject *)o)->func_kwdefaults);
        return 1;
    case FUNC_CLOSURE:
        TYPE_WORD(a);
        WORD(((PyFunctionObject *)o)->func_closure, ((PyFunctionObject *)o)->func_closure);
        return 1;
    case METHOD_SELF: TYPE_WORD(a); WORD(((PyMethodObject *)o)->im_self, found); return 1;
    case METHOD_FUNC: TYPE_WORD(a); WORD(((PyMethodObject *)o)->im_func, found); return 1;
    case TENSOR: return add_tensor(s, o, op->u.tensor);
    default: return 0;
    }
}

/* Remembers what a group that has just passed rests on, in place of what is known for the same key. No Python has run
 * since its first operation. */
static __attribute__((noinline)) void snapshot_take(const Guards *g, Group *group, PyObject *const *values) {
    group->credit--;
    Snapshot *s = PyMem_Calloc(1, sizeof *s);
    char *typed = PyMem_Calloc(2, group->n_slots);
    if (s == NULL || typed == NULL) goto refused;
    s->values = PyMem_Malloc(group->n_slots * sizeof *s->values);
    s->constants = PyList_New(0);
    if (s->values == NULL || s->constants == NULL) goto refused;
    memcpy(s->values, values + group->first_slot, group->n_slots * sizeof *s->values);
    s->key = s->values[g->ops[group->first_op].slot - group->first_slot];
    for (int32_t at = group->first_op; at < group->end_op; at++)
        if (!add_op(g, s, group, at, typed, typed + group->n_slots)) {
            group->credit = 0;
            goto refused;
        }
    int32_t place = 0;
    while (place < group->n_snapshots && group->snapshots[place]->key != s->key) place++;
    if (place == MAX_SNAPSHOTS) place = (group->last_hit + 1) % MAX_SNAPSHOTS;
    if (place == group->n_snapshots) {
        if (!reserve(&group->snapshots, group->n_snapshots, sizeof *group->snapshots)) goto refused;
        group->snapshots[group->n_snapshots++] = NULL;
    }
    snapshot_free(group->snapshots[place]);
    group->snapshots[place] = s;
    group->last_hit = place;
    PyMem_Free(typed);
    return;
refused:
    PyErr_Clear();
    PyMem_Free(typed);
    snapshot_free(s);
}

/* A dictionary has changed: whether those of its items that matter have not. Then the new version is as good. */
static __attribute__((noinline)) int dict_still_fits(const Guards *g, const Group *group, Snapshot *s, Py_ssize_t word) {
    if (s->dict_ops[word] < 0) return 0;
    PyObject *dict = s->values[g->ops[s->dict_ops[word]].a - group->first_slot];
    for (int32_t at = s->dict_ops[word]; at >= 0; at = g->ops[at].sibling) {
        const Op *op = &g->ops[at];
        if (op->kind == DICT_KEYS_ARE) {
            if (!iterates_quietly(dict) || !dict_keys_are(dict, op->object)) return 0;
            continue;
        }
        if (!has_quiet_keys(dict)) return 0;
        PyObject *want = op->kind == DICT_ITEM ? s->values[op->slot - group->first_slot] : NULL;
        if (_PyDict_GetItem_KnownHash(dict, op->object, op->u.hash) != want) return 0;
    }
    s->words[word].want = dict_version(dict);
    return 1;
}

/* Fills the exported slots when the group passed before for this root and nothing that it rests on has changed. */
static int snapshot_passes(const Guards *g, Group *group, Run *r) {
    if (run_ops(g, r, &g->ops[group->first_op], &g->ops[group->first_op + 1]) != NULL) return 0;
    PyObject *key = r->values[g->ops[group->first_op].slot];
    int32_t n = group->n_snapshots, at = n > 1 ? group->last_hit + 1 : 0, tries = 0;
    for (; tries < n; tries++, at++) {  /* callers that take turns come in the same order again */
        if (at >= n) at = 0;
        if (group->snapshots[at]->key == key) break;
    }
    if (tries == n) return 0;
    Snapshot *s = group->snapshots[at];
    for (Py_ssize_t i = 0; i < s->n_words; i++)
        if (UNLIKELY(*s->words[i].at != s->words[i].want) && !dict_still_fits(g, group, s, i)) return 0;
    for (const TensorWitness *t = s->tensors, *end = t + s->n_tensors; t < end; t++) {
        if (UNLIKELY(Py_TYPE(t->tensor) != t->type || tensor_impl(t->tensor) != t->impl)) return 0;
        if (UNLIKELY(!same_metadata(tensor_metadata(t->impl), t->metadata))) return 0;
        if (UNLIKELY(t->requires_grad >= 0 && tensor_requires_grad(t->impl) != t->requires_grad)) return 0;
    }
    memcpy(r->values + group->first_slot, s->values, group->n_exported * sizeof *s->values);
    group->last_hit = at;
    group->credit += group->credit < 2 * MAX_SNAPSHOTS;
    return 1;
}

/* --------------------------------------------------------------------------------- the order of operations */

enum { LAST_GROUP, STATE_GROUP, CONSTANT_GROUP, FIRST_ROOT_GROUP };  /* while they are arranged; then the last is last */

/* Where an operation belongs: below one root when it reads nothing else and runs no Python. */
static int32_t group_of(const Op *op, const int32_t *group_of_slot) {
    switch (op->kind) {
    case ROOT_CONST: case ROOT_WEAK: return CONSTANT_GROUP;
    case GRAD_MODE: case STATE: return STATE_GROUP;
    case DICT_ITEM_SLOW: case MISSING_SLOW: case GETATTR: case APPLIED: case LENGTH: case CALL: case GLOBAL_CALL:
    case SHAPE:
        return LAST_GROUP;
    case EQUALS: case DICT_KEYS_ARE: return op->n ? group_of_slot[op->a] : LAST_GROUP;
    case SAME: return group_of_slot[op->a] == group_of_slot[op->n] ? group_of_slot[op->a] : LAST_GROUP;
    case DISTINCT:
        for (int64_t i = 1; i < op->n; i++)
            if (group_of_slot[op->u.slots[i]] != group_of_slot[op->u.slots[0]]) return LAST_GROUP;
        return op->n ? group_of_slot[op->u.slots[0]] : LAST_GROUP;
    default: return group_of_slot[op->a];
    }
}

/* Calls `visit` with each slot that an operation reads. */
#define FOR_EACH_READ(op, visit)                                                                                   \
    do {                                                                                                           \
        if ((op)->kind > ROOT_WEAK && (op)->a >= 0) visit((op)->a);                                                \
        if ((op)->kind == SAME) visit((op)->n);                                                                    \
        if ((op)->kind == DISTINCT)                                                                                \
            for (int64_t i_ = 0; i_ < (op)->n; i_++) visit((op)->u.slots[i_]);                                     \
        if ((op)->kind == SHAPE)                                                                                   \
            for (int i_ = 0; i_ < (op)->u.shape->n_vars; i_++) visit((op)->u.shape->vars[2 * i_]);                 \
    } while (0)

static inline int reads_dict(int kind) { return kind == DICT_ITEM || kind == MISSING || kind == DICT_KEYS_ARE; }

/* Chains the operations of a group that read the same dictionary. */
static void link_siblings(Guards *g, const Group *group) {
    int32_t *last = PyMem_Malloc((group->n_slots + 1) * sizeof *last);  /* by slot of the dictionary */
    if (last == NULL) return;  /* no chains: every change of a dictionary is then checked in full */
    for (int32_t k = 0; k < group->n_slots; k++) last[k] = -1;
    for (int32_t i = group->end_op - 1; i >= group->first_op; i--) {
        Op *op = &g->ops[i];
        int32_t slot = op->a - group->first_slot;
        if (!reads_dict(op->kind) || slot < 0 || slot >= group->n_slots) continue;  /* the last group reads all the others */
        op->sibling = last[slot];
        last[slot] = i;
    }
    PyMem_Free(last);
}

/* Sorts the operations by group and numbers the slots anew, group by group, exported ones first. */
static int arrange(Guards *g) {
    Py_ssize_t n_ops = g->n_ops, n_slots = g->n_values;
    int32_t n_groups = FIRST_ROOT_GROUP;
    for (Py_ssize_t i = 0; i < n_ops; i++) n_groups += g->ops[i].kind < ROOT_CONST;
    int32_t *scratch = PyMem_Calloc(n_ops + 3 * n_slots + 2 * n_groups, sizeof *scratch);
    int32_t *group_of_op = scratch, *group_of_slot = scratch + n_ops, *exported = group_of_slot + n_slots,
            *renumbered = exported + n_slots, *next[2] = {renumbered + n_slots, renumbered + n_slots + n_groups};
    Op *sorted = PyMem_Malloc((n_ops + 1) * sizeof *sorted);
    g->groups = PyMem_Calloc(n_groups, sizeof *g->groups);
    if (scratch == NULL || sorted == NULL || g->groups == NULL) {
        PyMem_Free(scratch);
        PyMem_Free(sorted);
        return PyErr_NoMemory(), -1;
    }
    int32_t root = FIRST_ROOT_GROUP;
    for (Py_ssize_t i = 0; i < n_ops; i++) {
        const Op *op = &g->ops[i];
        int32_t group = op->kind < ROOT_CONST ? root++ : group_of(op, group_of_slot);
        group_of_op[i] = group;
        if (op->slot >= 0) group_of_slot[op->slot] = group;
        g->groups[group_of_op[i]].end_op++;
#define EXPORT(slot) (exported[slot] |= group_of_slot[slot] != LAST_GROUP)
        if (group == LAST_GROUP) FOR_EACH_READ(op, EXPORT);
    }
    for (Py_ssize_t i = 0; i < g->n_gather; i++) EXPORT(g->gather_slots[i]);
    for (Py_ssize_t slot = 0; slot < n_slots; slot++) {
        Group *group = &g->groups[group_of_slot[slot]];
        group->n_slots++;
        group->n_exported += exported[slot];
    }
    for (int32_t k = 1, first_op = 0, first_slot = 0; k <= n_groups; k++) {
        Group *group = &g->groups[k % n_groups];
        int32_t size = group->end_op;
        group->first_op = group->end_op = first_op;
        group->first_slot = next[1][k % n_groups] = first_slot;
        next[0][k % n_groups] = first_slot + group->n_exported;
        group->steady = k < n_groups;
        group->credit = group->steady && k != STATE_GROUP && size >= LEAST_OPS ? 2 * MAX_SNAPSHOTS : 0;
        first_op += size;
        first_slot += group->n_slots;
    }
    for (Py_ssize_t i = 0; i < n_slots; i++) renumbered[i] = next[exported[i]][group_of_slot[i]]++;
    for (Py_ssize_t i = 0; i < n_ops; i++) {
        Op *op = &sorted[g->groups[group_of_op[i]].end_op++];
        *op = g->ops[i];
        if (op->slot >= 0) op->slot = renumbered[op->slot];
#define RENUMBER(slot) ((slot) = renumbered[slot])
        FOR_EACH_READ(op, RENUMBER);
    }
    for (Py_ssize_t i = 0; i < g->n_gather; i++) RENUMBER(g->gather_slots[i]);
    PyMem_Free(g->ops);
    PyMem_Free(scratch);
    g->ops = sorted;
    Group last = g->groups[LAST_GROUP];
    for (int32_t k = 1; k < n_groups; k++)
        if (g->groups[k].end_op > g->groups[k].first_op) g->groups[g->n_groups++] = g->groups[k];
    if (last.end_op > last.first_op) g->groups[g->n_groups++] = last;
    for (int32_t k = 0; k < g->n_groups; k++) link_siblings(g, &g->groups[k]);
    return 0;
}

/* Moves what has failed to the front, with what it reads: within its group, and the group before the others. The last
 * group may run Python and rely on what was checked before: there everything stays. */
static void promote(Guards *g, int32_t at, const Op *failed) {
    Group group = g->groups[at];
    Op *ops = g->ops + group.first_op, *sorted;
    int32_t n = group.end_op - group.first_op, n_wanted = 0, place = 0;
    char *wanted;  /* by slot of the group, then by operation */
    if (!group.steady || (wanted = PyMem_Calloc(group.n_slots + n, 1)) == NULL) return;
    if ((sorted = PyMem_Malloc(n * sizeof *sorted)) == NULL) return PyMem_Free(wanted);
    for (int32_t i = (int32_t)(failed - ops); i >= 0; i--) {
        const Op *op = &ops[i];
        if (op != failed && (op->slot < 0 || !wanted[op->slot - group.first_slot])) continue;
        wanted[group.n_slots + i] = 1;
        n_wanted++;
#define WANT(slot) (wanted[(slot) - group.first_slot] = 1)
        FOR_EACH_READ(op, WANT);
    }
    if (failed != &ops[n_wanted - 1]) {
        for (int32_t want = 1; want >= 0; want--)
            for (int32_t i = 0; i < n; i++)
                if (wanted[group.n_slots + i] == want) sorted[place++] = ops[i];
        memcpy(ops, sorted, n * sizeof *ops);
        group_forget(&group);
        link_siblings(g, &group);
    }
    memmove(g->groups + 1, g->groups, at * sizeof group);
    g->groups[0] = group;
    PyMem_Free(wanted);
    PyMem_Free(sorted);
}

/* ------------------------------------------------------------------------------------- running the guards */

/* Runs the program. 1: passes, *gathered is a new tuple (NULL when nothing is gathered); 0: *failed_check tells
 * which. Never leaves an error set. */
static __attribute__((noinline)) int guards_run(Guards *g, PyFunctionObject *func, PyObject *const *locals,
                                                int *failed_check, PyObject **gathered) {
    PyObject *small[128];
    Run r = {.func = func, .locals = locals, .values = small};
    const Op *failed = NULL;
    int passed = 0;
    *gathered = NULL;
    *failed_check = -1;
    if (UNLIKELY(g->broken)) return 0;
    if (g->n_values > 128 && (r.values = PyMem_Malloc(g->n_values * sizeof *r.values)) == NULL) return 0;
    g->running++;
    for (; r.group < g->n_groups; r.group++) {
        Group *group = &g->groups[r.group];
        if (group->n_snapshots > 0 && !r.held && r.group < 64 && snapshot_passes(g, group, &r)) {
            r.hits |= 1ull << r.group;
            continue;
        }
        memset(r.values + group->first_slot, 0, group->n_slots * sizeof *r.values);
        failed = run_ops(g, &r, &g->ops[group->first_op], &g->ops[group->end_op]);
        if (UNLIKELY(failed != NULL)) {
            *failed_check = failed->check;
            goto out;
        }
        if (UNLIKELY(group->credit > 0) && !r.held && r.group < 64) snapshot_take(g, group, r.values);
    }
    r.group--;
    if (g->n_gather) {
        PyObject *tuple = PyTuple_New(g->n_gather);
        if (tuple == NULL) goto out;
        for (Py_ssize_t i = 0; i < g->n_gather; i++) PyTuple_SET_ITEM(tuple, i, Py_NewRef(r.values[g->gather_slots[i]]));
        *gathered = tuple;
    }
    passed = 1;
out:
    if (UNLIKELY(!passed)) PyErr_Clear();
    if (r.held) release(g, &r);
    if (--g->running == 0 && UNLIKELY(failed != NULL)) promote(g, r.group, failed);
    if (r.values != small) PyMem_Free(r.values);
    return passed;
}

/* --------------------------------------------------------------------------- building the guard program */

typedef struct {
    Guards *guards;
    int32_t *slot_of_node;  /* -1: not resolved yet */
    Py_ssize_t n_nodes, capacity;
} Builder;

static Op *emit(Builder *b, int kind, int32_t a, Py_ssize_t check) {
    Guards *g = b->guards;
    if (g->n_ops == b->capacity) {
        Py_ssize_t capacity = b->capacity ? 2 * b->capacity : 32;
        Op *ops = PyMem_Realloc(g->ops, capacity * sizeof *ops);
        if (ops == NULL) return (Op *)PyErr_NoMemory();
        g->ops = ops;
        b->capacity = capacity;
    }
    Op *op = &g->ops[g->n_ops++];
    memset(op, 0, sizeof *op);
    op->kind = (uint8_t)kind;
    op->a = a;
    op->slot = op->sibling = -1;
    op->check = (int32_t)check;
    return op;
}

/* Reads the first two integers of a node or check tuple. */
static int read_head(PyObject *item, const char *what, Py_ssize_t at, int size_least, long *first, long *kind) {
    if (PyTuple_GET_SIZE(item) < size_least) {
        PyErr_Format(PyExc_ValueError, "%s %zd: expected at least %d fields, got %R", what, at, size_least, item);
        return -1;
    }
    *first = PyLong_AsLong(PyTuple_GET_ITEM(item, 0));
    *kind = PyLong_AsLong(PyTuple_GET_ITEM(item, 1));
    return PyErr_Occurred() ? -1 : 0;
}

/* Emits what resolves a node, parents first, unless done already. Returns its slot, -1 on error. */
static int32_t resolve(Builder *b, long node, Py_ssize_t check) {
    if (node < 0 || node >= b->n_nodes) {
        PyErr_Format(PyExc_ValueError, "guard program refers to node %ld of %zd", node, b->n_nodes);
        return -1;
    }
    if (b->slot_of_node[node] >= 0) return b->slot_of_node[node];
    PyObject *item = PyTuple_GET_ITEM(b->guards->nodes, node);
    long parent, kind;
    if (read_head(item, "node", node, 3, &parent, &kind) < 0) return -1;
    if (kind < 0 || kind >= FIRST_CHECK) {
        PyErr_Format(PyExc_ValueError, "node %ld has unknown kind %ld", node, kind);
        return -1;
    }
    int32_t parent_slot = -1;
    if (kind > ROOT_WEAK) {
        if (parent < 0 || parent >= node) {
            PyErr_Format(PyExc_ValueError, "node %ld has parent %ld; a parent comes before its children", node, parent);
            return -1;
        }
        if (Py_EnterRecursiveCall(" while building guards")) return -1;
        parent_slot = resolve(b, parent, check);
        Py_LeaveRecursiveCall();
        if (parent_slot < 0) return -1;
    }
    Op *op = emit(b, (int)kind, parent_slot, check);
    if (op == NULL) return -1;
    PyObject *key = op->object = PyTuple_GET_ITEM(item, 2);
    switch (kind) {
    case ROOT_LOCAL: case ROOT_CLOSURE: case SEQ_ITEM:
        op->n = PyLong_AsLongLong(key);
        if (PyErr_Occurred()) return -1;
        if (op->n < 0) {
            PyErr_Format(PyExc_ValueError, "node %ld: index %R is negative", node, key);
            return -1;
        }
        if (kind == ROOT_LOCAL && op->n > b->guards->max_local) b->guards->max_local = op->n;
        break;
    case ROOT_WEAK:
        if (!PyWeakref_Check(key)) {
            PyErr_Format(PyExc_TypeError, "node %ld: ROOT_WEAK needs a weak reference, got %R", node, key);
            return -1;
        }
        break;
    case DICT_ITEM:
        op->u.hash = PyObject_Hash(key);
        if (op->u.hash == -1) return -1;
        if (!PyUnicode_CheckExact(key)) op->kind = DICT_ITEM_SLOW;
        break;
    case GETATTR:
        if (!PyUnicode_Check(key)) {
            PyErr_Format(PyExc_TypeError, "node %ld: an attribute name is a string, got %R", node, key);
            return -1;
        }
        break;
    case APPLIED:
        if (!PyCallable_Check(key)) {
            PyErr_Format(PyExc_TypeError, "node %ld: %R is not callable", node, key);
            return -1;
        }
        break;
    default: break;
    }
    return b->slot_of_node[node] = op->slot = (int32_t)b->guards->n_values++;
}

/* None stands for "any". */
static int read_extents(PyObject *tuple, int64_t *out, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i);
        out[i] = item == Py_None ? ANY_SIZE : PyLong_AsLongLong(item);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static TensorSpec *read_tensor_spec(PyObject *operand) {
    PyObject *type, *sizes, *strides;
    int dtype, device_type, device_index, requires_grad;
    unsigned long long keyset = 0;
    if (!PyTuple_Check(operand)) {
        PyErr_SetString(PyExc_TypeError, "TENSOR needs a tuple, as tensor_layout.spec makes them");
        return NULL;
    }
    if (!PyArg_ParseTuple(operand, "O!iiiiOOK:TENSOR", &PyType_Type, &type, &dtype, &device_type, &device_index,
                          &requires_grad, &sizes, &strides, &keyset)) return NULL;
    if ((sizes != Py_None && !PyTuple_Check(sizes)) || (strides != Py_None && !PyTuple_Check(strides)) ||
        (strides != Py_None && (sizes == Py_None || PyTuple_GET_SIZE(sizes) != PyTuple_GET_SIZE(strides)))) {
        PyErr_SetString(PyExc_ValueError, "TENSOR: sizes and strides are tuples of one length, or None");
        return NULL;
    }
    Py_ssize_t n = sizes == Py_None ? 0 : PyTuple_GET_SIZE(sizes);
    TensorSpec *s = PyMem_Calloc(1, sizeof *s + 2 * n * sizeof(int64_t));
    if (s == NULL) return (TensorSpec *)PyErr_NoMemory();
    s->type = (PyTypeObject *)type;
    s->source = operand;
    s->keyset = keyset;
    s->dtype = dtype;
    s->device_type = device_type;
    s->device_index = device_index;
    s->requires_grad = (int8_t)requires_grad;
    s->ndim = sizes == Py_None ? -1 : (int32_t)n;
    if (sizes != Py_None && read_extents(sizes, s->sizes, n) < 0) goto error;
    if (strides != Py_None) {
        s->strides = s->sizes + n;
        if (read_extents(strides, s->strides, n) < 0) goto error;
    }
    return s;
error:
    PyMem_Free(s);
    return NULL;
}

/* ((node, dim), ...), ((operation, operand), ...) */
static ShapeProgram *read_shape_program(Builder *b, PyObject *vars, PyObject *steps, Py_ssize_t check) {
    if (!PyTuple_Check(vars) || !PyTuple_Check(steps) || PyTuple_GET_SIZE(vars) > MAX_SHAPE_VARS) {
        PyErr_Format(PyExc_ValueError, "SHAPE needs tuples, with at most %d variables", MAX_SHAPE_VARS);
        return NULL;
    }
    Py_ssize_t n_vars = PyTuple_GET_SIZE(vars), n_steps = PyTuple_GET_SIZE(steps);
    ShapeProgram *p = PyMem_Calloc(1, sizeof *p + 2 * n_steps * sizeof(int64_t) + 2 * n_vars * sizeof(int32_t));
    if (p == NULL) return (ShapeProgram *)PyErr_NoMemory();
    p->n_vars = (int)n_vars;
    p->n_steps = (int)n_steps;
    p->steps = (int64_t *)(p + 1);
    p->vars = (int32_t *)(p->steps + 2 * n_steps);
    for (Py_ssize_t i = 0; i < n_vars; i++) {
        int node, dim;
        if (!PyTuple_Check(PyTuple_GET_ITEM(vars, i)) || !PyArg_ParseTuple(PyTuple_GET_ITEM(vars, i), "ii", &node, &dim))
            goto error;
        if ((p->vars[2 * i] = resolve(b, node, check)) < 0) goto error;
        p->vars[2 * i + 1] = dim;
        int checked = dim == -1;
        for (Py_ssize_t k = 0; k < b->guards->n_ops && !checked; k++)
            checked = b->guards->ops[k].kind == TENSOR && b->guards->ops[k].a == p->vars[2 * i];
        if (!checked) {
            PyErr_Format(PyExc_ValueError, "SHAPE reads node %d before a TENSOR check of it", node);
            goto error;
        }
    }
    int depth = 0;
    for (Py_ssize_t i = 0; i < n_steps; i++) {
        long long op, operand;
        if (!PyTuple_Check(PyTuple_GET_ITEM(steps, i)) ||
            !PyArg_ParseTuple(PyTuple_GET_ITEM(steps, i), "LL", &op, &operand)) goto error;
        depth += op == S_CONST || op == S_VAR ? 1 : op == S_NOT ? 0 : -1;
        if (op < 0 || op >= N_SHAPE_OPERATIONS || depth < 1 || depth > MAX_SHAPE_STACK ||
            (op == S_VAR && (operand < 0 || operand >= n_vars))) {
            PyErr_Format(PyExc_ValueError, "SHAPE: step %zd of the program is not well formed", i);
            goto error;
        }
        p->steps[2 * i] = op;
        p->steps[2 * i + 1] = operand;
    }
    if (depth != 1) {
        PyErr_SetString(PyExc_ValueError, "SHAPE: the program must leave one value");
        goto error;
    }
    return p;
error:
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "SHAPE: expected pairs of integers");
    PyMem_Free(p);
    return NULL;
}

static int build_check(Builder *b, Py_ssize_t at) {
    PyObject *item = PyTuple_GET_ITEM(b->guards->checks, at);
    long node, kind;
    if (read_head(item, "check", at, 3, &node, &kind) < 0) return -1;
    if (kind < FIRST_CHECK || kind > SHAPE) {
        PyErr_Format(PyExc_ValueError, "check %zd has unknown kind %ld", at, kind);
        return -1;
    }
    PyObject *operand = PyTuple_GET_ITEM(item, 2);
    int32_t slot = -1, *slots = NULL;
    int64_t n = 0;
    TensorSpec *tensor = NULL;
    ShapeProgram *shape = NULL;
    Py_hash_t hash = 0;
    int uses_node = kind != GRAD_MODE && kind != GLOBAL_CALL && kind != STATE && kind != DISTINCT && kind != SHAPE;
    if (uses_node && (slot = resolve(b, node, at)) < 0) return -1;

    switch (kind) {
    case TYPE_IS:
        if (!PyType_Check(operand)) {
            PyErr_Format(PyExc_TypeError, "check %zd: TYPE_IS needs a type, got %R", at, operand);
            return -1;
        }
        break;
    case IS: if (PyWeakref_CheckRef(operand)) kind = IS_WEAK; break;
    case ID_IS: n = (int64_t)(intptr_t)PyLong_AsVoidPtr(operand); break;
    case EQUALS: n = compares_quietly(operand); break;
    case LENGTH_IS: n = PyLong_AsLongLong(operand); break;
    case DICT_KEYS_ARE:
        if (!PyTuple_Check(operand)) {
            PyErr_Format(PyExc_TypeError, "check %zd: DICT_KEYS_ARE needs a tuple, got %R", at, operand);
            return -1;
        }
        n = compares_quietly(operand);
        break;
    case MISSING:
        if ((hash = PyObject_Hash(operand)) == -1) return -1;
        if (!PyUnicode_CheckExact(operand)) kind = MISSING_SLOW;
        break;
    case TENSOR: if ((tensor = read_tensor_spec(operand)) == NULL) return -1; break;
    case GRAD_MODE: n = PyObject_IsTrue(operand); break;
    case CALL: case GLOBAL_CALL:
        if (!PyCallable_Check(operand)) {
            PyErr_Format(PyExc_TypeError, "check %zd: %R is not callable", at, operand);
            return -1;
        }
        break;
    case STATE:
        if (!PyTuple_Check(operand) || PyTuple_GET_SIZE(operand) != 2 || !PyCFunction_Check(PyTuple_GET_ITEM(operand, 0))) {
            PyErr_Format(PyExc_TypeError, "check %zd: STATE needs a builtin function and what it returns", at);
            return -1;
        }
        n = compares_quietly(PyTuple_GET_ITEM(operand, 1));
        break;
    case SAME: n = resolve(b, PyLong_AsLong(operand), at); break;
    case DISTINCT:
        if (!PyTuple_Check(operand)) {
            PyErr_Format(PyExc_TypeError, "check %zd: DISTINCT needs a tuple of nodes, got %R", at, operand);
            return -1;
        }
        n = PyTuple_GET_SIZE(operand);
        if ((slots = PyMem_Malloc((n + 1) * sizeof *slots)) == NULL) return PyErr_NoMemory(), -1;
        for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++)
            slots[i] = resolve(b, PyLong_AsLong(PyTuple_GET_ITEM(operand, i)), at);
        break;
    case SHAPE:
        if (PyTuple_GET_SIZE(item) != 4) {
            PyErr_Format(PyExc_ValueError, "check %zd: SHAPE has two operands, variables and program", at);
            return -1;
        }
        if ((shape = read_shape_program(b, operand, PyTuple_GET_ITEM(item, 3), at)) == NULL) return -1;
        break;
    default: break;
    }
    Op *op = PyErr_Occurred() ? NULL : emit(b, (int)kind, slot, at);
    if (op == NULL) {
        PyMem_Free(slots);
        PyMem_Free(tensor);
        PyMem_Free(shape);
        return -1;
    }
    op->n = n;
    op->object = operand;
    if (tensor) op->u.tensor = tensor;
    else if (slots) op->u.slots = slots;
    else if (shape) op->u.shape = shape;
    else op->u.hash = hash;
    return 0;
}

/* A tuple whose items are tuples. */
static PyObject *tuple_of_tuples(PyObject *sequence) {
    PyObject *outer = PySequence_List(sequence);
    if (outer == NULL) return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(outer); i++) {
        PyObject *inner = PySequence_Tuple(PyList_GET_ITEM(outer, i));
        if (inner == NULL) {
            Py_DECREF(outer);
            return NULL;
        }
        PyList_SetItem(outer, i, inner);
    }
    PyObject *result = PyList_AsTuple(outer);
    Py_DECREF(outer);
    return result;
}

static PyObject *Guards_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"nodes", "checks", "gather", NULL};
    PyObject *nodes, *checks, *gather = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:Guards", names, &nodes, &checks, &gather)) return NULL;
    Guards *g = (Guards *)type->tp_alloc(type, 0);
    if (g == NULL) return NULL;
    g->max_local = -1;
    Builder b = {.guards = g};
    if ((g->nodes = tuple_of_tuples(nodes)) == NULL || (g->checks = tuple_of_tuples(checks)) == NULL ||
        (g->gather = gather ? PySequence_Tuple(gather) : PyTuple_New(0)) == NULL) goto error;
    b.n_nodes = PyTuple_GET_SIZE(g->nodes);
    b.slot_of_node = PyMem_Malloc((b.n_nodes + 1) * sizeof *b.slot_of_node);
    g->n_gather = PyTuple_GET_SIZE(g->gather);
    g->gather_slots = PyMem_Malloc((g->n_gather + 1) * sizeof *g->gather_slots);
    if (b.slot_of_node == NULL || g->gather_slots == NULL) {
        PyErr_NoMemory();
        goto error;
    }
    for (Py_ssize_t i = 0; i < b.n_nodes; i++) b.slot_of_node[i] = -1;
    Py_ssize_t n_checks = PyTuple_GET_SIZE(g->checks);
    for (Py_ssize_t i = 0; i < n_checks; i++)
        if (build_check(&b, i) < 0) goto error;
    for (Py_ssize_t i = 0; i < g->n_gather; i++) {
        long node = PyLong_AsLong(PyTuple_GET_ITEM(g->gather, i));
        if (PyErr_Occurred() || (g->gather_slots[i] = resolve(&b, node, n_checks + i)) < 0) goto error;
    }
    if (arrange(g) < 0) goto error;
    PyMem_Free(b.slot_of_node);
    return (PyObject *)g;
error:
    PyMem_Free(b.slot_of_node);
    Py_DECREF(g);
    return NULL;
}

static int Guards_traverse(Guards *g, visitproc visit, void *arg) {
    Py_VISIT(g->nodes);
    Py_VISIT(g->checks);
    Py_VISIT(g->gather);
    return 0;
}

static void guards_free_program(Guards *g) {
    for (Py_ssize_t i = 0; i < g->n_ops; i++)
        switch (g->ops[i].kind) {
        case TENSOR: PyMem_Free(g->ops[i].u.tensor); break;
        case DISTINCT: PyMem_Free(g->ops[i].u.slots); break;
        case SHAPE: PyMem_Free(g->ops[i].u.shape); break;
        default: break;
        }
    for (Py_ssize_t i = 0; i < g->n_groups; i++) group_forget(&g->groups[i]);
    PyMem_Free(g->ops);
    PyMem_Free(g->groups);
    PyMem_Free(g->gather_slots);
    g->ops = NULL;
    g->groups = NULL;
    g->gather_slots = NULL;
    g->n_ops = g->n_groups = g->n_gather = 0;
}

static int Guards_clear(Guards *g) {
    /* Only unreachable guards are cleared, so no run is under way; a finaliser may still start one, and must fail. */
    g->broken = 1;
    guards_free_program(g);
    Py_CLEAR(g->nodes);
    Py_CLEAR(g->checks);
    Py_CLEAR(g->gather);
    return 0;
}

static void Guards_dealloc(Guards *g) {
    PyObject_GC_UnTrack(g);
    Guards_clear(g);
    Py_TYPE(g)->tp_free((PyObject *)g);
}

static PyObject *Guards_check(Guards *g, PyObject *const *args, Py_ssize_t n) {
    if (n != 2 || !PyFunction_Check(args[0]) || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "check(func, locals): a Python function and the tuple of its bound arguments");
        return NULL;
    }
    if (g->max_local >= PyTuple_GET_SIZE(args[1])) {
        PyErr_Format(PyExc_IndexError, "the guards read local %zd, only %zd are given", g->max_local, PyTuple_GET_SIZE(args[1]));
        return NULL;
    }
    int failed;
    PyObject *gathered;
    int passed = guards_run(g, (PyFunctionObject *)args[0], &PyTuple_GET_ITEM(args[1], 0), &failed, &gathered);
    return Py_BuildValue("(OiN)", passed ? Py_True : Py_False, failed, gathered ? gathered : Py_NewRef(Py_None));
}

static double now_ns(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* The whole program many times over, gathering included, as the evaluator runs it. */
static PyObject *Guards_time(Guards *g, PyObject *const *args, Py_ssize_t n) {
    Py_ssize_t repeats = n == 3 ? PyLong_AsSsize_t(args[2]) : -1;
    if (repeats <= 0 || !PyFunction_Check(args[0]) || !PyTuple_Check(args[1]) || g->max_local >= PyTuple_GET_SIZE(args[1])) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "time(func, locals, repeats), as for check");
        return NULL;
    }
    double start = now_ns();
    for (Py_ssize_t k = 0; k < repeats; k++) {
        int failed;
        PyObject *gathered;
        if (!guards_run(g, (PyFunctionObject *)args[0], &PyTuple_GET_ITEM(args[1], 0), &failed, &gathered)) Py_RETURN_NONE;
        Py_XDECREF(gathered);
    }
    return PyFloat_FromDouble((now_ns() - start) / (double)repeats);
}

/* Runs each operation many times over; what finds an object counts towards the check that first needed it. */
static PyObject *Guards_costs(Guards *g, PyObject *const *args, Py_ssize_t n) {
    Py_ssize_t n_checks = PyTuple_GET_SIZE(g->checks), repeats = n == 3 ? PyLong_AsSsize_t(args[2]) : -1;
    if (repeats <= 0 || !PyFunction_Check(args[0]) || !PyTuple_Check(args[1]) || g->max_local >= PyTuple_GET_SIZE(args[1])) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "costs(func, locals, repeats), as for check");
        return NULL;
    }
    Run r = {.func = (PyFunctionObject *)args[0], .locals = &PyTuple_GET_ITEM(args[1], 0)};
    r.values = PyMem_Calloc(g->n_values + 1, sizeof *r.values);
    double *costs = PyMem_Calloc(n_checks + 1, sizeof *costs);
    const Op *failed = NULL;
    if (r.values == NULL || costs == NULL) {
        PyMem_Free(r.values);
        PyMem_Free(costs);
        return PyErr_NoMemory();
    }
    g->running++;
    for (; failed == NULL && r.group < g->n_groups; r.group++)
        for (int32_t i = g->groups[r.group].first_op; failed == NULL && i < g->groups[r.group].end_op; i++) {
            const Op *op = &g->ops[i];
            double start = now_ns();
            for (Py_ssize_t k = 0; k < repeats && failed == NULL; k++) {
                if (r.held && op->slot >= 0) Py_CLEAR(r.values[op->slot]);
                failed = run_ops(g, &r, op, op + 1);
            }
            if (op->check < n_checks) costs[op->check] += (now_ns() - start) / (double)repeats;
        }
    r.group--;
    PyErr_Clear();
    if (r.held) release(g, &r);
    g->running--;
    PyObject *list = failed == NULL ? PyList_New(n_checks) : Py_NewRef(Py_None);
    for (Py_ssize_t i = 0; failed == NULL && list != NULL && i < n_checks; i++) {
        PyObject *cost = PyFloat_FromDouble(costs[i]);
        if (cost == NULL) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, cost);
    }
    PyMem_Free(r.values);
    PyMem_Free(costs);
    return list;
}

static PyMethodDef Guards_methods[] = {
    {"check", (PyCFunction)(void (*)(void))Guards_check, METH_FASTCALL,
     "check(func, locals) -> (passed, index of the failed check or -1, gathered tuple or None)"},
    {"costs", (PyCFunction)(void (*)(void))Guards_costs, METH_FASTCALL,
     "costs(func, locals, repeats) -> ns of each check, or None when one fails"},
    {"time", (PyCFunction)(void (*)(void))Guards_time, METH_FASTCALL,
     "time(func, locals, repeats) -> ns of one evaluation, gathering included, or None when it fails"},
    {NULL}};
static PyMemberDef Guards_members[] = {{"nodes", T_OBJECT, offsetof(Guards, nodes), READONLY},
                                       {"checks", T_OBJECT, offsetof(Guards, checks), READONLY},
                                       {"gather", T_OBJECT, offsetof(Guards, gather), READONLY},
                                       {NULL}};
static PyTypeObject GuardsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fuselens.capture.hook._hook.Guards",
    .tp_doc = "Guards(nodes, checks, gather=()): a compiled guard program.",
    .tp_basicsize = sizeof(Guards),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Guards_new,
    .tp_dealloc = (destructor)Guards_dealloc,
    .tp_traverse = (traverseproc)Guards_traverse,
    .tp_clear = (inquiry)Guards_clear,
    .tp_methods = Guards_methods,
    .tp_members = Guards_members,
};

/* ------------------------------------------------------------------------------------------------ entries */

typedef struct {
    PyObject_HEAD
    Guards *guards;
    PyCodeObject *code;
    PyObject *info, *weakrefs, *owner;  /* owner: of the region in which it was made, or NULL */
    unsigned long long hits;
    int gather_slot;
    char alive;
} Entry;

static PyObject *Entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"guards", "code", "gather_slot", NULL};
    PyObject *guards, *code;
    int gather_slot = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!|i:Entry", names, &GuardsType, &guards, &PyCode_Type, &code,
                                     &gather_slot)) return NULL;
    PyCodeObject *co = (PyCodeObject *)code;
    if (gather_slot < -1 || gather_slot >= co->co_nlocals || (gather_slot >= 0 && gather_slot < code_argument_slots(co))) {
        PyErr_Format(PyExc_ValueError, "gather_slot %d is not a local of %U beyond its arguments", gather_slot, co->co_qualname);
        return NULL;
    }
    Entry *e = (Entry *)type->tp_alloc(type, 0);
    if (e == NULL) return NULL;
    e->guards = (Guards *)Py_NewRef(guards);
    e->code = (PyCodeObject *)Py_NewRef(code);
    e->info = Py_NewRef(Py_None);
    e->gather_slot = gather_slot;
    e->alive = 1;
    return (PyObject *)e;
}

static int Entry_traverse(Entry *e, visitproc visit, void *arg) {
    Py_VISIT(e->guards);
    Py_VISIT(e->code);
    Py_VISIT(e->info);
    Py_VISIT(e->owner);
    return 0;
}
static int Entry_clear(Entry *e) {
    e->alive = 0;
    Py_CLEAR(e->info);
    return 0;  /* guards and code stay: the guards clear themselves, code takes no part in collection */
}
static void Entry_dealloc(Entry *e) {
    PyObject_GC_UnTrack(e);
    if (e->weakrefs) PyObject_ClearWeakRefs((PyObject *)e);
    Py_CLEAR(e->info);
    Py_CLEAR(e->owner);
    Py_CLEAR(e->guards);
    Py_CLEAR(e->code);
    Py_TYPE(e)->tp_free((PyObject *)e);
}

static PyMemberDef Entry_members[] = {{"guards", T_OBJECT, offsetof(Entry, guards), READONLY},
                                      {"code", T_OBJECT, offsetof(Entry, code), READONLY},
                                      {"gather_slot", T_INT, offsetof(Entry, gather_slot), READONLY},
                                      {"hits", T_ULONGLONG, offsetof(Entry, hits), READONLY},
                                      {"alive", T_BOOL, offsetof(Entry, alive), 0},
                                      {"info", T_OBJECT, offsetof(Entry, info), 0},
                                      {"owner", T_OBJECT, offsetof(Entry, owner), READONLY},
                                      {"__weaklistoffset__", T_PYSSIZET, offsetof(Entry, weakrefs), READONLY},
                                      {NULL}};
static PyTypeObject EntryType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fuselens.capture.hook._hook.Entry",
    .tp_doc = "Entry(guards, code, gather_slot=-1): replacement code and when it applies.",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Entry_new,
    .tp_dealloc = (destructor)Entry_dealloc,
    .tp_traverse = (traverseproc)Entry_traverse,
    .tp_clear = (inquiry)Entry_clear,
    .tp_members = Entry_members,
    .tp_weaklistoffset = offsetof(Entry, weakrefs),
};

/* What hangs off a code object. Tables of all live code objects form a ring, for clear_all(). */
typedef struct Table {
    struct Table *next, *previous;
    PyCodeObject *code;   /* borrowed: the code frees its table */
    Entry **entries;      /* strong, most recently hit first */
    Py_ssize_t n, capacity;
    uint64_t version;     /* changes with every change of `entries`: a guard may run code that does that */
    char skip;            /* 1: run by default; 2: and without callback below */
} Table;

static Table tables = {.next = &tables, .previous = &tables};

static inline Table *find_table(PyCodeObject *code) {
    void *extra = NULL;
    if (code->co_extra == NULL) return NULL;
    GetExtra((PyObject *)code, extra_slot, &extra);
    return extra;
}

static void table_drop_entries(Table *t) {
    Entry **entries = t->entries;
    Py_ssize_t n = t->n;
    t->entries = NULL;
    t->n = t->capacity = 0;
    t->version++;
    for (Py_ssize_t i = 0; i < n; i++) Py_DECREF(entries[i]);  /* may run anything; the table is consistent */
    PyMem_Free(entries);
}

static void free_table(void *extra) {  /* called when the code object dies */
    Table *t = extra;
    if (t == NULL) return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    t->next->previous = t->previous;
    t->previous->next = t->next;
    table_drop_entries(t);
    PyMem_Free(t);
    PyErr_Restore(type, value, traceback);
}

static Table *need_table(PyCodeObject *code) {
    Table *t = find_table(code);
    if (t != NULL) return t;
    if ((t = PyMem_Calloc(1, sizeof *t)) == NULL) return (Table *)PyErr_NoMemory();
    t->code = code;
    t->next = t->previous = t;
    if (SetExtra((PyObject *)code, extra_slot, t) < 0) {
        PyMem_Free(t);
        return NULL;
    }
    t->next = tables.next;
    t->previous = &tables;
    tables.next->previous = t;
    tables.next = t;
    return t;
}

/* Why `new` cannot run in a frame made for `old`; NULL when it can. */
static const char *why_not_swappable(PyCodeObject *old, PyCodeObject *new) {
    if ((old->co_flags | new->co_flags) & ANY_GENERATOR) return "generators and coroutines are not swapped";
    if (!(old->co_flags & new->co_flags & CO_OPTIMIZED)) return "both must be function code";
    if (old->co_argcount != new->co_argcount || old->co_posonlyargcount != new->co_posonlyargcount ||
        old->co_kwonlyargcount != new->co_kwonlyargcount ||
        ((old->co_flags ^ new->co_flags) & (CO_VARARGS | CO_VARKEYWORDS))) return "the arguments differ";
    if (old->co_nfreevars != new->co_nfreevars) return "the number of free variables differs";
    return NULL;
}

static int check_swappable(PyCodeObject *code, Entry *e) {
    const char *reason = why_not_swappable(code, e->code);
    if (reason == NULL && e->guards->max_local >= code_argument_slots(code)) reason = "the guards read locals that are no arguments";
    if (reason != NULL) {
        PyErr_Format(PyExc_ValueError, "entry does not fit %U: %s", code->co_qualname, reason);
        return -1;
    }
    return 0;
}

/* Adds in front. Also asks CPython to reserve as much room for frames of the original as the replacement needs, so
 * that a frame at the end of a stack chunk can be swapped too; frames already pushed keep their size, and the
 * evaluator notices. */
static int table_add(PyCodeObject *code, Entry *e) {
    if (check_swappable(code, e) < 0) return -1;
    Table *t = need_table(code);
    if (t == NULL) return -1;
    for (Py_ssize_t i = 0; i < t->n; i++)
        if (t->entries[i] == e) return 0;
    if (t->n == t->capacity) {
        Py_ssize_t capacity = t->capacity ? 2 * t->capacity : 4;
        Entry **entries = PyMem_Realloc(t->entries, capacity * sizeof *entries);
        if (entries == NULL) return PyErr_NoMemory(), -1;
        t->entries = entries;
        t->capacity = capacity;
    }
    int more = code_size(e->code) - code_size(code);
    if (more > 0) {
        code->co_stacksize += more;
#if PY_VERSION_HEX >= 0x030C0000
        code->co_framesize += more;
#endif
    }
    memmove(t->entries + 1, t->entries, t->n * sizeof *t->entries);
    t->entries[0] = (Entry *)Py_NewRef(e);
    t->n++;
    t->version++;
    return 0;
}

static int table_remove(Table *t, Entry *e) {
    for (Py_ssize_t i = 0; i < t->n; i++)
        if (t->entries[i] == e) {
            memmove(t->entries + i, t->entries + i + 1, (--t->n - i) * sizeof *t->entries);
            t->version++;
            Py_DECREF(e);
            return 1;
        }
    return 0;
}

static void table_remove_dead(Table *t) {
    for (Py_ssize_t i = 0; i < t->n;)
        if (t->entries[i]->alive) i++;
        else {
            table_remove(t, t->entries[i]);
            i = 0;  /* the removal may have run anything */
        }
}

/* ---------------------------------------------------------------------------------------- frame evaluator */

/* Runs a frame with the evaluator beneath us. */
static inline PyObject *evaluate(PyThreadState *ts, Frame *f, int throwflag) {
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
    /* Under any hook each Python call takes C recursion on 3.12, whose limit is lower than that of Python recursion.
     * Give it back, up to a depth that fits the smallest usual C stack. */
    int relaxed = tls_depth < 6000;
    tls_depth++;
    if (relaxed) ts->c_recursion_remaining += 2;
#endif
    PyObject *result;
    if (LIKELY(previous_evaluator == NULL || f == tls_chained)) {
        result = _PyEval_EvalFrameDefault(ts, f, throwflag);
    } else {
        Frame *saved = tls_chained;  /* when the chain comes back to us with this very frame, it is a ring: break it */
        tls_chained = f;
        result = previous_evaluator(ts, f, throwflag);
        tls_chained = saved;
    }
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
    tls_depth--;
    if (relaxed) ts->c_recursion_remaining -= 2;
#endif
    return result;
}

static PyObject *evaluate_without_capture(PyThreadState *ts, Frame *f) {
    PyObject *callback = take_callback();
    PyObject *result = evaluate(ts, f, 0);
    give_back_callback(callback);
    return result;
}

/* Leaves a frame that never started, with an error set. */
static PyObject *abandon(PyThreadState *ts, Frame *f) {
#if PY_VERSION_HEX >= 0x030D0000
    _PyEval_FrameClearAndPop(ts, f);
#elif PY_VERSION_HEX >= 0x030C0000
    /* 3.12 exports no way to pop a frame, but throwing into an unstarted one is just that. */
    return _PyEval_EvalFrameDefault(ts, f, 1);
#else
    (void)ts, (void)f;  /* the caller clears and pops */
#endif
    return NULL;
}

/* Puts the entry's code in the place of the frame's own. 0: no room, nothing was changed. Steals `gathered` on success. */
static inline int swap(PyThreadState *ts, Frame *f, int old_size, Entry *e, PyObject *gathered) {
    PyCodeObject *old = frame_code(f), *new = e->code;
    if (UNLIKELY((PyObject **)f + old_size != ts->datastack_top)) return 0;
    int more = code_size(new) - old_size;
    if (UNLIKELY(more > 0 && more >= ts->datastack_limit - ts->datastack_top)) return 0;
    ts->datastack_top += more;
    for (int i = old->co_nlocalsplus; i < new->co_nlocalsplus; i++) f->localsplus[i] = NULL_SLOT;
    if (gathered != NULL) {
        if (e->gather_slot >= 0) f->localsplus[e->gather_slot] = slot_of(gathered);
        else Py_DECREF(gathered);
    }
    frame_set_code(f, new);
    return 1;
}

static PyObject *run_entry(PyThreadState *ts, Frame *f, int old_size, Entry *e, PyObject *gathered) {  /* steals e */
    e->hits++;
    stats.hits++;
    if (UNLIKELY(!swap(ts, f, old_size, e, gathered))) {
        stats.chunk_fallbacks++;
        Py_XDECREF(gathered);
    }
    Py_DECREF(e);
    return evaluate(ts, f, 0);
}

typedef struct {
    Entry *entry;  /* strong */
    int check;
} Miss;

#define SMALL_MISSES 16

/* The first entry whose guards pass (new reference). Otherwise NULL, with the tuple of misses, or with an error set.
 * Not inlined, as guards_run is not: their arrays must not weigh on the C stack while the frame runs. */
static __attribute__((noinline)) Entry *find_entry(Table *t, Frame *f, PyFunctionObject *func, PyObject **gathered,
                                                   PyObject **missed) {
    uint64_t version = t->version;
    Miss small[SMALL_MISSES], *misses = small;
    Py_ssize_t n_misses = 0, n = t->n;
    Entry *found = NULL;
    *missed = NULL;
    if (n > SMALL_MISSES && (misses = PyMem_Malloc(n * sizeof *misses)) == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        Entry *e = t->entries[i];
        if (UNLIKELY(!e->alive || e->owner != tls_owner)) continue;
        Py_INCREF(e);
        int check;
        if (LIKELY(guards_run(e->guards, func, frame_locals(f), &check, gathered))) {
            if (i > 0 && t->version == version) {
                memmove(t->entries + 1, t->entries, i * sizeof *t->entries);
                t->entries[0] = e;
                t->version++;
            }
            found = e;
            break;
        }
        misses[n_misses++] = (Miss){e, check};
        if (UNLIKELY(t->version != version)) break;  /* a guard changed the table: ask again rather than walk on */
    }
    if (found == NULL) {
        PyObject *tuple = PyTuple_New(n_misses);
        for (Py_ssize_t i = 0; i < n_misses && tuple != NULL; i++) {
            PyObject *pair = Py_BuildValue("(Oi)", misses[i].entry, misses[i].check);
            if (pair == NULL) Py_CLEAR(tuple);
            else PyTuple_SET_ITEM(tuple, i, pair);
        }
        *missed = tuple;
    }
    for (Py_ssize_t i = 0; i < n_misses; i++) Py_DECREF(misses[i].entry);
    if (misses != small) PyMem_Free(misses);
    return found;
}

/* Asks the callback; returns its answer (new reference). */
static PyObject *ask(PyFunctionObject *func, PyCodeObject *code, Frame *f, PyObject *missed) {
    int n = code_argument_slots(code);
    PyObject *answer = NULL, *arguments = PyTuple_New(n);
    if (arguments == NULL) return NULL;
    for (int i = 0; i < n; i++) PyTuple_SET_ITEM(arguments, i, Py_NewRef(untagged(frame_locals(f)[i])));
    stats.callbacks++;
    PyObject *callback = take_callback();
    /* Compiling is a lot of Python: let it run at full speed when nobody else needs the evaluator. */
    int alone = active_regions == tls_active;
    if (alone) uninstall();
    PyObject *parameters[] = {(PyObject *)func, (PyObject *)code, arguments, missed};
    /* Tracing a call takes some calls: what the program may nest, the callback can follow. */
    PyThreadState *ts = PyThreadState_Get();
    ts->RECURSION_REMAINING += CALLBACK_RECURSION;
    int hidden = hide(ts);
    answer = PyObject_Vectorcall(callback, parameters, 4, NULL);
    show(ts, hidden);
    ts->RECURSION_REMAINING -= CALLBACK_RECURSION;
    if (alone && active_regions > 0) install();
    give_back_callback(callback);
    Py_DECREF(arguments);
    return answer;
}

/* Asks for an entry, verifies it against this frame and runs it; by default when there is none. Steals `missed`. */
static __attribute__((noinline)) PyObject *miss(PyThreadState *ts, Frame *f, PyFunctionObject *func, int old_size,
                                                PyObject *missed) {
    PyCodeObject *code = frame_code(f);
    PyObject *gathered = NULL, *answer = missed ? ask(func, code, f, missed) : NULL;
    Entry *e = (Entry *)answer;
    int check;
    Py_XDECREF(missed);
    if (answer == NULL) return abandon(ts, f);
    if (answer == Py_None) {
        Py_DECREF(answer);
        Table *t = find_table(code);  /* the callback may have asked to skip it */
        return t != NULL && t->skip == 2 ? evaluate_without_capture(ts, f) : evaluate(ts, f, 0);
    }
    if (Py_TYPE(answer) != &EntryType) {
        PyErr_Format(PyExc_TypeError, "a capture callback returns an Entry or None, not %R", answer);
        goto error;
    }
    if (check_swappable(code, e) < 0) goto error;
    if (!guards_run(e->guards, func, frame_locals(f), &check, &gathered)) {
        stats.rejected++;
        Py_DECREF(e);
        return evaluate(ts, f, 0);
    }
    if (e->owner == NULL) e->owner = Py_XNewRef(tls_owner);
    if (table_add(code, e) < 0) goto error;
    return run_entry(ts, f, old_size, e, gathered);
error:
    Py_XDECREF(gathered);
    Py_DECREF(answer);
    return abandon(ts, f);
}

/* Whether the frame is part of a trace function, a profile function or a tool, or somebody is told of each line that the
 * code runs: a trace function of this thread, or a monitoring tool. Debuggers and coverage, which have numbers of their own,
 * ask for the lines of a code object when it starts, so that its start must be that of the code as it was written. */
static inline int runs_as_written(PyThreadState *ts, PyCodeObject *code) {
    if (UNLIKELY(ts->tracing != tls_hidden || ts->c_tracefunc != NULL)) return 1;
#if PY_VERSION_HEX >= 0x030C0000
    const uint8_t *all = ts->interp->monitors.tools;
    uint8_t tools = all[PY_MONITORING_EVENT_LINE];
    tools |= all[PY_MONITORING_EVENT_PY_START] & (1 << PY_MONITORING_DEBUGGER_ID | 1 << PY_MONITORING_COVERAGE_ID);
    if (code->_co_monitoring != NULL) tools |= code->_co_monitoring->local_monitors.tools[PY_MONITORING_EVENT_LINE];
    return (tools & ~(1 << PY_MONITORING_SYS_TRACE_ID)) != 0;  /* other threads' trace functions are not for us */
#else
    (void)code;
    return 0;
#endif
}

static PyObject *hook(PyThreadState *ts, Frame *f, int throwflag) {
    if (tls_callback == NULL || throwflag || f->owner != FRAME_OWNED_BY_THREAD) return evaluate(ts, f, throwflag);
    if (UNLIKELY(f == tls_chained)) return evaluate(ts, f, 0);  /* it came back to us through another evaluator */
    PyCodeObject *code = frame_code(f);
    if ((code->co_flags & (CO_OPTIMIZED | ANY_GENERATOR)) != CO_OPTIMIZED) return evaluate(ts, f, 0);
    PyFunctionObject *func = (PyFunctionObject *)frame_function(f);
    if (UNLIKELY(!PyFunction_Check((PyObject *)func))) return evaluate(ts, f, 0);
    if (UNLIKELY(runs_as_written(ts, code))) return evaluate(ts, f, 0);

    int old_size = code_size(code);  /* before a guard or the callback registers an entry that raises it */
    Table *t = find_table(code);
    if (t == NULL) return miss(ts, f, func, old_size, PyTuple_New(0));
    if (t->skip) {
        return t->skip == 1 ? evaluate(ts, f, 0) : evaluate_without_capture(ts, f);
    }
    PyObject *gathered, *missed;
    Entry *e = find_entry(t, f, func, &gathered, &missed);
    if (LIKELY(e != NULL)) return run_entry(ts, f, old_size, e, gathered);
    stats.misses += t->n > 0;
    table_remove_dead(t);
    return miss(ts, f, func, old_size, missed);
}

/* ---------------------------------------------------------------------------------- regions and disabled */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *fn, *callback, *owner, *dict, *weakrefs;  /* callback and owner are NULL but for regions */
} Region;

/* A dictionary item that regions look at, and whom they tell when it is another object than the last time. */
static struct {
    PyObject *dict, *key, *changed, *seen;
} watched;
static int regions_off;          /* regions call what they wrap as it is */
static PyObject *exclude_other;  /* callable: takes another evaluator's switch of this thread, gives what it was */

static int look_at_watched(void) {
    while (watched.dict != NULL) {
        PyObject *now = PyDict_GetItemWithError(watched.dict, watched.key);
        if (LIKELY(now == watched.seen)) return PyErr_Occurred() ? -1 : 0;
        Py_XSETREF(watched.seen, Py_XNewRef(now));
        PyObject *callback = take_callback(), *changed = Py_NewRef(watched.changed);
        PyObject *done = PyObject_CallOneArg(changed, watched.seen ? watched.seen : Py_None);
        Py_DECREF(changed);
        give_back_callback(callback);
        if (done == NULL) return -1;
        Py_DECREF(done);
    }
    return 0;
}

static PyObject *disabled_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    PyObject *saved = take_callback();
    PyObject *result = PyObject_Vectorcall(((Region *)self)->fn, args, nargsf, kwnames);
    give_back_callback(saved);
    return result;
}

/* Work of the compiler: not captured, and not observed. */
static PyObject *hidden_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    PyThreadState *ts = PyThreadState_Get();
    int hidden = hide(ts);
    PyObject *result = disabled_call(self, args, nargsf, kwnames);
    show(ts, hidden);
    return result;
}

static PyObject *region_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    Region *r = (Region *)self;
    if (UNLIKELY(look_at_watched() < 0)) return NULL;
    if (UNLIKELY(regions_off)) return disabled_call(self, args, nargsf, kwnames);
    /* Another compiler's evaluator must not see our frames: their code is not what it seems. */
    PyObject *other = NULL;
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (UNLIKELY(current == hook ? previous_evaluator != NULL : current != _PyEval_EvalFrameDefault) && exclude_other != NULL) {
        PyObject *callback = take_callback();
        other = PyObject_CallOneArg(exclude_other, Py_None);
        give_back_callback(callback);
        if (other == NULL) return NULL;
    }
    PyObject *saved = tls_callback, *saved_owner = tls_owner;
    tls_callback = Py_NewRef(r->callback);
    tls_owner = r->owner;
    enter_region();
    PyObject *result = PyObject_Vectorcall(r->fn, args, nargsf, kwnames);
    leave_region();
    tls_owner = saved_owner;
    if (LIKELY(tls_callback == r->callback && tls_callback != NULL)) {  /* the region keeps it: this drop runs nothing */
        Py_DECREF(tls_callback);
        tls_callback = saved;
    } else {
        give_back_callback(saved);
    }
    if (UNLIKELY(other != NULL)) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyObject *callback = take_callback(), *done = PyObject_CallOneArg(exclude_other, other);
        give_back_callback(callback);
        Py_DECREF(other);
        if (done == NULL) PyErr_WriteUnraisable(self);
        Py_XDECREF(done);
        PyErr_Restore(type, value, traceback);
    }
    return result;
}

static PyObject *Region_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *region_names[] = {"fn", "callback", "owner", NULL}, *other_names[] = {"fn", NULL};
    PyObject *fn, *callback = NULL, *owner = NULL;
    int is_region = type == &RegionType;
    if (is_region ? !PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:Region", region_names, &fn, &callback, &owner)
                  : !PyArg_ParseTupleAndKeywords(args, kwargs, "O", other_names, &fn)) return NULL;
    if (!PyCallable_Check(fn) || (is_region && !PyCallable_Check(callback))) {
        PyErr_Format(PyExc_TypeError, "%R is not callable", PyCallable_Check(fn) ? callback : fn);
        return NULL;
    }
    Region *r = (Region *)type->tp_alloc(type, 0);
    if (r == NULL) return NULL;
    r->call = is_region ? region_call : type == &HiddenType ? hidden_call : disabled_call;
    r->fn = Py_NewRef(fn);
    r->callback = Py_XNewRef(callback);
    r->owner = Py_XNewRef(owner);
    return (PyObject *)r;
}

static int Region_traverse(Region *r, visitproc visit, void *arg) {
    Py_VISIT(r->fn);
    Py_VISIT(r->callback);
    Py_VISIT(r->owner);
    Py_VISIT(r->dict);
    return 0;
}
static PyObject *cleared_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    (void)self, (void)args, (void)nargsf, (void)kwnames;
    PyErr_SetString(PyExc_ReferenceError, "this callable was collected");
    return NULL;
}
static int Region_clear(Region *r) {
    r->call = cleared_call;
    Py_CLEAR(r->fn);
    Py_CLEAR(r->callback);
    Py_CLEAR(r->owner);
    Py_CLEAR(r->dict);
    return 0;
}
static void Region_dealloc(Region *r) {
    PyObject_GC_UnTrack(r);
    if (r->weakrefs) PyObject_ClearWeakRefs((PyObject *)r);
    Region_clear(r);
    Py_TYPE(r)->tp_free((PyObject *)r);
}
static PyObject *Region_get(PyObject *self, PyObject *instance, PyObject *owner) {
    (void)owner;
    return instance == NULL || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}
static PyObject *Region_repr(Region *r) { return PyUnicode_FromFormat("<%s of %R>", Py_TYPE(r)->tp_name, r->fn); }

static PyMemberDef Region_members[] = {{"fn", T_OBJECT_EX, offsetof(Region, fn), READONLY},
                                       {"callback", T_OBJECT, offsetof(Region, callback), READONLY},
                                       {"owner", T_OBJECT, offsetof(Region, owner), READONLY},
                                       {NULL}};
#if PY_VERSION_HEX >= 0x030E0000
/* functools.wraps copies what makes the annotations, which functions alone know how to ask. */
static PyObject *Region_annotations(PyObject *self, void *closure) {
    (void)closure;
    return PyObject_GetAttrString(((Region *)self)->fn, "__annotations__");
}
#define LATE_ANNOTATIONS {"__annotations__", Region_annotations},
#else
#define LATE_ANNOTATIONS
#endif
static PyGetSetDef Region_getset[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict}, LATE_ANNOTATIONS {NULL}};

#define REGION_TYPE(name, doc)                                                                                     \
    {                                                                                                              \
        PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fuselens.capture.hook._hook." name, .tp_doc = doc,                    \
        .tp_basicsize = sizeof(Region), .tp_new = Region_new, .tp_dealloc = (destructor)Region_dealloc,            \
        .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, \
        .tp_traverse = (traverseproc)Region_traverse, .tp_clear = (inquiry)Region_clear,                           \
        .tp_call = PyVectorcall_Call, .tp_vectorcall_offset = offsetof(Region, call),                              \
        .tp_descr_get = Region_get, .tp_repr = (reprfunc)Region_repr, .tp_members = Region_members,                \
        .tp_getset = Region_getset, .tp_dictoffset = offsetof(Region, dict),                                       \
        .tp_weaklistoffset = offsetof(Region, weakrefs),                                                           \
    }
static PyTypeObject RegionType = REGION_TYPE("Region", "Region(fn, callback, owner=None): calls fn with capture on.");
static PyTypeObject DisabledType = REGION_TYPE("disabled", "disabled(fn): calls fn with capture off.");
static PyTypeObject HiddenType = REGION_TYPE("hidden", "hidden(fn): calls fn with capture off, unseen by profilers and tools.");

/* ----------------------------------------------------------------------------------------------- functions */

static PyCodeObject *code_argument(PyObject *o) {
    if (PyFunction_Check(o)) return (PyCodeObject *)((PyFunctionObject *)o)->func_code;
    if (PyCode_Check(o)) return (PyCodeObject *)o;
    PyErr_Format(PyExc_TypeError, "expected a code object or a Python function, got %R", o);
    return NULL;
}

static PyObject *set_callback(PyObject *module, PyObject *callback) {
    (void)module;
    if (callback != Py_None && !PyCallable_Check(callback)) {
        PyErr_Format(PyExc_TypeError, "%R is not callable", callback);
        return NULL;
    }
    PyObject *previous = tls_callback;
    tls_callback = callback == Py_None ? NULL : Py_NewRef(callback);
    if (tls_callback != NULL && !tls_manual) {
        tls_manual = 1;
        enter_region();
    } else if (tls_callback == NULL && tls_manual) {
        tls_manual = 0;
        leave_region();
    }
    return previous ? previous : Py_NewRef(Py_None);
}

static PyObject *suspend(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    PyObject *callback = take_callback();
    return callback ? callback : Py_NewRef(Py_None);
}

static PyObject *resume(PyObject *module, PyObject *callback) {
    (void)module;
    give_back_callback(callback == Py_None ? NULL : Py_NewRef(callback));
    Py_RETURN_NONE;
}

static PyObject *show_work(PyObject *module, PyObject *shown) {
    (void)module;
    int truth = PyObject_IsTrue(shown);
    if (truth < 0) return NULL;
    work_is_shown = truth;
    Py_RETURN_NONE;
}

static PyObject *is_capturing(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyBool_FromLong(tls_callback != NULL);
}

static PyObject *set_regions_off(PyObject *module, PyObject *off) {
    (void)module;
    int truth = PyObject_IsTrue(off);
    if (truth < 0) return NULL;
    regions_off = truth;
    Py_RETURN_NONE;
}

static PyObject *watch(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *dict, *key, *changed;
    if (!PyArg_ParseTuple(args, "O!OO:watch", &PyDict_Type, &dict, &key, &changed)) return NULL;
    Py_XSETREF(watched.dict, Py_NewRef(dict));
    Py_XSETREF(watched.key, Py_NewRef(key));
    Py_XSETREF(watched.changed, Py_NewRef(changed));
    Py_CLEAR(watched.seen);
    Py_RETURN_NONE;
}

static PyObject *set_exclude_other(PyObject *module, PyObject *callable) {
    (void)module;
    Py_XSETREF(exclude_other, callable == Py_None ? NULL : Py_NewRef(callable));
    Py_RETURN_NONE;
}

static PyObject *add_entry(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *target, *entry;
    PyCodeObject *code;
    if (!PyArg_ParseTuple(args, "OO!:add_entry", &target, &EntryType, &entry) || (code = code_argument(target)) == NULL ||
        table_add(code, (Entry *)entry) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *check_fits(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *target, *entry;
    PyCodeObject *code;
    if (!PyArg_ParseTuple(args, "OO!:check_fits", &target, &EntryType, &entry) || (code = code_argument(target)) == NULL ||
        check_swappable(code, (Entry *)entry) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *remove_entry(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *target, *entry;
    PyCodeObject *code;
    if (!PyArg_ParseTuple(args, "OO!:remove_entry", &target, &EntryType, &entry) || (code = code_argument(target)) == NULL) return NULL;
    Table *t = find_table(code);
    return PyBool_FromLong(t != NULL && table_remove(t, (Entry *)entry));
}

static PyObject *entries(PyObject *module, PyObject *target) {
    (void)module;
    PyCodeObject *code = code_argument(target);
    if (code == NULL) return NULL;
    Table *t = find_table(code);
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; t != NULL && list != NULL && i < t->n; i++)
        if (PyList_Append(list, (PyObject *)t->entries[i]) < 0) Py_CLEAR(list);
    return list;
}

static PyObject *clear(PyObject *module, PyObject *target) {
    (void)module;
    PyCodeObject *code = code_argument(target);
    if (code == NULL) return NULL;
    Table *t = find_table(code);
    if (t != NULL) table_drop_entries(t);
    Py_RETURN_NONE;
}

static PyObject *clear_all(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    /* Dropping entries may free any table, so start over after each; a table without entries is passed by. */
    for (Table *t = tables.next; t != &tables;) {
        t->skip = 0;
        if (t->n == 0) {
            t = t->next;
            continue;
        }
        Py_INCREF(t->code);
        PyCodeObject *code = t->code;
        table_drop_entries(t);
        Py_DECREF(code);
        t = tables.next;
    }
    Py_RETURN_NONE;
}

static PyObject *skip(PyObject *module, PyObject *args, PyObject *kwargs) {
    (void)module;
    static char *names[] = {"code", "recursive", NULL};
    PyObject *target;
    int recursive = 0;
    PyCodeObject *code;
    Table *t;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|p:skip", names, &target, &recursive) ||
        (code = code_argument(target)) == NULL || (t = need_table(code)) == NULL) return NULL;
    t->skip = recursive ? 2 : 1;
    Py_RETURN_NONE;
}

static PyObject *unskip(PyObject *module, PyObject *target) {
    (void)module;
    PyCodeObject *code = code_argument(target);
    if (code == NULL) return NULL;
    Table *t = find_table(code);
    if (t != NULL) t->skip = 0;
    Py_RETURN_NONE;
}

static PyObject *is_skipped(PyObject *module, PyObject *target) {
    (void)module;
    PyCodeObject *code = code_argument(target);
    if (code == NULL) return NULL;
    Table *t = find_table(code);
    return PyBool_FromLong(t != NULL && t->skip);
}

static PyObject *get_stats(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:i}", "hits", stats.hits, "misses", stats.misses, "callbacks", stats.callbacks,
                         "rejected", stats.rejected, "chunk_fallbacks", stats.chunk_fallbacks, "active_regions", active_regions);
}

static PyObject *reset_stats(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    memset(&stats, 0, sizeof stats);
    Py_RETURN_NONE;
}

static PyObject *is_installed(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyBool_FromLong(_PyInterpreterState_GetEvalFrameFunc(interpreter) == hook);
}

static PyObject *init_tensor_layout(PyObject *module, PyObject *args) {
    (void)module;
    Py_ssize_t tensor_offset, keyset_offset, metadata_offset, autograd_offset, flag_offset;
    unsigned long long flag_mask;
    PyObject *addresses, *slow_check, *slow_grad_mode;
    if (!PyArg_ParseTuple(args, "(nnnnnK)OOO:init_tensor_layout", &tensor_offset, &keyset_offset, &metadata_offset,
                          &autograd_offset, &flag_offset, &flag_mask, &addresses, &slow_check, &slow_grad_mode)) return NULL;
    memset(&torch_access, 0, offsetof(TorchAccess, slow_check));
    if (addresses != Py_None) {
        unsigned long long dtype, device_type, device_index, dim, sizes, strides, requires_grad, grad_mode;
        if (!PyTuple_Check(addresses)) {
            PyErr_SetString(PyExc_TypeError, "addresses: a tuple of eight, or None");
            return NULL;
        }
        if (!PyArg_ParseTuple(addresses, "KKKKKKKK", &dtype, &device_type, &device_index, &dim, &sizes, &strides,
                              &requires_grad, &grad_mode)) return NULL;
        torch_access.tensor_offset = tensor_offset;
        torch_access.keyset_offset = keyset_offset;
        torch_access.metadata_offset = metadata_offset;
        torch_access.n_metadata = metadata_offset ? (keyset_offset - metadata_offset) / 8 + 1 : 0;  /* 0: unknown */
        torch_access.autograd_offset = autograd_offset;
        torch_access.flag_offset = flag_offset;
        torch_access.flag_mask = flag_mask;
        torch_access.dtype = (ReadInt32)(uintptr_t)dtype;
        torch_access.device_type = (ReadInt32)(uintptr_t)device_type;
        torch_access.device_index = (ReadInt32)(uintptr_t)device_index;
        torch_access.dim = (ReadInt64)(uintptr_t)dim;
        torch_access.sizes = (ReadArray)(uintptr_t)sizes;
        torch_access.strides = (ReadArray)(uintptr_t)strides;
        torch_access.requires_grad = (bool (*)(void *))(uintptr_t)requires_grad;
        torch_access.grad_mode = (bool (*)(void))(uintptr_t)grad_mode;
        torch_access.ready = 1;
    }
    Py_XSETREF(torch_access.slow_check, Py_NewRef(slow_check));
    Py_XSETREF(torch_access.slow_grad_mode, Py_NewRef(slow_grad_mode));
    Py_RETURN_NONE;
}

static PyObject *extents_tuple(const int64_t *values, int64_t n) {
    PyObject *tuple = PyTuple_New(n);
    for (int64_t i = 0; i < n && tuple != NULL; i++) PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(values[i]));
    return tuple;
}

#if PY_VERSION_HEX >= 0x030E0000
extern PyObject *_PyObject_LookupSpecial(PyObject *, PyObject *);

/* The bound __exit__ that 3.14's LOAD_SPECIAL finds, or its error. */
static PyObject *exit_of(PyObject *module, PyObject *manager) {
    (void)module;
    const _Py_SpecialMethod *method = &_Py_SpecialMethods[SPECIAL___EXIT__];
    PyObject *found = _PyObject_LookupSpecial(manager, method->name);
    if (found == NULL && !PyErr_Occurred()) {
        int other = _PyEval_SpecialMethodCanSuggest(manager, SPECIAL___EXIT__);
        PyErr_Format(PyExc_TypeError, other ? method->error_suggestion : method->error, manager);
    }
    return found;
}
#endif

static PyObject *type_name(PyObject *module, PyObject *o) {
    (void)module;
    if (!PyType_Check(o)) {
        PyErr_SetString(PyExc_TypeError, "type_name() takes a type");
        return NULL;
    }
    return PyUnicode_FromString(((PyTypeObject *)o)->tp_name);
}

static PyObject *tensor_facts(PyObject *module, PyObject *o) {
    (void)module;
    if (!torch_access.ready) {
        PyErr_SetString(PyExc_RuntimeError, "the tensor layout is not known");
        return NULL;
    }
    void *handle = tensor_handle(o), *impl = tensor_impl(o);
    int32_t dtype, device_type, device_index;
    int64_t ndim, *sizes = NULL, *strides = NULL;
    if (impl == NULL || torch_access.dtype(handle, &dtype) || torch_access.device_type(handle, &device_type) ||
        torch_access.device_index(handle, &device_index) || torch_access.dim(handle, &ndim) ||
        torch_access.sizes(handle, &sizes) || torch_access.strides(handle, &strides)) {
        PyErr_SetString(PyExc_ValueError, "torch's C interface refused the tensor");
        return NULL;
    }
    return Py_BuildValue("(iiiiNNK)", dtype, device_type, device_index, tensor_requires_grad(impl),
                         extents_tuple(sizes, ndim), extents_tuple(strides, ndim), (unsigned long long)tensor_keyset(impl));
}

static PyObject *shutdown(PyObject *module, PyObject *ignored) {
    PyObject *done = clear_all(module, ignored);
    if (active_regions == 0) uninstall();
    Py_CLEAR(tls_callback);
    Py_CLEAR(watched.dict);
    Py_CLEAR(watched.seen);
    Py_CLEAR(exclude_other);
    return done;
}

static PyMethodDef functions[] = {
    {"set_callback", set_callback, METH_O, "set_callback(callback or None) -> previous, of this thread"},
    {"show_work", show_work, METH_O, "show_work(bool): whether profilers are told of what the compiler does, to measure it"},
    {"suspend", suspend, METH_NOARGS, "suspend() -> this thread's callback, taken out, or None"},
    {"resume", resume, METH_O, "resume(what suspend() gave)"},
    {"is_capturing", is_capturing, METH_NOARGS, "is_capturing() -> whether this thread is in a region with capture on"},
    {"set_regions_off", set_regions_off, METH_O, "set_regions_off(bool): regions call what they wrap as it is"},
    {"watch", watch, METH_VARARGS, "watch(dict, key, changed): see the stub"},
    {"set_exclude_other", set_exclude_other, METH_O, "set_exclude_other(callable or None): see the stub"},
    {"add_entry", add_entry, METH_VARARGS, "add_entry(code, entry): in front of the code's entries"},
    {"check_fits", check_fits, METH_VARARGS, "check_fits(code, entry): ValueError where the entry cannot serve its frames"},
    {"remove_entry", remove_entry, METH_VARARGS, "remove_entry(code, entry) -> whether it was there"},
    {"entries", entries, METH_O, "entries(code) -> list, most recently hit first"},
    {"clear", clear, METH_O, "clear(code): forgets its entries"},
    {"clear_all", clear_all, METH_NOARGS, "clear_all(): forgets all entries and skips"},
    {"skip", (PyCFunction)(void (*)(void))skip, METH_VARARGS | METH_KEYWORDS,
     "skip(code, recursive=False): runs as it is from now on; recursive: and whatever it calls"},
    {"unskip", unskip, METH_O, "unskip(code)"},
    {"is_skipped", is_skipped, METH_O, "is_skipped(code) -> bool"},
    {"stats", get_stats, METH_NOARGS, "stats() -> dict of counters"},
    {"reset_stats", reset_stats, METH_NOARGS, "reset_stats()"},
    {"is_installed", is_installed, METH_NOARGS, "is_installed() -> whether our evaluator is the current one"},
    {"init_tensor_layout", init_tensor_layout, METH_VARARGS,
     "init_tensor_layout(offsets, addresses or None, slow_check, slow_grad_mode)"},
#if PY_VERSION_HEX >= 0x030E0000
    {"exit_of", exit_of, METH_O, "exit_of(context manager) -> its bound __exit__"},
#endif
    {"type_name", type_name, METH_O, "type_name(type) -> the name that error messages use"},
    {"tensor_facts", tensor_facts, METH_O,
     "tensor_facts(tensor) -> (dtype, device type, device index, requires_grad, sizes, strides, key set)"},
    {"_shutdown", shutdown, METH_NOARGS, "at exit"},
    {NULL}};

static struct PyModuleDef module_definition = {PyModuleDef_HEAD_INIT, "fuselens.capture.hook._hook",
                                               "PEP 523 frame evaluator, guard machine and entry tables.", -1, functions};

PyMODINIT_FUNC PyInit__hook(void) {
    static const struct { const char *name; int value; } constants[] = {
#define X(name) {#name, name},
        NODE_KINDS(X) CHECK_KINDS(X) SHAPE_OPERATIONS(X)
#undef X
    };
    PyObject *module = PyModule_Create(&module_definition);
    if (module == NULL) return NULL;
    interpreter = PyInterpreterState_Get();
    if (extra_slot < 0 && (extra_slot = RequestExtraIndex(free_table)) < 0) {
        PyErr_SetString(PyExc_RuntimeError, "no co_extra slot is left in this interpreter");
        goto error;
    }
    if (empty_dict == NULL && (empty_dict = PyDict_New()) == NULL) goto error;
#if PY_VERSION_HEX >= 0x030E0000
    if (dict_watcher < 0 && (dict_watcher = PyDict_AddWatcher(dict_changed)) < 0) PyErr_Clear();
#endif
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) goto error;
    if (PyModule_AddType(module, &GuardsType) < 0 || PyModule_AddType(module, &EntryType) < 0 ||
        PyModule_AddType(module, &RegionType) < 0 || PyModule_AddType(module, &DisabledType) < 0 ||
        PyModule_AddType(module, &HiddenType) < 0) goto error;
    PyObject *atexit = PyImport_ImportModule("atexit");
    PyObject *at_exit = PyObject_GetAttrString(module, "_shutdown");
    PyObject *registered = atexit && at_exit ? PyObject_CallMethod(atexit, "register", "O", at_exit) : NULL;
    Py_XDECREF(atexit);
    Py_XDECREF(at_exit);
    if (registered == NULL) goto error;
    Py_DECREF(registered);
    return module;
error:
    Py_DECREF(module);
    return NULL;
}
