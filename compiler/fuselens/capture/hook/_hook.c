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

#include "_versions.h"
#include "_state.h"
#include "_tensors.h"
#include "_guards.h"
#include "_snapshots.h"
#include "_order.h"
#include "_running.h"
#include "_building.h"
#include "_entries.h"
#include "_evaluator.h"
#include "_regions.h"

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
