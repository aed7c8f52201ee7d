/* A thread that syncs as soon as it is told to, whoever runs Python meanwhile; see syncing.py.

   A thread of Python that is woken waits for the interpreter's lock before it can begin: as long as
   the one that has woken it goes on working. This one waits, and syncs, without the lock. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

enum { IDLE, ASKED, SYNCING, CLOSED };

typedef struct {
    PyObject_HEAD
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int state;
    int fd;
} Syncer;

static PyObject *
new_syncer(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Syncer *self = (Syncer *)type->tp_alloc(type, 0);
    if (self != NULL) {
        pthread_mutex_init(&self->mutex, NULL);
        pthread_cond_init(&self->changed, NULL);
        self->state = IDLE;
    }
    return (PyObject *)self;
}

static void
free_syncer(PyObject *self)
{
    pthread_cond_destroy(&((Syncer *)self)->changed);
    pthread_mutex_destroy(&((Syncer *)self)->mutex);
    Py_TYPE(self)->tp_free(self);
}

/* Changes the state, and says so, if it was another one; whether it was. */
static int
change(Syncer *self, int from, int to, int fd)
{
    pthread_mutex_lock(&self->mutex);
    int changed = from < 0 || self->state == from;
    if (changed) {
        self->state = to;
        self->fd = fd;
        pthread_cond_signal(&self->changed);
    }
    pthread_mutex_unlock(&self->mutex);
    return changed;
}

static PyObject *
ask(PyObject *self, PyObject *given)
{
    long fd = PyLong_AsLong(given);
    if (fd == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return PyBool_FromLong(change((Syncer *)self, IDLE, ASKED, (int)fd));
}

static PyObject *
finish(PyObject *self, PyObject *Py_UNUSED(none))
{
    change((Syncer *)self, -1, CLOSED, -1);
    Py_RETURN_NONE;
}

static PyObject *
serve(PyObject *given, PyObject *Py_UNUSED(none))
{
    Syncer *self = (Syncer *)given;
    int failed = 0, closed;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&self->mutex);
    while (self->state == IDLE || self->state == SYNCING) {
        pthread_cond_wait(&self->changed, &self->mutex);
    }
    closed = self->state == CLOSED;
    int fd = self->fd;
    if (!closed) {
        self->state = SYNCING;
    }
    pthread_mutex_unlock(&self->mutex);
    if (!closed) {
        do {
#if defined(__linux__)
            failed = fdatasync(fd) < 0 ? errno : 0;
#else
            failed = fsync(fd) < 0 ? errno : 0;
#endif
        } while (failed == EINTR);
        change(self, SYNCING, IDLE, -1);
    }
    Py_END_ALLOW_THREADS
    if (closed) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLong(failed);
}

static PyMethodDef methods[] = {
    {"ask", ask, METH_O, NULL},
    {"serve", serve, METH_NOARGS, NULL},
    {"finish", finish, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "penstock.node._syncing.Syncer",
    .tp_basicsize = sizeof(Syncer),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = new_syncer,
    .tp_dealloc = free_syncer,
    .tp_methods = methods,
};

static int
add_type(PyObject *module)
{
    return PyModule_AddType(module, &type);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_type}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_syncing", .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__syncing(void)
{
    return PyModuleDef_Init(&definition);
}
