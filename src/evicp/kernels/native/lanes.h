// Lanes: N numbers that are added, compared and selected side by side.
//
// They lie in vectors of the processor's own width, one after the other, and every operation is a loop over these parts.
// What is done in lanes is done in the order written here, at every level: the width of vectors changes no bit.
#pragma once

#include <stdint.h>
#include <string.h>

#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

// A level is this source compiled for one instruction set, in a namespace of its own.
#ifndef EVICP_LEVEL
#define EVICP_LEVEL portable
#endif

#if defined(__AVX512F__)
#define EVICP_WIDTH 64
#elif defined(__AVX__)
#define EVICP_WIDTH 32
#else
#define EVICP_WIDTH 16
#endif

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__FP_FAST_FMA)
#define EVICP_HAS_FMA 1
#else
#define EVICP_HAS_FMA 0
#endif

#define INLINE inline __attribute__((always_inline))
#define NEVER_INLINE __attribute__((noinline))
#define EACH_PART _Pragma("GCC unroll 16") for (int i = 0; i < kParts; i++)

namespace evicp {
namespace EVICP_LEVEL {

constexpr int kLanes = 16;

template <class T> using Whole = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;  // whole numbers of the same size
template <class T> using Unsigned = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <class T, int N> struct Lanes {
    static constexpr int kBytes = N * int(sizeof(T)) < EVICP_WIDTH ? N * int(sizeof(T)) : EVICP_WIDTH;
    static constexpr int kParts = N * int(sizeof(T)) / kBytes;
    typedef T Part __attribute__((vector_size(kBytes)));
    Part part[kParts];

    Lanes() = default;
    INLINE Lanes(T x) { EACH_PART part[i] = x - Part{}; }  // x + 0 would lose the sign of -0
    static INLINE Lanes load(const T *from) {
        Lanes r;
        EACH_PART memcpy(&r.part[i], reinterpret_cast<const char *>(from) + i * kBytes, kBytes);
        return r;
    }
    INLINE void store(T *to) const {
        EACH_PART memcpy(reinterpret_cast<char *>(to) + i * kBytes, &part[i], kBytes);
    }
    INLINE T first() const { return part[0][0]; }
};

// The body of a function that gives lanes of U, each part worked out from those with the same number i.
#define BY_PARTS(U, ...)                                                                 \
    {                                                                                    \
        constexpr int kParts = Lanes<U, N>::kParts;                                      \
        Lanes<U, N> r;                                                                   \
        EACH_PART r.part[i] = (typename Lanes<U, N>::Part)(__VA_ARGS__);                 \
        return r;                                                                        \
    }

// Sums and products of whole numbers keep their lowest bits: they are those of unsigned numbers, which may overflow.
template <class T, int N>
using Wrapping = typename Lanes<std::conditional_t<std::is_integral_v<T>, Unsigned<T>, T>, N>::Part;
#define LANES_BINARY(OPERATOR)                                                                         \
    template <class T, int N>                                                                          \
    INLINE Lanes<T, N> operator OPERATOR(const Lanes<T, N> &x, const Lanes<T, N> &y)                   \
        BY_PARTS(T, (Wrapping<T, N>)x.part[i] OPERATOR (Wrapping<T, N>)y.part[i])                      \
    template <class T, int N> INLINE Lanes<T, N> operator OPERATOR(const Lanes<T, N> &x, T y) {        \
        return x OPERATOR Lanes<T, N>(y);                                                              \
    }                                                                                                  \
    template <class T, int N> INLINE Lanes<T, N> operator OPERATOR(T x, const Lanes<T, N> &y) {        \
        return Lanes<T, N>(x) OPERATOR y;                                                              \
    }
LANES_BINARY(+)
LANES_BINARY(-)
LANES_BINARY(*)
LANES_BINARY(/)
LANES_BINARY(&)
LANES_BINARY(|)
LANES_BINARY(^)

// Comparisons give all bits of a whole number set where they hold, none elsewhere.
template <class T, int N> using Mask = Lanes<Whole<T>, N>;
#define LANES_COMPARISON(OPERATOR)                                                                            \
    template <class T, int N> INLINE Mask<T, N> operator OPERATOR(const Lanes<T, N> &x, const Lanes<T, N> &y) \
        BY_PARTS(Whole<T>, x.part[i] OPERATOR y.part[i])
LANES_COMPARISON(>)
LANES_COMPARISON(>=)
LANES_COMPARISON(<)
LANES_COMPARISON(<=)
LANES_COMPARISON(==)
LANES_COMPARISON(!=)

template <class T, int N> INLINE Lanes<T, N> operator<<(const Lanes<T, N> &x, int by) BY_PARTS(T, x.part[i] << by)
template <class T, int N> INLINE Lanes<T, N> operator>>(const Lanes<T, N> &x, int by) BY_PARTS(T, x.part[i] >> by)
template <class T, int N> INLINE Lanes<T, N> select(const Mask<T, N> &mask, const Lanes<T, N> &x, const Lanes<T, N> &y)
    BY_PARTS(T, mask.part[i] ? x.part[i] : y.part[i])
// The same bits, taken as numbers of another type.
template <class U, class T, int N> INLINE Lanes<U, N> cast(const Lanes<T, N> &x) BY_PARTS(U, x.part[i])

// What x86 must be told in its own words: of vectors that are compared elsewhere, too, GCC makes selections of maxima.
// `bits_of` gives one bit for each number whose bits are set.
#if defined(__x86_64__)
#define LANES_EXTREMES(PREFIX, VECTOR, TYPE)                                               \
    INLINE VECTOR larger_of(VECTOR x, VECTOR y) { return PREFIX##_max_##TYPE(x, y); }      \
    INLINE VECTOR smaller_of(VECTOR x, VECTOR y) { return PREFIX##_min_##TYPE(x, y); }
#define LANES_BITS(PREFIX, VECTOR, TYPE) INLINE int bits_of(VECTOR x) { return PREFIX##_movemask_##TYPE(x); }
#define LANES_FUSED(PREFIX, VECTOR, TYPE) \
    INLINE VECTOR fused(VECTOR x, VECTOR y, VECTOR z) { return PREFIX##_fmadd_##TYPE(x, y, z); }
#define LANES_WIDTH(MACRO, PREFIX, VECTOR) MACRO(PREFIX, VECTOR, ps) MACRO(PREFIX, VECTOR##d, pd)
LANES_WIDTH(LANES_EXTREMES, _mm, __m128)
LANES_WIDTH(LANES_BITS, _mm, __m128)
#if EVICP_WIDTH >= 32
LANES_WIDTH(LANES_EXTREMES, _mm256, __m256)
LANES_WIDTH(LANES_BITS, _mm256, __m256)
LANES_WIDTH(LANES_FUSED, _mm, __m128)
LANES_WIDTH(LANES_FUSED, _mm256, __m256)
#endif
#if EVICP_WIDTH >= 64
LANES_WIDTH(LANES_EXTREMES, _mm512, __m512)
LANES_WIDTH(LANES_FUSED, _mm512, __m512)
INLINE int bits_of(__m512 x) { return _mm512_movepi32_mask((__m512i)x); }
INLINE int bits_of(__m512d x) { return _mm512_movepi64_mask((__m512i)x); }
#endif
#endif
// Elsewhere, and of two numbers, which fill no vector.
template <class V> INLINE V larger_of(V x, V y) { return x > y ? x : y; }
template <class V> INLINE V smaller_of(V x, V y) { return x < y ? x : y; }
template <class V> INLINE int bits_of(V x) {
    int r = 0;
    for (int k = 0; k < int(sizeof x / sizeof x[0]); k++) r |= (x[k] != 0) << k;
    return r;
}

// x > y ? x : y, of two equal numbers, or with a NaN, the second; and the other way round. So do the processors of x86.
template <class T, int N> INLINE Lanes<T, N> larger(const Lanes<T, N> &x, const Lanes<T, N> &y)
    BY_PARTS(T, larger_of(x.part[i], y.part[i]))
template <class T, int N> INLINE Lanes<T, N> smaller(const Lanes<T, N> &x, const Lanes<T, N> &y)
    BY_PARTS(T, smaller_of(x.part[i], y.part[i]))
template <class T> INLINE T larger(T x, T y) { return x > y ? x : y; }
template <class T> INLINE T smaller(T x, T y) { return x < y ? x : y; }

#if defined(__x86_64__)
// Four numbers from k on of each of rows 0, 4, 8 and 12.
INLINE Lanes<float, kLanes> fours(const float *const *rows, int64_t k) {
    Lanes<float, kLanes> r;
    constexpr int kParts = Lanes<float, kLanes>::kParts;
#if EVICP_WIDTH == 16
    EACH_PART r.part[i] = _mm_loadu_ps(rows[4 * i] + k);
#else
    auto two = [&](int i) __attribute__((always_inline)) {
        return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[i] + k)), _mm_loadu_ps(rows[i + 4] + k), 1);
    };
#if EVICP_WIDTH == 32
    EACH_PART r.part[i] = two(8 * i);
#else
    EACH_PART r.part[i] = _mm512_insertf32x8(_mm512_castps256_ps512(two(0)), two(8), 1);
#endif
#endif
    return r;
}
// In each four numbers of x and y: x0 y0 x1 y1; x2 y2 x3 y3; x0 x1 y0 y1; x2 x3 y2 y3.
#if EVICP_WIDTH == 64
#define LANES_PREFIX(NAME) _mm512_##NAME
#elif EVICP_WIDTH == 32
#define LANES_PREFIX(NAME) _mm256_##NAME
#else
#define LANES_PREFIX(NAME) _mm_##NAME
#endif
#define LANES_SHUFFLE(NAME, X86, ...)                                                                            \
    template <int N> INLINE Lanes<float, N> NAME(const Lanes<float, N> &x, const Lanes<float, N> &y)             \
        BY_PARTS(float, LANES_PREFIX(X86)(x.part[i], y.part[i] __VA_ARGS__))
LANES_SHUFFLE(interleave_lower, unpacklo_ps)
LANES_SHUFFLE(interleave_upper, unpackhi_ps)
LANES_SHUFFLE(join_lower, shuffle_ps, , 0x44)
LANES_SHUFFLE(join_upper, shuffle_ps, , 0xEE)
#endif

// The lower and the upper half.
template <bool UPPER, class T, int N> INLINE Lanes<T, N / 2> half(const Lanes<T, N> &x) {
    using Half = Lanes<T, N / 2>;
    constexpr int kParts = Half::kParts;
    Half r;
    if constexpr (Lanes<T, N>::kParts > 1) {
        EACH_PART r.part[i] = x.part[UPPER * kParts + i];
#if EVICP_WIDTH >= 64
    } else if constexpr (Lanes<T, N>::kBytes == 64) {
        r.part[0] = (typename Half::Part)_mm512_extractf64x4_pd((__m512d)x.part[0], UPPER);
#endif
    } else {
        memcpy(&r.part[0], reinterpret_cast<const char *>(&x.part[0]) + UPPER * sizeof r.part[0], sizeof r.part[0]);
    }
    return r;
}
template <class T, int N> INLINE Lanes<T, N / 2> lower(const Lanes<T, N> &x) { return half<false>(x); }
template <class T, int N> INLINE Lanes<T, N / 2> upper(const Lanes<T, N> &x) { return half<true>(x); }

template <class T, int N> INLINE Lanes<T, 2 * N> joined(const Lanes<T, N> &low, const Lanes<T, N> &high) {
    constexpr int kParts = Lanes<T, N>::kParts;
    Lanes<T, 2 * N> r;
    if constexpr (Lanes<T, 2 * N>::kParts > 1) {
        EACH_PART r.part[i] = low.part[i], r.part[kParts + i] = high.part[i];
#if EVICP_WIDTH >= 64
    } else if constexpr (Lanes<T, 2 * N>::kBytes == 64) {
        __m512d wide = _mm512_castpd256_pd512((__m256d)low.part[0]);
        r.part[0] = (typename Lanes<T, 2 * N>::Part)_mm512_insertf64x4(wide, (__m256d)high.part[0], 1);
#endif
    } else {
        memcpy(&r.part[0], &low.part[0], sizeof low.part[0]);
        memcpy(reinterpret_cast<char *>(&r.part[0]) + sizeof low.part[0], &high.part[0], sizeof low.part[0]);
    }
    return r;
}

// The same numbers in another type, rounded.
template <class U, class T, int N> INLINE Lanes<U, N> convert(const Lanes<T, N> &x) {
    if constexpr (sizeof(T) != sizeof(U) && Lanes<double, N>::kParts > 1) {
        return joined(convert<U>(lower(x)), convert<U>(upper(x)));
#if EVICP_WIDTH >= 64
    } else if constexpr (N == 8 && sizeof(T) != sizeof(U)) {  // GCC would do it by quarters
        Lanes<U, N> r;
        if constexpr (sizeof(T) < sizeof(U)) r.part[0] = _mm512_cvtps_pd(x.part[0]);
        else r.part[0] = _mm512_cvtpd_ps(x.part[0]);
        return r;
#endif
    } else {
        BY_PARTS(U, __builtin_convertvector(x.part[i], typename Lanes<U, N>::Part))
    }
}
template <class T, int N> INLINE Lanes<double, N> widen(const Lanes<T, N> &x) { return convert<double>(x); }
template <class T, int N> INLINE Lanes<float, N> narrow(const Lanes<T, N> &x) { return convert<float>(x); }

// All lanes combined: halves by halves, so that the order is the same at every level.
template <class T, int N, class F> INLINE T fold(const Lanes<T, N> &x, F combine) {
    if constexpr (N == 2) {
        return combine(x.part[0][0], x.part[Lanes<T, N>::kParts - 1][2 / Lanes<T, N>::kParts - 1]);
    } else {
        return fold(combine(lower(x), upper(x)), combine);
    }
}
struct Plus { template <class X> INLINE X operator()(const X &x, const X &y) const { return x + y; } };
struct Larger { template <class X> INLINE X operator()(const X &x, const X &y) const { return larger(x, y); } };
struct Smaller { template <class X> INLINE X operator()(const X &x, const X &y) const { return smaller(x, y); } };

template <class T, int N> INLINE T largest(const Lanes<T, N> &x) { return fold(x, Larger()); }
template <class T, int N> INLINE T smallest(const Lanes<T, N> &x) { return fold(x, Smaller()); }
template <class T, int N> INLINE int64_t count(const Lanes<T, N> &x) { return fold(x, Plus()); }
// The sum in double precision, of which single precision adds up the first halves.
template <class T> INLINE double sum(const Lanes<T, kLanes> &x) { return fold(widen(lower(x) + upper(x)), Plus()); }

// One bit for each lane whose mask is set.
template <class T, int N> INLINE uint32_t bits(const Lanes<T, N> &mask) {
    using Numbers = Lanes<std::conditional_t<sizeof(T) == 4, float, double>, N>;
    constexpr int kParts = Numbers::kParts;
    uint32_t r = 0;
    EACH_PART r |= uint32_t(bits_of((typename Numbers::Part)mask.part[i])) << (i * (N / kParts));
    return r;
}
// The same of x >= y, by one instruction where there is one.
#if EVICP_WIDTH == 64
INLINE uint32_t bits_at_least(const Lanes<float, kLanes> &x, const Lanes<float, kLanes> &y) {
    return _mm512_cmp_ps_mask(x.part[0], y.part[0], _CMP_GE_OQ);
}
#endif
template <class T, int N> INLINE uint32_t bits_at_least(const Lanes<T, N> &x, const Lanes<T, N> &y) { return bits(x >= y); }
constexpr uint32_t kAllLanes = (1u << kLanes) - 1;

// The number of each lane.
template <class T> INLINE Lanes<T, kLanes> numbers() {
    alignas(64) static constexpr T each[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return Lanes<T, kLanes>::load(each);
}

#if EVICP_HAS_FMA
INLINE float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
INLINE double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
template <class V> INLINE V fused(V x, V y, V z) {
    for (int k = 0; k < int(sizeof x / sizeof x[0]); k++) z[k] = fma(x[k], y[k], z[k]);
    return z;
}
#else
typedef double Pair __attribute__((vector_size(16)));
typedef Lanes<int64_t, 2>::Part PairBits;
// x + y, rounded to the nearest number whose last bit is 1 where it is not exact: a second rounding then does no harm.
INLINE Pair add_to_odd(Pair x, Pair y) {
    Pair s = x + y, t = s - x, error = (x - (s - t)) + (y - t), zero{};
    PairBits whole = (PairBits)s, is_even = (whole & 1) - 1;  // all bits, or none
    PairBits step = 1 | ((error > zero) ^ (s > zero));        // 1 away from 0, -1 towards it
    return (Pair)(whole + (step & is_even & (error != zero)));
}
// x y + z, rounded once, without an instruction for it (Boldo and Melquiond, 2008).
NEVER_INLINE inline Pair fused(Pair x, Pair y, Pair z) {
    Pair u = x * 134217729.0, v = y * 134217729.0;
    Pair x_high = u - (u - x), x_low = x - x_high, y_high = v - (v - y), y_low = y - y_high;
    Pair product = x * y, low = x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low);
    Pair t = z + low, a = t - z, t_low = (z - (t - a)) + (low - a);
    Pair s = product + t, b = s - product, s_low = (product - (s - b)) + (t - b);
    Pair exact = s + add_to_odd(t_low, s_low), plain = product + z;
    return exact == exact ? exact : plain;  // infinite, or too large to be split
}
template <class V> NEVER_INLINE V fused(V x, V y, V z) {  // of single precision, whose products are exact in double
    for (int k = 0; k < int(sizeof x / sizeof x[0]); k += 2) {
        Pair product = Pair{x[k], x[k + 1]} * Pair{y[k], y[k + 1]}, c{z[k], z[k + 1]};
        Pair s = add_to_odd(product, c), plain = product + c;
        s = s == s ? s : plain;
        z[k] = float(s[0]), z[k + 1] = float(s[1]);
    }
    return z;
}
#endif
// x y + z, rounded once.
template <class T, int N> INLINE Lanes<T, N> fma(const Lanes<T, N> &x, const Lanes<T, N> &y, const Lanes<T, N> &z)
    BY_PARTS(T, fused(x.part[i], y.part[i], z.part[i]))
template <class T, int N> INLINE Lanes<T, N> fma(const Lanes<T, N> &x, const Lanes<T, N> &y, T z) { return fma(x, y, Lanes<T, N>(z)); }
template <class T, int N> INLINE Lanes<T, N> fma(const Lanes<T, N> &x, T y, const Lanes<T, N> &z) { return fma(x, Lanes<T, N>(y), z); }
template <class T, int N> INLINE Lanes<T, N> fma(const Lanes<T, N> &x, T y, T z) { return fma(x, Lanes<T, N>(y), Lanes<T, N>(z)); }

}  // namespace EVICP_LEVEL
}  // namespace evicp
