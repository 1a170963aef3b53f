/* Launches of GPU kernels: one C call from arguments to cuLaunchKernel. Built without CUDA: the address of that function
 * comes from the driver at run time.
 *
 * A kernel is compiled in variants, chosen by what holds of a call's arguments: are all pointers multiples of 16 bytes,
 * are all integers below 2^31, and which integers are multiples of 16. A variant is asked for when it is first needed.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>

typedef int (*launch_function)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, void *stream, void **parameters, void **extra);

static launch_function launch_kernel;

enum { MOST_ARGUMENTS = 1024, ALIGNED = 1, NARROW = 2, FIRST_SIZE = 2, FLAGGED_SIZES = 60, SCRATCH = 2 };

typedef struct {
  uint64_t key;
  void *function;
  unsigned threads, shared;
} Variant;

typedef struct {
  PyObject_HEAD vectorcallfunc call;
  PyObject *build; /* key -> (function, threads, bytes of shared memory) */
  Py_ssize_t pointers, sizes, count;
  Variant *variants;
} Kernel;

static Variant *find(Kernel *self, uint64_t key) {
  for (Py_ssize_t k = 0; k < self->count; k++)
    if (self->variants[k].key == key) return &self->variants[k];
  PyObject *made = PyObject_CallFunction(self->build, "K", (unsigned long long)key);
  if (!made) return NULL;
  unsigned long long function;
  Variant variant = {.key = key};
  int ok = PyArg_ParseTuple(made, "KII", &function, &variant.threads, &variant.shared);
  Py_DECREF(made);
  if (!ok) return NULL;
  variant.function = (void *)(uintptr_t)function;
  Variant *more = PyMem_Realloc(self->variants, (size_t)(self->count + 1) * sizeof(Variant));
  if (!more) {
    PyErr_NoMemory();
    return NULL;
  }
  self->variants = more;
  more[self->count] = variant;
  return &more[self->count++];
}

/* kernel(stream, programs, *addresses, *sizes) */
static PyObject *launch(PyObject *object, PyObject *const *arguments, size_t flags, PyObject *names) {
  Kernel *self = (Kernel *)object;
  Py_ssize_t count = self->pointers + self->sizes;
  if (PyVectorcall_NARGS(flags) != count + 2 || (names && PyTuple_GET_SIZE(names))) {
    PyErr_Format(PyExc_TypeError, "the kernel takes a stream, a number of programs, %zd addresses and %zd sizes",
                 self->pointers, self->sizes);
    return NULL;
  }
  uint64_t values[MOST_ARGUMENTS + SCRATCH];
  void *parameters[MOST_ARGUMENTS + SCRATCH];
  uint64_t key = ALIGNED | NARROW;
  for (Py_ssize_t k = 0; k < count; k++) {
    uint64_t value = PyLong_AsUnsignedLongLongMask(arguments[k + 2]);
    if (value == (uint64_t)-1 && PyErr_Occurred()) return NULL;
    values[k] = value;
    parameters[k] = &values[k];
    if (k < self->pointers) {
      if (value & 15) key &= ~(uint64_t)ALIGNED;
    } else {
      if (value >> 31) key &= ~(uint64_t)NARROW;
      Py_ssize_t place = k - self->pointers;
      if (!(value & 15) && place < FLAGGED_SIZES) key |= (uint64_t)1 << (FIRST_SIZE + place);
    }
  }
  for (int k = 0; k < SCRATCH; k++) { /* Triton's kernels end with addresses of scratch memory, which ours do not use */
    values[count + k] = 0;
    parameters[count + k] = &values[count + k];
  }
  unsigned long long stream = PyLong_AsUnsignedLongLongMask(arguments[0]);
  unsigned long long programs = PyLong_AsUnsignedLongLongMask(arguments[1]);
  if (PyErr_Occurred()) return NULL;
  if (!programs) Py_RETURN_NONE;
  if (programs >> 31) {
    PyErr_Format(PyExc_OverflowError, "%llu programs are more than a launch takes", programs);
    return NULL;
  }
  Variant *variant = find(self, key);
  if (!variant) return NULL;
  int error = launch_kernel(variant->function, (unsigned)programs, 1, 1, variant->threads, 1, 1, variant->shared,
                            (void *)(uintptr_t)stream, parameters, NULL);
  if (error) {
    PyErr_Format(PyExc_RuntimeError, "CUDA error %d at the launch of a compiled kernel", error);
    return NULL;
  }
  Py_RETURN_NONE;
}

static PyObject *make(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  PyObject *build;
  Py_ssize_t pointers, sizes;
  if (!PyArg_ParseTuple(arguments, "Onn:Kernel", &build, &pointers, &sizes)) return NULL;
  if (pointers < 0 || sizes < 0 || pointers + sizes > MOST_ARGUMENTS) {
    PyErr_Format(PyExc_ValueError, "a kernel of %zd arguments: %d are the most", pointers + sizes, MOST_ARGUMENTS);
    return NULL;
  }
  if (!launch_kernel) {
    PyErr_SetString(PyExc_RuntimeError, "init was not called");
    return NULL;
  }
  Kernel *self = (Kernel *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->call = launch;
  self->build = Py_NewRef(build);
  self->pointers = pointers;
  self->sizes = sizes;
  return (PyObject *)self;
}

static int traverse(Kernel *self, visitproc visit, void *arg) {
  Py_VISIT(self->build);
  return 0;
}

static int clear(Kernel *self) {
  Py_CLEAR(self->build);
  return 0;
}

static void deallocate(Kernel *self) {
  PyObject_GC_UnTrack(self);
  clear(self);
  PyMem_Free(self->variants);
  Py_TYPE(self)->tp_free(self);
}

static PyTypeObject KernelType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fuselens.runtime._launch.Kernel",
    .tp_basicsize = sizeof(Kernel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Kernel, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = make,
    .tp_traverse = (traverseproc)traverse,
    .tp_clear = (inquiry)clear,
    .tp_dealloc = (destructor)deallocate,
    .tp_doc = "kernel(stream, programs, *addresses, *sizes)",
};

static PyObject *init(PyObject *module, PyObject *address) {
  void *function = PyLong_AsVoidPtr(address);
  if (!function && PyErr_Occurred()) return NULL;
  launch_kernel = (launch_function)(uintptr_t)function;
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"init", init, METH_O, "init(address of cuLaunchKernel)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_launch", .m_doc = "Launches of GPU kernels.", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__launch(void) {
  PyObject *module = PyModule_Create(&definition);
  if (!module) return NULL;
  if (PyModule_AddType(module, &KernelType) < 0) {
    Py_DECREF(module);
    return NULL;
  }
  return module;
}
