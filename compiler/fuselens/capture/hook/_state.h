/* What all parts share: the state of each thread, counts, and the objects made once. A part of _hook.c, included there once. */

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
