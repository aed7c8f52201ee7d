/* What a plain push will have written, and sent; see foresight.py.

   There is no twin that makes the same: the core does it right after this, by the code for all
   cases, and what comes of that is compared with these bytes each time.

   The GIL is held throughout. Checksums are those of the function that is given. */

#include "../wire/_bytes.h"

#define FRAME_BYTES 16
#define BATCH_AT (FRAME_BYTES + PUSH_BYTES)
#define VERB_PUSH 2 /* a test compares these with frames.py, records.py and limits.py */
#define VERB_POP 3
#define VERB_DELIVER 8
#define RESPONSE 1
#define KIND_PUSH 1
#define KIND_GRANT 2
#define MOST_BYTES (8 << 10) /* of a batch */

#define RECORD_BYTES 48 /* of its header, without the checksums, and with them: */
#define RECORD_HEADER_BYTES 56
#define ASSIGNED_BYTES 32
#define PUSH_META_BYTES 44
#define GRANT_META_BYTES 40
#define DELIVERY_BYTES 56 /* before the batch */
#define ANSWER_BYTES 32

/* --- looking ------------------------------------------------------------------------------- */

/* What is said of a plain push whose batch has so many bytes; NULL if it is none. */
static PyObject *
found_in(unsigned char *frame, Py_ssize_t length, PyObject *digest)
{
    unsigned char *push = frame + FRAME_BYTES, *batch = frame + BATCH_AT;
    if (frame[4] != VERB_PUSH || frame[5] != 0 ||
        number_at(push + 10, 6) != 0 /* a durability, or more */ || !is_plain(batch, length) ||
        number_at(batch + 72, 8) != 0 || number_at(batch + 80, 4) != 0 /* not now, not for ever */) {
        return NULL;
    }
    uint64_t checksum = checksum_of(digest, batch + CHECKED_FROM, length - CHECKED_FROM);
    if (PyErr_Occurred() || checksum != number_at(batch + 32, 8)) {
        return NULL;
    }
    return Py_BuildValue(
        "IIKKIIn", (unsigned int)number_at(push, 4), (unsigned int)number_at(push + 8, 2),
        (unsigned long long)number_at(batch + 48, 8), (unsigned long long)number_at(batch + 56, 8),
        (unsigned int)number_at(batch + 88, 4), (unsigned int)number_at(batch + 44, 4), length);
}

static PyObject *
peek(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "expected a frame and a digest");
        return NULL;
    }
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyObject *found = NULL;
    Py_ssize_t length = data.len - BATCH_AT;
    if (length >= HEADER_BYTES && length <= MOST_BYTES) {
        found = found_in(data.buf, length, args[1]);
    }
    PyBuffer_Release(&data);
    if (found == NULL && !PyErr_Occurred()) {
        Py_RETURN_NONE;
    }
    return found;
}

/* --- making -------------------------------------------------------------------------------- */

/* What is not in the frame, in the order in which it is given. */
enum {
    BASE, EPOCH, NOW_US, NUMBER, GRANT, LEASE_US, LEVEL, TAKER, REQUEST, POSITION, SYNCED, NUMBERS
};

/* Who gets it. */
enum { NOBODY, POP, SUBSCRIPTION };

/* A push: its frame, and where its parts are. */
struct push {
    unsigned char *frame, *batch;
    Py_ssize_t length;
    uint64_t stream, partition, shard, count;
};

/* A record's header in front of its meta, which is there, and of its payload, if any. */
static int
put_record(unsigned char *record, PyObject *digest, const uint64_t *given, uint64_t position,
           uint64_t shard, int kind, Py_ssize_t meta, unsigned char *payload, Py_ssize_t size)
{
    unsigned char checked[RECORD_BYTES + PUSH_META_BYTES] = "PSR1";
    Py_ssize_t length = RECORD_HEADER_BYTES + padded(meta) + padded(size);
    put(checked + 4, (uint64_t)length, 4);
    put(checked + 8, position, 8);
    put(checked + 16, given[SYNCED], 8);
    put(checked + 24, shard, 2);
    checked[26] = (unsigned char)kind;
    put(checked + 28, given[EPOCH], 4);
    put(checked + 32, given[NUMBER] + (kind == KIND_GRANT), 8);
    put(checked + 40, (uint64_t)meta, 4);
    put(checked + 44, (uint64_t)size, 4);
    memcpy(checked + RECORD_BYTES, record + RECORD_HEADER_BYTES, (size_t)meta);
    memcpy(record, checked, RECORD_BYTES);
    put(record + RECORD_BYTES, checksum_of(digest, checked, RECORD_BYTES + meta), 4);
    if (size && !PyErr_Occurred()) {
        put(record + RECORD_BYTES + 4, checksum_of(digest, payload, ASSIGNED_BYTES), 4);
        memcpy(record + RECORD_HEADER_BYTES + padded(meta), payload, (size_t)size);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* The records of a push and of its lease, if somebody gets it, one behind the other. */
static PyObject *
records_of(const struct push *push, PyObject *digest, const uint64_t *given)
{
    Py_ssize_t first = RECORD_HEADER_BYTES + padded(PUSH_META_BYTES) + padded(push->length);
    int is_leased = given[TAKER] != NOBODY;
    Py_ssize_t size = first + (is_leased ? RECORD_HEADER_BYTES + GRANT_META_BYTES : 0);
    PyObject *records = PyBytes_FromStringAndSize(NULL, size);
    if (records == NULL) {
        return NULL;
    }
    unsigned char *start = (unsigned char *)PyBytes_AS_STRING(records), *second = start + first;
    memset(start, 0, (size_t)size);
    unsigned char *meta = start + RECORD_HEADER_BYTES;
    put(meta, push->stream, 4);
    put(meta + 4, push->partition, 4);
    put(meta + 8, given[BASE], 8);
    put(meta + 16, push->count, 4);
    memcpy(meta + 20, push->batch + 88, 4);  /* the instance */
    memcpy(meta + 24, push->batch + 48, 16); /* the producer, and its sequence */
    uint64_t position = given[POSITION];
    if (put_record(start, digest, given, position, push->shard, KIND_PUSH, PUSH_META_BYTES,
                   push->batch, push->length) < 0) {
        Py_CLEAR(records);
    }
    if (!is_leased || records == NULL) {
        return records;
    }
    meta = second + RECORD_HEADER_BYTES;
    put(meta, push->stream, 4);
    put(meta + 4, 1, 4);
    put(meta + 8, given[GRANT], 8);
    put(meta + 16, given[BASE], 8);
    put(meta + 24, push->count, 4);
    put(meta + 32, given[LEASE_US], 8);
    if (put_record(second, digest, given, position + (uint64_t)first, push->shard, KIND_GRANT,
                   GRANT_META_BYTES, NULL, 0) < 0) {
        Py_CLEAR(records);
    }
    return records;
}

static void
put_frame(unsigned char *frame, Py_ssize_t length, int verb, int flags, uint64_t request)
{
    memset(frame, 0, FRAME_BYTES);
    put(frame, (uint64_t)length, 4);
    frame[4] = (unsigned char)verb;
    frame[5] = (unsigned char)flags;
    put(frame + 8, request, 8);
}

/* What whoever pushed is answered. */
static PyObject *
receipt_of(const struct push *push, const uint64_t *given)
{
    unsigned char answer[ANSWER_BYTES] = {0}, *body = answer + FRAME_BYTES;
    put_frame(answer, ANSWER_BYTES, VERB_PUSH, RESPONSE, number_at(push->frame + 8, 8));
    put(body, given[BASE], 8);
    put(body + 8, push->count, 4);
    put(body + 12, push->shard, 2);
    body[14] = (unsigned char)given[LEVEL];
    return PyBytes_FromStringAndSize((char *)answer, ANSWER_BYTES);
}

/* What whoever waits is sent; None if nobody does. */
static PyObject *
delivery_of(const struct push *push, const uint64_t *given)
{
    if (given[TAKER] == NOBODY) {
        Py_RETURN_NONE;
    }
    Py_ssize_t size = DELIVERY_BYTES + push->length;
    PyObject *delivery = PyBytes_FromStringAndSize(NULL, size);
    if (delivery == NULL) {
        return NULL;
    }
    unsigned char *frame = (unsigned char *)PyBytes_AS_STRING(delivery), *body = frame + FRAME_BYTES;
    int is_pop = given[TAKER] == POP;
    put_frame(frame, size, is_pop ? VERB_POP : VERB_DELIVER, is_pop ? RESPONSE : 0, given[REQUEST]);
    put(body, 1, 4);
    put(body + 4, push->count, 4);
    put(body + 8, given[GRANT], 8);
    put(body + 16, given[BASE], 8);
    put(body + 24, push->count, 4);
    put(body + 28, push->shard, 2);
    put(body + 30, 1, 2); /* for the first time */
    put(body + 32, (uint64_t)push->length, 4);
    put(body + 36, 0, 4);
    memcpy(frame + DELIVERY_BYTES, push->batch, (size_t)push->length);
    return delivery;
}

static PyObject *
all_of(const Py_buffer *data, PyObject *digest, const uint64_t *given)
{
    struct push push = {.frame = data->buf, .length = data->len - BATCH_AT};
    push.batch = push.frame + BATCH_AT;
    push.stream = number_at(push.frame + FRAME_BYTES, 4);
    push.partition = number_at(push.frame + FRAME_BYTES + 4, 4);
    push.shard = number_at(push.frame + FRAME_BYTES + 8, 2);
    push.count = number_at(push.batch + 44, 4);
    put(push.batch + 8, given[BASE], 8); /* what the node assigns; no checksum covers it */
    put(push.batch + 16, given[EPOCH], 4);
    put(push.batch + 20, 0, 4);
    put(push.batch + 24, given[NOW_US], 8);
    PyObject *records = records_of(&push, digest, given);
    PyObject *receipt = records == NULL ? NULL : receipt_of(&push, given);
    PyObject *delivery = receipt == NULL ? NULL : delivery_of(&push, given);
    if (delivery == NULL) {
        Py_XDECREF(records);
        Py_XDECREF(receipt);
        return NULL;
    }
    return Py_BuildValue("NNN", records, receipt, delivery);
}

static PyObject *
promised(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 + NUMBERS || !PyByteArray_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a frame that was looked at, a digest, numbers");
        return NULL;
    }
    uint64_t given[NUMBERS];
    for (int at = 0; at < NUMBERS; at++) {
        given[at] = PyLong_AsUnsignedLongLong(args[2 + at]);
        if (PyErr_Occurred()) {
            return NULL;
        }
    }
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_WRITABLE) < 0) {
        return NULL;
    }
    PyObject *made = NULL;
    if (data.len >= BATCH_AT + HEADER_BYTES && data.len <= BATCH_AT + MOST_BYTES) {
        made = all_of(&data, args[1], given);
    } else {
        PyErr_SetString(PyExc_ValueError, "not a frame that was looked at");
    }
    PyBuffer_Release(&data);
    return made;
}

/* --- the module ---------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"peek", (PyCFunction)(void (*)(void))peek, METH_FASTCALL, NULL},
    {"promised", (PyCFunction)(void (*)(void))promised, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_foresight", .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__foresight(void)
{
    return PyModuleDef_Init(&definition);
}
