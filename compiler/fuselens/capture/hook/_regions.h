/* Regions, where compiled code is entered, and callables inside of which nothing is captured. A part of _hook.c, included there once. */

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
        PyThreadState *ts = PyThreadState_Get();
        int hidden = hide(ts);
        PyObject *done = PyObject_CallOneArg(changed, watched.seen ? watched.seen : Py_None);
        show(ts, hidden);
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
/* inspect.getfullargspec asks nobody else for the parameters of a callable that is no function. */
static PyObject *Region_signature(PyObject *self, void *closure) {
    (void)closure;
    Region *r = (Region *)self;
    PyObject *given = r->dict ? PyDict_GetItemString(r->dict, "__signature__") : NULL;
    if (given != NULL) return Py_NewRef(given);
    PyObject *inspect = PyImport_ImportModule("inspect");
    PyObject *found = inspect ? PyObject_CallMethod(inspect, "signature", "O", r->fn) : NULL;
    Py_XDECREF(inspect);
    if (found == NULL && (PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_TypeError)))
        PyErr_SetString(PyExc_AttributeError, "__signature__");
    return found;
}
static int Region_set_signature(PyObject *self, PyObject *value, void *closure) {
    (void)closure;
    PyObject *dict = PyObject_GenericGetDict(self, NULL);
    if (dict == NULL) return -1;
    int done = value ? PyDict_SetItemString(dict, "__signature__", value) : PyDict_DelItemString(dict, "__signature__");
    Py_DECREF(dict);
    return done;
}
static PyGetSetDef Region_getset[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict},
                                      {"__signature__", Region_signature, Region_set_signature},
                                      LATE_ANNOTATIONS {NULL}};

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
