/* Snapshots: what a container or object held when it was traced, compared at each call. A part of _hook.c, included there once. */

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
    PyTypeObject **types;       /* by slot: where no word says it, the class that the object in it keeps for life */
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
    PyMem_Free(s->types);
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

/* Whether nobody can assign `o.__class__`: CPython allows that for classes made by `class`, and for modules. */
static inline int keeps_class(PyObject *o) {
    return !(Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) && !PyModule_Check(o);
}

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
        if (op->kind == DICT_ITEM && keeps_class(found)) {  /* the dictionary's version proves which object it is */
            typed[op->slot - group->first_slot] = 1;
            s->types[op->slot - group->first_slot] = Py_TYPE(found);
        }
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
    s->types = PyMem_Calloc(group->n_slots, sizeof *s->types);
    s->constants = PyList_New(0);
    if (s->values == NULL || s->types == NULL || s->constants == NULL) goto refused;
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
        if (want == NULL) continue;
        PyTypeObject *type = s->types[op->slot - group->first_slot];
        if (type != NULL && Py_TYPE(want) != type) return 0;  /* another object has taken the address */
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
