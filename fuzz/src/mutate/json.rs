//! JSON, changed as a tree: what comes out is JSON again.

use super::{Random, below, integer, one_in, real, text};
use rand::RngExt;
use serde_json::{Map, Number, Value};

/// JSON with a node or two changed; `None` where the bytes are no JSON.
pub fn changed(bytes: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let mut root: Value = serde_json::from_slice(bytes).ok()?;
    change(&mut root, random);
    serde_json::to_vec(&root).ok()
}

/// One line of JSON Lines changed, or doubled, or moved; `None` where the chosen line is no JSON.
pub fn changed_lines(bytes: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> = bytes.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    let (at, other) = (below(lines.len(), random), below(lines.len(), random));
    match random.random_range(0..8) {
        0 => lines.swap(at, other),
        1 => lines.insert(other, lines[at].clone()),
        _ => lines[at] = changed(&lines[at], random)?,
    }
    Some(lines.join(&b'\n'))
}

/// Changes a node or two.
pub fn change(root: &mut Value, random: &mut Random) {
    for _ in 0..=below(3, random) {
        let count = nodes(root);
        let other = nth(root, &mut below(count, random)).map_or(Value::Null, |node| node.clone());
        if let Some(node) = nth(root, &mut below(count, random)) {
            change_node(node, other, random);
        }
    }
}

fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(nodes).sum(),
        Value::Object(fields) => fields.values().map(nodes).sum(),
        _ => 0,
    }
}

/// The node that is `left` nodes further on, parents before children.
fn nth<'a>(value: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| nth(item, left)),
        Value::Object(fields) => fields.values_mut().find_map(|field| nth(field, left)),
        _ => None,
    }
}

fn change_node(node: &mut Value, other: Value, random: &mut Random) {
    if one_in(4, random) {
        *node = if one_in(2, random) { other } else { invented(random) };
        return;
    }
    match node {
        Value::Null => *node = invented(random),
        Value::Bool(truth) => *truth = !*truth,
        Value::Number(number) => *number = changed_number(number, random),
        Value::String(words) => *words = text::changed(words, &[], random),
        Value::Array(items) => change_items(items, other, random),
        Value::Object(fields) => change_fields(fields, other, random),
    }
}

fn changed_number(number: &Number, random: &mut Random) -> Number {
    let whole = number.as_u64().or_else(|| number.as_i64().map(|number| number as u64));
    match whole {
        Some(whole) if !one_in(6, random) => {
            let changed = integer(whole, random);
            if one_in(3, random) { Number::from(changed as i64) } else { Number::from(changed) }
        }
        _ => {
            Number::from_f64(real(number.as_f64().unwrap_or(0.0), random)).unwrap_or_else(|| Number::from(0))
        }
    }
}

fn change_items(items: &mut Vec<Value>, other: Value, random: &mut Random) {
    let (at, to) = (below(items.len(), random), below(items.len(), random));
    match random.random_range(0..6) {
        0 if !items.is_empty() => drop(items.remove(at)),
        1 if !items.is_empty() => items.insert(to, items[at].clone()),
        2 if !items.is_empty() => items.swap(at, to),
        3 => items.truncate(at),
        4 if items.len() < 4_096 => items.extend_from_within(..),
        _ => items.insert(to, other),
    }
}

fn change_fields(fields: &mut Map<String, Value>, other: Value, random: &mut Random) {
    let keys: Vec<String> = fields.keys().cloned().collect();
    let key = |random: &mut Random| keys.get(below(keys.len(), random)).cloned().unwrap_or_default();
    let (chosen, second) = (key(random), key(random));
    match random.random_range(0..5) {
        0 => drop(fields.remove(&chosen)),
        1 => {
            if let Some(value) = fields.remove(&chosen) {
                fields.insert(text::changed(&chosen, &[], random), value);
            }
        }
        2 => drop(fields.insert(text::changed(&chosen, &[], random), other)),
        3 => {
            let value = fields.get(&second).cloned().unwrap_or_default();
            fields.insert(chosen, value);
        }
        _ => drop(fields.insert(chosen, other)),
    }
}

/// A value out of nothing.
fn invented(random: &mut Random) -> Value {
    match random.random_range(0..8) {
        0 => Value::Null,
        1 => Value::Bool(random.random()),
        2 => integer(0, random).into(),
        3 => (integer(0, random) as i64).into(),
        4 => real(1.0, random).into(),
        5 => super::pick(&text::HOSTILE, random).to_string().into(),
        6 => Value::Array(vec![]),
        _ => nested(random),
    }
}

/// Lists or objects in each other, at times deeper than a parser may follow.
fn nested(random: &mut Random) -> Value {
    let depth = if one_in(4, random) { 100 + below(30, random) } else { below(6, random) };
    (0..depth).fold(Value::Null, |inner, _| match random.random() {
        true => Value::Array(vec![inner]),
        false => Value::Object([("a".to_owned(), inner)].into_iter().collect()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn what_comes_out_is_json_and_mostly_another() {
        let json = br#"{"a": [1, 2.5, "x"], "b": {"c": null, "d": true}}"#;
        let mut same = 0;
        for seed in 0..500 {
            let bytes = changed(json, &mut Random::seed_from_u64(seed)).expect("JSON");
            // Beyond its depth limit serde_json does not read what it wrote.
            let value = serde_json::from_slice::<Value>(&bytes);
            assert!(value.is_ok() || bytes.windows(99).any(|w| w.iter().all(|b| b"[{\"a:".contains(b))));
            same += usize::from(value.ok() == serde_json::from_slice(json).ok());
        }
        assert!(same < 100, "{same}");
        assert!(changed(b"{", &mut Random::seed_from_u64(0)).is_none());
    }
}
