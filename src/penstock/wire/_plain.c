/* What most small messages are: one frame, a push of values about which nothing else is said; and a
   part of such a batch, for whoever takes a few of its messages.

   plain.py states what is promised. These know only the plain case; whatever else they are given,
   or is wrong with it, is answered with None, and the code for all cases takes or refuses it.

   The GIL is held throughout. Checksums are those of the function that is given: it is called with
   a view that is not valid any more when it has returned. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>

#include "_bytes.h"

#define MOST_BYTES (16 << 10) /* of a value: beside larger ones, all else is little */
#define HIGHEST_PRIORITY 15 /* MAX_PRIORITY of limits.py; a test compares */

/* --- a push, read -------------------------------------------------------------------------- */

/* How fields are laid out, in order: their bytes. 0: four that are no number; below zero: signed. */
#define PUSH_FIELDS 5
static const int PUSH[PUSH_FIELDS] = {4, 4, 2, 2, 4};
#define HEADER_FIELDS 20
static const int HEADER[HEADER_FIELDS] = {0, 4, 8, 4,  4,  -8, 8, 1, 1, 1,
                                          1, 4, 8, 8, -8, -8, 4, 4, 4, 4};

static PyObject *
field_at(const unsigned char *at, int bytes)
{
    if (bytes == 0) {
        return PyBytes_FromStringAndSize((const char *)at, 4);
    }
    if (bytes < 0) {
        return PyLong_FromLongLong((long long)number_at(at, -bytes));
    }
    return PyLong_FromUnsignedLongLong(number_at(at, bytes));
}

/* So many fields as a tuple. */
static PyObject *
fields_of(const unsigned char *at, const int *fields, int count)
{
    PyObject *read = PyTuple_New(count);
    for (int number = 0; read != NULL && number < count; number++) {
        PyObject *field = field_at(at, fields[number]);
        if (field == NULL) {
            Py_CLEAR(read);
            break;
        }
        PyTuple_SET_ITEM(read, number, field);
        at += fields[number] == 0 ? 4 : abs(fields[number]);
    }
    return read;
}

/* The fields of the header of a plain batch that is whole; NULL if it is not, and if there is an
   exception. */
static PyObject *
header_of(unsigned char *batch, Py_ssize_t length, PyObject *digest)
{
    if (!is_plain(batch, length)) {
        return NULL;
    }
    uint64_t checksum = checksum_of(digest, batch + CHECKED_FROM, length - CHECKED_FROM);
    if (PyErr_Occurred() || checksum != number_at(batch + 32, 8)) {
        return NULL;
    }
    return fields_of(batch, HEADER, HEADER_FIELDS);
}

static PyObject *
found_or_none(PyObject *found)
{
    if (found == NULL && !PyErr_Occurred()) {
        Py_RETURN_NONE;
    }
    return found;
}

static PyObject *
read_header(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "expected a batch and a digest");
        return NULL;
    }
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyObject *header = header_of(data.buf, data.len, args[1]);
    PyBuffer_Release(&data);
    return found_or_none(header);
}

static PyObject *
read_push(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "expected a body and a digest");
        return NULL;
    }
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    unsigned char *body = data.buf;
    PyObject *head = NULL, *header = NULL;
    if (data.len >= PUSH_BYTES && number_at(body + 12, 4) == 0) { /* nothing is between them */
        header = header_of(body + PUSH_BYTES, data.len - PUSH_BYTES, args[1]);
    }
    if (header != NULL) {
        head = fields_of(body, PUSH, PUSH_FIELDS);
    }
    PyBuffer_Release(&data);
    if (head == NULL) {
        Py_XDECREF(header);
        return found_or_none(NULL);
    }
    return Py_BuildValue("NN", head, header);
}

/* --- a push, made -------------------------------------------------------------------------- */

static PyObject *
one_value(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    if (given != 6) {
        PyErr_SetString(PyExc_TypeError, "expected a value, four numbers and a digest");
        return NULL;
    }
    uint64_t numbers[4]; /* timestamp, producer, sequence, instance */
    for (int at = 0; at < 4; at++) {
        numbers[at] = PyLong_AsUnsignedLongLong(args[at + 1]);
    }
    if (PyErr_Occurred()) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (!PyBytes_CheckExact(args[0]) || PyBytes_GET_SIZE(args[0]) > MOST_BYTES ||
        numbers[0] >> 63 || numbers[3] >> 32) {
        Py_RETURN_NONE;
    }
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]);
    Py_ssize_t column = 2 * OFFSET_BYTES + padded(size);
    Py_ssize_t length = HEADER_BYTES + column;
    PyObject *batch = PyByteArray_FromStringAndSize(NULL, length);
    if (batch == NULL) {
        return NULL;
    }
    unsigned char *start = (unsigned char *)PyByteArray_AS_STRING(batch);
    memset(start, 0, (size_t)length);
    memcpy(start, "PSB1", 4);
    put(start + 4, (uint64_t)length, 4);
    start[40] = 1;                          /* the version */
    put(start + 44, 1, 4);                  /* messages */
    put(start + 48, numbers[1], 8);         /* the producer */
    put(start + 56, numbers[2], 8);         /* its sequence */
    put(start + 64, numbers[0], 8);         /* the time */
    put(start + 88, numbers[3], 4);         /* the instance */
    put(start + 92, (uint64_t)column, 4);   /* bytes when it is open, which it is */
    put(start + HEADER_BYTES + OFFSET_BYTES, (uint64_t)size, 4);
    memcpy(start + HEADER_BYTES + 2 * OFFSET_BYTES, PyBytes_AS_STRING(args[0]), (size_t)size);
    uint64_t checksum = checksum_of(args[5], start + CHECKED_FROM, length - CHECKED_FROM);
    if (PyErr_Occurred()) {
        Py_DECREF(batch);
        return NULL;
    }
    put(start + 32, checksum, 8);
    return batch;
}

/* --- a part of a batch --------------------------------------------------------------------- */

/* The header and the columns of a part, which begins at a row; NULL if the values are not there. */
static PyObject *
cut_out(const unsigned char *batch, Py_ssize_t length, Py_ssize_t rows, Py_ssize_t first,
        Py_ssize_t count)
{
    const unsigned char *offsets = batch + HEADER_BYTES;
    Py_ssize_t values = HEADER_BYTES + padded((rows + 1) * OFFSET_BYTES);
    if (values > length) {
        return NULL;
    }
    uint64_t begin = number_at(offsets + first * OFFSET_BYTES, 4), end = begin;
    Py_ssize_t column = padded((count + 1) * OFFSET_BYTES);
    for (Py_ssize_t row = first + 1; row <= first + count; row++) {
        uint64_t next = number_at(offsets + row * OFFSET_BYTES, 4);
        if (next < end) {
            return NULL;
        }
        end = next;
    }
    if (end > (uint64_t)(length - values)) {
        return NULL;
    }
    Py_ssize_t size = (Py_ssize_t)(end - begin);
    Py_ssize_t whole = HEADER_BYTES + column + padded(size);
    PyObject *part = PyByteArray_FromStringAndSize(NULL, whole);
    if (part == NULL) {
        return NULL;
    }
    unsigned char *to = (unsigned char *)PyByteArray_AS_STRING(part);
    memset(to, 0, (size_t)whole);
    memcpy(to, batch, HEADER_BYTES);
    put(to + 4, (uint64_t)whole, 4);
    put(to + 8, number_at(batch + 8, 8) + (uint64_t)first, 8);
    put(to + 44, (uint64_t)count, 4);
    put(to + 92, (uint64_t)(whole - HEADER_BYTES), 4);
    for (Py_ssize_t row = 0; row <= count; row++) {
        put(to + HEADER_BYTES + row * OFFSET_BYTES,
            number_at(offsets + (first + row) * OFFSET_BYTES, 4) - begin, 4);
    }
    memcpy(to + HEADER_BYTES + column, batch + values + begin, (size_t)size);
    return part;
}

/* The part of a batch that has values alone, which was checked when it came; NULL if it is none, or
   has not all of these rows, and if there is an exception. */
static PyObject *
part_from(const unsigned char *batch, Py_ssize_t length, uint64_t position, Py_ssize_t count)
{
    if (length < HEADER_BYTES || length > MOST_BATCH_BYTES || memcmp(batch, "PSB1", 4) != 0 ||
        number_at(batch + 4, 4) != (uint64_t)length || batch[40] != 1 || batch[41] != 0 ||
        batch[42] > HIGHEST_PRIORITY || batch[43] != 0) {
        return NULL;
    }
    uint64_t base = number_at(batch + 8, 8), rows = number_at(batch + 44, 4);
    if (base >> 62 || rows > MOST_MESSAGES || position < base || count <= 0 ||
        position - base >= rows || (uint64_t)count > rows - (position - base)) {
        return NULL;
    }
    return cut_out(batch, length, (Py_ssize_t)rows, (Py_ssize_t)(position - base), count);
}

static PyObject *
part_of(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    if (given != 4) {
        PyErr_SetString(PyExc_TypeError, "expected a batch, a position, a count and a digest");
        return NULL;
    }
    uint64_t position = PyLong_AsUnsignedLongLong(args[1]);
    Py_ssize_t count = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyObject *part = part_from(data.buf, data.len, position, count);
    PyBuffer_Release(&data);
    if (part == NULL) {
        return found_or_none(NULL);
    }
    unsigned char *start = (unsigned char *)PyByteArray_AS_STRING(part);
    Py_ssize_t size = PyByteArray_GET_SIZE(part);
    put(start + 32, checksum_of(args[3], start + CHECKED_FROM, size - CHECKED_FROM), 8);
    if (PyErr_Occurred()) {
        Py_CLEAR(part);
    }
    return part;
}

/* --- the module ---------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"read_header", (PyCFunction)(void (*)(void))read_header, METH_FASTCALL, NULL},
    {"read_push", (PyCFunction)(void (*)(void))read_push, METH_FASTCALL, NULL},
    {"one_value", (PyCFunction)(void (*)(void))one_value, METH_FASTCALL, NULL},
    {"part_of", (PyCFunction)(void (*)(void))part_of, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_plain", .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__plain(void)
{
    return PyModuleDef_Init(&definition);
}
