//! What chat templates expect of Python: `json.dumps` and `strftime`.

use minijinja::value::{Value, ValueKind};

/// A problem, worded to follow the name of what failed.
type Result<T> = std::result::Result<T, String>;

/// Deeper values are refused rather than followed to the end of the stack.
const DEEPEST: usize = 100;

/// The layout of [`to_json`].
#[derive(Debug, Default)]
pub(super) struct JsonLayout {
    /// Spaces a level, on lines of their own; everything on one line where it is none.
    pub(super) indent: Option<usize>,
    /// Whether objects are written with their keys in order.
    pub(super) sort_keys: bool,
}

/// `value` as Python's `json.dumps(value, ensure_ascii=False)` writes it: with a space after each comma and colon.
pub(super) fn to_json(value: &Value, layout: &JsonLayout) -> Result<String> {
    let mut out = String::new();
    write_json(value, layout, 0, &mut out)?;
    Ok(out)
}

fn write_json(value: &Value, layout: &JsonLayout, level: usize, out: &mut String) -> Result<()> {
    if level > DEEPEST {
        return Err(format!("more than {DEEPEST} levels are not supported"));
    }
    match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Number => out.push_str(&scalar(value)),
        ValueKind::String => write_string(&value.to_string(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            let mut items = value.try_iter().map_err(|error| error.to_string())?.peekable();
            let is_empty = items.peek().is_none();
            out.push('[');
            for (index, item) in items.enumerate() {
                separate(index, layout, level + 1, out);
                write_json(&item, layout, level + 1, out)?;
            }
            if !is_empty {
                end_line(layout, level, out);
            }
            out.push(']');
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter().map_err(|error| error.to_string())?.collect();
            if layout.sort_keys {
                keys.sort();
            }
            out.push('{');
            for (index, key) in keys.iter().enumerate() {
                separate(index, layout, level + 1, out);
                write_string(&scalar(key), out);
                out.push_str(": ");
                let item = value.get_item(key).map_err(|error| error.to_string())?;
                write_json(&item, layout, level + 1, out)?;
            }
            if !keys.is_empty() {
                end_line(layout, level, out);
            }
            out.push('}');
        }
        kind => return Err(format!("{kind} cannot be written as JSON")),
    }
    Ok(())
}

/// A value that is no container, as JSON spells it.
fn scalar(value: &Value) -> String {
    match value.kind() {
        ValueKind::None => "null".to_owned(),
        _ => value.to_string(),
    }
}

fn write_string(text: &str, out: &mut String) {
    // serde_json escapes what Python does, and leaves other characters as they are.
    out.push_str(&serde_json::Value::from(text).to_string());
}

fn separate(index: usize, layout: &JsonLayout, level: usize, out: &mut String) {
    if index > 0 {
        out.push_str(if layout.indent.is_some() { "," } else { ", " });
    }
    end_line(layout, level, out);
}

fn end_line(layout: &JsonLayout, level: usize, out: &mut String) {
    if let Some(indent) = layout.indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent.saturating_mul(level)));
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The time `seconds` after 1970 in UTC, laid out as `strftime` does; an unknown directive is an error.
pub(super) fn strftime(format: &str, seconds: u64) -> Result<String> {
    let date = Date::from_days(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let hour_12 = (hour + 11) % 12 + 1;
    let (month, weekday) = (MONTHS[date.month - 1], DAYS[date.weekday]);
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut directive = characters.next();
        let padded = directive != Some('-');
        if !padded {
            directive = characters.next();
        }
        let number = |value: u64, width: usize| match padded {
            true => format!("{value:0width$}"),
            false => value.to_string(),
        };
        out.push_str(&match directive {
            Some('Y') => number(date.year, 4),
            Some('y') => number(date.year % 100, 2),
            Some('m') => number(date.month as u64, 2),
            Some('d') => number(date.day, 2),
            Some('e') => format!("{:2}", date.day),
            Some('j') => number(date.day_of_year, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(hour_12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('p') => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
            Some('B') => month.to_owned(),
            Some('b' | 'h') => month[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('F') => format!("{:04}-{:02}-{:02}", date.year, date.month, date.day),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => return Err(format!("strftime_now does not know %{other}")),
            None => return Err("the format of strftime_now ends in %".to_owned()),
        });
    }
    Ok(out)
}

/// A day of the Gregorian calendar.
struct Date {
    year: u64,
    /// 1 … 12
    month: usize,
    /// 1 … 31
    day: u64,
    /// 1 … 366
    day_of_year: u64,
    /// 0 is Sunday
    weekday: usize,
}

impl Date {
    /// The day `days` after 1 January 1970.
    fn from_days(days: u64) -> Self {
        let is_leap =
            |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        // 146,097 days make 400 years, after which the calendar repeats.
        let mut year = 1970 + days / 146_097 * 400;
        let mut rest = days % 146_097;
        while rest >= 365 + u64::from(is_leap(year)) {
            rest -= 365 + u64::from(is_leap(year));
            year += 1;
        }
        let day_of_year = rest + 1;
        let february = 28 + u64::from(is_leap(year));
        let mut month = 1;
        for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
            if rest < length {
                break;
            }
            rest -= length;
            month += 1;
        }
        Self { year, month, day: rest + 1, day_of_year, weekday: ((days + 4) % 7) as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_laid_out_as_python_does() {
        let value = Value::from_pairs([
            ("b", Value::from(vec![Value::from(1), Value::from(2.5), Value::from("ä<\n")])),
            ("a", Value::from_pairs::<_, &str, Value>([])),
            ("c", Value::from(())),
        ]);
        let line = to_json(&value, &JsonLayout::default());
        assert_eq!(line.as_deref(), Ok(r#"{"b": [1, 2.5, "ä<\n"], "a": {}, "c": null}"#));
        let layout = JsonLayout { indent: Some(2), sort_keys: true };
        assert_eq!(
            to_json(&value, &layout).as_deref(),
            Ok("{\n  \"a\": {},\n  \"b\": [\n    1,\n    2.5,\n    \"ä<\\n\"\n  ],\n  \"c\": null\n}")
        );
        assert!(to_json(&Value::UNDEFINED, &layout).is_err());
        let deep = (0..1000).fold(Value::from(1), |inner, _| Value::from(vec![inner]));
        assert!(to_json(&deep, &layout).is_err());
    }

    #[test]
    fn dates_are_those_of_python() {
        // From datetime.fromtimestamp(s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S %j %a %b %-d %I %p").
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 001 Thu Jan 1 12 AM"),
            (951_782_400, "2000-02-29 00:00:00 060 Tue Feb 29 12 AM"),
            (1_735_689_599, "2024-12-31 23:59:59 366 Tue Dec 31 11 PM"),
            (4_107_542_400, "2100-03-01 00:00:00 060 Mon Mar 1 12 AM"),
            (13_569_465_600, "2400-01-01 00:00:00 001 Sat Jan 1 12 AM"),
        ] {
            let made = strftime("%F %T %j %a %b %-d %I %p", seconds);
            assert_eq!(made.as_deref(), Ok(expected));
        }
        assert!(strftime("%Q", 0).is_err());
        assert!(strftime("%", 0).is_err());
    }
}
