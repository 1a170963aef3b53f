/* What the kernel refuses to a process that checks a program, whatever language the program uses.
 *
 *   enclose   Landlock: files are changed in some folders only, no TCP, no signals to others
 *   watch     a seccomp filter that asks a thread of ours about each system call with an effect
 *
 * Landlock says no without a word, and knows nothing of processes, modes, times and most sockets. The thread decides about
 * those as well, and notes what it refused: Python's main thread is sent SIGSYS before the call returns, and its handler
 * (__init__.py) finds the line. The thread has no Python state: who waits for it may hold the GIL. It was there before the
 * filter, which does not hold for it. Compilers that we start inherit both; the thread lets them do what Landlock allows.
 *
 * Where the kernel lacks one of the two the other serves, and elsewhere the audit hook alone.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifdef __x86_64__
#define ARCH AUDIT_ARCH_X86_64
#else
#define ARCH AUDIT_ARCH_AARCH64
#endif

/* ---------------------------------------------------------------------------------------------------------- Landlock */

/* Numbers of linux/landlock.h, which older systems lack. */
#define LANDLOCK_CREATE 444
#define LANDLOCK_ADD 445
#define LANDLOCK_RESTRICT 446
#define WRITE_FILE (1ull << 1)
#define REMOVE_AND_MAKE (((1ull << 13) - 1) & ~((1ull << 4) - 1)) /* all kinds of entries */
#define REFER (1ull << 13)
#define TRUNCATE (1ull << 14)

struct ruleset { uint64_t fs, net, scoped; };
struct beneath { uint64_t allowed; int32_t parent; } __attribute__((packed));

/* Ones that are not there are left out. */
static void allow_paths(int ruleset, PyObject *paths, uint64_t handled) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(paths); i++) {
        const char *path = PyBytes_AsString(PyTuple_GET_ITEM(paths, i));
        int fd = path ? open(path, O_PATH | O_CLOEXEC) : -1;
        struct stat status;
        if (fd >= 0 && fstat(fd, &status) == 0) {
            uint64_t of_files = WRITE_FILE | TRUNCATE;
            struct beneath rule = {S_ISDIR(status.st_mode) ? handled : handled & of_files, fd};
            syscall(LANDLOCK_ADD, ruleset, 1, &rule, 0);
        }
        if (fd >= 0)
            close(fd);
    }
}

static PyObject *enclose(PyObject *self, PyObject *paths) {
    if (!PyTuple_CheckExact(paths))
        return PyErr_Format(PyExc_TypeError, "enclose takes a tuple of bytes");
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    long abi = syscall(LANDLOCK_CREATE, NULL, 0, 1);
    if (abi < 2) /* ABI 1 forbids every rename from one folder to another, in which our own cache rests */
        return PyLong_FromLong(0);
    struct ruleset rules = {WRITE_FILE | REMOVE_AND_MAKE | REFER, 0, 0};
    rules.fs |= abi >= 3 ? TRUNCATE : 0;
    rules.net = abi >= 4 ? 3 : 0;    /* bind and connect */
    rules.scoped = abi >= 6 ? 3 : 0; /* abstract sockets and signals */
    size_t size = abi >= 6 ? sizeof rules : abi >= 4 ? 16 : 8;
    int ruleset = (int)syscall(LANDLOCK_CREATE, &rules, size, 0);
    if (ruleset < 0)
        return PyLong_FromLong(0);
    allow_paths(ruleset, paths, rules.fs);
    long done = syscall(LANDLOCK_RESTRICT, ruleset, 0);
    close(ruleset);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(done == 0 ? abi : 0);
}

/* ------------------------------------------------------------------------------------------------ which calls are asked about */

enum kind { WRITE, MAKE, DELETE, RENAME, LINK, CHANGE, PROCESS, SIGNAL, NETWORK, LOCAL };
static const char *const kind_names[] = {"write",   "make",   "delete", "rename",  "link",
                                         "change", "process", "signal", "network", "local"};
#define FD_ONLY (-1) /* in place of a path: the call is about the descriptor in `folder` */
#define HERE (-1)    /* in place of a folder's argument: the current one */

/* `folder` and `path` are the numbers of arguments; a rename has others in `folder2` and `path2`. */
static const struct call {
    int number;
    enum kind kind;
    int folder, path, follow, folder2, path2;
} calls[] = {
#ifdef __x86_64__
    {SYS_open, WRITE, HERE, 0, 1, 0, 0},     {SYS_creat, WRITE, HERE, 0, 1, 0, 0},
    {SYS_mkdir, MAKE, HERE, 0, 0, 0, 0},     {SYS_mknod, MAKE, HERE, 0, 0, 0, 0},
    {SYS_unlink, DELETE, HERE, 0, 0, 0, 0},  {SYS_rmdir, DELETE, HERE, 0, 0, 0, 0},
    {SYS_rename, RENAME, HERE, 0, 0, HERE, 1}, {SYS_link, LINK, HERE, 0, 0, HERE, 1},
    {SYS_symlink, MAKE, HERE, 1, 0, 0, 0},   {SYS_chmod, CHANGE, HERE, 0, 1, 0, 0},
    {SYS_chown, CHANGE, HERE, 0, 1, 0, 0},   {SYS_lchown, CHANGE, HERE, 0, 0, 0, 0},
    {SYS_utime, CHANGE, HERE, 0, 1, 0, 0},   {SYS_utimes, CHANGE, HERE, 0, 1, 0, 0},
    {SYS_futimesat, CHANGE, 0, 1, 1, 0, 0},  {SYS_renameat, RENAME, 0, 1, 0, 2, 3},
    {SYS_fork, PROCESS, 0, 0, 0, 0, 0},      {SYS_vfork, PROCESS, 0, 0, 0, 0, 0},
#endif
    {SYS_openat, WRITE, 0, 1, 1, 0, 0},      {SYS_openat2, WRITE, 0, 1, 1, 0, 0},
    {SYS_truncate, WRITE, HERE, 0, 1, 0, 0}, {SYS_mkdirat, MAKE, 0, 1, 0, 0, 0},
    {SYS_mknodat, MAKE, 0, 1, 0, 0, 0},      {SYS_unlinkat, DELETE, 0, 1, 0, 0, 0},
    {SYS_renameat2, RENAME, 0, 1, 0, 2, 3},  {SYS_linkat, LINK, 0, 1, 0, 2, 3},
    {SYS_symlinkat, MAKE, 1, 2, 0, 0, 0},    {SYS_fchmodat, CHANGE, 0, 1, 1, 0, 0},
    {452 /* fchmodat2 */, CHANGE, 0, 1, 1, 0, 0}, {SYS_fchownat, CHANGE, 0, 1, 1, 0, 0},
    {SYS_utimensat, CHANGE, 0, 1, 1, 0, 0},  {SYS_fchmod, CHANGE, 0, FD_ONLY, 0, 0, 0},
    {SYS_fchown, CHANGE, 0, FD_ONLY, 0, 0, 0}, {SYS_setxattr, CHANGE, HERE, 0, 1, 0, 0},
    {SYS_lsetxattr, CHANGE, HERE, 0, 0, 0, 0}, {SYS_fsetxattr, CHANGE, 0, FD_ONLY, 0, 0, 0},
    {SYS_removexattr, CHANGE, HERE, 0, 1, 0, 0}, {SYS_lremovexattr, CHANGE, HERE, 0, 0, 0, 0},
    {SYS_fremovexattr, CHANGE, 0, FD_ONLY, 0, 0, 0},
    {SYS_clone, PROCESS, 0, 0, 0, 0, 0},     {SYS_execve, PROCESS, 0, 0, 0, 0, 0},
    {SYS_execveat, PROCESS, 0, 0, 0, 0, 0},  {SYS_kill, SIGNAL, 0, 1, 0, 0, 0},
    {SYS_tkill, SIGNAL, 0, 1, 0, 0, 0},      {SYS_tgkill, SIGNAL, 0, 2, 0, 0, 0},
    {SYS_rt_sigqueueinfo, SIGNAL, 0, 1, 0, 0, 0}, {SYS_rt_tgsigqueueinfo, SIGNAL, 0, 2, 0, 0, 0},
    {SYS_pidfd_send_signal, SIGNAL, 0, 1, 0, 0, 0},
    {SYS_socket, NETWORK, 0, 0, 0, 0, 0},    {SYS_connect, LOCAL, 0, 0, 0, 0, 0},
    {SYS_bind, LOCAL, 0, 0, 0, 0, 0},        {SYS_sendto, LOCAL, 0, 0, 0, 0, 0},
    {SYS_sendmsg, LOCAL, 0, 0, 0, 0, 0},     {SYS_sendmmsg, LOCAL, 0, 0, 0, 0, 0},
};
#define N_CALLS ((int)(sizeof calls / sizeof *calls))

/* Never: ways around the filter, other processes' memory, and what only administrators do. */
static const int forbidden[] = {
    SYS_io_uring_setup, SYS_ptrace, SYS_process_vm_writev, SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_setns,
    SYS_unshare, SYS_bpf, SYS_kexec_load, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_reboot, SYS_swapon,
    SYS_swapoff, SYS_acct, SYS_quotactl, SYS_sethostname, SYS_setdomainname, SYS_settimeofday, SYS_clock_settime,
    SYS_adjtimex, SYS_clock_adjtime, SYS_fanotify_init, SYS_open_by_handle_at, SYS_userfaultfd, SYS_move_mount, SYS_fsopen,
};
#define N_FORBIDDEN ((int)(sizeof forbidden / sizeof *forbidden))

/* ------------------------------------------------------------------------------------------------------------ the filter */

#define MOST 600
#define WAIT_KILLABLE (1L << 5) /* SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV: signals come after the call */
#define CHANGES_FILE (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)
#define LOW(i) ((uint32_t)offsetof(struct seccomp_data, args[i]))
#define HIGH(i) (LOW(i) + 4)

static struct sock_filter program[MOST];
static int length;

static void put(uint16_t code, uint8_t yes, uint8_t no, uint32_t k) {
    if (length < MOST)
        program[length++] = (struct sock_filter){code, yes, no, k};
}
static void load(uint32_t offset) { put(BPF_LD | BPF_W | BPF_ABS, 0, 0, offset); }
static void give(uint32_t action) { put(BPF_RET | BPF_K, 0, 0, action); }
static void unless(uint16_t test, uint32_t k, int skipped) { put(BPF_JMP | test | BPF_K, 0, (uint8_t)skipped, k); }
static void when(uint16_t test, uint32_t k, int skipped) { put(BPF_JMP | test | BPF_K, (uint8_t)skipped, 0, k); }

/* For one system call: asks, but where an argument shows that there is no effect on anybody else. */
static void filter_call(const struct call *call, uint32_t own) {
    int at = length;
    unless(BPF_JEQ, (uint32_t)call->number, 0);
    int opens = -1;
#ifdef __x86_64__
    opens = call->number == SYS_open ? 1 : opens;
#endif
    opens = call->number == SYS_openat ? 2 : opens;
    if (opens >= 0) {
        load(LOW(opens));
        when(BPF_JSET, CHANGES_FILE, 1);
        give(SECCOMP_RET_ALLOW);
    } else if (call->number == SYS_clone) {
        load(LOW(0));
        unless(BPF_JSET, CLONE_THREAD, 1);
        give(SECCOMP_RET_ALLOW);
    } else if (call->number == SYS_socket) {
        load(LOW(0));
        unless(BPF_JEQ, AF_UNIX, 1);
        give(SECCOMP_RET_ALLOW);
    } else if (call->number == SYS_sendto) { /* on a connected socket */
        load(LOW(4));
        unless(BPF_JEQ, 0, 3);
        load(HIGH(4));
        unless(BPF_JEQ, 0, 1);
        give(SECCOMP_RET_ALLOW);
    } else if (call->kind == SIGNAL && call->number != SYS_tkill && call->number != SYS_pidfd_send_signal) {
        load(LOW(0));
        unless(BPF_JEQ, own, 1);
        give(SECCOMP_RET_ALLOW);
    }
    give(SECCOMP_RET_USER_NOTIF);
    program[at].jf = (uint8_t)(length - at - 1);
}

static void make_filter(void) {
    length = 0;
    load(offsetof(struct seccomp_data, arch));
    when(BPF_JEQ, ARCH, 1);
    give(SECCOMP_RET_ERRNO | EPERM);
    load(offsetof(struct seccomp_data, nr));
    unless(BPF_JGE, 0x40000000, 1); /* x32 */
    give(SECCOMP_RET_ERRNO | ENOSYS);
    unless(BPF_JEQ, 435, 1); /* clone3 has its flags in memory: C libraries use clone then */
    give(SECCOMP_RET_ERRNO | ENOSYS);
    for (int i = 0; i < N_CALLS; i++)
        filter_call(&calls[i], (uint32_t)getpid());
    for (int i = 0; i < N_FORBIDDEN; i++) {
        unless(BPF_JEQ, (uint32_t)forbidden[i], 1);
        give(SECCOMP_RET_ERRNO | EPERM);
    }
    give(SECCOMP_RET_ALLOW);
}

/* --------------------------------------------------------------------------------------------- what was refused, what is granted */

#define N_NOTES 16
static struct note {
    int thread;
    enum kind kind;
    char path[PATH_MAX], path2[PATH_MAX];
} notes[N_NOTES];
static int n_notes, n_taken; /* taken: Python looks at these */
static struct { int thread, kind; } grants[N_NOTES]; /* calls that our own code is about to make */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int main_thread;

static void note(int thread, enum kind kind, const char *path, const char *path2) {
    pthread_mutex_lock(&lock);
    if (n_notes < N_NOTES) {
        struct note *made = &notes[n_notes++];
        made->thread = thread, made->kind = kind;
        snprintf(made->path, sizeof made->path, "%s", path);
        snprintf(made->path2, sizeof made->path2, "%s", path2);
    }
    pthread_mutex_unlock(&lock);
    syscall(SYS_tgkill, getpid(), main_thread, SIGSYS);
    for (int tries = 0; thread != main_thread && tries < 200; tries++) { /* while it waits, its frames can be looked at */
        usleep(100);
        pthread_mutex_lock(&lock);
        int done = n_notes == 0;
        pthread_mutex_unlock(&lock);
        if (done)
            return;
    }
    if (thread != main_thread) /* it may have ended when it is asked for: its handler writes down where it is now */
        syscall(SYS_tgkill, getpid(), thread, SIGSTKFLT);
}

static int is_granted(int thread, enum kind kind) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < N_NOTES && !found; i++)
        if (grants[i].thread == thread && grants[i].kind == (int)kind)
            found = 1, grants[i].thread = 0;
    pthread_mutex_unlock(&lock);
    return found;
}

static PyObject *grant(PyObject *self, PyObject *name) {
    const char *text = PyUnicode_AsUTF8(name);
    if (text == NULL)
        return NULL;
    int kind = strcmp(text, "process") == 0 ? PROCESS : SIGNAL, thread = gettid(), at = -1;
    pthread_mutex_lock(&lock);
    for (int i = N_NOTES - 1; i >= 0; i--) {
        if (grants[i].thread == thread && grants[i].kind == kind) { /* several audit events may precede one call */
            at = i;
            break;
        }
        if (grants[i].thread == 0)
            at = i;
    }
    if (at >= 0)
        grants[at].thread = thread, grants[at].kind = kind;
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

static PyObject *refused(PyObject *self, PyObject *none) {
    static struct note taken[N_NOTES];
    pthread_mutex_lock(&lock);
    int n = n_notes - n_taken;
    memcpy(taken, notes + n_taken, sizeof(struct note) * (size_t)n);
    n_taken = n_notes;
    pthread_mutex_unlock(&lock);
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < n; i++) {
        PyObject *one = Py_BuildValue("(isyy)", taken[i].thread, kind_names[taken[i].kind], taken[i].path, taken[i].path2);
        if (one == NULL || PyList_Append(list, one) < 0)
            Py_CLEAR(list);
        Py_XDECREF(one);
    }
    return list;
}

static PyObject *looked(PyObject *self, PyObject *none) {
    pthread_mutex_lock(&lock);
    n_notes -= n_taken;
    memmove(notes, notes + n_taken, sizeof(struct note) * (size_t)n_notes);
    n_taken = 0;
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

/* -------------------------------------------------------------------------------------------------------------- the thread */

#define N_ROOTS 64
static char roots[N_ROOTS][PATH_MAX];
static int n_roots;
static atomic_int listener = -1;

/* Copies memory that may be gone; the number of bytes. */
static size_t peek(void *into, uint64_t address, size_t size) {
    struct iovec here = {into, size}, there = {(void *)(uintptr_t)address, size};
    ssize_t n = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    return n > 0 ? (size_t)n : 0;
}

static int peek_text(char into[PATH_MAX], uint64_t address) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 0;
    while (address != 0 && n < PATH_MAX) {
        size_t size = page - (size_t)((address + n) % page);
        size = peek(into + n, address + n, size < PATH_MAX - n ? size : PATH_MAX - n);
        if (size == 0)
            break;
        if (memchr(into + n, 0, size))
            return 1;
        n += size;
    }
    into[0] = 0;
    return 0;
}

static void path_of(int fd, char into[PATH_MAX]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, into, PATH_MAX - 1);
    into[n > 0 ? n : 0] = 0;
}

/* The real path of `path` as seen from `folder`, and whether there is something. */
static int resolve(int folder, const char *path, int follow, char into[PATH_MAX]) {
    if (!*path) {
        path_of(folder, into);
        return 1;
    }
    int fd = openat(folder, path, O_PATH | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW));
    if (fd >= 0) {
        path_of(fd, into);
        close(fd);
        return 1;
    }
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", path);
    size_t n = strlen(parent);
    while (n > 1 && parent[n - 1] == '/')
        parent[--n] = 0;
    char *slash = strrchr(parent, '/');
    const char *name = slash ? slash + 1 : parent, *base = slash == NULL ? "." : slash == parent ? "/" : parent;
    char kept[PATH_MAX];
    snprintf(kept, sizeof kept, "%s", name);
    if (slash)
        *slash = 0;
    struct stat status;
    int dangles = fstatat(folder, path, &status, AT_SYMLINK_NOFOLLOW) == 0; /* a link: where it leads to is not looked up */
    fd = dangles ? -1 : openat(folder, slash == NULL ? "." : base, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) { /* where a link leads that leads nowhere is not inside */
        snprintf(into, PATH_MAX, "%s%.4000s", dangles || path[0] != '/' ? "/?/" : "", path);
        return dangles;
    }
    path_of(fd, into);
    close(fd);
    n = strlen(into);
    snprintf(into + n, PATH_MAX - n, "%s%s", n && into[n - 1] == '/' ? "" : "/", kept);
    return 0;
}

static int is_inside(const char *path) {
    if (path[0] != '/') /* a pipe, a socket, memory */
        return 1;
    for (int i = 0; i < n_roots; i++) {
        size_t n = strlen(roots[i]);
        if (strncmp(path, roots[i], n) == 0 && (path[n] == 0 || path[n] == '/'))
            return 1;
    }
    return 0;
}

static int folder_of(const struct seccomp_data *data, int argument) {
    return argument == HERE ? AT_FDCWD : (int)data->args[argument];
}

/* An open for both, of what is there: readers do that, too, and then settle for less. It is refused, but not told. */
static int is_tentative(const struct seccomp_data *data) {
    int flags = 0;
    flags = data->nr == SYS_openat ? (int)data->args[2] : flags;
#ifdef __x86_64__
    flags = data->nr == SYS_open ? (int)data->args[1] : flags;
#endif
    return (flags & O_ACCMODE) == O_RDWR && !(flags & (O_TRUNC | O_EXCL | O_APPEND));
}

/* 0, or the error that the call gets. */
static int decide_about_files(const struct seccomp_data *data, const struct call *call, int thread) {
    static char given[PATH_MAX], path[PATH_MAX], path2[PATH_MAX];
    int flags_at = data->nr == SYS_fchownat ? 4 : data->nr == SYS_utimensat ? 3 : data->nr == 452 ? 3 : 0;
    int follow = call->follow && !(flags_at && (data->args[flags_at] & AT_SYMLINK_NOFOLLOW));
    given[0] = path2[0] = 0;
    if (call->path != FD_ONLY && !peek_text(given, data->args[call->path]) && data->args[call->path])
        return 0; /* no text: the kernel says what is wrong with it */
    int exists = resolve(folder_of(data, call->folder), given, follow, path);
    int inside = is_inside(path);
    int two = call->kind == RENAME || call->kind == LINK;
    if (two) {
        if (!peek_text(given, data->args[call->path2]))
            return 0;
        resolve(folder_of(data, call->folder2), given, 0, path2);
        inside = inside && is_inside(path2);
    }
    if (inside || (exists ? call->kind == MAKE : call->kind != WRITE && call->kind != MAKE))
        return 0; /* ours, or nothing can come of it */
    if (!(call->kind == WRITE && exists && is_tentative(data)))
        note(thread, call->kind, path, path2);
    return EACCES;
}

static int is_addressed(const struct seccomp_data *data) {
    struct msghdr header;
    if (data->nr != SYS_sendmsg && data->nr != SYS_sendmmsg)
        return 1;
    return peek(&header, data->args[1], sizeof header) != sizeof header || header.msg_name != NULL;
}

static int decide(const struct seccomp_data *data, int thread) {
    const struct call *call = calls;
    while (call < calls + N_CALLS && call->number != data->nr)
        call++;
    if (call == calls + N_CALLS)
        return EPERM;
    switch (call->kind) {
    case PROCESS:
        if (is_granted(thread, PROCESS))
            return 0;
        note(thread, PROCESS, "", "");
        return EPERM;
    case SIGNAL:
        if ((int)data->args[call->path] == 0 || is_granted(thread, SIGNAL))
            return 0;
        if (data->nr == SYS_tkill && syscall(SYS_tgkill, getpid(), (int)data->args[0], 0) == 0)
            return 0;
        char target[32];
        snprintf(target, sizeof target, "%d", (int)data->args[0]);
        note(thread, SIGNAL, target, "");
        return EPERM;
    case NETWORK:
        note(thread, NETWORK, "", "");
        return EPERM;
    case LOCAL: /* C libraries ask name services and write logs so, without need */
        return is_addressed(data) ? EACCES : 0;
    default:
        return decide_about_files(data, call, thread);
    }
}

static void *listen_to_calls(void *none) {
    int fd;
    while ((fd = atomic_load(&listener)) == -1)
        usleep(50);
    struct seccomp_notif request;
    while (fd >= 0) {
        memset(&request, 0, sizeof request);
        if (ioctl(fd, SECCOMP_IOCTL_NOTIF_RECV, &request) != 0) {
            if (errno == EINTR || errno == ENOENT)
                continue;
            break; /* closed by the program: the kernel refuses all that would be asked */
        }
        struct seccomp_notif_resp answer = {.id = request.id};
        int ours = syscall(SYS_tgkill, getpid(), (int)request.pid, 0) == 0;
        int error = ours ? decide(&request.data, (int)request.pid) : 0; /* compilers: Landlock holds for them */
        if (error)
            answer.error = -error;
        else
            answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        ioctl(fd, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
    return NULL;
}

static int start_thread(void) {
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &attributes, listen_to_calls, NULL);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !failed;
}

static PyObject *watch(PyObject *self, PyObject *paths) {
    if (!PyTuple_CheckExact(paths))
        return PyErr_Format(PyExc_TypeError, "watch takes a tuple of bytes");
    n_roots = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(paths) && n_roots < N_ROOTS; i++) {
        const char *path = PyBytes_AsString(PyTuple_GET_ITEM(paths, i));
        if (path == NULL)
            return NULL;
        snprintf(roots[n_roots++], PATH_MAX, "%s", path);
    }
    make_filter();
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (!start_thread())
        Py_RETURN_FALSE;
    main_thread = gettid();
    struct sock_fprog filter = {(unsigned short)length, program};
    long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    int fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags | WAIT_KILLABLE, &filter); /* closed on exec */
    if (fd < 0) /* before Linux 5.19: SIGSYS ends the call with EINTR */
        fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
    int high = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 900) : -1; /* programs close ranges of small numbers */
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    atomic_store(&listener, fd >= 0 ? fd : -2);
    return PyBool_FromLong(fd >= 0);
}

#else
static PyObject *enclose(PyObject *self, PyObject *paths) { return PyLong_FromLong(0); }
static PyObject *watch(PyObject *self, PyObject *paths) { Py_RETURN_FALSE; }
static PyObject *grant(PyObject *self, PyObject *name) { Py_RETURN_NONE; }
static PyObject *refused(PyObject *self, PyObject *none) { return PyList_New(0); }
static PyObject *looked(PyObject *self, PyObject *none) { Py_RETURN_NONE; }
#endif

static PyMethodDef methods[] = {
    {"enclose", enclose, METH_O, NULL},
    {"watch", watch, METH_O, NULL},
    {"grant", grant, METH_O, NULL},
    {"refused", refused, METH_NOARGS, NULL},
    {"looked", looked, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "fuselens.sandbox._wall", NULL, -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__wall(void) { return PyModule_Create(&module); }
