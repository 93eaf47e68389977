// The Python module: arrays in, by the buffer protocol, and arrays out. It keeps to Python's limited interface.
#if !defined(Py_GIL_DISABLED)
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>
#include <string.h>

#include "threads.h"

namespace evicp {

// ---------------------------------------------------------------------------------------------------------------
// Levels

#define DECLARE(NAME) \
    namespace NAME {  \
    extern const Level level; \
    }
#if defined(EVICP_X86)
DECLARE(v2)
DECLARE(v3)
DECLARE(v4)
#else
DECLARE(portable)
#endif

namespace {

// The levels that this processor has, the best one first, ended by null.
const Level *const *levels() {
    static const Level *found[4] = {};
#if defined(EVICP_X86)
    const Level **next = found;
    __builtin_cpu_init();
    bool has_v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
    bool has_v3 = has_v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    bool has_v4 = has_v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
    if (has_v4) *next++ = &v4::level;
    if (has_v3) *next++ = &v3::level;
    if (has_v2) *next++ = &v2::level;
#else
    found[0] = &portable::level;
#endif
    return found;
}

// The level in use, chosen once for each module: the best one, or what EVICP_LEVEL asks for.
const Level *choose() {
    const char *wanted = getenv("EVICP_LEVEL");
    const Level *const *known = levels();
    if (known[0] == nullptr) {
        PyErr_SetString(PyExc_ImportError, "this processor has none of the instruction sets that evicp is compiled for");
        return nullptr;
    }
    if (wanted == nullptr || *wanted == 0) return known[0];
    for (int i = 0; known[i]; i++)
        if (strcmp(known[i]->name, wanted) == 0) return known[i];
    PyErr_Format(PyExc_ImportError, "EVICP_LEVEL must be a level that this processor has; got %s", wanted);
    return nullptr;
}

const Level &level_of(PyObject *module) { return **static_cast<const Level **>(PyModule_GetState(module)); }

// ---------------------------------------------------------------------------------------------------------------
// A call: its arguments are a score, logits, how many threads, ECP's parts, and what the function needs

struct Call {
    Job job = {};
    Blocks blocks = {};
    int threads = 1;
    Py_buffer views[8];
    int n_views = 0;

    // Arrays are given back where the call ends, not by a destructor: a thread may end with its interpreter meanwhile.
    void finish() {
        while (n_views) PyBuffer_Release(&views[--n_views]);
        blocks.release();
    }

    // The numbers of a one-dimensional array, or null with an exception; `size` is -1 where any will do.
    void *numbers(PyObject *object, Py_ssize_t itemsize, Py_ssize_t size, bool is_result) {
        Py_buffer *view = &views[n_views];
        if (PyObject_GetBuffer(object, view, is_result ? PyBUF_CONTIG : PyBUF_CONTIG_RO) < 0) return nullptr;
        n_views++;
        if (view->itemsize != itemsize || (size >= 0 && view->len != size * itemsize)) {
            PyErr_SetString(PyExc_ValueError, "an array has another size or type than its function takes");
            return nullptr;
        }
        return view->buf;
    }

    bool take_logits(PyObject *object) {
        Py_buffer *view = &views[n_views];
        if (PyObject_GetBuffer(object, view, PyBUF_STRIDES | PyBUF_FORMAT) < 0) return false;
        n_views++;
        const char *format = view->format ? view->format : "B";
        while (*format == '=' || *format == '@' || *format == '^') format++;
        const char *types = "eHfd", *type = strchr(types, *format);
        if (*format == 0 || format[1] != 0 || type == nullptr || view->ndim != 2 || view->shape[1] < 2 ||
            view->strides[1] != view->itemsize || view->shape[1] > INT32_MAX) {
            PyErr_SetString(PyExc_ValueError, "logits must be native floats, (n, K), contiguous along classes");
            return false;
        }
        job.logits = static_cast<const char *>(view->buf), job.stride = view->strides[0];
        job.n = view->shape[0], job.n_classes = view->shape[1], job.type = int32_t(type - types);
        uintptr_t places = reinterpret_cast<uintptr_t>(job.logits) | uintptr_t(job.stride);
        job.in_place = (job.type == kSingle || job.type == kDouble) && places % uintptr_t(view->itemsize) == 0;
        return true;
    }

    bool begin(PyObject *const *arguments, Py_ssize_t given, Py_ssize_t wanted) {
        if (given != wanted) {
            PyErr_Format(PyExc_TypeError, "takes %zd arguments; got %zd", wanted, given);
            return false;
        }
        char *bytes;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(arguments[0], &bytes, &size) < 0 || !take_logits(arguments[1])) return false;
        if (size != Py_ssize_t(sizeof(Score))) {
            PyErr_SetString(PyExc_ValueError, "a score has another size");
            return false;
        }
        memcpy(&job.score, bytes, sizeof(Score));
        if (!take_parts(arguments[3], arguments[4])) return false;
        long count = PyLong_AsLong(arguments[2]);
        threads = count < 1 ? 1 : count > 1024 ? 1024 : int(count);
        return !(count == -1 && PyErr_Occurred());
    }

    // The base rates and the utility of ECP, each an array or None.
    bool take_parts(PyObject *rates, PyObject *utility) {
        if (rates != Py_None) {
            job.rates = static_cast<const double *>(numbers(rates, 8, job.n_classes, false));
            if (job.rates == nullptr) return false;
        }
        if (utility != Py_None) {
            job.utility = static_cast<const double *>(numbers(utility, 8, -1, false));
            if (job.utility == nullptr) return false;
            Py_ssize_t given = views[n_views - 1].len / 8;
            if (given != job.n_classes && given != job.n * job.n_classes) {
                PyErr_SetString(PyExc_ValueError, "a utility must be of each label, or of each label of each row");
                return false;
            }
            job.utility_stride = given == job.n_classes ? 0 : job.n_classes;
        }
        job.is_uneven = job.rates || job.utility;
        return true;
    }

    bool take_labels(PyObject *object) {
        job.labels = static_cast<const int64_t *>(numbers(object, 8, job.n, false));
        for (int64_t i = 0; job.labels && i < job.n; i++) {
            if (job.labels[i] >= 0 && job.labels[i] < job.n_classes) continue;
            PyErr_SetString(PyExc_ValueError, "a label is no class");
            return false;
        }
        return job.labels != nullptr;
    }

    bool take_thresholds(PyObject *object, PyObject *by_label, double &one) {
        job.by_label = PyObject_IsTrue(by_label) > 0;
        if (PyFloat_Check(object)) {
            one = PyFloat_AsDouble(object);
            job.thresholds = &one, job.n_thresholds = 1;
        } else {
            job.thresholds = static_cast<const double *>(numbers(object, 8, -1, false));
            if (job.thresholds == nullptr) return false;
            job.n_thresholds = views[n_views - 1].len / 8;
        }
        bool is_one = job.n_thresholds == 1 && !job.by_label;
        if (is_one || job.n_thresholds == (job.by_label ? job.n_classes : job.n)) return true;
        PyErr_SetString(PyExc_ValueError, "thresholds must be one for all, for each row, or for each label");
        return false;
    }

    bool take_ends(PyObject *offsets) {
        int64_t *places = static_cast<int64_t *>(numbers(offsets, 8, job.n + 1, true));
        if (places) places[0] = 0, job.ends = places + 1;
        return places;
    }

    // The first unusable row, or -1; less than that with an exception.
    int64_t run(Function function) {
        static thread_local PyThreadState *suspended;
        suspended = PyEval_SaveThread();
        auto is_interrupted = [] {
            PyEval_RestoreThread(suspended);
            bool is = PyErr_CheckSignals() < 0;
            suspended = PyEval_SaveThread();
            return is;
        };
        int64_t bad = share_out(job, function, blocks, threads, is_interrupted);
        PyEval_RestoreThread(suspended);
        if (bad == kNoMemory) PyErr_NoMemory();
        return bad;
    }

    // All sets' labels (or scores, if SCORES), of all blocks.
    template <class Number> PyObject *joined(Number *Sets::*numbers) {
        int64_t total = 0;
        for (int64_t i = 0; i < blocks.count; i++) total += blocks.sets[i].used;
        PyObject *result = PyByteArray_FromStringAndSize(nullptr, Py_ssize_t(total * int64_t(sizeof(Number))));
        char *next = result ? PyByteArray_AsString(result) : nullptr;
        for (int64_t i = 0; next && i < blocks.count; i++) {
            Sets &sets = blocks.sets[i];
            size_t size = size_t(sets.used) * sizeof(Number);
            if (size) memcpy(next, sets.*numbers, size);
            next += size;
            free(sets.*numbers);  // now, so that results are in memory once
            sets.*numbers = nullptr;
        }
        return result;
    }
};

// One function of all rows, which fills an array: after the usual arguments labels and a rate where it has them, then the array.
// Gives the first row that cannot be used, or -1.
template <Function Level::*FUNCTION, int BYTES_OF_ROW, bool HAS_LABELS = false, bool HAS_RATE = false>
PyObject *fill(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Call call;
    Job &job = call.job;
    const int last = 5 + HAS_LABELS + HAS_RATE;
    bool is_sound = call.begin(arguments, count, last + 1) && (!HAS_LABELS || call.take_labels(arguments[5]));
    if (is_sound && HAS_RATE) job.inverse_temperature = PyFloat_AsDouble(arguments[6]), is_sound = !PyErr_Occurred();
    int64_t bad = kNoMemory;
    if (is_sound) {
        int64_t bytes = BYTES_OF_ROW ? BYTES_OF_ROW : 8 * job.n_classes, itemsize = BYTES_OF_ROW == 4 ? 4 : 8;
        job.result = call.numbers(arguments[last], itemsize, job.n * bytes / itemsize, true);
        if (job.result) bad = call.run(level_of(module).*FUNCTION);
    }
    call.finish();
    return bad < kUsable ? nullptr : PyLong_FromLongLong(bad);
}

// sets(score, logits, threads, rates, utility, thresholds, by_label, scored, offsets) gives the first unusable
// row, labels, and scores or None; thresholds are one number or an array.
PyObject *sets(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Call call;
    double one;
    int64_t bad = kNoMemory;
    if (call.begin(arguments, count, 9) && call.take_thresholds(arguments[5], arguments[6], one) && call.take_ends(arguments[8])) {
        call.job.is_scored = PyObject_IsTrue(arguments[7]) > 0;
        bad = call.run(level_of(module).sets);
    }
    PyObject *labels = nullptr, *scores = nullptr, *result = nullptr;
    if (bad >= kUsable) labels = call.joined(&Sets::labels);
    if (labels) scores = call.job.is_scored ? call.joined(&Sets::scores) : Py_NewRef(Py_None);
    if (scores) result = Py_BuildValue("LOO", static_cast<long long>(bad), labels, scores);
    Py_XDECREF(labels);
    Py_XDECREF(scores);
    call.finish();
    return result;
}

PyObject *level_name(PyObject *module, PyObject *) { return PyUnicode_FromString(level_of(module).name); }

PyObject *level_names(PyObject *, PyObject *) {
    PyObject *names = PyList_New(0);
    for (int i = 0; names && levels()[i]; i++) {
        PyObject *name = PyUnicode_FromString(levels()[i]->name);
        if (name == nullptr || PyList_Append(names, name) < 0) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

using Fast = PyObject *(*)(PyObject *, PyObject *const *, Py_ssize_t);
PyMethodDef method(const char *name, Fast function) {
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)(void)>(function)), METH_FASTCALL, nullptr};
}
PyMethodDef methods[] = {method("label_scores", fill<&Level::label_scores, 8, true>),
                         method("dense_scores", fill<&Level::dense_scores, 0>),
                         method("sets", sets),
                         method("uncertainties", fill<&Level::uncertainties, 8>),
                         method("top_labels", fill<&Level::top_labels, 4>),
                         method("likelihoods", fill<&Level::likelihoods, 5 * 8, true, true>),
                         {"level", level_name, METH_NOARGS, "The instruction set in use."},
                         {"levels", level_names, METH_NOARGS, "The instruction sets at hand, the best one first."},
                         {nullptr, nullptr, 0, nullptr}};

int execute(PyObject *module) {
    const Level *chosen = choose();
    *static_cast<const Level **>(PyModule_GetState(module)) = chosen;
    return chosen ? 0 : -1;
}

// Slots that Python 3.11 does not know: every interpreter may have its own module, and none needs the GIL.
PyModuleDef_Slot slots[4] = {{Py_mod_exec, reinterpret_cast<void *>(execute)}, {0, nullptr}, {0, nullptr}, {0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_core", "The compiled kernels.", sizeof(Level *), methods, slots, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace evicp

PyMODINIT_FUNC PyInit__core(void) {
    constexpr int kMultipleInterpreters = 3, kGil = 4;
    if (Py_Version >= 0x030C0000) evicp::slots[1] = {kMultipleInterpreters, reinterpret_cast<void *>(2)};
    if (Py_Version >= 0x030D0000) evicp::slots[2] = {kGil, reinterpret_cast<void *>(1)};
    return PyModuleDef_Init(&evicp::definition);
}
