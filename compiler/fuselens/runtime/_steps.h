/* Host programs as data: words that say what to do with tensors, in the order of the Python host program. Part of
 * _program.c; codegen/steps.py writes the words, and says what each operation takes. */

enum Operation {
    END, SIZE, STRIDE, INTEGER, COMPUTE, NEW, ALLOCATE, VIEW, OVER, LAUNCH, CALL, SETTLE, DROP, RELEASE, RESULT, INTEGER_RESULT,
    INPUTS_WRITTEN
};
enum Postfix { NUMBER, ADD, SUBTRACT, MULTIPLY, DIVIDE, MODULO, LEAST, GREATEST };
enum Argument {
    A_TENSOR, A_OPTIONAL, A_UNDEFINED, A_DOUBLE, A_WORD, A_NUMBER, A_LIST, A_LISTS, A_DATA, A_RESULT, A_INTEGER_RESULT
};
enum { NO_MEMORY = 1, OPERATOR_FAILED = 2, RESULT_DIFFERS = 4, OPERATOR_SHIFT = 18, MOST_INTEGERS = 28 }; /* as in native.py */

/* Any function of the shim. Where integers and doubles are passed in registers of their own, and each in 8 bytes where they
 * are too many for those, a function finds its arguments whatever follows them. */
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#define CALLS_ANY 1
#else
#define CALLS_ANY 0
#endif
typedef int (*Function)(double, double, double, double, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                        int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                        int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);

static struct { /* of the GPU's memory and kernels; see program.py */
    int (*allocate)(uint64_t, void **);
    int (*release)(void *);
    int (*current_stream)(int32_t, void **);
    int (*launch)(PyObject *kernel, void *stream, uint64_t programs, uint64_t *values, PyThreadState **thread);
} gpu;
#define N_GPU_FUNCTIONS ((int)(sizeof gpu / sizeof(void *)))
static Tensor undefined_tensor;

typedef struct {
    PyObject_HEAD
    int64_t *words, *numbers;
    Function *functions; /* null: called by Python */
    PyObject *kernels;
    Py_ssize_t n_numbers, slots, memories;
    int varies; /* numbers are computed in each call */
} Steps;

typedef struct { /* one run */
    Steps *self;
    Call *call;
    Value *in, *out;
    Tensor *slot;
    void **memory, *stream;
    int64_t *numbers;
    Py_ssize_t inputs, given;
    int wrote; /* WROTE once an input was written to */
    int node;  /* how many kernels and operators began */
} Run;

static int compute(const int64_t *words, int64_t count, const int64_t *numbers, int64_t *result) {
    int64_t stack[count / 2 + 1], *top = stack;
    for (; count; words += 2, count -= 2) {
        if (*words == NUMBER) {
            *top++ = numbers[words[1]];
            continue;
        }
        int64_t b = *--top, a = top[-1], q;
        switch (*words) {
        case ADD: q = a + b; break;
        case SUBTRACT: q = a - b; break;
        case MULTIPLY: q = a * b; break;
        case LEAST: q = a < b ? a : b; break;
        case GREATEST: q = a > b ? a : b; break;
        default: /* towards minus infinity */
            if (!b) return 1;
            q = a / b - (a % b && (a < 0) != (b < 0));
            if (*words == MODULO) q = a - q * b;
        }
        top[-1] = q;
    }
    *result = *stack;
    return 0;
}

static void put(Run *r, int64_t slot, Tensor tensor) {
    if (slot < 0) {
        host_drop(tensor);
        return;
    }
    host_drop(r->slot[slot]);
    r->slot[slot] = tensor;
}

static int call_function(Run *r, Function function, const int64_t *words, int64_t count, Tensor *made) {
    int64_t integer[MOST_INTEGERS] = {0}, ignored;
    double real[4] = {0};
    const int64_t *list;
    int n = 0, reals = 0;
    for (; count; words += 2, --count) {
        int64_t value = words[1];
        switch (*words) {
        case A_TENSOR: integer[n++] = (int64_t)r->slot[value]; break;
        case A_OPTIONAL: integer[n++] = (int64_t)&r->slot[value]; break;
        case A_UNDEFINED: integer[n++] = (int64_t)undefined_tensor; break;
        case A_DOUBLE: memcpy(&real[reals++], &value, sizeof value); break;
        case A_WORD: integer[n++] = value; break;
        case A_NUMBER: integer[n++] = r->numbers[value]; break;
        case A_LIST: integer[n++] = (int64_t)&r->numbers[value]; break;
        case A_LISTS:
            list = &r->numbers[value];
            integer[n++] = (int64_t)&list;
            break;
        case A_DATA: integer[n++] = (int64_t)&r->self->words[value]; break;
        case A_RESULT: integer[n++] = (int64_t)&made[value]; break;
        case A_INTEGER_RESULT: integer[n++] = (int64_t)&ignored; break;
        }
    }
    int64_t *i = integer;
    return function(real[0], real[1], real[2], real[3], i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8], i[9], i[10], i[11],
                    i[12], i[13], i[14], i[15], i[16], i[17], i[18], i[19], i[20], i[21], i[22], i[23], i[24], i[25], i[26], i[27]);
}

/* An operator: by its function, else, and where that fails, by Python, which raises what the operator raises. */
static int call_any(Run *r, const int64_t **words) {
    const int64_t *w = *words;
    Function function = *w < 0 ? NULL : r->self->functions[*w];
    int which = w[1];
    int64_t n = w[2], given = w[3 + n];
    const int64_t *results = w + 3, *tensors = w + 4 + n, *numbers = r->numbers + tensors[given];
    int64_t count = tensors[given + 1];
    const int64_t *arguments = tensors + given + 2;
    *words = arguments + 2 * count;
    Tensor made[n + 1];
    memset(made, 0, sizeof made);
    if (UNLIKELY(!function || call_function(r, function, arguments, count, made))) {
        Tensor passed[given + 1];
        for (int64_t k = 0; k < n; ++k) host_drop(made[k]);
        memset(made, 0, sizeof made);
        for (int64_t k = 0; k < given; ++k) passed[k] = r->slot[tensors[k]];
        int status = host_operator(r->call, which, passed, numbers, made);
        if (status) {
            for (int64_t k = 0; k < n; ++k) host_drop(made[k]);
            return status;
        }
    }
    int status = 0;
    for (int64_t k = 0; k < n; ++k) {
        if (made[k]) put(r, results[k], made[k]);
        else if (results[k] >= 0 && !r->slot[results[k]]) status = OPERATOR_FAILED | (which + 1) << OPERATOR_SHIFT;
    }
    return status;
}

static int launch_kernel(Run *r, const int64_t **words) {
    const int64_t *w = *words;
    PyObject *kernel = PyTuple_GET_ITEM(r->self->kernels, w[0]);
    uint64_t programs = r->numbers[w[1]];
    int64_t addresses = w[2], sizes = w[3 + addresses];
    uint64_t values[addresses + sizes + 2];
    w += 3;
    for (int64_t k = 0; k < addresses; ++k, ++w)
        values[k] = (uint64_t)(*w < 0 ? r->memory[-1 - *w] : host_data(r->slot[*w]));
    ++w;
    for (int64_t k = 0; k < sizes; ++k, ++w) values[addresses + k] = r->numbers[*w];
    *words = w;
    return gpu.launch(kernel, r->stream, programs, values, &r->call->thread) ? OPERATOR_RAISED : 0;
}

static int new_memory(Run *r, int64_t place, int again, int64_t bytes) {
    if (!bytes || !gpu.allocate(bytes, &r->memory[place])) return 0;
    Tensor made = NULL;
    int status = host_operator(r->call, again, NULL, (long[]){bytes}, &made); /* raises why not */
    host_drop(made);
    return status ? status : gpu.allocate(bytes, &r->memory[place]) ? NO_MEMORY : 0;
}

static int walk(Run *r) {
    const int64_t *w = r->self->words, *numbers = r->numbers;
    int64_t number;
    Tensor made;
    for (;;) {
        int status = 0;
        made = NULL;
        switch ((enum Operation)*w++) {
        case END: return 0;
        case SIZE: r->numbers[w[0]] = host_sizes(r->slot[w[1]])[w[2]], w += 3; break;
        case STRIDE: r->numbers[w[0]] = host_strides(r->slot[w[1]])[w[2]], w += 3; break;
        case INTEGER: r->numbers[w[0]] = r->in[w[1]].integer, w += 2; break;
        case COMPUTE:
            if (compute(w + 2, w[1], numbers, &number)) return OPERATOR_FAILED;
            r->numbers[w[0]] = number;
            w += 2 + w[1];
            break;
        case NEW:
            if (torch.empty_strided(w[5], numbers + w[6], numbers + w[6] + w[5], w[1], w[2], w[3], &made))
                status = host_operator(r->call, w[4], NULL, (const long *)numbers + w[6], &made);
            put(r, w[0], made), w += 7;
            break;
        case ALLOCATE: status = new_memory(r, w[0], w[1], numbers[w[2]]), w += 3; break;
        case VIEW:
            status = host_view(r->slot[w[1]], w[2], numbers + w[3], numbers + w[3] + w[2], numbers[w[4]], &made);
            if (!status) put(r, w[0], made);
            else status = OPERATOR_FAILED;
            w += 5;
            break;
        case OVER:
            status = host_over(r->slot[w[1]], w[3], numbers + w[4], numbers + w[4] + w[3], w[2], &made);
            if (!status) put(r, w[0], made);
            else status = OPERATOR_FAILED;
            w += 5;
            break;
        case LAUNCH:
        case CALL:
            if (UNLIKELY(r->call->watched)) host_begin(r->call, r->node++);
            status = w[-1] == LAUNCH ? launch_kernel(r, &w) : call_any(r, &w);
            if (UNLIKELY(r->call->watched)) host_end(r->call);
            break;
        case SETTLE:
            if (host_settle(&r->slot[w[0]], w[1], w[2], numbers + w[3], numbers + w[3] + w[2]))
                status = RESULT_DIFFERS | (w[4] + 1) << OPERATOR_SHIFT;
            w += 5;
            break;
        case DROP:
            if (*w < r->inputs) host_done(r->call, r->in, *w);
            else put(r, *w, NULL);
            ++w;
            break;
        case RELEASE:
            if (r->memory[*w]) gpu.release(r->memory[*w]);
            r->memory[*w++] = NULL;
            break;
        case RESULT:
            r->out[w[0]].tensor = r->slot[w[1]];
            r->slot[w[1]] = NULL;
            w += 2;
            break;
        case INTEGER_RESULT: r->out[w[0]].integer = numbers[w[1]], w += 2; break;
        case INPUTS_WRITTEN: r->wrote = WROTE; break;
        }
        if (UNLIKELY(status)) return status | r->wrote;
    }
}

/* The entry of a program whose `library` is a Steps. */
static int run_steps(const Runtime *unused, Call *call, Value *in, Value *out) {
    Steps *self = (Steps *)call->program->library;
    Py_ssize_t inputs = PyBytes_GET_SIZE(call->program->inputs), given = inputs + PyTuple_GET_SIZE(call->program->constants);
    Tensor slot[self->slots + 1];
    void *memory[self->memories + 1];
    int64_t own[self->varies ? self->n_numbers + 1 : 1];
    Run run = {self, call, in, out, slot, memory, NULL, self->varies ? own : self->numbers, inputs, given, 0, 0};
    for (Py_ssize_t k = 0; k < given; ++k) slot[k] = in[k].tensor;
    memset(slot + given, 0, (self->slots - given) * sizeof(Tensor));
    memset(memory, 0, sizeof memory);
    if (self->varies) memcpy(own, self->numbers, self->n_numbers * sizeof(int64_t));
    int status = 0;
    if (PyTuple_GET_SIZE(self->kernels) && gpu.current_stream(-1, &run.stream)) status = OPERATOR_FAILED;
    if (!status) status = walk(&run);
    for (Py_ssize_t k = given; k < self->slots; ++k) host_drop(slot[k]);
    for (Py_ssize_t k = 0; k < self->memories; ++k)
        if (memory[k]) gpu.release(memory[k]);
    return status;
}

static void Steps_dealloc(Steps *self) {
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->kernels);
    PyMem_Free(self->words);
    PyMem_Free(self->numbers);
    PyMem_Free(self->functions);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int Steps_traverse(Steps *self, visitproc visit, void *arg) {
    Py_VISIT(self->kernels);
    return 0;
}

static int Steps_clear(Steps *self) {
    Py_CLEAR(self->kernels);
    return 0;
}

static void *copied(Py_buffer *given) {
    void *made = PyMem_Malloc(given->len + 1);
    if (made) memcpy(made, given->buf, given->len);
    else PyErr_NoMemory();
    return made;
}

static PyObject *Steps_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    Py_buffer words, numbers;
    Py_ssize_t slots, memories;
    PyObject *kernels, *functions;
    if (!PyArg_ParseTuple(args, "y*y*nnO!O!:Steps", &words, &numbers, &slots, &memories, &PyTuple_Type, &kernels, &PyTuple_Type,
                          &functions))
        return NULL;
    Steps *self = NULL;
    if (PyTuple_GET_SIZE(kernels) && !gpu.launch) PyErr_SetString(PyExc_RuntimeError, "init_gpu was not called");
    else self = (Steps *)type->tp_alloc(type, 0);
    if (self) {
        Py_ssize_t count = PyTuple_GET_SIZE(functions);
        self->kernels = Py_NewRef(kernels);
        self->words = copied(&words);
        self->numbers = copied(&numbers);
        self->functions = PyMem_Calloc(count + 1, sizeof(Function));
        if (!self->functions) PyErr_NoMemory();
        for (Py_ssize_t k = 0; k < count && self->functions; ++k) {
            void *address = PyLong_AsVoidPtr(PyTuple_GET_ITEM(functions, k));
            self->functions[k] = CALLS_ANY ? (Function)(uintptr_t)address : NULL;
        }
        self->n_numbers = numbers.len / sizeof(int64_t);
        self->slots = slots;
        self->memories = memories;
        self->varies = words.len > 0 && self->words && *self->words >= SIZE && *self->words <= COMPUTE;
        if (PyErr_Occurred()) Py_CLEAR(self);
    }
    PyBuffer_Release(&words);
    PyBuffer_Release(&numbers);
    return (PyObject *)self;
}

static PyTypeObject StepsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fuselens.runtime._program.Steps",
    .tp_doc = "Steps(words, numbers, slots, memories, kernels, functions): a host program as data, the library of a Program.",
    .tp_basicsize = sizeof(Steps),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Steps_new,
    .tp_traverse = (traverseproc)Steps_traverse,
    .tp_clear = (inquiry)Steps_clear,
    .tp_dealloc = (destructor)Steps_dealloc,
};

static PyObject *steps_entry(PyObject *module, PyObject *unused) { return PyLong_FromVoidPtr((void *)run_steps); }

static PyObject *init_gpu(PyObject *module, PyObject *functions) {
    if (!PyTuple_Check(functions) || PyTuple_GET_SIZE(functions) != N_GPU_FUNCTIONS) {
        PyErr_Format(PyExc_ValueError, "expected %d addresses", N_GPU_FUNCTIONS);
        return NULL;
    }
    for (int k = 0; k < N_GPU_FUNCTIONS; ++k) {
        void *address = PyLong_AsVoidPtr(PyTuple_GET_ITEM(functions, k));
        if (!address) return PyErr_Occurred() ? NULL : (PyErr_SetString(PyExc_ValueError, "a null address"), NULL);
        ((void **)&gpu)[k] = address;
    }
    Py_RETURN_NONE;
}
