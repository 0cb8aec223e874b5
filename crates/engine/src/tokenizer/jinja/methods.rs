//! Methods of Python's strings, lists and dicts that change nothing.

use std::rc::Rc;

use super::arguments::{Given, flag, int, text};
use super::budget::{Budget, Items};
use super::format::brace_format;
use super::lexer::is_space;
use super::value::{List, Mapping, Value, equal};
use super::{Result, broken};

const OF_STRINGS: [&str; 38] = [
    "capitalize",
    "casefold",
    "count",
    "endswith",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];
const OF_LISTS: [&str; 3] = ["copy", "count", "index"];
const OF_MAPPINGS: [&str; 5] = ["copy", "get", "items", "keys", "values"];
const OF_LOOPS: [&str; 2] = ["changed", "cycle"];

/// The method of `value` that has `name`.
pub(super) fn method(value: &Value, name: &str) -> Option<Value> {
    let methods: &[&str] = match value {
        Value::Str(_) => &OF_STRINGS,
        Value::List(_) => &OF_LISTS,
        Value::Mapping(_) => &OF_MAPPINGS,
        Value::Loop(_) => &OF_LOOPS,
        _ => &[],
    };
    let name = methods.iter().find(|method| **method == name)?;
    Some(Value::Method(Rc::new((value.clone(), name))))
}

/// `value.name(given)`
pub(super) fn call(value: &Value, name: &'static str, given: Given, budget: &Budget) -> Result<Value> {
    match value {
        Value::Str(own) => of_string(own, name, given, budget),
        Value::List(list) => of_list(list, name, given, budget),
        Value::Mapping(mapping) => of_mapping(mapping, name, given, budget),
        Value::Loop(own) if name == "cycle" => {
            let choices = given.positional;
            match own.at.get().checked_rem(choices.len()) {
                Some(at) => Ok(choices[at].clone()),
                None => Err(broken("loop.cycle is called without values")),
            }
        }
        Value::Loop(own) => {
            // What a loop remembers must not hold the loop.
            given.positional.iter().try_for_each(|value| value.levels().map(drop))?;
            let mut last = own.last.borrow_mut();
            let mut changed = true;
            if let Some(last) = &*last
                && last.len() == given.positional.len()
            {
                changed = false;
                for (a, b) in last.iter().zip(&given.positional) {
                    changed |= !equal(a, b, budget)?;
                }
            }
            *last = Some(given.positional);
            Ok(Value::Bool(changed))
        }
        _ => Err(broken(format!("{} has no method {name}", value.kind()))),
    }
}

fn of_list(list: &Rc<List>, name: &str, given: Given, budget: &Budget) -> Result<Value> {
    if name == "copy" {
        given.none(name)?;
        return Ok(Value::List(list.clone()));
    }
    let wanted = given.single(name, "a value")?;
    let mut found = Vec::new();
    for (index, item) in list.items.iter().enumerate() {
        if equal(item, &wanted, budget)? {
            found.push(index);
        }
    }
    match (name, found.first()) {
        ("count", _) => Ok(number(found.len())),
        (_, Some(&first)) => Ok(number(first)),
        (_, None) => Err(broken("index finds nothing")),
    }
}

fn of_mapping(mapping: &Rc<Mapping>, name: &str, given: Given, budget: &Budget) -> Result<Value> {
    if name == "get" {
        let [key, default] = given.bind("get", ["key", "default"])?;
        let key = key.ok_or_else(|| broken("get is called without a key"))?;
        return Ok(mapping.get(&key, budget)?.cloned().or(default).unwrap_or(Value::None));
    }
    given.none(name)?;
    let mut items = budget.items();
    for (key, value) in &mapping.entries {
        items.push(match name {
            "items" => pair(key, value, budget)?,
            "keys" => key.clone(),
            "values" => value.clone(),
            _ => return Ok(Value::Mapping(mapping.clone())),
        })?;
    }
    items.list()
}

/// The tuple of `a` and `b`.
pub(super) fn pair(a: &Value, b: &Value, budget: &Budget) -> Result<Value> {
    let mut items = budget.items();
    items.extend([a, b])?;
    items.tuple()
}

pub(super) fn number(count: usize) -> Value {
    Value::Int(i64::try_from(count).unwrap_or(i64::MAX))
}

fn of_string(own: &str, name: &str, given: Given, budget: &Budget) -> Result<Value> {
    budget.reads(own.len())?;
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [characters] = given.bind(name, ["chars"])?;
            let stripped = strip(own, characters, name != "rstrip", name != "lstrip", budget)?;
            return budget.string(stripped);
        }
        "split" | "rsplit" => return split(own, given, name == "rsplit", budget),
        "splitlines" => {
            let [keep_ends] = given.bind(name, ["keepends"])?;
            let keep_ends = flag(keep_ends);
            let mut items = budget.items();
            for (line, end) in lines(own) {
                items.push(budget.string(&own[line.start..if keep_ends { end } else { line.end }])?)?;
            }
            return items.list();
        }
        "join" => {
            let items = given.single(name, "iterable")?.items(budget)?.into_vec();
            let mut out = budget.text();
            for (index, item) in items.iter().enumerate() {
                out.push(if index > 0 { own } else { "" })?;
                out.push(&text(item, name)?)?;
            }
            return out.finish();
        }
        "replace" => {
            let [old, new, count] = given.bind(name, ["old", "new", "count"])?;
            let (Some(old), Some(new)) = (old, new) else {
                return Err(broken("replace is called with too few arguments"));
            };
            let count = usize::try_from(int(count, -1, name)?).unwrap_or(usize::MAX);
            return replace(own, &text(&old, name)?, &text(&new, name)?, count, budget);
        }
        "format" => return brace_format(own, &given.positional, &given.named, budget),
        "ljust" | "rjust" | "zfill" => return padded(own, name, given, budget),
        "startswith" | "endswith" => {
            let affix = given.single(name, "prefix")?;
            let affixes = match &affix {
                Value::List(list) => list.items.as_slice(),
                single => std::slice::from_ref(single),
            };
            for affix in affixes {
                let affix = text(affix, name)?;
                budget.reads(affix.len())?;
                if if name == "startswith" { own.starts_with(&*affix) } else { own.ends_with(&*affix) } {
                    return Ok(Value::Bool(true));
                }
            }
            return Ok(Value::Bool(false));
        }
        "count" | "find" | "index" | "rfind" | "rindex" | "partition" | "rpartition" | "removeprefix"
        | "removesuffix" => {
            let part = text(&given.single(name, "a string")?, name)?;
            budget.reads(part.len())?;
            return search(own, name, &part, budget);
        }
        _ => given.none(name)?,
    }
    let all = |holds: fn(char) -> bool| Value::Bool(!own.is_empty() && own.chars().all(holds));
    Ok(match name {
        "lower" | "casefold" => budget.string(&own.to_lowercase())?,
        "upper" => budget.string(&own.to_uppercase())?,
        "capitalize" => budget.string(&capitalized(own))?,
        "title" => {
            let mut inside = false;
            let mut titled = String::new();
            for character in own.chars() {
                push_cased(character, !inside, &mut titled);
                inside = character.is_alphabetic();
            }
            budget.string(&titled)?
        }
        "swapcase" => {
            let mut swapped = String::new();
            own.chars().for_each(|character| push_cased(character, character.is_lowercase(), &mut swapped));
            budget.string(&swapped)?
        }
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isdigit" | "isdecimal" | "isnumeric" => all(char::is_numeric),
        "isspace" => all(is_space),
        "isascii" => Value::Bool(own.is_ascii()),
        "islower" => Value::Bool(is_lower(own)),
        "isupper" => Value::Bool(is_upper(own)),
        _ => return Err(broken(format!("a string has no method {name}"))),
    })
}

/// Adds `character` in upper or in lower case.
pub(super) fn push_cased(character: char, upper: bool, out: &mut String) {
    match upper {
        true => out.extend(character.to_uppercase()),
        false => out.extend(character.to_lowercase()),
    }
}

/// The first character in upper case, the others in lower case.
pub(super) fn capitalized(text: &str) -> String {
    let mut out = String::new();
    text.chars().enumerate().for_each(|(at, character)| push_cased(character, at == 0, &mut out));
    out
}

pub(super) fn is_lower(text: &str) -> bool {
    text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase)
}

pub(super) fn is_upper(text: &str) -> bool {
    text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase)
}

/// `text` without white space, or without `characters`, at its start and its end.
pub(super) fn strip<'t>(
    text: &'t str,
    characters: Option<Value>,
    start: bool,
    end: bool,
    budget: &Budget,
) -> Result<&'t str> {
    let characters = match characters {
        None | Some(Value::None) => None,
        Some(characters) => Some(self::text(&characters, "strip")?),
    };
    if let Some(characters) = &characters {
        // Each character of the text is looked for among them.
        budget.steps(text.len().saturating_mul(characters.len() / 32))?;
    }
    let goes = |character: char| match &characters {
        None => is_space(character),
        Some(characters) => characters.contains(character),
    };
    let text = if start { text.trim_start_matches(goes) } else { text };
    Ok(if end { text.trim_end_matches(goes) } else { text })
}

/// `text` with the first `count` of `old` replaced.
pub(super) fn replace(text: &str, old: &str, new: &str, count: usize, budget: &Budget) -> Result<Value> {
    budget.reads(text.len().saturating_add(old.len()))?;
    let mut out = budget.text();
    let mut rest = 0;
    for (at, found) in text.match_indices(old).take(count) {
        out.push(&text[rest..at])?;
        out.push(new)?;
        rest = at + found.len();
    }
    out.push(&text[rest..])?;
    out.finish()
}

/// The lines of `text` as `splitlines` has them, each with the end of its line break.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (std::ops::Range<usize>, usize)> {
    const BREAKS: [char; 10] =
        ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
        let start = at;
        let length = rest.find(BREAKS).unwrap_or(rest.len());
        let after = &rest[length..];
        let line_break = match after.starts_with("\r\n") {
            true => 2,
            false => after.chars().next().map_or(0, char::len_utf8),
        };
        at = start + length + line_break;
        Some((start..start + length, at))
    })
}

fn split(own: &str, given: Given, from_right: bool, budget: &Budget) -> Result<Value> {
    let [separator, most] = given.bind("split", ["sep", "maxsplit"])?;
    let most = usize::try_from(int(most, -1, "split")?).unwrap_or(usize::MAX - 1);
    let mut items = budget.items();
    let push = |piece: &str, items: &mut Items<'_>| items.push(budget.string(piece)?);
    let mut rest = own;
    let separator = match separator {
        None | Some(Value::None) => None,
        Some(separator) => Some(text(&separator, "split")?),
    };
    let mut splits = 0;
    match separator {
        None => {
            let trim = |rest| {
                if from_right {
                    str::trim_end_matches(rest, is_space)
                } else {
                    str::trim_start_matches(rest, is_space)
                }
            };
            rest = trim(rest);
            while !rest.is_empty() && splits < most {
                let cut = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
                let Some(cut) = cut else { break };
                let (left, right) = rest.split_at(cut);
                match from_right {
                    true => push(right.trim_start_matches(is_space), &mut items)?,
                    false => push(left, &mut items)?,
                }
                rest = trim(if from_right { left } else { right });
                splits += 1;
            }
            if !rest.is_empty() {
                push(rest, &mut items)?;
            }
        }
        Some(separator) if separator.is_empty() => return Err(broken("split has an empty separator")),
        Some(separator) => {
            while splits < most {
                let cut =
                    if from_right { rest.rsplit_once(&*separator) } else { rest.split_once(&*separator) };
                let Some((left, right)) = cut else { break };
                push(if from_right { right } else { left }, &mut items)?;
                rest = if from_right { left } else { right };
                splits += 1;
            }
            push(rest, &mut items)?;
        }
    }
    if !from_right {
        return items.list();
    }
    let mut forwards = budget.items();
    forwards.extend(items.into_vec().iter().rev())?;
    forwards.list()
}

fn padded(own: &str, name: &str, given: Given, budget: &Budget) -> Result<Value> {
    let [width, fill] = given.bind(name, ["width", "fillchar"])?;
    let width = usize::try_from(int(width, 0, name)?).unwrap_or(0);
    let fill = match fill {
        None => (if name == "zfill" { "0" } else { " " }).into(),
        Some(fill) => text(&fill, name)?,
    };
    let missing = width.saturating_sub(own.chars().count());
    let mut out = budget.text();
    match name {
        "ljust" => {
            out.push(own)?;
            out.repeat(&fill, missing)?;
        }
        _ => {
            let sign = usize::from(name == "zfill" && own.starts_with(['-', '+']));
            out.push(&own[..sign])?;
            out.repeat(&fill, missing)?;
            out.push(&own[sign..])?;
        }
    }
    out.finish()
}

/// The methods that look for `part` in `own`.
fn search(own: &str, name: &str, part: &str, budget: &Budget) -> Result<Value> {
    let backwards = name.starts_with('r') && !name.starts_with("remove");
    let found = if backwards { own.rfind(part) } else { own.find(part) };
    match (name, found) {
        ("count", _) => Ok(number(own.matches(part).count())),
        ("removeprefix", _) => budget.string(own.strip_prefix(part).unwrap_or(own)),
        ("removesuffix", _) => budget.string(own.strip_suffix(part).unwrap_or(own)),
        ("partition" | "rpartition", _) if part.is_empty() => {
            Err(broken(format!("{name} has an empty separator")))
        }
        ("partition" | "rpartition", _) => {
            let (before, middle, after) = match found {
                Some(at) => (&own[..at], part, &own[at + part.len()..]),
                None if backwards => ("", "", own),
                None => (own, "", ""),
            };
            let mut items = budget.items();
            for piece in [before, middle, after] {
                items.push(budget.string(piece)?)?;
            }
            items.tuple()
        }
        (_, Some(at)) => Ok(number(own[..at].chars().count())),
        ("find" | "rfind", None) => Ok(Value::Int(-1)),
        (_, None) => Err(broken(format!("{name} finds nothing"))),
    }
}
