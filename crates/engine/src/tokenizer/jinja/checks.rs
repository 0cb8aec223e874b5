//! Jinja's tests: what may follow `is`.

use super::arguments::Given;
use super::budget::Budget;
use super::methods::{is_lower, is_upper};
use super::operators::{arithmetic, compare};
use super::syntax::{Comparison, Operator};
use super::value::{Value, equal, text_of};
use super::{Result, broken, filters};

/// Whether `value is name(given)` holds.
pub(super) fn check(value: &Value, name: &str, given: Given, budget: &Budget) -> Result<bool> {
    budget.steps(1)?;
    let comparison = match name {
        "eq" | "equalto" | "==" => Some(Comparison::Equal),
        "ne" | "!=" => Some(Comparison::Unequal),
        "lt" | "lessthan" | "<" => Some(Comparison::Less),
        "le" | "<=" => Some(Comparison::LessOrEqual),
        "gt" | "greaterthan" | ">" => Some(Comparison::Greater),
        "ge" | ">=" => Some(Comparison::GreaterOrEqual),
        "in" => Some(Comparison::In),
        _ => None,
    };
    if let Some(comparison) = comparison {
        return compare(comparison, value, &given.single(name, "a value")?, budget);
    }
    match name {
        "sameas" => {
            let other = given.single(name, "a value")?;
            return Ok(value.kind() == other.kind() && equal(value, &other, budget)?);
        }
        "divisibleby" => {
            let divisor = given.single(name, "a number")?;
            let rest = arithmetic(Operator::Remainder, value, &divisor, budget)?;
            return Ok(!rest.is_true());
        }
        _ => given.none(name)?,
    }
    let remainder = || arithmetic(Operator::Remainder, value, &Value::Int(2), budget);
    Ok(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Mapping(_)),
        "sequence" | "iterable" => {
            matches!(value, Value::Str(_) | Value::List(_) | Value::Mapping(_) | Value::Undefined(_))
        }
        "callable" => matches!(value, Value::Macro(_) | Value::Function(_) | Value::Method(_)),
        "odd" => equal(&remainder()?, &Value::Int(1), budget)?,
        "even" => equal(&remainder()?, &Value::Int(0), budget)?,
        "lower" => is_lower(&text_of(value, budget)?),
        "upper" => is_upper(&text_of(value, budget)?),
        "escaped" => false,
        "filter" => value.as_str().is_some_and(|name| filters::exists(name)),
        _ => return Err(broken(format!("its test {name} is not supported"))),
    })
}
