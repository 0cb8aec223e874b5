//! Python's `format % arguments` and `format.format(arguments)`, in what templates use.

use super::budget::{Budget, Text};
use super::value::{Value, float_text, text_of};
use super::{Result, broken};

/// `%` with flags, width and precision, and the conversions s, d, i, f, x, X and %.
pub(super) fn percent_format(format: &str, arguments: &[Value], budget: &Budget) -> Result<Value> {
    let mut out = budget.text();
    let mut arguments = arguments.iter();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        out.push(before)?;
        let flags_end = after.find(|c| !matches!(c, '-' | '0' | '+' | ' ' | '#')).unwrap_or(after.len());
        let (flags, after) = after.split_at(flags_end);
        let (width, after) = leading_number(after)?;
        let (precision, after) = match after.strip_prefix('.') {
            Some(after) => {
                let (precision, after) = leading_number(after)?;
                (Some(precision), after)
            }
            None => (None, after),
        };
        let mut characters = after.chars();
        let conversion = characters.next().ok_or_else(|| broken("a format ends in %"))?;
        rest = characters.as_str();
        if conversion == '%' {
            out.push("%")?;
            continue;
        }
        let value = arguments.next().ok_or_else(|| broken("a format has too few arguments"))?.defined()?;
        let not_a_number = || broken(format!("%{conversion} does not take {}", value.kind()));
        let is_number = conversion != 's';
        let text = match conversion {
            's' => {
                let text = text_of(value, budget)?;
                match precision {
                    Some(most) => text.chars().take(most).collect(),
                    None => text.to_string(),
                }
            }
            'd' | 'i' => match value {
                Value::Float(number) => format!("{:.0}", number.trunc()),
                _ => value.as_int().ok_or_else(not_a_number)?.to_string(),
            },
            'f' => {
                let precision = precision.unwrap_or(6);
                budget.bytes(precision)?;
                fixed(value.as_float().ok_or_else(not_a_number)?, precision)?
            }
            'x' => format!("{:x}", value.as_int().ok_or_else(not_a_number)?),
            'X' => format!("{:X}", value.as_int().ok_or_else(not_a_number)?),
            other => return Err(broken(format!("%{other} is not supported"))),
        };
        let plus = if is_number && flags.contains('+') && !text.starts_with('-') { "+" } else { "" };
        let text = format!("{plus}{text}");
        let padding = width.saturating_sub(text.chars().count());
        match (flags.contains('-'), is_number && flags.contains('0')) {
            (true, _) => {
                out.push(&text)?;
                out.repeat(" ", padding)?;
            }
            (false, true) => {
                let sign = usize::from(text.starts_with(['-', '+']));
                out.push(&text[..sign])?;
                out.repeat("0", padding)?;
                out.push(&text[sign..])?;
            }
            (false, false) => {
                out.repeat(" ", padding)?;
                out.push(&text)?;
            }
        }
    }
    if arguments.next().is_some() {
        return Err(broken("a format has too many arguments"));
    }
    out.push(rest)?;
    out.finish()
}

/// The number at the start of `text`, 0 where there is none, and what follows it.
fn leading_number(text: &str) -> Result<(usize, &str)> {
    let (digits, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    match digits {
        "" => Ok((0, rest)),
        _ => Ok((digits.parse().map_err(|_| broken("the width of a format is too large"))?, rest)),
    }
}

/// `number` with `precision` digits after the point.
fn fixed(number: f64, precision: usize) -> Result<String> {
    // Precision beyond that of any f64 adds zeros alone; Rust's formatting takes no more than u16::MAX.
    if precision > 1100 {
        return Err(broken("the precision of a format is too large"));
    }
    Ok(if number.is_finite() { format!("{number:.precision$}") } else { float_text(number) })
}

/// `{}`, `{0}` and `{name}`, without what may follow a colon but `.2f` and the like.
pub(super) fn brace_format(
    format: &str,
    positional: &[Value],
    named: &[(std::rc::Rc<str>, Value)],
    budget: &Budget,
) -> Result<Value> {
    let mut out = budget.text();
    let mut automatic = positional.iter();
    let mut rest = format;
    while let Some(at) = rest.find(['{', '}']) {
        out.push(&rest[..at])?;
        let bracket = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(bracket) {
            out.push(bracket)?;
            rest = after;
            continue;
        }
        let (field, after) = match bracket {
            "{" => rest.split_once('}').ok_or_else(|| broken("a format has { without }"))?,
            _ => return Err(broken("a format has } without {")),
        };
        rest = after;
        let (name, layout) = field.split_once(':').unwrap_or((field, ""));
        let value = match (name, name.parse::<usize>()) {
            ("", _) => automatic.next(),
            (_, Ok(index)) => positional.get(index),
            _ => named.iter().find(|(other, _)| **other == *name).map(|(_, value)| value),
        };
        let value = value.ok_or_else(|| broken(format!("a format has no argument for {{{name}}}")))?;
        write_field(value.defined()?, layout, &mut out, budget)?;
    }
    out.push(rest)?;
    out.finish()
}

fn write_field(value: &Value, layout: &str, out: &mut Text<'_>, budget: &Budget) -> Result<()> {
    let precision = layout.strip_prefix('.').and_then(|layout| layout.strip_suffix('f'));
    match (layout, precision.map(str::parse), value.as_float()) {
        ("", ..) => value.write(out),
        ("d", ..) if value.as_int().is_some() => value.write(out),
        (_, Some(Ok(precision)), Some(number)) => {
            budget.bytes(precision)?;
            out.push(&fixed(number, precision)?)
        }
        _ => Err(broken(format!("the format {{:{layout}}} is not supported"))),
    }
}
