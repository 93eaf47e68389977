// Elementary functions of lanes. Our own: a library's may differ from one version or vector width to the next.
#pragma once
#include "lanes.h"

namespace evicp {
namespace EVICP_LEVEL {

// Without an instruction for x y + z a function is too long to be repeated wherever it is called.
#if EVICP_HAS_FMA
#define FUNCTION INLINE
#else
#define FUNCTION NEVER_INLINE
#endif

constexpr float kInfinity = __builtin_inff();
constexpr double kLn2 = 0.6931471805599453, kLn2RoundedOff = 2.319046813850482e-17, kInverseLn2 = 1.4426950408889634;

// Horner's rule, the highest power first.
template <class T, int N, int COUNT> INLINE Lanes<T, N> polynomial(const Lanes<T, N> &x, const T (&coefficients)[COUNT]) {
    Lanes<T, N> r(coefficients[0]);
    _Pragma("GCC unroll 20") for (int i = 1; i < COUNT; i++) r = fma(r, x, coefficients[i]);
    return r;
}

// e^(x rate), up to about e^88, as accurate as its type; what would underflow is about the smallest normal number.
//
// It is 2^(n + f) with |f| <= 1/2. The power 2^f is a polynomial, exactly 1 at 0; n is added to the exponent's bits.
// Adding 1.5 * 2^(mantissa bits) rounds to an integer and leaves that integer in the lowest bits.
template <int N> FUNCTION Lanes<double, N> exp_times(Lanes<double, N> x, double rate) {
    constexpr double taylor[] = {
        1.6059043836821613e-10, 2.08767569878681e-09,  2.505210838544172e-08, 2.755731922398589e-07, 2.7557319223985893e-06,
        2.48015873015873e-05,   0.0001984126984126984, 0.001388888888888889,  0.008333333333333333,  0.041666666666666664,
        0.16666666666666666,    0.5,                   1.0,                   1.0};
    constexpr double rounder = 1.5 * (1ull << 52);
    x = larger(x * rate, Lanes<double, N>(-707.0));
    Lanes<double, N> shifted = fma(x, kInverseLn2, rounder), n = shifted - rounder;
    Lanes<double, N> f = fma(n, Lanes<double, N>(-kLn2RoundedOff), fma(n, -kLn2, x));
    Lanes<double, N> y = polynomial(f, taylor);
    return cast<double>(cast<int64_t>(y) + (cast<int64_t>(shifted) << 52));
}
template <int N> FUNCTION Lanes<float, N> exp_times(Lanes<float, N> x, float rate) {
    constexpr float fitted[] = {0.001326471334323287f, 0.009671523235738277f, 0.05550732836127281f,
                                0.24022243916988373f,  0.6931470036506653f,   1.0f};  // within 1.1e-7
    constexpr float rounder = 1.5f * (1 << 23);
    x = larger(x * (rate * float(kInverseLn2)), Lanes<float, N>(-124.0f));
    Lanes<float, N> shifted = x + rounder, f = x - (shifted - rounder), y = polynomial(f, fitted);
    return cast<float>(cast<int32_t>(y) + (cast<int32_t>(shifted) << 23));
}
template <class T, int N> INLINE Lanes<T, N> exp(const Lanes<T, N> &x) { return exp_times(x, T(1)); }

// ln(x / 2^less) of a positive normal number: x = 2^n m, m in [0.7, 1.4), and ln m = 2 artanh((m - 1) / (m + 1)).
template <int N> FUNCTION Lanes<double, N> log(const Lanes<double, N> &x, double less = 0.0) {
    using D = Lanes<double, N>;
    using Bits = Lanes<uint64_t, N>;
    constexpr double series[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3};
    const Bits middle(0x3FE6A09E667F3BCDull), offset(1024ull << 52);  // sqrt(1/2); n is made positive to be shifted
    Bits bits = cast<uint64_t>(x), n = (bits - middle + offset) >> 52;
    D m = cast<double>(bits - ((n - Bits(1024)) << 52)), f = (m - 1.0) / (m + 1.0), squared = f * f, twice = f + f;
    D log_m = fma(twice * squared, polynomial(squared, series), twice);
    D power = cast<double>(n | Bits(0x4330000000000000ull)) - (4503599627370496.0 + 1024.0);  // n as a float64
    return fma(power - less, kLn2, log_m);
}

template <int N> FUNCTION Lanes<float, N> log(const Lanes<float, N> &x) {
    using Bits = Lanes<int32_t, N>;
    constexpr float series[] = {1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3};
    Bits bits = cast<int32_t>(x), n = (bits - Bits(0x3F3504F3)) >> 23;
    Lanes<float, N> m = cast<float>(bits - (n << 23)), f = (m - 1.0f) / (m + 1.0f), squared = f * f, twice = f + f;
    return fma(convert<float>(n), float(kLn2), fma(twice * squared, polynomial(squared, series), twice));
}

// ln(1 + x) for x >= 0, to full relative accuracy: what rounding took from the sum is put back.
template <int N> FUNCTION Lanes<double, N> log1p(const Lanes<double, N> &x) {
    Lanes<double, N> u = x + 1.0;
    return log(u) + (x - (u - 1.0)) / u;
}

template <int N> INLINE Lanes<double, N> log_add_exp(const Lanes<double, N> &x, const Lanes<double, N> &y) {
    Lanes<double, N> low = smaller(x, y), high = larger(x, y);
    return select(low == Lanes<double, N>(-kInfinity), high, high + log1p(exp(low - high)));
}

// ln(1 + e^x) = max(x, 0) + ln(1 + y), y = e^-|x|, and ln(1 + y) = 2 artanh(y / (2 + y)).
template <class T, int N> FUNCTION Lanes<T, N> softplus(const Lanes<T, N> &x) {
    constexpr T for_double[] = {T(1.0 / 35), T(1.0 / 33), T(1.0 / 31), T(1.0 / 29), T(1.0 / 27), T(1.0 / 25),
                                T(1.0 / 23), T(1.0 / 21), T(1.0 / 19), T(1.0 / 17), T(1.0 / 15), T(1.0 / 13),
                                T(1.0 / 11), T(1.0 / 9),  T(1.0 / 7),  T(1.0 / 5),  T(1.0 / 3),  T(1)};
    constexpr T for_single[] = {T(1.0 / 17), T(1.0 / 15), T(1.0 / 13), T(1.0 / 11), T(1.0 / 9),
                                T(1.0 / 7),  T(1.0 / 5),  T(1.0 / 3),  T(1)};
    Lanes<T, N> zero(T(0)), y = exp(smaller(x, zero - x)), f = y / (y + T(2)), squared = f * f, series;
    if constexpr (sizeof(T) == 8) {
        series = polynomial(squared, for_double);
    } else {
        series = polynomial(squared, for_single);
    }
    return (f * T(2)) * series + larger(x, zero);
}

// No less than e^(x rate) <= 1 and at most 6.2 % more: 2^(n + f) <= 2^n (1 + f), which is n + f read as bits.
template <int N> INLINE Lanes<float, N> rough_exp(const Lanes<float, N> &x, float rate) {
    Lanes<float, N> bits = fma(x, rate * float(8388608.0 * kInverseLn2), float(127.0 * 8388608.0));
    return cast<float>(convert<int32_t>(larger(bits, Lanes<float, N>(0.0f))));
}

// No more than ln x, and at most 0.06 less; far less than any logarithm where x is negative.
template <int N> INLINE Lanes<float, N> rough_log(const Lanes<float, N> &x) {
    return fma(convert<float>(cast<int32_t>(x)), float(kLn2 / 8388608.0), float(-127.0 * kLn2));
}

// The nearest whole number, of two the even one, of numbers in [0, 2^61].
template <int N> INLINE Lanes<int64_t, N> round_to_whole(const Lanes<double, N> &x) {
    using D = Lanes<double, N>;
    const D rounder(1.5 * (1ull << 52));  // leaves whole numbers in the lowest bits; here in two halves
    D high = x * (1.0 / 4294967296.0) + rounder, low = (x - (high - rounder) * 4294967296.0) + rounder;
    Lanes<int64_t, N> zero = cast<int64_t>(rounder);
    return ((cast<int64_t>(high) - zero) << 32) + (cast<int64_t>(low) - zero);
}

// The 32-bit finaliser of MurmurHash3, of a number or of lanes.
template <class X> INLINE X mix32(X x) {
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return x ^ (x >> 16);
}
// The hash of each lane as float32, 0 where it is -inf.
template <class T> INLINE Lanes<uint32_t, kLanes> hashes(const Lanes<T, kLanes> &x) {
    using X = Lanes<T, kLanes>;
    const Lanes<float, kLanes> zero(0.0f), is_possible = narrow(select(x > X(T(-kInfinity)), X(T(1)), X(T(0))));
    return mix32(cast<uint32_t>(narrow(x) + zero)) & cast<uint32_t>(is_possible > zero);
}

}  // namespace EVICP_LEVEL
}  // namespace evicp
