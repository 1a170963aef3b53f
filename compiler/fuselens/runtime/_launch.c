/* Launches of GPU kernels: one C call from arguments to cuLaunchKernel. Built without CUDA: the addresses of the driver's
 * functions come from it at run time.
 *
 * A kernel is compiled in variants, chosen by what holds of a call's arguments: are all pointers multiples of 16 bytes,
 * are all integers below 2^31, and which integers are multiples of 16. A variant is asked for when it is first needed.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef int (*launch_function)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, void *stream, void **parameters, void **extra);

/* As the driver's header has them */
typedef struct {
  int kind;
  char unused[4];
  union {
    unsigned cluster[3]; /* programs that start together, along each axis */
    char room[64];
  } value;
} LaunchAttribute;

typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream;
  LaunchAttribute *attributes;
  unsigned count;
} LaunchSettings;

typedef int (*launch_with_function)(const LaunchSettings *settings, void *function, void **parameters, void **extra);

typedef int (*describe_function)(int error, const char **text);

static launch_function launch_kernel;
static launch_with_function launch_with; /* null: kernels of clusters cannot be launched */
static describe_function describe_error; /* null: errors are numbers */

enum { MOST_ARGUMENTS = 1024, ALIGNED = 1, NARROW = 2, FIRST_SIZE = 2, FLAGGED_SIZES = 60, SCRATCH = 2, NO_CONTEXT = 201, NOT_SUPPORTED = 801, CLUSTER = 4 };

typedef struct Variant {
  uint64_t key;
  void *function;
  unsigned threads, shared, cluster;
  struct Variant *next;
} Variant;

typedef struct {
  PyObject_HEAD vectorcallfunc call;
  PyObject *build; /* key -> (function, threads, bytes of shared memory, programs of a cluster); makes the GPU usable in this thread */
  Py_ssize_t pointers, sizes;
  int scratch; /* whether the last address is of scratch memory that Triton's kernel asks for, after all of its arguments */
  Variant *_Atomic variants; /* the last one first; threads without the interpreter lock look through them */
} Kernel;

static Variant *find(Kernel *self, uint64_t key) {
  Variant *variant = atomic_load_explicit(&self->variants, memory_order_acquire);
  while (variant && variant->key != key) variant = variant->next;
  return variant;
}

static Variant *build(Kernel *self, uint64_t key) {
  PyObject *made = PyObject_CallFunction(self->build, "K", (unsigned long long)key);
  if (!made) return NULL;
  unsigned long long function;
  unsigned threads, shared, cluster;
  int ok = PyArg_ParseTuple(made, "KIII", &function, &threads, &shared, &cluster);
  Py_DECREF(made);
  Variant *variant = !ok ? NULL : find(self, key); /* another thread's, meanwhile */
  if (!ok || variant) return variant;
  variant = PyMem_RawMalloc(sizeof *variant);
  if (!variant) return (Variant *)PyErr_NoMemory();
  *variant = (Variant){key, (void *)(uintptr_t)function, threads, shared, cluster, self->variants};
  atomic_store_explicit(&self->variants, variant, memory_order_release);
  return variant;
}

static int launch_cluster(const Variant *variant, unsigned programs, void *stream, void **parameters) {
  if (!launch_with) return NOT_SUPPORTED;
  LaunchAttribute cluster = {.kind = CLUSTER, .value.cluster = {variant->cluster, 1, 1}};
  LaunchSettings settings = {{programs, 1, 1}, {variant->threads, 1, 1}, variant->shared, stream, &cluster, 1};
  return launch_with(&settings, variant->function, parameters, NULL);
}

/* For a launch that was not made: raises why, or provides what it lacked. */
static int prepare(Kernel *self, uint64_t key, uint64_t programs, int error) {
  if (error) {
    const char *text = NULL;
    int known = describe_error && !describe_error(error, &text) && text;
    PyErr_Format(PyExc_RuntimeError, "CUDA error %d at the launch of a compiled kernel%s%s", error, known ? ": " : "",
                 known ? text : "");
  } else if (programs >> 31)
    PyErr_Format(PyExc_OverflowError, "%llu programs are more than a launch takes", (unsigned long long)programs);
  else if (build(self, key)) return 0;
  return -1;
}

/* Launches a kernel; `values` are its arguments, with room for SCRATCH more. Where `*thread` is set, the interpreter lock is
 * not held. -1 with an exception set. */
static int launch_values(PyObject *kernel, void *stream, uint64_t programs, uint64_t *values, PyThreadState **thread) {
  Kernel *self = (Kernel *)kernel;
  Py_ssize_t count = self->pointers + self->sizes;
  void *parameters[MOST_ARGUMENTS + SCRATCH];
  uint64_t key = ALIGNED | NARROW;
  for (Py_ssize_t k = 0; k < count; k++) {
    uint64_t value = values[k];
    int moves = self->scratch && k >= self->pointers - 1;
    parameters[!moves ? k : k < self->pointers ? count - 1 : k - 1] = &values[k];
    if (k < self->pointers) {
      if (value & 15) key &= ~(uint64_t)ALIGNED;
    } else {
      if (value >> 31) key &= ~(uint64_t)NARROW;
      Py_ssize_t place = k - self->pointers;
      if (!(value & 15) && place < FLAGGED_SIZES) key |= (uint64_t)1 << (FIRST_SIZE + place);
    }
  }
  for (int k = 0; k < SCRATCH; k++) { /* Triton's kernels end with addresses of scratch memory, of which ours are given one at most */
    values[count + k] = 0;
    parameters[count + k] = &values[count + k];
  }
  if (!programs) return 0;
  for (int entered = 0;;) {
    Variant *variant = find(self, key);
    int error = 0;
    if (variant && !(programs >> 31)) {
      error = variant->cluster > 1 ? launch_cluster(variant, (unsigned)programs, stream, parameters)
                                   : launch_kernel(variant->function, (unsigned)programs, 1, 1, variant->threads, 1, 1,
                                                   variant->shared, stream, parameters, NULL);
      if (!error) return 0;
    }
    int lost = error == NO_CONTEXT && !entered; /* nothing has used the GPU in this thread */
    entered |= lost;
    if (thread && *thread) PyEval_RestoreThread(*thread);
    int status = prepare(self, key, programs, lost ? 0 : error);
    if (thread && *thread) *thread = PyEval_SaveThread();
    if (status) return -1;
  }
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
  for (Py_ssize_t k = 0; k < count; k++) {
    values[k] = PyLong_AsUnsignedLongLongMask(arguments[k + 2]);
    if (values[k] == (uint64_t)-1 && PyErr_Occurred()) return NULL;
  }
  unsigned long long stream = PyLong_AsUnsignedLongLongMask(arguments[0]);
  unsigned long long programs = PyLong_AsUnsignedLongLongMask(arguments[1]);
  if (PyErr_Occurred() || launch_values(object, (void *)(uintptr_t)stream, programs, values, NULL)) return NULL;
  Py_RETURN_NONE;
}

static PyObject *make(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  PyObject *builder;
  Py_ssize_t pointers, sizes;
  int scratch = 0;
  if (!PyArg_ParseTuple(arguments, "Onn|p:Kernel", &builder, &pointers, &sizes, &scratch)) return NULL;
  if (pointers < scratch || sizes < 0 || pointers + sizes > MOST_ARGUMENTS) {
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
  self->build = Py_NewRef(builder);
  self->scratch = scratch;
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
  for (Variant *next, *variant = self->variants; variant; variant = next) {
    next = variant->next;
    PyMem_RawFree(variant);
  }
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

static PyObject *init(PyObject *module, PyObject *addresses) {
  PyObject *launching, *describing = NULL, *clusters = NULL;
  if (!PyArg_ParseTuple(addresses, "O|OO:init", &launching, &describing, &clusters)) return NULL;
  void *function = PyLong_AsVoidPtr(launching), *other = describing ? PyLong_AsVoidPtr(describing) : NULL;
  void *with = clusters ? PyLong_AsVoidPtr(clusters) : NULL;
  if (PyErr_Occurred()) return NULL;
  launch_kernel = (launch_function)(uintptr_t)function;
  describe_error = (describe_function)(uintptr_t)other;
  launch_with = (launch_with_function)(uintptr_t)with;
  Py_RETURN_NONE;
}

static PyObject *entry(PyObject *module, PyObject *unused) { return PyLong_FromVoidPtr((void *)launch_values); }

static PyMethodDef methods[] = {
    {"entry", entry, METH_NOARGS, "entry() -> the address of the function by which _steps.h launches kernels."},
    {"init", init, METH_VARARGS, "init(address of cuLaunchKernel, of cuGetErrorString, of cuLaunchKernelEx)"},
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
