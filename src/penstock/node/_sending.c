/* Sending from another thread than the one that runs the event loop.

   sending.py states what is promised. The GIL is held throughout, and no Python code runs between
   the look at the transport and the system call: the loop, which needs the GIL to begin a write,
   cannot begin one in between. What it has begun before is seen by the size of its buffer, which is
   0 only when all of it has been given to the kernel. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <sys/socket.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

/* Whether the call of a method without arguments gives 0 or False; an error counts as not. */
static int
is_zero(PyObject *object, const char *method)
{
    PyObject *found = PyObject_CallMethod(object, method, NULL);
    if (found == NULL) {
        PyErr_Clear();
        return 0;
    }
    int truth = PyObject_IsTrue(found);
    Py_DECREF(found);
    if (truth < 0) {
        PyErr_Clear();
    }
    return truth == 0;
}

static PyObject *
send_alone(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *transport;
    int fd;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "Oiy*", &transport, &fd, &data)) {
        return NULL;
    }
    Py_ssize_t sent = 0;
    if (is_zero(transport, "is_closing") && is_zero(transport, "get_write_buffer_size")) {
        sent = send(fd, data.buf, (size_t)data.len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (0 < sent && sent < data.len) {
            shutdown(fd, SHUT_RDWR); /* nothing can follow half a frame; nor does it, after this */
        }
    }
    int whole = 0 < sent && sent == data.len;
    PyBuffer_Release(&data);
    return PyBool_FromLong(whole);
}

static PyMethodDef methods[] = {
    {"send_alone", send_alone, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_sending", .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__sending(void)
{
    return PyModuleDef_Init(&definition);
}
