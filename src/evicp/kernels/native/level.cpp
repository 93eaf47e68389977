// The entry points of one level: this file is compiled once for each instruction set.
#include "uneven.h"

namespace evicp {
namespace EVICP_LEVEL {

// All rows in batches: `work` takes those from a number on, and says what ended it.
template <class T, class Work> int64_t each_batch(const Job &job, int64_t first, int64_t stop, bool for_sets, Work work) {
    Batch<T> *b = Batch<T>::make(job, for_sets);
    if (b == nullptr) return kNoMemory;
    int64_t why = kUsable;
    for (int64_t i = first; i < stop && why == kUsable; i = b->stop) why = work(*b, i);
    free(b);
    return why;
}

// Each row by itself, with what a first look at it tells.
template <class T, class Work> int64_t each_row(const Job &job, int64_t first, int64_t stop, Work work) {
    return each_batch<T>(job, first, stop, false, [&](Batch<T> &b, int64_t i) {
        for (b.fetch(i, stop); i < b.stop; i++) {
            Logits<T> row = b.row(i);
            Survey<T> s = survey<false>(row, T(0));
            if (!s.usable) return i;
            work(row, s, i);
        }
        return kUsable;
    });
}

// Each row of a score that need not fall as the logit rises.
template <class T, class Work> int64_t each_uneven_row(const Job &job, int64_t first, int64_t stop, Work work) {
    Uneven<T> u(job);
    if (u.memory == nullptr) return kNoMemory;
    return each_batch<T>(job, first, stop, true, [&](Batch<T> &b, int64_t i) {
        for (b.fetch(i, stop); i < b.stop; i++) {
            if (!u.take(b, i)) return i;
            if (!work(u, i)) return kNoMemory;
        }
        return kUsable;
    });
}

// e^limit of a limit for all, for row i, or for each label.
inline void find_factors(const double *limits, int64_t n, float *factors) {
    for (int64_t k = 0; k < n; k++) factors[k] = float(exp(D(smaller(larger(limits[k], -700.0), 88.0))).first() * (1.0 + kRoughly));
}

template <class T> int64_t uneven_sets(const Job &job, int64_t first, int64_t stop, Sets &out) {
    bool has_factors = false;
    return each_uneven_row<T>(job, first, stop, [&](Uneven<T> &u, int64_t i) {
        Batch<T> &b = *u.b;
        const double *limits = job.thresholds + (!job.by_label && job.n_thresholds > 1 ? i : 0);
        if (!has_factors || (!job.by_label && job.n_thresholds > 1)) find_factors(limits, job.by_label ? job.n_classes : 1, b.demands);
        has_factors = true;
        int64_t size = u.find_set(limits, job.by_label, b.demands);
        return append_set(b, i, size, out);
    });
}

template <class T> int64_t label_scores(const Job &job, int64_t first, int64_t stop, Sets &) {
    if (job.is_uneven)
        return each_uneven_row<T>(job, first, stop, [&](Uneven<T> &u, int64_t i) {
            job.values()[i] = u.score_label(int32_t(job.labels[i]));
            return true;
        });
    return each_batch<T>(job, first, stop, false, [&](Batch<T> &b, int64_t i) {
        int64_t bad = b.template take<true>(i, stop);
        if (bad >= 0) return bad;
        evicp::EVICP_LEVEL::score_labels(b.p, b.facts, b.labels, int(b.stop - b.first));
        memcpy(job.values() + b.first, b.labels.score, size_t(b.stop - b.first) * sizeof(double));
        return kUsable;
    });
}

// The scores of all labels of row j, where they need no rank.
template <class T> void score_all(Batch<T> &b, int64_t j, double *scores) {
    Logits<T> row = b.row(b.first + j);
    for (int64_t k = 0; k < b.n_classes; k += kSide) {
        int64_t count = smaller(int64_t(kSide), b.n_classes - k);
        for (int64_t i = 0; i < kSide; i++) b.labels.z[i] = i < count ? double(row[k + i]) : 0.0;
        score_eight(b.p, b.facts, int(j), b.labels);
        memcpy(scores + k, b.labels.score, size_t(count) * sizeof(double));
    }
}

template <class T> int64_t dense_scores(const Job &job, int64_t first, int64_t stop, Sets &) {
    if (job.is_uneven)
        return each_uneven_row<T>(job, first, stop, [&](Uneven<T> &u, int64_t i) {
            u.score_all(job.values() + i * job.n_classes);
            return true;
        });
    return each_batch<T>(job, first, stop, true, [&](Batch<T> &b, int64_t i) {
        int64_t bad = b.template take<false>(i, stop);
        if (bad >= 0) return bad;
        for (int64_t j = 0; j < b.stop - b.first; j++) {
            double *scores = job.values() + (b.first + j) * b.n_classes;
            if (!b.p.needs_rank()) {
                score_all(b, j, scores);
                continue;
            }
            int64_t size = row_set(b, j, double(kInfinity));
            for (int64_t k = 0; k < size; k++) scores[b.members[k]] = b.scores[k];
        }
        return kUsable;
    });
}

template <class T> int64_t sets(const Job &job, int64_t first, int64_t stop, Sets &out) {
    if (job.is_uneven) return uneven_sets<T>(job, first, stop, out);
    Limits limits{};
    return each_batch<T>(job, first, stop, true, [&](Batch<T> &b, int64_t i) {
        int64_t bad = b.template take<false>(i, stop);
        if (bad >= 0) return bad;
        if (job.by_label && i == first) limits.demands = b.demands, find_demands(b.p, job.thresholds, job.n_classes, limits);
        bool is_done = job.by_label ? batch_sets_limits(b, limits, out) : batch_sets(b, out);
        return is_done ? kUsable : kNoMemory;
    });
}

// Eq. 3: u = K / alpha_0 of each row.
template <class T> int64_t uncertainties(const Job &job, int64_t first, int64_t stop, Sets &) {
    return each_row<T>(job, first, stop, [&](const Logits<T> &row, const Survey<T> &s, int64_t i) {
        int32_t evidence = job.score.evidence;
        double rest = evidence == kRelu ? other_evidence<kRelu>(row, s.top) : evidence_but_largest(row, evidence, s);
        double K = double(job.n_classes), alpha = dirichlet(evidence, D(double(s.top))).first();
        job.values()[i] = K / (alpha + (rest + (K - 1.0)));
    });
}

template <class T> int64_t top_labels(const Job &job, int64_t first, int64_t stop, Sets &) {
    if (job.is_uneven)
        return each_uneven_row<T>(job, first, stop, [&](Uneven<T> &u, int64_t i) {
            static_cast<int32_t *>(job.result)[i] = u.best();
            return true;
        });
    return each_row<T>(job, first, stop, [&](const Logits<T> &row, const Survey<T> &s, int64_t i) {
        for (int64_t k = 0; k < row.n; k += kLanes) {
            uint32_t is_top = bits(row.load(k) >= Row16<T>(s.top));
            if (!is_top) continue;
            static_cast<int32_t *>(job.result)[i] = int32_t(row.place(k) + __builtin_ctz(is_top));
            return;
        }
    });
}

// Mean and variance of z - top under softmax(rate z), given the sum of e^(rate (z - top)).
template <class T> void moments(const Logits<T> &row, T top, T rate, double total, double &mean, double &variance) {
    Row16<T> floor(T(-80.0 / double(rate)));
    mean = variance = 0.0;
    for (int pass = 0; pass < 2; pass++) {
        double &value = pass ? variance : mean;
        T centre = T(mean);
        for (int64_t start = 0; start < row.n; start += kChunk) {
            Row16<T> part(T(0));
            for (int64_t i = start; i < smaller(start + kChunk, row.n); i += kLanes) {
                Row16<T> z = larger(row.load(i) - top, floor), weight = exp(z * rate), away = z - centre;
                part = part + (pass ? weight * (away * away) : weight * z);
            }
            value += sum(part) / total;
        }
    }
}

// Columns: -ln p of the label, its first and second derivative, the largest probability, whether the label's.
template <class T> int64_t likelihoods(const Job &job, int64_t first, int64_t stop, Sets &) {
    return each_row<T>(job, first, stop, [&](const Logits<T> &row, const Survey<T> &s, int64_t i) {
        T rate = T(job.inverse_temperature);
        double exponentials = sums<false>(row, s.top, rate, s.low).exponentials, mean, variance;
        moments(row, s.top, rate, 1.0 + exponentials, mean, variance);
        double z = double(row[job.labels[i]]) - double(s.top), *result = job.values() + 5 * i;
        result[0] = log1p(D(exponentials)).first() - job.inverse_temperature * z;
        result[1] = mean - z, result[2] = variance;
        result[3] = 1.0 / (1.0 + exponentials), result[4] = z == 0.0;
    });
}

template <int64_t (*SINGLE)(const Job &, int64_t, int64_t, Sets &), int64_t (*DOUBLE)(const Job &, int64_t, int64_t, Sets &)>
int64_t of_type(const Job &job, int64_t first, int64_t stop, Sets &out) {
    return (job.type == kDouble ? DOUBLE : SINGLE)(job, first, stop, out);
}

#define OF_TYPE(FUNCTION) of_type<FUNCTION<float>, FUNCTION<double>>
#define NAME_OF(LEVEL) #LEVEL
#define NAME(LEVEL) NAME_OF(LEVEL)
extern const Level level;
const Level level = {NAME(EVICP_LEVEL),  OF_TYPE(label_scores),  OF_TYPE(dense_scores), OF_TYPE(sets),
                     OF_TYPE(uncertainties), OF_TYPE(top_labels), OF_TYPE(likelihoods)};

}  // namespace EVICP_LEVEL
}  // namespace evicp
