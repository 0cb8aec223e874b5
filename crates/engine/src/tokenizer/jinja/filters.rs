//! Jinja's filters, those that chat templates use.

use std::rc::Rc;

use super::arguments::{Given, flag, int, text, text_or};
use super::budget::Budget;
use super::checks::check;
use super::format::percent_format;
use super::json::{JsonLayout, to_json};
use super::methods::{capitalized, lines, method, number, pair, push_cased, replace, strip};
use super::operators::{arithmetic, compare, item};
use super::syntax::{Comparison, Operator};
use super::value::{Mapping, Value, equal, text_of};
use super::{Result, broken};

/// The names of [`filter`].
const NAMES: [&str; 42] = [
    "abs",
    "attr",
    "capitalize",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "format",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "wordcount",
    "center",
];

/// Whether there is a filter `name`.
pub(super) fn exists(name: &str) -> bool {
    NAMES.contains(&name)
}

/// `value|name(given)`
pub(super) fn filter(value: &Value, name: &str, given: Given, budget: &Budget) -> Result<Value> {
    budget.steps(1)?;
    match name {
        "abs" => {
            given.none(name)?;
            match value.defined()? {
                Value::Float(number) => Ok(Value::Float(number.abs())),
                other => match other.as_int().and_then(i64::checked_abs) {
                    Some(number) => Ok(Value::Int(number)),
                    None => Err(broken(format!("abs does not take {}", other.kind()))),
                },
            }
        }
        "attr" => {
            let attribute = text(&given.single(name, "name")?, name)?;
            // Unlike `value.name`, this does not look for an item.
            match value {
                Value::Mapping(_) => {
                    Ok(method(value, &attribute).unwrap_or(Value::Undefined(Some(attribute))))
                }
                _ => super::interpreter::attribute(value, &attribute, budget),
            }
        }
        "capitalize" | "lower" | "upper" | "title" => {
            given.none(name)?;
            let text = text_of(value, budget)?;
            budget.reads(text.len())?;
            budget.string(&match name {
                "capitalize" => capitalized(&text),
                "lower" => text.to_lowercase(),
                "upper" => text.to_uppercase(),
                _ => titled(&text),
            })
        }
        "center" => {
            let [width] = given.bind(name, ["width"])?;
            let width = usize::try_from(int(width, 80, name)?).unwrap_or(0);
            let text = text_of(value, budget)?;
            let missing = width.saturating_sub(text.chars().count());
            // As CPython: where both are odd, the extra space goes to the left.
            let left = missing / 2 + (missing & width & 1);
            let mut out = budget.text();
            out.repeat(" ", left)?;
            out.push(&text)?;
            out.repeat(" ", missing - left)?;
            out.finish()
        }
        "count" | "length" => {
            given.none(name)?;
            Ok(number(value.length(budget)?))
        }
        "default" | "d" => {
            let [default, boolean] = given.bind(name, ["default_value", "boolean"])?;
            let replaced = value.is_undefined() || (flag(boolean) && !value.is_true());
            let default = || default.map_or_else(|| budget.string(""), Ok);
            if replaced { default() } else { Ok(value.clone()) }
        }
        "dictsort" => dictsort(value, given, budget),
        "escape" | "e" => {
            given.none(name)?;
            escaped(&text_of(value, budget)?, budget)
        }
        "first" | "last" => {
            given.none(name)?;
            let items = value.items(budget)?.into_vec();
            let found = if name == "first" { items.first() } else { items.last() };
            Ok(found.cloned().unwrap_or(Value::Undefined(None)))
        }
        "float" => {
            let [default] = given.bind(name, ["default"])?;
            let number = match value {
                Value::Str(text) => text.trim_matches(super::lexer::is_space).replace('_', "").parse().ok(),
                other => other.defined()?.as_float(),
            };
            Ok(number.map(Value::Float).or(default).unwrap_or(Value::Float(0.0)))
        }
        "int" => to_int(value, given),
        "format" => {
            if !given.named.is_empty() {
                return Err(broken("format with names is not supported"));
            }
            percent_format(&text_of(value, budget)?, &given.positional, budget)
        }
        "indent" => indent(value, given, budget),
        "items" => {
            given.none(name)?;
            let mut items = budget.items();
            match value {
                Value::Mapping(mapping) => {
                    for (key, value) in &mapping.entries {
                        items.push(pair(key, value, budget)?)?;
                    }
                }
                Value::Undefined(_) => {}
                _ => return Err(broken(format!("items does not take {}", value.kind()))),
            }
            items.list()
        }
        "join" => {
            let [separator, attribute] = given.bind(name, ["d", "attribute"])?;
            let separator = text_or(separator, "", budget)?;
            let mut out = budget.text();
            for (index, item) in value.items(budget)?.into_vec().into_iter().enumerate() {
                out.push(if index > 0 { &separator } else { "" })?;
                match &attribute {
                    Some(attribute) => at_path(&item, attribute, budget)?.write(&mut out)?,
                    None => item.write(&mut out)?,
                }
            }
            out.finish()
        }
        "list" => {
            given.none(name)?;
            value.items(budget)?.list()
        }
        "map" => map(value, given, budget),
        "max" | "min" => {
            let [case_sensitive, attribute] = given.bind(name, ["case_sensitive", "attribute"])?;
            let keyed = keyed(value, attribute, flag(case_sensitive), budget)?;
            let wanted = if name == "max" { Comparison::Greater } else { Comparison::Less };
            let mut best: Option<(Value, Value)> = None;
            for (key, item) in keyed {
                let better = match &best {
                    Some((other, _)) => compare(wanted, &key, other, budget)?,
                    None => true,
                };
                best = if better { Some((key, item)) } else { best };
            }
            Ok(best.map_or(Value::Undefined(None), |(_, item)| item))
        }
        "replace" => {
            let [old, new, count] = given.bind(name, ["old", "new", "count"])?;
            let (Some(old), Some(new)) = (old, new) else {
                return Err(broken("replace is called with too few arguments"));
            };
            let count = match count {
                None | Some(Value::None) => usize::MAX,
                count => usize::try_from(int(count, -1, name)?).unwrap_or(usize::MAX),
            };
            let (old, new) = (text_of(&old, budget)?, text_of(&new, budget)?);
            replace(&text_of(value, budget)?, &old, &new, count, budget)
        }
        "reverse" => {
            given.none(name)?;
            if let Value::Str(text) = value {
                budget.reads(text.len())?;
                return budget.string(&text.chars().rev().collect::<String>());
            }
            let mut items = budget.items();
            items.extend(value.items(budget)?.into_vec().iter().rev())?;
            items.list()
        }
        "round" => round(value, given, budget),
        "safe" | "string" => {
            given.none(name)?;
            Ok(Value::Str(text_of(value, budget)?))
        }
        "select" | "reject" | "selectattr" | "rejectattr" => select(value, name, given, budget),
        "sort" => {
            let [reverse, case_sensitive, attribute] =
                given.bind(name, ["reverse", "case_sensitive", "attribute"])?;
            let keyed = keyed(value, attribute, flag(case_sensitive), budget)?;
            sorted_list(keyed, flag(reverse), budget)
        }
        "sum" => {
            let [attribute, start] = given.bind(name, ["attribute", "start"])?;
            let mut sum = start.unwrap_or(Value::Int(0));
            for item in value.items(budget)?.into_vec() {
                let item = match &attribute {
                    Some(attribute) => at_path(&item, attribute, budget)?,
                    None => item,
                };
                sum = arithmetic(Operator::Add, &sum, &item, budget)?;
            }
            Ok(sum)
        }
        "tojson" => tojson(value, given, budget),
        "trim" => {
            let [characters] = given.bind(name, ["chars"])?;
            let text = text_of(value, budget)?;
            budget.reads(text.len())?;
            budget.string(strip(&text, characters, true, true, budget)?)
        }
        "truncate" => truncate(value, given, budget),
        "unique" => {
            let [case_sensitive, attribute] = given.bind(name, ["case_sensitive", "attribute"])?;
            let mut seen: Vec<Value> = Vec::new();
            let mut items = budget.items();
            'items: for (key, item) in keyed(value, attribute, flag(case_sensitive), budget)? {
                for other in &seen {
                    if equal(&key, other, budget)? {
                        continue 'items;
                    }
                }
                seen.push(key);
                items.push(item)?;
            }
            items.list()
        }
        "wordcount" => {
            given.none(name)?;
            let text = text_of(value, budget)?;
            budget.reads(text.len())?;
            let words = text.split(|c: char| c != '_' && !c.is_alphanumeric());
            Ok(number(words.filter(|word| !word.is_empty()).count()))
        }
        _ => Err(broken(format!("its filter {name} is not supported"))),
    }
}

/// Words as `title` has them, which start after white space, a hyphen or an opening bracket.
fn titled(text: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for character in text.chars() {
        push_cased(character, !inside, &mut out);
        inside = !(super::lexer::is_space(character) || "-({[<".contains(character));
    }
    out
}

fn escaped(text: &str, budget: &Budget) -> Result<Value> {
    let mut out = budget.text();
    for character in text.chars() {
        match character {
            '&' => out.push("&amp;")?,
            '<' => out.push("&lt;")?,
            '>' => out.push("&gt;")?,
            '\'' => out.push("&#39;")?,
            '"' => out.push("&#34;")?,
            other => out.push_char(other)?,
        }
    }
    out.finish()
}

/// What is at `path`, names and indices with dots between, from `value` on.
fn at_path(value: &Value, path: &Value, budget: &Budget) -> Result<Value> {
    let Value::Str(path) = path else {
        return Ok(item(value, path, budget)?.unwrap_or(Value::Undefined(None)));
    };
    let mut found = value.clone();
    for part in path.split('.') {
        let key = match part.parse() {
            Ok(index) => Value::Int(index),
            Err(_) => budget.string(part)?,
        };
        found = item(&found, &key, budget)?.unwrap_or_else(|| Value::Undefined(key.as_str().cloned()));
    }
    Ok(found)
}

/// The items of `value`, each behind what it is compared by.
fn keyed(
    value: &Value,
    attribute: Option<Value>,
    case_sensitive: bool,
    budget: &Budget,
) -> Result<Vec<(Value, Value)>> {
    let mut keyed = Vec::new();
    for item in value.items(budget)?.into_vec() {
        let key = match &attribute {
            None | Some(Value::None) => item.clone(),
            Some(attribute) => at_path(&item, attribute, budget)?,
        };
        keyed.push((folded(key, case_sensitive, budget)?, item));
    }
    Ok(keyed)
}

fn folded(key: Value, case_sensitive: bool, budget: &Budget) -> Result<Value> {
    match &key {
        Value::Str(text) if !case_sensitive => budget.string(&text.to_lowercase()),
        _ => Ok(key),
    }
}

fn sorted_list(keyed: Vec<(Value, Value)>, reverse: bool, budget: &Budget) -> Result<Value> {
    let wanted = if reverse { Comparison::Greater } else { Comparison::Less };
    let mut items = budget.items();
    let goes_first = |a: &(Value, Value), b: &(Value, Value)| match a.0.is_undefined() && b.0.is_undefined() {
        true => Ok(false),
        false => compare(wanted, &a.0, &b.0, budget),
    };
    for (_, item) in sorted(keyed, goes_first)? {
        items.push(item)?;
    }
    items.list()
}

fn dictsort(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let [case_sensitive, by, reverse] = given.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    let Value::Mapping(mapping) = value.defined()? else {
        return Err(broken(format!("dictsort does not take {}", value.kind())));
    };
    let by_value = match by {
        None => false,
        Some(by) => match &*text(&by, "dictsort")? {
            "key" => false,
            "value" => true,
            other => return Err(broken(format!("dictsort does not sort by {other}"))),
        },
    };
    let case_sensitive = flag(case_sensitive);
    let mut keyed = Vec::new();
    for (key, value) in &mapping.entries {
        let by = if by_value { value } else { key };
        keyed.push((folded(by.clone(), case_sensitive, budget)?, pair(key, value, budget)?));
    }
    sorted_list(keyed, flag(reverse), budget)
}

fn to_int(value: &Value, given: Given) -> Result<Value> {
    let [default, base] = given.bind("int", ["default", "base"])?;
    let base = u32::try_from(int(base, 10, "int")?).ok().filter(|base| (2..=36).contains(base));
    let base = base.ok_or_else(|| broken("int takes a base of 2 to 36"))?;
    // A float beyond what an integer holds becomes the nearest that it does hold.
    let whole = |number: f64| number.is_finite().then_some(number as i64);
    let number = match value.defined()? {
        Value::Str(text) => {
            let text = text.trim_matches(super::lexer::is_space).replace('_', "");
            let digits = match base {
                16 => text.trim_start_matches("0x"),
                8 => text.trim_start_matches("0o"),
                2 => text.trim_start_matches("0b"),
                _ => &text,
            };
            i64::from_str_radix(digits, base).ok().or_else(|| text.parse().ok().and_then(whole))
        }
        Value::Float(number) => whole(*number),
        other => other.as_int(),
    };
    Ok(number.map(Value::Int).or(default).unwrap_or(Value::Int(0)))
}

fn indent(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let [width, first, blank] = given.bind("indent", ["width", "first", "blank"])?;
    let text = text_of(value, budget)?;
    budget.reads(text.len())?;
    let (piece, times) = match width {
        Some(Value::Str(own)) => (own, 1),
        width => (Rc::from(" "), usize::try_from(int(width, 4, "indent")?).unwrap_or(0)),
    };
    let blank = flag(blank);
    let mut out = budget.text();
    if flag(first) {
        out.repeat(&piece, times)?;
    }
    // Jinja adds a line break first, so that one at the end makes an empty last line.
    let with_end = format!("{text}\n");
    for (index, (line, _)) in lines(&with_end).enumerate() {
        let line = &with_end[line];
        if index > 0 {
            out.push("\n")?;
            if blank || !line.is_empty() {
                out.repeat(&piece, times)?;
            }
        }
        out.push(line)?;
    }
    out.finish()
}

fn round(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let [precision, method] = given.bind("round", ["precision", "method"])?;
    let digits = int(precision, 0, "round")?;
    if let (Some(number), 0.., None) = (value.as_int(), digits, &method) {
        return Ok(Value::Int(number));
    }
    let number = value.defined()?.as_float();
    let number = number.ok_or_else(|| broken(format!("round does not take {}", value.kind())))?;
    let precision = i32::try_from(digits).ok().filter(|digits| (-300..=300).contains(digits));
    let precision = precision.ok_or_else(|| broken("the precision of round is too large"))?;
    let factor = 10f64.powi(precision);
    Ok(Value::Float(match &*text_or(method, "common", budget)? {
        "ceil" => (number * factor).ceil() / factor,
        "floor" => (number * factor).floor() / factor,
        "common" => match usize::try_from(precision) {
            // As in Python, decided on the exact value, and half to even.
            Ok(digits) => format!("{number:.digits$}").parse().unwrap_or(number),
            Err(_) => (number * factor).round_ties_even() / factor,
        },
        other => return Err(broken(format!("round has no method {other}"))),
    }))
}

/// Whether `item` passes a test by name, or is true where none is named.
fn passes(item: &Value, test: Option<&(Rc<str>, Vec<Value>)>, budget: &Budget) -> Result<bool> {
    match test {
        Some((test, arguments)) => {
            budget.steps(arguments.len())?;
            check(item, test, Given { positional: arguments.clone(), named: Vec::new() }, budget)
        }
        None => Ok(item.is_true()),
    }
}

fn select(value: &Value, name: &str, given: Given, budget: &Budget) -> Result<Value> {
    if !given.named.is_empty() {
        return Err(broken(format!("{name} with names is not supported")));
    }
    let mut arguments = given.positional.into_iter();
    let attribute = match name.ends_with("attr") {
        true => Some(arguments.next().ok_or_else(|| broken(format!("{name} is called without attribute")))?),
        false => None,
    };
    let test = match arguments.next() {
        Some(test) => Some((text(&test, name)?, arguments.collect::<Vec<_>>())),
        None => None,
    };
    let wanted = name.starts_with("select");
    let mut items = budget.items();
    if !value.is_true() {
        return items.list();
    }
    for item in value.items(budget)?.into_vec() {
        let tested = match &attribute {
            Some(attribute) => at_path(&item, attribute, budget)?,
            None => item.clone(),
        };
        if passes(&tested, test.as_ref(), budget)? == wanted {
            items.push(item)?;
        }
    }
    items.list()
}

fn map(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let mut out = budget.items();
    if !value.is_true() {
        return out.list();
    }
    let items = value.items(budget)?.into_vec();
    if given.positional.is_empty() {
        let [attribute, default] = given.bind("map", ["attribute", "default"])?;
        let attribute = attribute.ok_or_else(|| broken("map is called without a filter or attribute"))?;
        for item in items {
            let found = at_path(&item, &attribute, budget)?;
            out.push(match &default {
                Some(default) if found.is_undefined() => default.clone(),
                _ => found,
            })?;
        }
        return out.list();
    }
    let mut positional = given.positional.into_iter();
    let name =
        positional.next().map_or_else(|| Err(broken("map names no filter")), |name| text(&name, "map"))?;
    if &*name == "map" {
        // Each level of maps within maps is a level of the stack.
        return Err(broken("map of map is not supported"));
    }
    let positional: Vec<Value> = positional.collect();
    for item in items {
        budget.steps(positional.len() + given.named.len())?;
        let given = Given { positional: positional.clone(), named: given.named.clone() };
        out.push(filter(&item, &name, given, budget)?)?;
    }
    out.list()
}

/// The filter of transformers, which, unlike Jinja's own, does not escape for HTML.
fn tojson(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let [ensure_ascii, indent, separators, sort_keys] =
        given.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    if flag(ensure_ascii) {
        return Err(broken("tojson(ensure_ascii=true) is not supported"));
    }
    let indent = match indent {
        None | Some(Value::None) => None,
        indent => Some(usize::try_from(int(indent, 0, "tojson")?).unwrap_or(0)),
    };
    let separators = match separators {
        None | Some(Value::None) => None,
        Some(Value::List(list)) => match list.items.as_slice() {
            [comma, colon] => Some((text(comma, "tojson")?, text(colon, "tojson")?)),
            _ => return Err(broken("the separators of tojson are not two")),
        },
        Some(_) => return Err(broken("the separators of tojson are not two")),
    };
    to_json(value, &JsonLayout { indent, separators, sort_keys: flag(sort_keys) }, budget)
}

fn truncate(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let [length, kill_words, end, leeway] =
        given.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let end = text_or(end, "...", budget)?;
    let size = |number: i64| usize::try_from(number).unwrap_or(0);
    let length = size(int(length, 255, "truncate")?);
    let leeway = size(int(leeway, 5, "truncate")?);
    if value.length(budget)? <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let own = text(value, "truncate")?;
    let kept = length.checked_sub(end.chars().count());
    let kept = kept.ok_or_else(|| broken("truncate has an end longer than its length"))?;
    let kept = own.char_indices().nth(kept).map_or(&*own, |(at, _)| &own[..at]);
    let kept = match flag(kill_words) {
        true => kept,
        false => kept.rsplit_once(' ').map_or(kept, |(words, _)| words),
    };
    let mut out = budget.text();
    out.push(kept)?;
    out.push(&end)?;
    out.finish()
}

/// The mapping that `dict` makes of `given`.
pub(super) fn dict(given: Given, budget: &Budget) -> Result<Value> {
    let mut entries = Vec::new();
    match given.positional.as_slice() {
        [] => {}
        [Value::Mapping(mapping)] => entries.extend(mapping.entries.iter().cloned()),
        [pairs] => {
            for pair in pairs.items(budget)?.into_vec() {
                match pair.items(budget)?.into_vec().as_slice() {
                    [key, value] => entries.push((key.clone(), value.clone())),
                    _ => return Err(broken("dict is called with what are no pairs")),
                }
            }
        }
        _ => return Err(broken("dict takes at most one argument without a name")),
    }
    entries.extend(given.named.into_iter().map(|(name, value)| (Value::Str(name), value)));
    budget.bytes(entries.len().saturating_mul(size_of::<(Value, Value)>()))?;
    Ok(Value::Mapping(Rc::new(Mapping::new(entries, budget)?)))
}

/// `items` in the order of `less`, which may fail; items of which neither is less stay as they are.
pub(super) fn sorted<T: Clone>(
    items: Vec<T>,
    less: impl Fn(&T, &T) -> Result<bool> + Copy,
) -> Result<Vec<T>> {
    if items.len() < 2 {
        return Ok(items);
    }
    let right = sorted(items[items.len() / 2..].to_vec(), less)?;
    let left = sorted(items[..items.len() / 2].to_vec(), less)?;
    let mut merged = Vec::with_capacity(items.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let next = if less(b, a)? { right.next() } else { left.next() };
        merged.extend(next);
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}
