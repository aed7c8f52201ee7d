/* The bytes of a record, in one step; record.py says how they are laid out, and has the twin.

   The GIL is held throughout. Checksums are those of the function that is given. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define HEADER_BYTES 48 /* what its checksum covers, with the meta */
#define RECORD_HEADER_BYTES 56
#define ASSIGNED_BYTES 32
#define JOIN_BYTES 512    /* a larger payload is passed on, not copied */
#define MOST_META (4 << 10) /* of a record that is framed here */

static void
put(unsigned char *at, uint64_t number, int bytes)
{
    for (int byte = 0; byte < bytes; byte++) {
        at[byte] = (unsigned char)(number >> 8 * byte);
    }
}

static Py_ssize_t
padded(Py_ssize_t size)
{
    return (size + 7) & ~(Py_ssize_t)7;
}

/* The lower half of the checksum of some bytes. 0 and an exception if it cannot be had. */
static uint32_t
half_of(PyObject *digest, unsigned char *start, Py_ssize_t size)
{
    PyObject *view = PyMemoryView_FromMemory((char *)start, size, PyBUF_READ);
    PyObject *found = view == NULL ? NULL : PyObject_CallOneArg(digest, view);
    Py_XDECREF(view);
    uint64_t checksum = found == NULL ? 0 : PyLong_AsUnsignedLongLong(found);
    Py_XDECREF(found);
    return (uint32_t)checksum;
}

static int
append(PyObject *parts, PyObject *part)
{
    int failed = part == NULL ? -1 : PyList_Append(parts, part);
    Py_XDECREF(part);
    return failed;
}

/* What the numbers of a record are: length, position, synced, shard, kind, epoch, number. */
#define NUMBERS 7
static const int AT[NUMBERS] = {4, 8, 16, 24, 26, 28, 32};
static const int BYTES[NUMBERS] = {4, 8, 8, 2, 1, 4, 8};

/* Writes the header and the meta, with their checksum between them. */
static int
fill(unsigned char *record, PyObject *digest, const uint64_t *numbers, const Py_buffer *meta,
     const Py_buffer *payload)
{
    unsigned char checked[HEADER_BYTES + MOST_META];
    memset(checked, 0, HEADER_BYTES);
    memcpy(checked, "PSR1", 4);
    for (int at = 0; at < NUMBERS; at++) {
        put(checked + AT[at], numbers[at], BYTES[at]);
    }
    put(checked + 40, (uint64_t)meta->len, 4);
    put(checked + 44, (uint64_t)payload->len, 4);
    memcpy(checked + HEADER_BYTES, meta->buf, (size_t)meta->len);
    uint32_t of_header = half_of(digest, checked, HEADER_BYTES + meta->len), of_payload = 0;
    if (payload->len > 0 && !PyErr_Occurred()) {
        Py_ssize_t assigned = payload->len < ASSIGNED_BYTES ? payload->len : ASSIGNED_BYTES;
        of_payload = half_of(digest, payload->buf, assigned);
    }
    if (PyErr_Occurred()) {
        return -1;
    }
    memcpy(record, checked, HEADER_BYTES);
    put(record + HEADER_BYTES, of_header, 4);
    put(record + HEADER_BYTES + 4, of_payload, 4);
    memcpy(record + RECORD_HEADER_BYTES, meta->buf, (size_t)meta->len);
    return 0;
}

/* Appends the parts of a record whose payload is not empty, or not there. */
static int
frame_parts(PyObject *parts, PyObject *digest, const uint64_t *numbers, const Py_buffer *meta,
            const Py_buffer *payload, PyObject *passed_on)
{
    Py_ssize_t head = RECORD_HEADER_BYTES + padded(meta->len);
    Py_ssize_t joined = payload->len <= JOIN_BYTES ? padded(payload->len) : 0;
    PyObject *record = PyBytes_FromStringAndSize(NULL, head + joined);
    if (record == NULL) {
        return -1;
    }
    unsigned char *start = (unsigned char *)PyBytes_AS_STRING(record);
    memset(start, 0, (size_t)(head + joined));
    if (fill(start, digest, numbers, meta, payload) < 0) {
        Py_DECREF(record);
        return -1;
    }
    if (joined) {
        memcpy(start + head, payload->buf, (size_t)payload->len);
    }
    if (append(parts, record) < 0) {
        return -1;
    }
    if (payload->len <= JOIN_BYTES) {
        return 0;
    }
    Py_INCREF(passed_on);
    if (append(parts, passed_on) < 0) {
        return -1;
    }
    Py_ssize_t rest = padded(payload->len) - payload->len;
    return rest ? append(parts, PyBytes_FromStringAndSize("\0\0\0\0\0\0\0", rest)) : 0;
}

/* Whether it was framed; if not, and there is no exception, the twin has to. */
static int
frame_record(PyObject *const *args, const Py_buffer *meta)
{
    PyObject *payload = args[10];
    uint64_t numbers[NUMBERS];
    for (int at = 0; at < NUMBERS; at++) {
        numbers[at] = PyLong_AsUnsignedLongLong(args[2 + at]);
        if (PyErr_Occurred() || (BYTES[at] < 8 && numbers[at] >> 8 * BYTES[at])) {
            PyErr_Clear();
            return 0;
        }
    }
    if (payload == Py_None) {
        Py_buffer nothing = {.buf = NULL, .len = 0};
        return frame_parts(args[1], args[0], numbers, meta, &nothing, NULL) < 0 ? -1 : 1;
    }
    Py_buffer data;
    if (PyObject_GetBuffer(payload, &data, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    int framed = 0;
    if (0 < data.len && data.len <= UINT32_MAX) {
        framed = frame_parts(args[1], args[0], numbers, meta, &data, payload) < 0 ? -1 : 1;
    }
    PyBuffer_Release(&data);
    return framed;
}

static PyObject *
frame(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    if (given != 11 || !PyList_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "expected a digest, a list and what a record is made of");
        return NULL;
    }
    Py_buffer meta;
    if (PyObject_GetBuffer(args[9], &meta, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    int framed = meta.len <= MOST_META ? frame_record(args, &meta) : 0;
    PyBuffer_Release(&meta);
    return framed < 0 ? NULL : PyBool_FromLong(framed);
}

static PyMethodDef methods[] = {
    {"frame", (PyCFunction)(void (*)(void))frame, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_framing", .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__framing(void)
{
    return PyModuleDef_Init(&definition);
}
