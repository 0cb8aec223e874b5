//! Operators on values, as Python has them.

use std::cmp::Ordering;
use std::rc::Rc;

use super::budget::Budget;
use super::format::percent_format;
use super::syntax::{Comparison, Operator};
use super::value::{List, Value, equal, order};
use super::{Failure, Result, broken};

/// `a operator b`
pub(super) fn arithmetic(operator: Operator, a: &Value, b: &Value, budget: &Budget) -> Result<Value> {
    match (operator, a.defined()?, b.defined()?) {
        (Operator::Add, Value::Str(a), Value::Str(b)) => {
            let mut text = budget.text();
            text.push(a)?;
            text.push(b)?;
            text.finish()
        }
        (Operator::Add, Value::List(a), Value::List(b)) if a.is_tuple == b.is_tuple => {
            let mut items = budget.items();
            items.extend(a.items.iter().chain(&b.items))?;
            if a.is_tuple { items.tuple() } else { items.list() }
        }
        (Operator::Multiply, Value::Str(text), times) | (Operator::Multiply, times, Value::Str(text)) => {
            let times = times.as_int().ok_or_else(|| unsuited(operator, a, b))?;
            let mut repeated = budget.text();
            repeated.repeat(text, usize::try_from(times).unwrap_or(0))?;
            repeated.finish()
        }
        (Operator::Multiply, Value::List(list), times) | (Operator::Multiply, times, Value::List(list)) => {
            let times = times.as_int().ok_or_else(|| unsuited(operator, a, b))?;
            repeat_list(list, usize::try_from(times).unwrap_or(0), budget)
        }
        (Operator::Remainder, Value::Str(format), arguments) => {
            let arguments = match arguments {
                Value::List(list) if list.is_tuple => list.items.as_slice(),
                single => std::slice::from_ref(single),
            };
            percent_format(format, arguments, budget)
        }
        (_, a, b) => match (a.as_int(), b.as_int()) {
            (Some(x), Some(y)) => integers(operator, x, y),
            _ => match (a.as_float(), b.as_float()) {
                (Some(x), Some(y)) => floats(operator, x, y),
                _ => Err(unsuited(operator, a, b)),
            },
        },
    }
}

fn repeat_list(list: &Rc<List>, times: usize, budget: &Budget) -> Result<Value> {
    let mut items = budget.items();
    if !list.items.is_empty() {
        for _ in 0..times {
            items.extend(&list.items)?;
        }
    }
    if list.is_tuple { items.tuple() } else { items.list() }
}

fn unsuited(operator: Operator, a: &Value, b: &Value) -> Failure {
    let sign = match operator {
        Operator::Add => "+",
        Operator::Subtract => "-",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::FloorDivide => "//",
        Operator::Remainder => "%",
        Operator::Power => "**",
    };
    broken(format!("{sign} does not take {} and {}", a.kind(), b.kind()))
}

fn integers(operator: Operator, a: i64, b: i64) -> Result<Value> {
    let is_division = matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder);
    if is_division && b == 0 {
        return Err(broken("it divides by zero"));
    }
    let number = match operator {
        Operator::Add => a.checked_add(b),
        Operator::Subtract => a.checked_sub(b),
        Operator::Multiply => a.checked_mul(b),
        Operator::Divide => return Ok(Value::Float(a as f64 / b as f64)),
        Operator::FloorDivide => {
            let rounds_up = a.checked_rem(b).is_some_and(|rest| rest != 0 && (rest < 0) != (b < 0));
            a.checked_div(b).map(|quotient| quotient - i64::from(rounds_up))
        }
        Operator::Remainder => {
            let rest = a.checked_rem(b).unwrap_or(0);
            Some(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
        }
        Operator::Power if b < 0 => return floats(operator, a as f64, b as f64),
        Operator::Power => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
    };
    number.map(Value::Int).ok_or_else(|| broken("a number is too large"))
}

fn floats(operator: Operator, a: f64, b: f64) -> Result<Value> {
    let is_division = matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder);
    if (is_division && b == 0.0) || (operator == Operator::Power && a == 0.0 && b < 0.0) {
        return Err(broken("it divides by zero"));
    }
    let rest = || {
        let rest = a % b;
        match rest {
            0.0 => 0f64.copysign(b),
            _ if (rest < 0.0) != (b < 0.0) => rest + b,
            _ => rest,
        }
    };
    Ok(Value::Float(match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide => a / b,
        Operator::FloorDivide => ((a - rest()) / b).round(),
        Operator::Remainder => rest(),
        Operator::Power => a.powf(b),
    }))
}

/// Whether `a comparison b` holds.
pub(super) fn compare(comparison: Comparison, a: &Value, b: &Value, budget: &Budget) -> Result<bool> {
    Ok(match comparison {
        Comparison::Equal => equal(a, b, budget)?,
        Comparison::Unequal => !equal(a, b, budget)?,
        Comparison::Less => order(a, b, budget)? == Some(Ordering::Less),
        Comparison::LessOrEqual => matches!(order(a, b, budget)?, Some(Ordering::Less | Ordering::Equal)),
        Comparison::Greater => order(a, b, budget)? == Some(Ordering::Greater),
        Comparison::GreaterOrEqual => {
            matches!(order(a, b, budget)?, Some(Ordering::Greater | Ordering::Equal))
        }
        Comparison::In => contains(b, a, budget)?,
        Comparison::NotIn => !contains(b, a, budget)?,
    })
}

/// Whether `item` is in `value`.
fn contains(value: &Value, item: &Value, budget: &Budget) -> Result<bool> {
    match (value, item) {
        (Value::Str(text), Value::Str(part)) => {
            budget.reads(text.len().saturating_add(part.len()))?;
            Ok(text.contains(&**part))
        }
        (Value::Str(_), other) => {
            Err(broken(format!("{} is not looked for in a string", other.defined()?.kind())))
        }
        (Value::List(list), _) => {
            for other in &list.items {
                if equal(item, other, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Value::Mapping(mapping), _) => Ok(mapping.get(item, budget)?.is_some()),
        (Value::Undefined(_), _) => Ok(false),
        _ => Err(broken(format!("nothing is in {}", value.kind()))),
    }
}

/// The item of `value` at `key`, where there is one.
pub(super) fn item(value: &Value, key: &Value, budget: &Budget) -> Result<Option<Value>> {
    Ok(match value.defined()? {
        Value::Mapping(mapping) => mapping.get(key, budget)?.cloned(),
        Value::List(list) => {
            let length = list.items.len();
            key.as_int().and_then(|index| place(index, length)).map(|index| list.items[index].clone())
        }
        Value::Str(text) => match key.as_int() {
            Some(index) => {
                let length = value.length(budget)?;
                let character = place(index, length).and_then(|index| text.chars().nth(index));
                character.map(|found| budget.string(found.encode_utf8(&mut [0; 4]))).transpose()?
            }
            None => None,
        },
        _ => None,
    })
}

/// The place that `index` means among `length`, which counts from the end where it is negative.
fn place(index: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    let index = if index < 0 { index.checked_add(length)? } else { index };
    (0..length).contains(&index).then_some(usize::try_from(index).ok()?)
}

/// `value[from:to:step]`, undefined for what has no places.
pub(super) fn slice(value: &Value, bounds: [Option<Value>; 3], budget: &Budget) -> Result<Value> {
    let mut numbers = [None; 3];
    for (number, bound) in numbers.iter_mut().zip(&bounds) {
        *number = match bound {
            None | Some(Value::None) => None,
            Some(bound) => {
                let kind = bound.defined()?.kind();
                Some(bound.as_int().ok_or_else(|| broken(format!("{kind} is no bound of a slice")))?)
            }
        };
    }
    match value.defined()? {
        Value::Str(text) => {
            budget.reads(text.len())?;
            budget.bytes(text.len().saturating_mul(4))?;
            let characters: Vec<char> = text.chars().collect();
            let places = places(numbers, characters.len())?;
            budget.string(&places.map(|place| characters[place]).collect::<String>())
        }
        Value::List(list) => {
            let mut items = budget.items();
            for place in places(numbers, list.items.len())? {
                items.push(list.items[place].clone())?;
            }
            if list.is_tuple { items.tuple() } else { items.list() }
        }
        _ => Ok(Value::Undefined(None)),
    }
}

/// The places of a slice among `length`, all of them within it.
fn places([from, to, step]: [Option<i64>; 3], length: usize) -> Result<impl Iterator<Item = usize>> {
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(broken("the step of a slice is 0"));
    }
    let length = i64::try_from(length).map_err(|_| broken("a list is too long"))?;
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let bound = |bound: Option<i64>, default: i64| match bound {
        None => default,
        Some(index) if index < 0 => index.saturating_add(length).clamp(low, high),
        Some(index) => index.clamp(low, high),
    };
    let (from, to) =
        if step > 0 { (bound(from, 0), bound(to, length)) } else { (bound(from, high), bound(to, -1)) };
    let mut at = from;
    Ok(std::iter::from_fn(move || {
        let within = if step > 0 { at < to } else { at > to };
        let place = usize::try_from(at).ok().filter(|_| within)?;
        at = at.saturating_add(step);
        Some(place)
    }))
}
