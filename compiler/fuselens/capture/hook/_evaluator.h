/* The frame evaluator (PEP 523): looks up entries, swaps code, or asks the callback. A part of _hook.c, included there once. */

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
