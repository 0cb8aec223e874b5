//! Text of numbers and tokens in figures.

/// A number in few characters, for axes: 0.25, 1.3e-5.
pub fn short(value: f32) -> String {
    let size = value.abs();
    match value {
        _ if value.is_nan() => "undefined".into(),
        0.0 => "0".into(),
        _ if size >= 1e5 => format!("{value:.1e}"),
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 1.0 => trimmed(format!("{value:.2}")),
        _ if size >= 1e-3 => trimmed(format!("{value:.4}")),
        _ => format!("{value:.1e}").replace(".0e", "e"),
    }
}

fn trimmed(text: String) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number with all useful digits, for tooltips and tables.
pub fn exact(value: f32) -> String {
    match value {
        _ if value.is_nan() => "undefined".into(),
        0.0 => "0".into(),
        _ if value.abs() < 1e-4 || value.abs() >= 1e6 => format!("{value:.5e}"),
        _ => format!("{value:.6}"),
    }
}

/// A token in one line: line breaks, tabs and control characters are escaped.
pub fn token_label(token: &str) -> String {
    let mut label = String::with_capacity(token.len());
    for character in token.chars() {
        match character {
            '\n' => label.push_str("\\n"),
            '\r' => label.push_str("\\r"),
            '\t' => label.push_str("\\t"),
            control if control.is_control() => label.extend(control.escape_unicode()),
            other => label.push(other),
        }
    }
    label
}
