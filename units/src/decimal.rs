//! Exact decimal numbers times an integer scale.

/// Splits a text such as "0.1 %" into number and unit; `None` where no number comes first.
pub(crate) fn split_number_and_unit(text: &str) -> Option<(&str, &str)> {
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

/// Formats `value` in the largest of `units` that shows it with at most three decimals.
///
/// `units` holds scale and name of each unit, largest first.
pub(crate) fn format_decimal(value: u64, units: &[(u64, &str)]) -> String {
    for (scale, unit) in units {
        let thousandths = u128::from(value) * 1000;
        if value >= *scale && thousandths.is_multiple_of(u128::from(*scale)) {
            let thousandths = thousandths / u128::from(*scale);
            let (whole, rest) = (thousandths / 1000, thousandths % 1000);
            let rest = format!("{rest:03}");
            let rest = rest.trim_end_matches('0');
            let dot = if rest.is_empty() { "" } else { "." };
            return format!("{whole}{dot}{rest} {unit}");
        }
    }
    let (scale, unit) = units[units.len() - 1];
    format!("{} {unit}", value / scale)
}
