/* Entries: guards with replacement code, in the co_extra slot of the original code object. A part of _hook.c, included there once. */

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
