//! The arguments of a call.

use std::rc::Rc;

use super::budget::Budget;
use super::value::{Value, text_of};
use super::{Result, broken};

/// Arguments by position and by name.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Rc<str>, Value)>,
}

impl Given {
    /// The arguments of `callee`, whose parameters have `names`; none where the call leaves one out.
    pub(super) fn bind<const N: usize>(self, callee: &str, names: [&str; N]) -> Result<[Option<Value>; N]> {
        let mut bound = [const { None }; N];
        if self.positional.len() > N {
            return Err(broken(format!("{callee} takes at most {N} arguments")));
        }
        for (place, value) in bound.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            match names.iter().position(|other| **other == *name) {
                Some(at) if bound[at].is_none() => bound[at] = Some(value),
                Some(_) => return Err(broken(format!("{callee} has two values for {name}"))),
                None => return Err(broken(format!("{callee} does not take {name}"))),
            }
        }
        Ok(bound)
    }

    /// The only argument of `callee`.
    pub(super) fn single(self, callee: &str, name: &str) -> Result<Value> {
        let [value] = self.bind(callee, [name])?;
        value.ok_or_else(|| broken(format!("{callee} is called without {name}")))
    }

    pub(super) fn none(self, callee: &str) -> Result<()> {
        self.bind(callee, []).map(|[]| ())
    }
}

/// The text of an argument that must be one.
pub(super) fn text(value: &Value, callee: &str) -> Result<Rc<str>> {
    let kind = value.defined()?.kind();
    value.as_str().cloned().ok_or_else(|| broken(format!("{callee} does not take {kind}")))
}

/// The number of an argument that must be one, or `default`.
pub(super) fn int(value: Option<Value>, default: i64, callee: &str) -> Result<i64> {
    match value {
        None => Ok(default),
        Some(value) => {
            let kind = value.defined()?.kind();
            value.as_int().ok_or_else(|| broken(format!("{callee} does not take {kind}")))
        }
    }
}

/// Whether an argument is there and true.
pub(super) fn flag(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}

/// What `str` makes of an argument, or `default`.
pub(super) fn text_or(value: Option<Value>, default: &str, budget: &Budget) -> Result<Rc<str>> {
    value.map_or_else(|| Ok(default.into()), |value| text_of(&value, budget))
}
