/* How frames, dictionaries and code objects of each CPython version are read. Nothing but this knows them. A part of _hook.c, included there once. */

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
