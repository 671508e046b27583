//! Mathematics whose results have equal bits on every machine.

/// Returns the natural logarithm of a positive normal number, with equal bits on every machine.
///
/// Only additions, multiplications and divisions: the last bit of a library's logarithm may differ.
pub(crate) fn portable_ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i32 - 1023;
    let mantissa = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 1023 << 52);
    let (mantissa, exponent) = if mantissa > std::f64::consts::SQRT_2 {
        (mantissa / 2.0, exponent + 1)
    } else {
        (mantissa, exponent)
    };
    // ln m = 2 artanh t, whose series ends below rounding error for |t| < 0.172.
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let series = (0..11).rev().fold(0.0, |sum, k| sum * (t * t) + 1.0 / f64::from(2 * k + 1));
    f64::from(exponent) * std::f64::consts::LN_2 + 2.0 * t * series
}

/// Returns the cube root of a number that is not negative, in operations that every machine rounds alike.
pub(crate) fn portable_cube_root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    // Newton's method from above falls until rounding stops it.
    let mut root = x.max(1.0);
    loop {
        let next = (2.0 * root + x / (root * root)) / 3.0;
        if next >= root {
            return root;
        }
        root = next;
    }
}

/// Returns `base` to the power `exponent`, by multiplications that every machine rounds alike.
pub(crate) fn portable_power(mut base: f64, mut exponent: u64) -> f64 {
    let mut power = 1.0;
    while exponent > 0 {
        if exponent % 2 == 1 {
            power *= base;
        }
        base *= base;
        exponent /= 2;
    }
    power
}
