/* From what Python says to the flat program of operations. A part of _hook.c, included there once. */

typedef struct {
    Guards *guards;
    int32_t *slot_of_node;  /* -1: not resolved yet */
    Py_ssize_t n_nodes, capacity;
} Builder;

static Op *emit(Builder *b, int kind, int32_t a, Py_ssize_t check) {
    Guards *g = b->guards;
    if (g->n_ops == b->capacity) {
        Py_ssize_t capacity = b->capacity ? 2 * b->capacity : 32;
        Op *ops = PyMem_Realloc(g->ops, capacity * sizeof *ops);
        if (ops == NULL) return (Op *)PyErr_NoMemory();
        g->ops = ops;
        b->capacity = capacity;
    }
    Op *op = &g->ops[g->n_ops++];
    memset(op, 0, sizeof *op);
    op->kind = (uint8_t)kind;
    op->a = a;
    op->slot = op->sibling = -1;
    op->check = (int32_t)check;
    return op;
}

/* Reads the first two integers of a node or check tuple. */
static int read_head(PyObject *item, const char *what, Py_ssize_t at, int size_least, long *first, long *kind) {
    if (PyTuple_GET_SIZE(item) < size_least) {
        PyErr_Format(PyExc_ValueError, "%s %zd: expected at least %d fields, got %R", what, at, size_least, item);
        return -1;
    }
    *first = PyLong_AsLong(PyTuple_GET_ITEM(item, 0));
    *kind = PyLong_AsLong(PyTuple_GET_ITEM(item, 1));
    return PyErr_Occurred() ? -1 : 0;
}

/* Emits what resolves a node, parents first, unless done already. Returns its slot, -1 on error. */
static int32_t resolve(Builder *b, long node, Py_ssize_t check) {
    if (node < 0 || node >= b->n_nodes) {
        PyErr_Format(PyExc_ValueError, "guard program refers to node %ld of %zd", node, b->n_nodes);
        return -1;
    }
    if (b->slot_of_node[node] >= 0) return b->slot_of_node[node];
    PyObject *item = PyTuple_GET_ITEM(b->guards->nodes, node);
    long parent, kind;
    if (read_head(item, "node", node, 3, &parent, &kind) < 0) return -1;
    if (kind < 0 || kind >= FIRST_CHECK) {
        PyErr_Format(PyExc_ValueError, "node %ld has unknown kind %ld", node, kind);
        return -1;
    }
    int32_t parent_slot = -1;
    if (kind > ROOT_WEAK) {
        if (parent < 0 || parent >= node) {
            PyErr_Format(PyExc_ValueError, "node %ld has parent %ld; a parent comes before its children", node, parent);
            return -1;
        }
        if (Py_EnterRecursiveCall(" while building guards")) return -1;
        parent_slot = resolve(b, parent, check);
        Py_LeaveRecursiveCall();
        if (parent_slot < 0) return -1;
    }
    Op *op = emit(b, (int)kind, parent_slot, check);
    if (op == NULL) return -1;
    PyObject *key = op->object = PyTuple_GET_ITEM(item, 2);
    switch (kind) {
    case ROOT_LOCAL: case ROOT_CLOSURE: case SEQ_ITEM:
        op->n = PyLong_AsLongLong(key);
        if (PyErr_Occurred()) return -1;
        if (op->n < 0) {
            PyErr_Format(PyExc_ValueError, "node %ld: index %R is negative", node, key);
            return -1;
        }
        if (kind == ROOT_LOCAL && op->n > b->guards->max_local) b->guards->max_local = op->n;
        break;
    case ROOT_WEAK:
        if (!PyWeakref_Check(key)) {
            PyErr_Format(PyExc_TypeError, "node %ld: ROOT_WEAK needs a weak reference, got %R", node, key);
            return -1;
        }
        break;
    case DICT_ITEM:
        op->u.hash = PyObject_Hash(key);
        if (op->u.hash == -1) return -1;
        if (!PyUnicode_CheckExact(key)) op->kind = DICT_ITEM_SLOW;
        break;
    case GETATTR:
        if (!PyUnicode_Check(key)) {
            PyErr_Format(PyExc_TypeError, "node %ld: an attribute name is a string, got %R", node, key);
            return -1;
        }
        break;
    case APPLIED:
        if (!PyCallable_Check(key)) {
            PyErr_Format(PyExc_TypeError, "node %ld: %R is not callable", node, key);
            return -1;
        }
        break;
    default: break;
    }
    return b->slot_of_node[node] = op->slot = (int32_t)b->guards->n_values++;
}

/* None stands for "any". */
static int read_extents(PyObject *tuple, int64_t *out, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i);
        out[i] = item == Py_None ? ANY_SIZE : PyLong_AsLongLong(item);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static TensorSpec *read_tensor_spec(PyObject *operand) {
    PyObject *type, *sizes, *strides;
    int dtype, device_type, device_index, requires_grad;
    unsigned long long keyset = 0;
    if (!PyTuple_Check(operand)) {
        PyErr_SetString(PyExc_TypeError, "TENSOR needs a tuple, as tensor_layout.spec makes them");
        return NULL;
    }
    if (!PyArg_ParseTuple(operand, "O!iiiiOOK:TENSOR", &PyType_Type, &type, &dtype, &device_type, &device_index,
                          &requires_grad, &sizes, &strides, &keyset)) return NULL;
    if ((sizes != Py_None && !PyTuple_Check(sizes)) || (strides != Py_None && !PyTuple_Check(strides)) ||
        (strides != Py_None && (sizes == Py_None || PyTuple_GET_SIZE(sizes) != PyTuple_GET_SIZE(strides)))) {
        PyErr_SetString(PyExc_ValueError, "TENSOR: sizes and strides are tuples of one length, or None");
        return NULL;
    }
    Py_ssize_t n = sizes == Py_None ? 0 : PyTuple_GET_SIZE(sizes);
    TensorSpec *s = PyMem_Calloc(1, sizeof *s + 2 * n * sizeof(int64_t));
    if (s == NULL) return (TensorSpec *)PyErr_NoMemory();
    s->type = (PyTypeObject *)type;
    s->source = operand;
    s->keyset = keyset;
    s->dtype = dtype;
    s->device_type = device_type;
    s->device_index = device_index;
    s->requires_grad = (int8_t)requires_grad;
    s->ndim = sizes == Py_None ? -1 : (int32_t)n;
    if (sizes != Py_None && read_extents(sizes, s->sizes, n) < 0) goto error;
    if (strides != Py_None) {
        s->strides = s->sizes + n;
        if (read_extents(strides, s->strides, n) < 0) goto error;
    }
    return s;
error:
    PyMem_Free(s);
    return NULL;
}

/* ((node, dim), ...), ((operation, operand), ...) */
static ShapeProgram *read_shape_program(Builder *b, PyObject *vars, PyObject *steps, Py_ssize_t check) {
    if (!PyTuple_Check(vars) || !PyTuple_Check(steps) || PyTuple_GET_SIZE(vars) > MAX_SHAPE_VARS) {
        PyErr_Format(PyExc_ValueError, "SHAPE needs tuples, with at most %d variables", MAX_SHAPE_VARS);
        return NULL;
    }
    Py_ssize_t n_vars = PyTuple_GET_SIZE(vars), n_steps = PyTuple_GET_SIZE(steps);
    ShapeProgram *p = PyMem_Calloc(1, sizeof *p + 2 * n_steps * sizeof(int64_t) + 2 * n_vars * sizeof(int32_t));
    if (p == NULL) return (ShapeProgram *)PyErr_NoMemory();
    p->n_vars = (int)n_vars;
    p->n_steps = (int)n_steps;
    p->steps = (int64_t *)(p + 1);
    p->vars = (int32_t *)(p->steps + 2 * n_steps);
    for (Py_ssize_t i = 0; i < n_vars; i++) {
        int node, dim;
        if (!PyTuple_Check(PyTuple_GET_ITEM(vars, i)) || !PyArg_ParseTuple(PyTuple_GET_ITEM(vars, i), "ii", &node, &dim))
            goto error;
        if ((p->vars[2 * i] = resolve(b, node, check)) < 0) goto error;
        p->vars[2 * i + 1] = dim;
        int checked = dim == -1;
        for (Py_ssize_t k = 0; k < b->guards->n_ops && !checked; k++)
            checked = b->guards->ops[k].kind == TENSOR && b->guards->ops[k].a == p->vars[2 * i];
        if (!checked) {
            PyErr_Format(PyExc_ValueError, "SHAPE reads node %d before a TENSOR check of it", node);
            goto error;
        }
    }
    int depth = 0;
    for (Py_ssize_t i = 0; i < n_steps; i++) {
        long long op, operand;
        if (!PyTuple_Check(PyTuple_GET_ITEM(steps, i)) ||
            !PyArg_ParseTuple(PyTuple_GET_ITEM(steps, i), "LL", &op, &operand)) goto error;
        depth += op == S_CONST || op == S_VAR ? 1 : op == S_NOT ? 0 : -1;
        if (op < 0 || op >= N_SHAPE_OPERATIONS || depth < 1 || depth > MAX_SHAPE_STACK ||
            (op == S_VAR && (operand < 0 || operand >= n_vars))) {
            PyErr_Format(PyExc_ValueError, "SHAPE: step %zd of the program is not well formed", i);
            goto error;
        }
        p->steps[2 * i] = op;
        p->steps[2 * i + 1] = operand;
    }
    if (depth != 1) {
        PyErr_SetString(PyExc_ValueError, "SHAPE: the program must leave one value");
        goto error;
    }
    return p;
error:
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "SHAPE: expected pairs of integers");
    PyMem_Free(p);
    return NULL;
}

static int build_check(Builder *b, Py_ssize_t at) {
    PyObject *item = PyTuple_GET_ITEM(b->guards->checks, at);
    long node, kind;
    if (read_head(item, "check", at, 3, &node, &kind) < 0) return -1;
    if (kind < FIRST_CHECK || kind > SHAPE) {
        PyErr_Format(PyExc_ValueError, "check %zd has unknown kind %ld", at, kind);
        return -1;
    }
    PyObject *operand = PyTuple_GET_ITEM(item, 2);
    int32_t slot = -1, *slots = NULL;
    int64_t n = 0;
    TensorSpec *tensor = NULL;
    ShapeProgram *shape = NULL;
    Py_hash_t hash = 0;
    int uses_node = kind != GRAD_MODE && kind != GLOBAL_CALL && kind != STATE && kind != DISTINCT && kind != SHAPE;
    if (uses_node && (slot = resolve(b, node, at)) < 0) return -1;

    switch (kind) {
    case TYPE_IS:
        if (!PyType_Check(operand)) {
            PyErr_Format(PyExc_TypeError, "check %zd: TYPE_IS needs a type, got %R", at, operand);
            return -1;
        }
        break;
    case IS: if (PyWeakref_CheckRef(operand)) kind = IS_WEAK; break;
    case ID_IS: n = (int64_t)(intptr_t)PyLong_AsVoidPtr(operand); break;
    case EQUALS: n = compares_quietly(operand); break;
    case LENGTH_IS: n = PyLong_AsLongLong(operand); break;
    case DICT_KEYS_ARE:
        if (!PyTuple_Check(operand)) {
            PyErr_Format(PyExc_TypeError, "check %zd: DICT_KEYS_ARE needs a tuple, got %R", at, operand);
            return -1;
        }
        n = compares_quietly(operand);
        break;
    case MISSING:
        if ((hash = PyObject_Hash(operand)) == -1) return -1;
        if (!PyUnicode_CheckExact(operand)) kind = MISSING_SLOW;
        break;
    case TENSOR: if ((tensor = read_tensor_spec(operand)) == NULL) return -1; break;
    case GRAD_MODE: n = PyObject_IsTrue(operand); break;
    case CALL: case GLOBAL_CALL:
        if (!PyCallable_Check(operand)) {
            PyErr_Format(PyExc_TypeError, "check %zd: %R is not callable", at, operand);
            return -1;
        }
        break;
    case STATE:
        if (!PyTuple_Check(operand) || PyTuple_GET_SIZE(operand) != 2 || !PyCFunction_Check(PyTuple_GET_ITEM(operand, 0))) {
            PyErr_Format(PyExc_TypeError, "check %zd: STATE needs a builtin function and what it returns", at);
            return -1;
        }
        n = compares_quietly(PyTuple_GET_ITEM(operand, 1));
        break;
    case SAME: n = resolve(b, PyLong_AsLong(operand), at); break;
    case DISTINCT:
        if (!PyTuple_Check(operand)) {
            PyErr_Format(PyExc_TypeError, "check %zd: DISTINCT needs a tuple of nodes, got %R", at, operand);
            return -1;
        }
        n = PyTuple_GET_SIZE(operand);
        if ((slots = PyMem_Malloc((n + 1) * sizeof *slots)) == NULL) return PyErr_NoMemory(), -1;
        for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++)
            slots[i] = resolve(b, PyLong_AsLong(PyTuple_GET_ITEM(operand, i)), at);
        break;
    case SHAPE:
        if (PyTuple_GET_SIZE(item) != 4) {
            PyErr_Format(PyExc_ValueError, "check %zd: SHAPE has two operands, variables and program", at);
            return -1;
        }
        if ((shape = read_shape_program(b, operand, PyTuple_GET_ITEM(item, 3), at)) == NULL) return -1;
        break;
    default: break;
    }
    Op *op = PyErr_Occurred() ? NULL : emit(b, (int)kind, slot, at);
    if (op == NULL) {
        PyMem_Free(slots);
        PyMem_Free(tensor);
        PyMem_Free(shape);
        return -1;
    }
    op->n = n;
    op->object = operand;
    if (tensor) op->u.tensor = tensor;
    else if (slots) op->u.slots = slots;
    else if (shape) op->u.shape = shape;
    else op->u.hash = hash;
    return 0;
}

/* A tuple whose items are tuples. */
static PyObject *tuple_of_tuples(PyObject *sequence) {
    PyObject *outer = PySequence_List(sequence);
    if (outer == NULL) return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(outer); i++) {
        PyObject *inner = PySequence_Tuple(PyList_GET_ITEM(outer, i));
        if (inner == NULL) {
            Py_DECREF(outer);
            return NULL;
        }
        PyList_SetItem(outer, i, inner);
    }
    PyObject *result = PyList_AsTuple(outer);
    Py_DECREF(outer);
    return result;
}

static PyObject *Guards_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"nodes", "checks", "gather", NULL};
    PyObject *nodes, *checks, *gather = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:Guards", names, &nodes, &checks, &gather)) return NULL;
    Guards *g = (Guards *)type->tp_alloc(type, 0);
    if (g == NULL) return NULL;
    g->max_local = -1;
    Builder b = {.guards = g};
    if ((g->nodes = tuple_of_tuples(nodes)) == NULL || (g->checks = tuple_of_tuples(checks)) == NULL ||
        (g->gather = gather ? PySequence_Tuple(gather) : PyTuple_New(0)) == NULL) goto error;
    b.n_nodes = PyTuple_GET_SIZE(g->nodes);
    b.slot_of_node = PyMem_Malloc((b.n_nodes + 1) * sizeof *b.slot_of_node);
    g->n_gather = PyTuple_GET_SIZE(g->gather);
    g->gather_slots = PyMem_Malloc((g->n_gather + 1) * sizeof *g->gather_slots);
    if (b.slot_of_node == NULL || g->gather_slots == NULL) {
        PyErr_NoMemory();
        goto error;
    }
    for (Py_ssize_t i = 0; i < b.n_nodes; i++) b.slot_of_node[i] = -1;
    Py_ssize_t n_checks = PyTuple_GET_SIZE(g->checks);
    for (Py_ssize_t i = 0; i < n_checks; i++)
        if (build_check(&b, i) < 0) goto error;
    for (Py_ssize_t i = 0; i < g->n_gather; i++) {
        long node = PyLong_AsLong(PyTuple_GET_ITEM(g->gather, i));
        if (PyErr_Occurred() || (g->gather_slots[i] = resolve(&b, node, n_checks + i)) < 0) goto error;
    }
    if (arrange(g) < 0) goto error;
    PyMem_Free(b.slot_of_node);
    return (PyObject *)g;
error:
    PyMem_Free(b.slot_of_node);
    Py_DECREF(g);
    return NULL;
}

static int Guards_traverse(Guards *g, visitproc visit, void *arg) {
    Py_VISIT(g->nodes);
    Py_VISIT(g->checks);
    Py_VISIT(g->gather);
    return 0;
}

static void guards_free_program(Guards *g) {
    for (Py_ssize_t i = 0; i < g->n_ops; i++)
        switch (g->ops[i].kind) {
        case TENSOR: PyMem_Free(g->ops[i].u.tensor); break;
        case DISTINCT: PyMem_Free(g->ops[i].u.slots); break;
        case SHAPE: PyMem_Free(g->ops[i].u.shape); break;
        default: break;
        }
    for (Py_ssize_t i = 0; i < g->n_groups; i++) group_forget(&g->groups[i]);
    PyMem_Free(g->ops);
    PyMem_Free(g->groups);
    PyMem_Free(g->gather_slots);
    g->ops = NULL;
    g->groups = NULL;
    g->gather_slots = NULL;
    g->n_ops = g->n_groups = g->n_gather = 0;
}

static int Guards_clear(Guards *g) {
    /* Only unreachable guards are cleared, so no run is under way; a finaliser may still start one, and must fail. */
    g->broken = 1;
    guards_free_program(g);
    Py_CLEAR(g->nodes);
    Py_CLEAR(g->checks);
    Py_CLEAR(g->gather);
    return 0;
}

static void Guards_dealloc(Guards *g) {
    PyObject_GC_UnTrack(g);
    Guards_clear(g);
    Py_TYPE(g)->tp_free((PyObject *)g);
}

static PyObject *Guards_check(Guards *g, PyObject *const *args, Py_ssize_t n) {
    if (n != 2 || !PyFunction_Check(args[0]) || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "check(func, locals): a Python function and the tuple of its bound arguments");
        return NULL;
    }
    if (g->max_local >= PyTuple_GET_SIZE(args[1])) {
        PyErr_Format(PyExc_IndexError, "the guards read local %zd, only %zd are given", g->max_local, PyTuple_GET_SIZE(args[1]));
        return NULL;
    }
    int failed;
    PyObject *gathered;
    int passed = guards_run(g, (PyFunctionObject *)args[0], &PyTuple_GET_ITEM(args[1], 0), &failed, &gathered);
    return Py_BuildValue("(OiN)", passed ? Py_True : Py_False, failed, gathered ? gathered : Py_NewRef(Py_None));
}

static double now_ns(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* The whole program many times over, gathering included, as the evaluator runs it. */
static PyObject *Guards_time(Guards *g, PyObject *const *args, Py_ssize_t n) {
    Py_ssize_t repeats = n == 3 ? PyLong_AsSsize_t(args[2]) : -1;
    if (repeats <= 0 || !PyFunction_Check(args[0]) || !PyTuple_Check(args[1]) || g->max_local >= PyTuple_GET_SIZE(args[1])) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "time(func, locals, repeats), as for check");
        return NULL;
    }
    double start = now_ns();
    for (Py_ssize_t k = 0; k < repeats; k++) {
        int failed;
        PyObject *gathered;
        if (!guards_run(g, (PyFunctionObject *)args[0], &PyTuple_GET_ITEM(args[1], 0), &failed, &gathered)) Py_RETURN_NONE;
        Py_XDECREF(gathered);
    }
    return PyFloat_FromDouble((now_ns() - start) / (double)repeats);
}

/* Runs each operation many times over; what finds an object counts towards the check that first needed it. */
static PyObject *Guards_costs(Guards *g, PyObject *const *args, Py_ssize_t n) {
    Py_ssize_t n_checks = PyTuple_GET_SIZE(g->checks), repeats = n == 3 ? PyLong_AsSsize_t(args[2]) : -1;
    if (repeats <= 0 || !PyFunction_Check(args[0]) || !PyTuple_Check(args[1]) || g->max_local >= PyTuple_GET_SIZE(args[1])) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "costs(func, locals, repeats), as for check");
        return NULL;
    }
    Run r = {.func = (PyFunctionObject *)args[0], .locals = &PyTuple_GET_ITEM(args[1], 0)};
    r.values = PyMem_Calloc(g->n_values + 1, sizeof *r.values);
    double *costs = PyMem_Calloc(n_checks + 1, sizeof *costs);
    const Op *failed = NULL;
    if (r.values == NULL || costs == NULL) {
        PyMem_Free(r.values);
        PyMem_Free(costs);
        return PyErr_NoMemory();
    }
    g->running++;
    for (; failed == NULL && r.group < g->n_groups; r.group++)
        for (int32_t i = g->groups[r.group].first_op; failed == NULL && i < g->groups[r.group].end_op; i++) {
            const Op *op = &g->ops[i];
            double start = now_ns();
            for (Py_ssize_t k = 0; k < repeats && failed == NULL; k++) {
                if (r.held && op->slot >= 0) Py_CLEAR(r.values[op->slot]);
                failed = run_ops(g, &r, op, op + 1);
            }
            if (op->check < n_checks) costs[op->check] += (now_ns() - start) / (double)repeats;
        }
    r.group--;
    PyErr_Clear();
    if (r.held) release(g, &r);
    g->running--;
    PyObject *list = failed == NULL ? PyList_New(n_checks) : Py_NewRef(Py_None);
    for (Py_ssize_t i = 0; failed == NULL && list != NULL && i < n_checks; i++) {
        PyObject *cost = PyFloat_FromDouble(costs[i]);
        if (cost == NULL) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, cost);
    }
    PyMem_Free(r.values);
    PyMem_Free(costs);
    return list;
}

static PyMethodDef Guards_methods[] = {
    {"check", (PyCFunction)(void (*)(void))Guards_check, METH_FASTCALL,
     "check(func, locals) -> (passed, index of the failed check or -1, gathered tuple or None)"},
    {"costs", (PyCFunction)(void (*)(void))Guards_costs, METH_FASTCALL,
     "costs(func, locals, repeats) -> ns of each check, or None when one fails"},
    {"time", (PyCFunction)(void (*)(void))Guards_time, METH_FASTCALL,
     "time(func, locals, repeats) -> ns of one evaluation, gathering included, or None when it fails"},
    {NULL}};
static PyMemberDef Guards_members[] = {{"nodes", T_OBJECT, offsetof(Guards, nodes), READONLY},
                                       {"checks", T_OBJECT, offsetof(Guards, checks), READONLY},
                                       {"gather", T_OBJECT, offsetof(Guards, gather), READONLY},
                                       {NULL}};
static PyTypeObject GuardsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fuselens.capture.hook._hook.Guards",
    .tp_doc = "Guards(nodes, checks, gather=()): a compiled guard program.",
    .tp_basicsize = sizeof(Guards),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Guards_new,
    .tp_dealloc = (destructor)Guards_dealloc,
    .tp_traverse = (traverseproc)Guards_traverse,
    .tp_clear = (inquiry)Guards_clear,
    .tp_methods = Guards_methods,
    .tp_members = Guards_members,
};
