//! Decimal numbers times an integer scale: exact, or in three significant digits.

/// Splits a text such as "0.1 %" into number and unit; `None` where no number comes first.
pub(crate) fn split_decimal_and_unit(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (!number.is_empty()).then(|| (number, unit.trim_start()))
}

/// Returns the decimal `number` times `scale`; `None` when that is no integer or exceeds `u64`.
pub(crate) fn scale_decimal(number: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits_ok = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if !digits_ok(whole) || !digits_ok(fraction) || whole.len() + fraction.len() == 0 {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let denominator = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let digits: u128 = format!("0{whole}{fraction}").parse().ok()?;
    let scaled = digits.checked_mul(u128::from(scale))?;
    if !scaled.is_multiple_of(denominator) {
        return None;
    }
    u64::try_from(scaled / denominator).ok()
}

/// Formats `value` exactly, in the first of `units` that shows it as a number below 1000 with at
/// most three decimals. Where none does, the number may be larger.
///
/// `units` holds scale and name of each unit; the last has scale 1.
pub(crate) fn format_decimal(value: u64, units: &[(u64, &str)]) -> String {
    let below = |most: u64| {
        units.iter().find_map(|(scale, unit)| {
            let thousandths = u128::from(value) * 1000;
            let fits = value >= *scale && value / scale < most;
            if !fits || !thousandths.is_multiple_of(u128::from(*scale)) {
                return None;
            }
            let thousandths = thousandths / u128::from(*scale);
            let number = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
            Some(format!("{} {unit}", without_decimal_zeros(&number)))
        })
    };
    let shown = below(1000).or_else(|| below(u64::MAX));
    shown.unwrap_or_else(|| format!("{value} {}", units[units.len() - 1].1))
}

/// Formats `value` for people: in three significant digits, in the smallest of `units` in which
/// they do not reach the next unit or 1000. Zeros at the end of a fraction are left out.
///
/// `units` holds scale and name of each unit, largest first.
pub(crate) fn format_rounded_decimal(value: u64, units: &[(u64, &str)]) -> String {
    let mut larger = units.iter().rev().skip(1);
    for (scale, unit) in units.iter().rev() {
        let number = rounded_decimal(value as f64 / *scale as f64);
        let reaches_next = larger.next().is_some_and(|(next, _)| {
            let most = (*next as f64 / *scale as f64).min(1000.0);
            number.parse::<f64>().is_ok_and(|rounded| rounded >= most)
        });
        if !reaches_next {
            return format!("{number} {unit}");
        }
    }
    String::new()
}

/// 9 digits: the most behind the point of a rounded number; smaller digits are rounded off. A
/// nanosecond in seconds has nine.
const DECIMALS_MAX: i32 = 9;

/// Returns a number without a unit, such as a ratio, in three significant digits, but with all digits
/// before the decimal point and at most nine behind it.
pub fn rounded_decimal(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        size if size > 0.0 => (2 - size.log10().floor() as i32).min(DECIMALS_MAX),
        _ => 0,
    };
    let decimals = decimals.unsigned_abs() as usize;
    match without_decimal_zeros(&format!("{value:.decimals$}")) {
        "-0" => "0".to_owned(),
        number => number.to_owned(),
    }
}

/// Returns a measured fraction as a percentage in three significant digits, such as `12.3 %` for
/// 0.1234.
pub fn rounded_decimal_percent(fraction: f64) -> String {
    format!("{} %", rounded_decimal(100.0 * fraction))
}

/// Returns a decimal number without the zeros at the end of its fraction.
fn without_decimal_zeros(number: &str) -> &str {
    match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_percentages_have_three_digits() {
        let cases = [
            (0.0, "0 %"),
            (-0.0, "0 %"),
            (1.0, "100 %"),
            (0.123_456, "12.3 %"),
            (0.000_123_4, "0.0123 %"),
            (0.000_999_96, "0.1 %"),
            (0.999_96, "100 %"),
            (12.345, "1234 %"),
            (-0.0254, "-2.54 %"),
            (1e-13, "0 %"),
            (f64::NAN, "NaN %"),
        ];
        for (fraction, text) in cases {
            assert_eq!(rounded_decimal_percent(fraction), text);
        }
        assert_eq!(rounded_decimal(0.25), "0.25");
    }
}
