/* The guard program: its operations, and the types of objects they have. A part of _hook.c, included there once. */

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
