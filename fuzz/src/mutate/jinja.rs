//! Chat templates in Jinja, made and changed by its grammar: what comes out mostly parses.

use super::{Random, below, one_in, pick, text};
use rand::RngExt;

const NAMES: [&str; 12] = [
    "messages",
    "message",
    "loop",
    "ns",
    "bos_token",
    "eos_token",
    "tools",
    "add_generation_prompt",
    "x",
    "y",
    "loop.index",
    "ns.x",
];
const VALUES: [&str; 14] = [
    "''",
    "'a'",
    "'%s'",
    "'%999999s'",
    "'\\n'",
    "0",
    "1",
    "-1",
    "1000000",
    "9223372036854775807",
    "1.5",
    "none",
    "true",
    "[]",
];
const FILTERS: [&str; 34] = [
    "trim",
    "length",
    "upper",
    "lower",
    "title",
    "capitalize",
    "tojson",
    "tojson(indent=4)",
    "join",
    "join('a'*9)",
    "list",
    "first",
    "last",
    "reverse",
    "sort",
    "unique",
    "map('upper')",
    "map(attribute='role')",
    "selectattr('role')",
    "rejectattr('role', 'equalto', 'user')",
    "select",
    "replace('a', 'bb')",
    "default('x')",
    "items",
    "dictsort",
    "abs",
    "int",
    "float",
    "string",
    "batch(2)",
    "slice(2)",
    "indent(4)",
    "format('x')",
    "safe",
];
const METHODS: [&str; 14] = [
    ".strip()",
    ".split(',')",
    ".split('a')[-1]",
    ".upper()",
    ".startswith('a')",
    ".endswith('a')",
    ".replace('a', 'b')",
    ".items()",
    ".get('role')",
    ".keys()",
    ".title()",
    ".lstrip('\\n')",
    ".format(1)",
    ".join(['a', 'b'])",
];
const OPERATORS: [&str; 18] = [
    "+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">=", "and", "or", "in", "not in", "is", "if",
];
const TESTS: [&str; 10] = [
    "defined",
    "none",
    "string",
    "mapping",
    "iterable",
    "number",
    "sequence",
    "odd",
    "divisibleby(3)",
    "eq(1)",
];
const PIECES: [&str; 10] =
    ["{{", "}}", "{%", "%}", "{#", "#}", "-%}", "endfor", "endif", "raise_exception('no')"];
/// How deep expressions and blocks lie in each other.
const DEPTH: u32 = 4;

/// A template with a block or an expression inserted, taken out, doubled or nested.
pub fn changed(template: &str, random: &mut Random) -> String {
    match random.random_range(0..8) {
        0 => text::changed(template, &PIECES, random),
        1 => taken_out(template, random),
        2 => [template, template].concat(),
        3 => deep(random),
        4 => statements(DEPTH, random),
        _ => {
            let at = boundary(template, random);
            [&template[..at], &statements(DEPTH - 2, random), &template[at..]].concat()
        }
    }
}

/// A place before a block or an expression, or anywhere else.
fn boundary(template: &str, random: &mut Random) -> usize {
    let starts = template.match_indices("{{").chain(template.match_indices("{%")).map(|(at, _)| at);
    let mut places: Vec<usize> = starts.collect();
    if places.is_empty() || one_in(8, random) {
        places.extend(template.char_indices().map(|(at, _)| at));
        places.push(template.len());
    }
    pick(&places, random)
}

/// Without what stands between two boundaries.
fn taken_out(template: &str, random: &mut Random) -> String {
    let (a, b) = (boundary(template, random), boundary(template, random));
    [&template[..a.min(b)], &template[a.max(b)..]].concat()
}

fn statements(depth: u32, random: &mut Random) -> String {
    (0..=below(2, random)).map(|_| statement(depth, random)).collect()
}

fn statement(depth: u32, random: &mut Random) -> String {
    let value = expression(depth.saturating_sub(1), random);
    if depth == 0 {
        return format!("{{{{ {value} }}}}");
    }
    let mut inner = || statements(depth - 1, random);
    let body = inner();
    let other = inner();
    match random.random_range(0..12) {
        0 => format!("{{% if {value} %}}{body}{{% else %}}{other}{{% endif %}}"),
        1 => format!("{{%- for message in messages -%}}{body}{{% endfor %}}"),
        2 => format!("{{% for x in {value} %}}{body}{{% else %}}{other}{{% endfor %}}"),
        3 => format!("{{% for x in range({}) %}}{body}{{% endfor %}}", pick(&["3", "100", "100000"], random)),
        4 => format!("{{% set x = {value} %}}{body}"),
        5 => format!(
            "{{% set ns = namespace(x={value}) %}}{body}{{% set ns.x = {} %}}{{{{ ns.x }}}}",
            pick(&NAMES, random)
        ),
        6 => format!("{{% macro x(y) %}}{body}{{% endmacro %}}{{{{ x({value}) }}}}"),
        7 => format!("{{% filter {} %}}{body}{{% endfilter %}}", pick(&FILTERS, random)),
        8 => format!("{{% set y %}}{body}{{% endset %}}{{{{ y }}}}"),
        9 => format!("{{% with x = {value} %}}{body}{{% endwith %}}"),
        _ => format!("{{{{ {value} }}}}{}", pick(&text::HOSTILE, random)),
    }
}

fn expression(depth: u32, random: &mut Random) -> String {
    if depth == 0 {
        return if one_in(2, random) { pick(&NAMES, random) } else { pick(&VALUES, random) }.to_owned();
    }
    let mut inner = || expression(depth - 1, random);
    let (a, b) = (inner(), inner());
    match random.random_range(0..10) {
        0 | 1 => format!("{a}|{}", pick(&FILTERS, random)),
        2 => format!("({a}){}", pick(&METHODS, random)),
        3 | 4 => format!("({a} {} {b})", pick(&OPERATORS, random)),
        5 => format!("({a} is {})", pick(&TESTS, random)),
        6 => format!("({a})[{b}]"),
        7 => format!("({a})[{b}:]"),
        8 => format!("({a} if {b} else {a})"),
        _ => match random.random_range(0..4) {
            0 => format!("[{a}, {b}]"),
            1 => format!("{{'a': {a}, 'b': {b}}}"),
            2 => format!("range({a})"),
            _ => format!("namespace(x={a}, y={b})"),
        },
    }
}

/// The same within itself, many times.
fn deep(random: &mut Random) -> String {
    const NESTS: [(&str, &str, &str); 9] = [
        ("[", "1", "]"),
        ("(", "1", ")"),
        ("-", "1", ""),
        ("not ", "1", ""),
        ("1+", "1", ""),
        ("{'a':", "1", "}"),
        ("x[", "1", "]"),
        ("'a'~", "'a'", ""),
        ("1 if 1 else ", "1", ""),
    ];
    let times = 1 << below(13, random);
    if one_in(3, random) {
        let [open, close] = pick(
            &[
                ["{% if 1 %}", "{% endif %}"],
                ["{% for x in [1] %}", "{% endfor %}"],
                ["{% macro x() %}", "{% endmacro %}{{ x() }}"],
                ["{% set x = [x] %}", ""],
                ["{% set ns = namespace(x=0) %}{% set ns.x = ns %}", "{{ ns }}"],
            ],
            random,
        );
        return [open.repeat(times), close.repeat(times), "{{ x }}".to_owned()].concat();
    }
    let (open, middle, close) = pick(&NESTS, random);
    format!("{{{{ {}{middle}{} }}}}", open.repeat(times), close.repeat(times))
}
