/* Columns of byte strings, packed and sliced with no step of Python for a value.

   packing.py states what is promised and has the twin of every function here. These know only the
   plain case; whatever else they are given is answered with None, and the twin takes or refuses it:
   so both versions accept the same and raise the same errors.

   The GIL is held throughout, and nothing between measuring a list and copying its items runs
   Python code: the list cannot change in between. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* Far above any batch, and small enough that no sum of sizes overflows, on 32 bits neither. */
#define MOST_VALUES ((Py_ssize_t)1 << 26)
#define MOST_BYTES ((Py_ssize_t)1 << 28)
#define MOST_FRONT ((Py_ssize_t)1 << 16)

#define FRAME_BYTES ((Py_ssize_t)16)
#define MOST_FRAME_BYTES ((Py_ssize_t)16 << 10) /* larger ones are seldom alone */

#define OFFSET_BYTES ((Py_ssize_t)sizeof(int32_t))

static Py_ssize_t
padded(Py_ssize_t size)
{
    return (size + 7) & ~(Py_ssize_t)7;
}

/* --- packing ------------------------------------------------------------------------------- */

typedef struct {
    PyObject **items; /* borrowed */
    Py_ssize_t count;
    Py_ssize_t total; /* bytes of all items */
} Values;

/* Which of the items given: from `start` on, at most `most`, and after the first no more than fit
   into `limit` bytes. */
typedef struct {
    Py_ssize_t start;
    Py_ssize_t most;
    Py_ssize_t limit;
} Part;

static const Part ALL = {0, MOST_VALUES, PY_SSIZE_T_MAX};

/* Whether these are plain: a list or tuple of bytes, also of None if that is allowed. */
static int
measure(Values *values, PyObject *given, const Part *part, int nullable)
{
    if (!PyList_CheckExact(given) && !PyTuple_CheckExact(given)) {
        return 0;
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(given) - part->start;
    values->items = PySequence_Fast_ITEMS(given) + (count > 0 ? part->start : 0);
    values->count = count < 0 ? 0 : count < part->most ? count : part->most;
    values->total = 0;
    if (values->count > MOST_VALUES) {
        return 0;
    }
    Py_ssize_t whole = values->count;
    for (Py_ssize_t row = 0; row < whole; row++) {
        PyObject *item = values->items[row];
        if (PyBytes_CheckExact(item)) {
            Py_ssize_t length = PyBytes_GET_SIZE(item);
            if (row >= values->count || (row && length > part->limit - values->total)) {
                values->count = row < values->count ? row : values->count;
                continue; /* not in it, but the twin refuses what is odd there, too */
            }
            if (length > MOST_BYTES - values->total) {
                return 0;
            }
            values->total += length;
        }
        else if (!nullable || item != Py_None) {
            return 0;
        }
    }
    return 1;
}

/* Writes offsets, data and padding; in `valid`, unless it is NULL, a bit for each that is there. */
static void
write_column(const Values *values, char *offsets, unsigned char *valid)
{
    Py_ssize_t offsets_size = (values->count + 1) * OFFSET_BYTES;
    char *data = offsets + padded(offsets_size);
    int32_t end = 0;

    memcpy(offsets, &end, OFFSET_BYTES);
    for (Py_ssize_t row = 0; row < values->count; row++) {
        PyObject *item = values->items[row];
        if (item != Py_None) {
            Py_ssize_t length = PyBytes_GET_SIZE(item);
            memcpy(data + end, PyBytes_AS_STRING(item), (size_t)length);
            end += (int32_t)length;
            if (valid != NULL) {
                valid[row >> 3] |= (unsigned char)(1u << (row & 7));
            }
        }
        memcpy(offsets + (row + 1) * OFFSET_BYTES, &end, OFFSET_BYTES);
    }
    memset(offsets + offsets_size, 0, (size_t)(padded(offsets_size) - offsets_size));
    memset(data + end, 0, (size_t)(padded(end) - end));
}

static PyObject *
pack(Values *values, PyObject *given, const Part *part, Py_ssize_t front, int nullable)
{
    if (front < 0 || front > MOST_FRONT || !measure(values, given, part, nullable)) {
        Py_RETURN_NONE;
    }
    Py_ssize_t bitmap = nullable ? padded((values->count + 7) / 8) : 0;
    Py_ssize_t offsets_size = padded((values->count + 1) * OFFSET_BYTES);
    Py_ssize_t size = front + bitmap + offsets_size + padded(values->total);

    PyObject *packed = PyByteArray_FromStringAndSize(NULL, size);
    if (packed == NULL) {
        return NULL;
    }
    char *start = PyByteArray_AS_STRING(packed);
    memset(start, 0, (size_t)(front + bitmap));
    unsigned char *valid = nullable ? (unsigned char *)start + front : NULL;
    write_column(values, start + front + bitmap, valid);
    return packed;
}

static PyObject *
pack_values(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "expected values and the size of the front");
        return NULL;
    }
    Py_ssize_t front = PyLong_AsSsize_t(args[1]);
    if (front == -1 && PyErr_Occurred()) {
        return NULL;
    }
    Values values;
    return pack(&values, args[0], &ALL, front, 0);
}

static PyObject *
pack_part(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    if (given != 5) {
        PyErr_SetString(PyExc_TypeError, "expected values, start, most, limit and front");
        return NULL;
    }
    Py_ssize_t numbers[4];
    for (int at = 0; at < 4; at++) {
        numbers[at] = PyLong_AsSsize_t(args[at + 1]);
        if (numbers[at] == -1 && PyErr_Occurred()) {
            return NULL;
        }
        if (numbers[at] < 0) {
            Py_RETURN_NONE;
        }
    }
    Values values;
    Part part = {numbers[0], numbers[1], numbers[2]};
    PyObject *packed = pack(&values, args[0], &part, numbers[3], 0);
    if (packed == NULL || packed == Py_None) {
        return packed;
    }
    return Py_BuildValue("Nn", packed, values.count);
}

static PyObject *
pack_nullable(PyObject *Py_UNUSED(module), PyObject *values)
{
    Values measured;
    return pack(&measured, values, &ALL, 0, 1);
}

static PyObject *
total_of(PyObject *Py_UNUSED(module), PyObject *given)
{
    Values values;
    if (!measure(&values, given, &ALL, 0)) {
        Py_RETURN_NONE;
    }
    return PyLong_FromSsize_t(values.total);
}

/* --- slicing ------------------------------------------------------------------------------- */

typedef struct {
    Py_buffer body;
    Py_ssize_t count;
    const unsigned char *valid; /* NULL: none is null */
    const char *offsets;
    Py_ssize_t room; /* bytes from the start of the data to the end of the body; may be < 0 */
} Column;

/* An offset. Buffers may start anywhere, so it need not be aligned. */
static int32_t
offset_at(const Column *column, Py_ssize_t row)
{
    int32_t offset;
    memcpy(&offset, column->offsets + row * OFFSET_BYTES, OFFSET_BYTES);
    return offset;
}

static const char *
data_of(const Column *column)
{
    return column->offsets + padded((column->count + 1) * OFFSET_BYTES);
}

/* 1: all offsets are inside the body, which must be released. 0: they are not. -1: an exception. */
static int
open_column(Column *column, PyObject *const *args, Py_ssize_t given, int nullable)
{
    if (given != 3) {
        PyErr_SetString(PyExc_TypeError, "expected a body, a position and a count");
        return -1;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    if (at == -1 && PyErr_Occurred()) {
        return -1;
    }
    column->count = PyLong_AsSsize_t(args[2]);
    if (column->count == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (PyObject_GetBuffer(args[0], &column->body, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    int fits = at >= 0 && at <= column->body.len && column->count >= 0 &&
               column->count <= MOST_VALUES;
    if (fits) {
        Py_ssize_t room = column->body.len - at;
        Py_ssize_t bitmap = nullable ? padded((column->count + 7) / 8) : 0;
        const char *start = (const char *)column->body.buf + at;
        column->valid = nullable ? (const unsigned char *)start : NULL;
        column->offsets = start + bitmap;
        fits = bitmap + (column->count + 1) * OFFSET_BYTES <= room;
        column->room = room - bitmap - padded((column->count + 1) * OFFSET_BYTES);
    }
    if (!fits) {
        PyBuffer_Release(&column->body);
    }
    return fits;
}

/* A list of the values, or NULL; without an exception if an offset is refused.

   Each offset is read once and checked before it is used, whatever was checked before: the memory
   may be a file or another thread's, and change meanwhile. */
static PyObject *
slices_of(const Column *column)
{
    PyObject *values = PyList_New(column->count);
    if (values == NULL) {
        return NULL;
    }
    const char *data = data_of(column);
    int32_t start = offset_at(column, 0);
    int refused = start != 0 || column->room < 0;
    for (Py_ssize_t row = 0; row < column->count && !refused; row++) {
        int32_t end = offset_at(column, row + 1);
        if (end < start || end > column->room) {
            refused = 1;
            break;
        }
        PyObject *value;
        if (column->valid != NULL && !(column->valid[row >> 3] >> (row & 7) & 1)) {
            value = Py_NewRef(Py_None);
        }
        else {
            value = PyBytes_FromStringAndSize(data + start, end - start);
        }
        if (value == NULL) {
            Py_DECREF(values);
            return NULL;
        }
        PyList_SET_ITEM(values, row, value);
        start = end;
    }
    if (refused) {
        Py_CLEAR(values);
    }
    return values;
}

static PyObject *
slice(PyObject *const *args, Py_ssize_t given, int nullable)
{
    Column column;
    int opened = open_column(&column, args, given, nullable);
    if (opened < 0) {
        return NULL;
    }
    PyObject *values = NULL;
    if (opened) {
        values = slices_of(&column);
        PyBuffer_Release(&column.body);
    }
    if (values == NULL && !PyErr_Occurred()) {
        Py_RETURN_NONE;
    }
    return values;
}

static PyObject *
slice_values(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    return slice(args, given, 0);
}

static PyObject *
slice_nullable(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    return slice(args, given, 1);
}

static PyObject *
data_length(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    Column column;
    int opened = open_column(&column, args, given, 0);
    if (opened < 0) {
        return NULL;
    }
    if (!opened) {
        Py_RETURN_NONE;
    }
    int32_t end = offset_at(&column, 0);
    int refused = end != 0;
    for (Py_ssize_t row = 1; row <= column.count; row++) {
        int32_t next = offset_at(&column, row);
        refused |= next < end; /* compared, not subtracted: a difference may wrap around */
        end = next;
    }
    refused |= end > column.room;
    PyBuffer_Release(&column.body);
    if (refused) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLong(end);
}

/* --- buffers ------------------------------------------------------------------------------- */

static PyObject *
unfilled(PyObject *Py_UNUSED(module), PyObject *given)
{
    Py_ssize_t size = PyLong_AsSsize_t(given);
    if (size == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (size < 0 || size > MOST_BYTES) {
        Py_RETURN_NONE;
    }
    return PyByteArray_FromStringAndSize(NULL, size);
}

static PyObject *
only_frame(PyObject *Py_UNUSED(module), PyObject *given)
{
    Py_buffer data;
    if (PyObject_GetBuffer(given, &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    const unsigned char *start = data.buf;
    PyObject *frame = NULL;
    if (FRAME_BYTES <= data.len && data.len <= MOST_FRAME_BYTES) {
        Py_ssize_t length = start[0] | start[1] << 8 | start[2] << 16 | (Py_ssize_t)start[3] << 24;
        frame = length == data.len ? PyByteArray_FromStringAndSize(data.buf, length) : NULL;
    }
    PyBuffer_Release(&data);
    if (frame == NULL && !PyErr_Occurred()) {
        Py_RETURN_NONE;
    }
    return frame;
}

/* --- the module ---------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"pack_values", (PyCFunction)(void (*)(void))pack_values, METH_FASTCALL, NULL},
    {"pack_part", (PyCFunction)(void (*)(void))pack_part, METH_FASTCALL, NULL},
    {"pack_nullable", pack_nullable, METH_O, NULL},
    {"total_of", total_of, METH_O, NULL},
    {"slice_values", (PyCFunction)(void (*)(void))slice_values, METH_FASTCALL, NULL},
    {"slice_nullable", (PyCFunction)(void (*)(void))slice_nullable, METH_FASTCALL, NULL},
    {"unfilled", unfilled, METH_O, NULL},
    {"only_frame", only_frame, METH_O, NULL},
    {"data_length", (PyCFunction)(void (*)(void))data_length, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_packing", .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__packing(void)
{
    return PyModuleDef_Init(&definition);
}
