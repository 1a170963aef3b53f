/* One pass over the operations: resolve, check, gather. A part of _hook.c, included there once. */

/* Runs the program. 1: passes, *gathered is a new tuple (NULL when nothing is gathered); 0: *failed_check tells
 * which. Never leaves an error set. */
static __attribute__((noinline)) int guards_run(Guards *g, PyFunctionObject *func, PyObject *const *locals,
                                                int *failed_check, PyObject **gathered) {
    PyObject *small[128];
    Run r = {.func = func, .locals = locals, .values = small};
    const Op *failed = NULL;
    int passed = 0;
    *gathered = NULL;
    *failed_check = -1;
    if (UNLIKELY(g->broken)) return 0;
    if (g->n_values > 128 && (r.values = PyMem_Malloc(g->n_values * sizeof *r.values)) == NULL) return 0;
    g->running++;
    for (; r.group < g->n_groups; r.group++) {
        Group *group = &g->groups[r.group];
        if (group->n_snapshots > 0 && !r.held && r.group < 64 && snapshot_passes(g, group, &r)) {
            r.hits |= 1ull << r.group;
            continue;
        }
        memset(r.values + group->first_slot, 0, group->n_slots * sizeof *r.values);
        failed = run_ops(g, &r, &g->ops[group->first_op], &g->ops[group->end_op]);
        if (UNLIKELY(failed != NULL)) {
            *failed_check = failed->check;
            goto out;
        }
        if (UNLIKELY(group->credit > 0) && !r.held && r.group < 64) snapshot_take(g, group, r.values);
    }
    r.group--;
    if (g->n_gather) {
        PyObject *tuple = PyTuple_New(g->n_gather);
        if (tuple == NULL) goto out;
        for (Py_ssize_t i = 0; i < g->n_gather; i++) PyTuple_SET_ITEM(tuple, i, Py_NewRef(r.values[g->gather_slots[i]]));
        *gathered = tuple;
    }
    passed = 1;
out:
    if (UNLIKELY(!passed)) PyErr_Clear();
    if (r.held) release(g, &r);
    if (--g->running == 0 && UNLIKELY(failed != NULL)) promote(g, r.group, failed);
    if (r.values != small) PyMem_Free(r.values);
    return passed;
}
