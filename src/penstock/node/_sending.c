/* Sending from another thread than the one that runs the event loop.

   early.py states what is promised. The GIL is held throughout, and no Python code runs between the
   look at the transport and the system call: the three methods are those of uvloop, which are
   compiled, and were bound before, so that nothing is allocated that could begin a garbage
   collection. The loop needs the GIL to begin a write, or to close the transport: it can do neither
   in between. What it has begun before is seen by the size of its buffer, which is 0 only when all
   of it has been given to the kernel. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <sys/ioctl.h>
#include <sys/socket.h>
#if defined(__linux__)
#include <linux/sockios.h>
#endif

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

/* What a call without arguments gives; -1 also if it fails. */
static long
number_of(PyObject *method)
{
    PyObject *found = PyObject_CallNoArgs(method);
    long number = found == NULL ? -1 : PyLong_AsLong(found);
    Py_XDECREF(found);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return -1;
    }
    return number;
}

/* Whether the kernel is sure to take so many bytes at once: most of its buffer is empty. */
static int
has_room(int fd, Py_ssize_t size)
{
#if defined(SIOCOUTQ)
    int queued = 0, buffer = 0;
    socklen_t length = sizeof(buffer);
    if (ioctl(fd, SIOCOUTQ, &queued) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, &length) < 0) {
        return 0;
    }
    return queued + size <= buffer / 4;
#else
    (void)fd;
    (void)size;
    return 0;
#endif
}

static PyObject *
send_alone(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    if (given != 5) {
        PyErr_SetString(PyExc_TypeError, "expected three methods, a truth and data");
        return NULL;
    }
    Py_buffer data;
    if (PyObject_GetBuffer(args[4], &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    Py_ssize_t sent = 0;
    long fd = number_of(args[0]);
    if (fd >= 0 && number_of(args[1]) == 0 && number_of(args[2]) == 0 &&
        (args[3] == Py_True || has_room((int)fd, data.len))) {
        sent = send((int)fd, data.buf, (size_t)data.len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (0 < sent && sent < data.len) {
            shutdown((int)fd, SHUT_RDWR); /* nothing may follow half a frame; nor can it now */
        }
    }
    int whole = 0 < sent && sent == data.len;
    PyBuffer_Release(&data);
    return PyBool_FromLong(whole);
}

static PyMethodDef methods[] = {
    {"send_alone", (PyCFunction)(void (*)(void))send_alone, METH_FASTCALL, NULL},
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
