/* How batches and pushes are laid out, and what is plain about them; for the modules that are in C.

   All is little endian, and may start anywhere. What calls into Python holds the GIL. */

#ifndef PENSTOCK_BYTES_H
#define PENSTOCK_BYTES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define PUSH_BYTES 16
#define HEADER_BYTES 96
#define CHECKED_FROM 40
#define MOST_MESSAGES 65536 /* of a batch that is looked at here; a larger one takes its time */
#define MOST_BATCH_BYTES ((Py_ssize_t)16 << 20) /* MAX_BATCH_BYTES of limits.py; a test compares */
#define OFFSET_BYTES 4

static inline uint64_t
number_at(const unsigned char *at, int bytes)
{
    uint64_t number = 0;
    for (int byte = bytes - 1; byte >= 0; byte--) {
        number = number << 8 | at[byte];
    }
    return number;
}

static inline void
put(unsigned char *at, uint64_t number, int bytes)
{
    for (int byte = 0; byte < bytes; byte++) {
        at[byte] = (unsigned char)(number >> 8 * byte);
    }
}

static inline Py_ssize_t
padded(Py_ssize_t size)
{
    return (size + 7) & ~(Py_ssize_t)7;
}

/* The checksum of some bytes; any number, and an exception, if it cannot be had. */
static inline uint64_t
checksum_of(PyObject *digest, unsigned char *start, Py_ssize_t size)
{
    PyObject *view = PyMemoryView_FromMemory((char *)start, size, PyBUF_READ);
    PyObject *found = view == NULL ? NULL : PyObject_CallOneArg(digest, view);
    Py_XDECREF(view);
    uint64_t checksum = found == NULL ? 0 : PyLong_AsUnsignedLongLong(found);
    Py_XDECREF(found);
    return checksum;
}

/* Whether the offsets of so many values ascend from 0, and they and the values are inside. */
static inline int
are_values(const unsigned char *at, Py_ssize_t size, Py_ssize_t count)
{
    Py_ssize_t start = padded((count + 1) * OFFSET_BYTES);
    if (start > size || number_at(at, 4) != 0) {
        return 0;
    }
    uint64_t end = 0;
    for (Py_ssize_t row = 1; row <= count; row++) {
        uint64_t next = number_at(at + row * OFFSET_BYTES, 4);
        if (next < end) {
            return 0;
        }
        end = next;
    }
    return end <= (uint64_t)(size - start);
}

/* Whether a batch has values alone, as far as that can be told without its checksum. */
static inline int
is_plain(const unsigned char *batch, Py_ssize_t length)
{
    if (length < HEADER_BYTES || length > MOST_BATCH_BYTES) {
        return 0;
    }
    uint64_t count = number_at(batch + 44, 4);
    return memcmp(batch, "PSB1", 4) == 0 && number_at(batch + 4, 4) == (uint64_t)length &&
           number_at(batch + 8, 8) >> 62 == 0 && batch[40] == 1 && batch[41] == 0 &&
           batch[42] == 0 && batch[43] == 0 && 0 < count && count <= MOST_MESSAGES &&
           are_values(batch + HEADER_BYTES, length - HEADER_BYTES, (Py_ssize_t)count);
}

#endif
