/* In which order operations are run: cheap ones that fail first, within what each needs. A part of _hook.c, included there once. */

enum { LAST_GROUP, STATE_GROUP, CONSTANT_GROUP, FIRST_ROOT_GROUP };  /* while they are arranged; then the last is last */

/* Where an operation belongs: below one root when it reads nothing else and runs no Python. */
static int32_t group_of(const Op *op, const int32_t *group_of_slot) {
    switch (op->kind) {
    case ROOT_CONST: case ROOT_WEAK: return CONSTANT_GROUP;
    case GRAD_MODE: case STATE: return STATE_GROUP;
    case DICT_ITEM_SLOW: case MISSING_SLOW: case GETATTR: case APPLIED: case LENGTH: case CALL: case GLOBAL_CALL:
    case SHAPE:
        return LAST_GROUP;
    case EQUALS: case DICT_KEYS_ARE: return op->n ? group_of_slot[op->a] : LAST_GROUP;
    case SAME: return group_of_slot[op->a] == group_of_slot[op->n] ? group_of_slot[op->a] : LAST_GROUP;
    case DISTINCT:
        for (int64_t i = 1; i < op->n; i++)
            if (group_of_slot[op->u.slots[i]] != group_of_slot[op->u.slots[0]]) return LAST_GROUP;
        return op->n ? group_of_slot[op->u.slots[0]] : LAST_GROUP;
    default: return group_of_slot[op->a];
    }
}

/* Calls `visit` with each slot that an operation reads. */
#define FOR_EACH_READ(op, visit)                                                                                   \
    do {                                                                                                           \
        if ((op)->kind > ROOT_WEAK && (op)->a >= 0) visit((op)->a);                                                \
        if ((op)->kind == SAME) visit((op)->n);                                                                    \
        if ((op)->kind == DISTINCT)                                                                                \
            for (int64_t i_ = 0; i_ < (op)->n; i_++) visit((op)->u.slots[i_]);                                     \
        if ((op)->kind == SHAPE)                                                                                   \
            for (int i_ = 0; i_ < (op)->u.shape->n_vars; i_++) visit((op)->u.shape->vars[2 * i_]);                 \
    } while (0)

static inline int reads_dict(int kind) { return kind == DICT_ITEM || kind == MISSING || kind == DICT_KEYS_ARE; }

/* Chains the operations of a group that read the same dictionary. */
static void link_siblings(Guards *g, const Group *group) {
    int32_t *last = PyMem_Malloc((group->n_slots + 1) * sizeof *last);  /* by slot of the dictionary */
    if (last == NULL) return;  /* no chains: every change of a dictionary is then checked in full */
    for (int32_t k = 0; k < group->n_slots; k++) last[k] = -1;
    for (int32_t i = group->end_op - 1; i >= group->first_op; i--) {
        Op *op = &g->ops[i];
        int32_t slot = op->a - group->first_slot;
        if (!reads_dict(op->kind) || slot < 0 || slot >= group->n_slots) continue;  /* the last group reads all the others */
        op->sibling = last[slot];
        last[slot] = i;
    }
    PyMem_Free(last);
}

/* Sorts the operations by group and numbers the slots anew, group by group, exported ones first. */
static int arrange(Guards *g) {
    Py_ssize_t n_ops = g->n_ops, n_slots = g->n_values;
    int32_t n_groups = FIRST_ROOT_GROUP;
    for (Py_ssize_t i = 0; i < n_ops; i++) n_groups += g->ops[i].kind < ROOT_CONST;
    int32_t *scratch = PyMem_Calloc(n_ops + 3 * n_slots + 2 * n_groups, sizeof *scratch);
    int32_t *group_of_op = scratch, *group_of_slot = scratch + n_ops, *exported = group_of_slot + n_slots,
            *renumbered = exported + n_slots, *next[2] = {renumbered + n_slots, renumbered + n_slots + n_groups};
    Op *sorted = PyMem_Malloc((n_ops + 1) * sizeof *sorted);
    g->groups = PyMem_Calloc(n_groups, sizeof *g->groups);
    if (scratch == NULL || sorted == NULL || g->groups == NULL) {
        PyMem_Free(scratch);
        PyMem_Free(sorted);
        return PyErr_NoMemory(), -1;
    }
    int32_t root = FIRST_ROOT_GROUP;
    for (Py_ssize_t i = 0; i < n_ops; i++) {
        const Op *op = &g->ops[i];
        int32_t group = op->kind < ROOT_CONST ? root++ : group_of(op, group_of_slot);
        group_of_op[i] = group;
        if (op->slot >= 0) group_of_slot[op->slot] = group;
        g->groups[group_of_op[i]].end_op++;
#define EXPORT(slot) (exported[slot] |= group_of_slot[slot] != LAST_GROUP)
        if (group == LAST_GROUP) FOR_EACH_READ(op, EXPORT);
    }
    for (Py_ssize_t i = 0; i < g->n_gather; i++) EXPORT(g->gather_slots[i]);
    for (Py_ssize_t slot = 0; slot < n_slots; slot++) {
        Group *group = &g->groups[group_of_slot[slot]];
        group->n_slots++;
        group->n_exported += exported[slot];
    }
    for (int32_t k = 1, first_op = 0, first_slot = 0; k <= n_groups; k++) {
        Group *group = &g->groups[k % n_groups];
        int32_t size = group->end_op;
        group->first_op = group->end_op = first_op;
        group->first_slot = next[1][k % n_groups] = first_slot;
        next[0][k % n_groups] = first_slot + group->n_exported;
        group->steady = k < n_groups;
        group->credit = group->steady && k != STATE_GROUP && size >= LEAST_OPS ? 2 * MAX_SNAPSHOTS : 0;
        first_op += size;
        first_slot += group->n_slots;
    }
    for (Py_ssize_t i = 0; i < n_slots; i++) renumbered[i] = next[exported[i]][group_of_slot[i]]++;
    for (Py_ssize_t i = 0; i < n_ops; i++) {
        Op *op = &sorted[g->groups[group_of_op[i]].end_op++];
        *op = g->ops[i];
        if (op->slot >= 0) op->slot = renumbered[op->slot];
#define RENUMBER(slot) ((slot) = renumbered[slot])
        FOR_EACH_READ(op, RENUMBER);
    }
    for (Py_ssize_t i = 0; i < g->n_gather; i++) RENUMBER(g->gather_slots[i]);
    PyMem_Free(g->ops);
    PyMem_Free(scratch);
    g->ops = sorted;
    Group last = g->groups[LAST_GROUP];
    for (int32_t k = 1; k < n_groups; k++)
        if (g->groups[k].end_op > g->groups[k].first_op) g->groups[g->n_groups++] = g->groups[k];
    if (last.end_op > last.first_op) g->groups[g->n_groups++] = last;
    for (int32_t k = 0; k < g->n_groups; k++) link_siblings(g, &g->groups[k]);
    return 0;
}

/* Moves what has failed to the front, with what it reads: within its group, and the group before the others. The last
 * group may run Python and rely on what was checked before: there everything stays. */
static void promote(Guards *g, int32_t at, const Op *failed) {
    Group group = g->groups[at];
    Op *ops = g->ops + group.first_op, *sorted;
    int32_t n = group.end_op - group.first_op, n_wanted = 0, place = 0;
    char *wanted;  /* by slot of the group, then by operation */
    if (!group.steady || (wanted = PyMem_Calloc(group.n_slots + n, 1)) == NULL) return;
    if ((sorted = PyMem_Malloc(n * sizeof *sorted)) == NULL) return PyMem_Free(wanted);
    for (int32_t i = (int32_t)(failed - ops); i >= 0; i--) {
        const Op *op = &ops[i];
        if (op != failed && (op->slot < 0 || !wanted[op->slot - group.first_slot])) continue;
        wanted[group.n_slots + i] = 1;
        n_wanted++;
#define WANT(slot) (wanted[(slot) - group.first_slot] = 1)
        FOR_EACH_READ(op, WANT);
    }
    if (failed != &ops[n_wanted - 1]) {
        for (int32_t want = 1; want >= 0; want--)
            for (int32_t i = 0; i < n; i++)
                if (wanted[group.n_slots + i] == want) sorted[place++] = ops[i];
        memcpy(ops, sorted, n * sizeof *ops);
        group_forget(&group);
        link_siblings(g, &group);
    }
    memmove(g->groups + 1, g->groups, at * sizeof group);
    g->groups[0] = group;
    PyMem_Free(wanted);
    PyMem_Free(sorted);
}
