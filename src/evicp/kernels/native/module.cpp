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

struct State {
    const Level *level;
    PyObject *memory_type;
};
State *state_of(PyObject *module) { return static_cast<State *>(PyModule_GetState(module)); }

// ---------------------------------------------------------------------------------------------------------------
// Memory: what a call has made, for NumPy to take over

struct Memory {
    PyObject_HEAD
    void *data;
    Py_ssize_t size;
};

int get_memory(PyObject *self, Py_buffer *view, int flags) {
    Memory *memory = reinterpret_cast<Memory *>(self);
    return PyBuffer_FillInfo(view, self, memory->data, memory->size, 0, flags);
}
void free_memory(PyObject *self) {
    free(reinterpret_cast<Memory *>(self)->data);
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
    release(self);
    Py_DECREF(type);
}
PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(get_memory)},
                              {Py_tp_dealloc, reinterpret_cast<void *>(free_memory)},
                              {0, nullptr}};
PyType_Spec memory_spec = {"evicp.kernels._core.Memory", int(sizeof(Memory)), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, memory_slots};

// Memory as an object; `data` is its own then, and null.
PyObject *as_object(State *state, void **data, int64_t size) {
    PyTypeObject *type = reinterpret_cast<PyTypeObject *>(state->memory_type);
    allocfunc allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    PyObject *self = allocate(type, 0);
    if (self == nullptr) return nullptr;
    if (size) {  // what was taken too much is given back
        void *shrunk = realloc(*data, size_t(size));
        if (shrunk) *data = shrunk;
    }
    Memory *memory = reinterpret_cast<Memory *>(self);
    memory->data = *data, memory->size = Py_ssize_t(size);
    *data = nullptr;
    return self;
}

// ---------------------------------------------------------------------------------------------------------------
// A call: its arguments are a score, logits, how many threads, ECP's parts, and what the function needs

struct Call {
    Job job = {};
    Sets result = {};
    int threads = 1;
    Py_buffer views[8];
    int n_views = 0;

    // Arrays are given back where the call ends, not by a destructor: a thread may end with its interpreter meanwhile.
    void finish() {
        while (n_views) PyBuffer_Release(&views[--n_views]);
        result.release();
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

    int64_t run(Function function, bool has_sets = false) {
        static thread_local PyThreadState *suspended;
        suspended = PyEval_SaveThread();
        auto is_interrupted = [] {
            PyEval_RestoreThread(suspended);
            bool is = PyErr_CheckSignals() < 0;
            suspended = PyEval_SaveThread();
            return is;
        };
        int64_t bad = share_out(job, function, result, has_sets, threads, is_interrupted);
        PyEval_RestoreThread(suspended);
        if (bad == kNoMemory) PyErr_NoMemory();
        return bad;
    }

    // The first unusable row, or -1, where nothing went wrong.
    PyObject *end(int64_t bad) {
        finish();
        return bad < kUsable ? nullptr : PyLong_FromLongLong(bad);
    }
    PyObject *fail() {
        finish();
        return nullptr;
    }
};

using Arguments = PyObject *const *;

PyObject *label_scores(PyObject *module, Arguments arguments, Py_ssize_t count) {
    Call call;
    if (!call.begin(arguments, count, 7) || !call.take_labels(arguments[5])) return call.fail();
    call.job.values = static_cast<double *>(call.numbers(arguments[6], 8, call.job.n, true));
    return call.job.values ? call.end(call.run(state_of(module)->level->label_scores)) : call.fail();
}

PyObject *dense_scores(PyObject *module, Arguments arguments, Py_ssize_t count) {
    Call call;
    if (!call.begin(arguments, count, 6)) return call.fail();
    call.job.values = static_cast<double *>(call.numbers(arguments[5], 8, call.job.n * call.job.n_classes, true));
    return call.job.values ? call.end(call.run(state_of(module)->level->dense_scores)) : call.fail();
}

PyObject *uncertainties(PyObject *module, Arguments arguments, Py_ssize_t count) {
    Call call;
    if (!call.begin(arguments, count, 6)) return call.fail();
    call.job.values = static_cast<double *>(call.numbers(arguments[5], 8, call.job.n, true));
    return call.job.values ? call.end(call.run(state_of(module)->level->uncertainties)) : call.fail();
}

PyObject *top_labels(PyObject *module, Arguments arguments, Py_ssize_t count) {
    Call call;
    if (!call.begin(arguments, count, 6)) return call.fail();
    call.job.tops = static_cast<int32_t *>(call.numbers(arguments[5], 4, call.job.n, true));
    return call.job.tops ? call.end(call.run(state_of(module)->level->top_labels)) : call.fail();
}

PyObject *likelihoods(PyObject *module, Arguments arguments, Py_ssize_t count) {
    Call call;
    if (!call.begin(arguments, count, 8) || !call.take_labels(arguments[5])) return call.fail();
    call.job.inverse_temperature = PyFloat_AsDouble(arguments[6]);
    if (PyErr_Occurred()) return call.fail();
    call.job.values = static_cast<double *>(call.numbers(arguments[7], 8, 5 * call.job.n, true));
    return call.job.values ? call.end(call.run(state_of(module)->level->likelihoods)) : call.fail();
}

// sets(score, logits, threads, rates, utility, thresholds, by_label, scored, offsets) gives the first unusable
// row, labels, and scores or None; thresholds are one number or an array.
PyObject *sets(PyObject *module, Arguments arguments, Py_ssize_t count) {
    Call call;
    State *state = state_of(module);
    if (!call.begin(arguments, count, 9)) return call.fail();
    Job &job = call.job;
    job.by_label = PyObject_IsTrue(arguments[6]) > 0, call.result.scored = PyObject_IsTrue(arguments[7]) > 0;
    double one = 0.0;
    if (PyFloat_Check(arguments[5])) {
        one = PyFloat_AsDouble(arguments[5]);
        job.thresholds = &one, job.n_thresholds = 1;
    } else {
        job.thresholds = static_cast<const double *>(call.numbers(arguments[5], 8, -1, false));
        if (job.thresholds == nullptr) return call.fail();
        job.n_thresholds = call.views[call.n_views - 1].len / 8;
    }
    if (job.n_thresholds != (job.by_label ? job.n_classes : job.n) && (job.by_label || job.n_thresholds != 1)) {
        PyErr_SetString(PyExc_ValueError, "thresholds must be one for all, for each row, or for each label");
        return call.fail();
    }
    int64_t *offsets = static_cast<int64_t *>(call.numbers(arguments[8], 8, job.n + 1, true));
    if (offsets == nullptr) return call.fail();
    offsets[0] = 0, job.ends = offsets + 1;
    int64_t bad = call.run(state->level->sets, true);
    if (bad < kUsable) return call.fail();
    Sets &made = call.result;
    PyObject *labels = as_object(state, reinterpret_cast<void **>(&made.labels), 4 * made.used);
    PyObject *scores = Py_NewRef(Py_None);
    if (labels && made.scored) {
        Py_DECREF(scores);
        scores = as_object(state, reinterpret_cast<void **>(&made.scores), 8 * made.used);
    }
    PyObject *result = labels && scores ? Py_BuildValue("LOO", static_cast<long long>(bad), labels, scores) : nullptr;
    Py_XDECREF(labels);
    Py_XDECREF(scores);
    call.finish();
    return result;
}

PyObject *level_name(PyObject *module, PyObject *) { return PyUnicode_FromString(state_of(module)->level->name); }

PyObject *level_names(PyObject *, PyObject *) {
    PyObject *names = PyList_New(0);
    for (int i = 0; names && levels()[i]; i++) {
        PyObject *name = PyUnicode_FromString(levels()[i]->name);
        if (name == nullptr || PyList_Append(names, name) < 0) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

#define FAST(NAME) {#NAME, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)(void)>(NAME)), METH_FASTCALL, nullptr}
PyMethodDef methods[] = {FAST(label_scores),
                         FAST(dense_scores),
                         FAST(sets),
                         FAST(uncertainties),
                         FAST(top_labels),
                         FAST(likelihoods),
                         {"level", level_name, METH_NOARGS, "The instruction set in use."},
                         {"levels", level_names, METH_NOARGS, "The instruction sets at hand, the best one first."},
                         {nullptr, nullptr, 0, nullptr}};

int execute(PyObject *module) {
    State *state = state_of(module);
    state->level = choose();
    if (state->level == nullptr) return -1;
    state->memory_type = PyType_FromModuleAndSpec(module, &memory_spec, nullptr);
    return state->memory_type ? 0 : -1;
}
int traverse(PyObject *module, visitproc visit, void *arg) {
    Py_VISIT(state_of(module)->memory_type);
    return 0;
}
int clear(PyObject *module) {
    Py_CLEAR(state_of(module)->memory_type);
    return 0;
}

// Slots that Python 3.11 does not know: every interpreter may have its own module, and none needs the GIL.
PyModuleDef_Slot slots[4] = {{Py_mod_exec, reinterpret_cast<void *>(execute)}, {0, nullptr}, {0, nullptr}, {0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_core", "The compiled kernels.", sizeof(State), methods, slots, traverse, clear, nullptr};

}  // namespace
}  // namespace evicp

PyMODINIT_FUNC PyInit__core(void) {
    constexpr int kMultipleInterpreters = 3, kGil = 4;
    if (Py_Version >= 0x030C0000) evicp::slots[1] = {kMultipleInterpreters, reinterpret_cast<void *>(2)};
    if (Py_Version >= 0x030D0000) evicp::slots[2] = {kGil, reinterpret_cast<void *>(1)};
    return PyModuleDef_Init(&evicp::definition);
}
