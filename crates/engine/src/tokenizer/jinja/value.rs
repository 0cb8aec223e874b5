//! Values, as Python has them, and their texts.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::rc::Rc;

use super::budget::{Budget, Items, Text};
use super::syntax;
use super::{DEEPEST, Result, broken};

/// A value of a template. Clones share what they hold.
#[derive(Debug, Clone)]
pub(in super::super) enum Value {
    /// What is not there, with the name under which it was looked for.
    Undefined(Option<Rc<str>>),
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Rc<str>),
    List(Rc<List>),
    Mapping(Rc<Mapping>),
    Namespace(Rc<Namespace>),
    Loop(Rc<Loop>),
    Macro(Rc<Macro>),
    Function(Function),
    /// A method of a value, by name.
    Method(Rc<(Value, &'static str)>),
}

/// A list or a tuple.
#[derive(Debug)]
pub(in super::super) struct List {
    pub(super) items: Vec<Value>,
    pub(super) is_tuple: bool,
    levels: usize,
}

/// Entries in the order in which their keys were first set.
#[derive(Debug)]
pub(in super::super) struct Mapping {
    pub(super) entries: Vec<(Value, Value)>,
    levels: usize,
}

/// What a template can change: attributes, set one at a time.
#[derive(Debug, Default)]
pub(in super::super) struct Namespace {
    pub(super) attributes: RefCell<HashMap<Rc<str>, Value>>,
}

/// `loop` within a loop.
#[derive(Debug)]
pub(in super::super) struct Loop {
    pub(super) items: Rc<Vec<Value>>,
    /// Index of the item of this iteration.
    pub(super) at: Cell<usize>,
    /// What `loop.changed` was last asked about.
    pub(super) last: RefCell<Option<Vec<Value>>>,
}

/// A macro, with the frame that its definition stands in.
#[derive(Debug)]
pub(in super::super) struct Macro {
    pub(super) definition: Rc<syntax::Macro>,
    pub(super) frame: usize,
}

/// A function that templates find under its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Function {
    Range,
    Dict,
    Namespace,
    RaiseException,
    StrftimeNow,
}

/// The levels of a list or mapping that holds `values`; refuses more than [`DEEPEST`], and values that may change.
fn levels<'v>(values: impl Iterator<Item = &'v Value>) -> Result<usize> {
    let mut deepest = 0;
    for value in values {
        deepest = deepest.max(value.levels()?);
    }
    if deepest == DEEPEST {
        return Err(broken(format!("its values nest deeper than {DEEPEST} levels")));
    }
    Ok(deepest + 1)
}

impl List {
    pub(super) fn new(items: Vec<Value>, is_tuple: bool) -> Result<Self> {
        Ok(Self { levels: levels(items.iter())?, items, is_tuple })
    }
}

impl Mapping {
    /// The mapping of `entries`, of which a later one replaces an earlier one of the same key.
    pub(super) fn new(all: Vec<(Value, Value)>, budget: &Budget) -> Result<Self> {
        let mut entries: Vec<(Value, Value)> = Vec::with_capacity(all.len());
        for (key, value) in all {
            if !matches!(key, Value::Str(_) | Value::Int(_) | Value::Bool(_) | Value::Float(_) | Value::None)
            {
                return Err(broken(format!("{} is no key of a mapping", key.kind())));
            }
            match find(&entries, &key, budget)? {
                Some(at) => entries[at].1 = value,
                None => entries.push((key, value)),
            }
        }
        Ok(Self { levels: levels(entries.iter().map(|(_, value)| value))?, entries })
    }

    pub(super) fn get(&self, key: &Value, budget: &Budget) -> Result<Option<&Value>> {
        Ok(find(&self.entries, key, budget)?.map(|at| &self.entries[at].1))
    }
}

fn find(entries: &[(Value, Value)], key: &Value, budget: &Budget) -> Result<Option<usize>> {
    for (at, (other, _)) in entries.iter().enumerate() {
        if equal(key, other, budget)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

impl Value {
    /// The text `text`, of a caller that bounds it.
    pub(in super::super) fn text(text: &str) -> Self {
        Self::Str(text.into())
    }

    /// The list of `items`.
    pub(in super::super) fn list(items: Vec<Value>) -> Result<Self> {
        Ok(Self::List(Rc::new(List::new(items, false)?)))
    }

    /// The mapping of `entries`, whose keys differ.
    pub(in super::super) fn mapping<const N: usize>(entries: [(&str, Value); N]) -> Result<Self> {
        let entries = entries.map(|(name, value)| (Self::text(name), value)).to_vec();
        Ok(Self::Mapping(Rc::new(Mapping {
            levels: levels(entries.iter().map(|(_, value)| value))?,
            entries,
        })))
    }

    /// Levels of lists and mappings.
    pub(super) fn levels(&self) -> Result<usize> {
        match self {
            Self::List(list) => Ok(list.levels),
            Self::Mapping(mapping) => Ok(mapping.levels),
            Self::Namespace(_) | Self::Loop(_) | Self::Method(_) => {
                Err(broken(format!("it puts {} into a value", self.kind())))
            }
            _ => Ok(0),
        }
    }

    /// Its type, in words.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "an undefined value",
            Self::None => "none",
            Self::Bool(_) => "a boolean",
            Self::Int(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Str(_) => "a string",
            Self::List(list) if list.is_tuple => "a tuple",
            Self::List(_) => "a list",
            Self::Mapping(_) => "a mapping",
            Self::Namespace(_) => "a namespace",
            Self::Loop(_) => "a loop",
            Self::Macro(_) => "a macro",
            Self::Function(_) => "a function",
            Self::Method(_) => "a method",
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Str(text) => !text.is_empty(),
            Self::List(list) => !list.items.is_empty(),
            Self::Mapping(mapping) => !mapping.entries.is_empty(),
            Self::Namespace(_) | Self::Loop(_) | Self::Macro(_) | Self::Function(_) | Self::Method(_) => true,
        }
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    /// The error of using what is not there; other values pass.
    pub(super) fn defined(&self) -> Result<&Self> {
        match self {
            Self::Undefined(Some(name)) => Err(broken(format!("{name} is undefined"))),
            Self::Undefined(None) => Err(broken("it uses an undefined value")),
            _ => Ok(self),
        }
    }

    /// An integer, or a boolean as Python counts it.
    pub(super) fn as_int(&self) -> Option<i64> {
        match self {
            Self::Bool(value) => Some(i64::from(*value)),
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            _ => self.as_int().map(|number| number as f64),
        }
    }

    pub(super) fn as_str(&self) -> Option<&Rc<str>> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The items that a loop over the value sees.
    pub(super) fn items<'b>(&self, budget: &'b Budget) -> Result<Items<'b>> {
        let mut items = budget.items();
        match self {
            Self::List(list) => items.extend(&list.items)?,
            Self::Mapping(mapping) => items.extend(mapping.entries.iter().map(|(key, _)| key))?,
            Self::Str(text) => {
                for character in text.chars() {
                    items.push(budget.string(character.encode_utf8(&mut [0; 4]))?)?;
                }
            }
            Self::Undefined(_) => {}
            _ => return Err(broken(format!("{} cannot be iterated over", self.kind()))),
        }
        Ok(items)
    }

    /// The number of items, as `len` has it.
    pub(super) fn length(&self, budget: &Budget) -> Result<usize> {
        match self {
            Self::Str(text) => {
                budget.reads(text.len())?;
                Ok(text.chars().count())
            }
            Self::List(list) => Ok(list.items.len()),
            Self::Mapping(mapping) => Ok(mapping.entries.len()),
            Self::Undefined(_) => Ok(0),
            _ => Err(broken(format!("{} has no length", self.kind()))),
        }
    }

    /// Writes what `str` makes of the value.
    pub(super) fn write(&self, text: &mut Text<'_>) -> Result<()> {
        match self {
            Self::Undefined(_) => Ok(()),
            Self::Str(own) => text.push(own),
            _ => self.write_repr(text),
        }
    }

    /// Writes what `repr` makes of the value.
    fn write_repr(&self, text: &mut Text<'_>) -> Result<()> {
        match self {
            Self::Undefined(_) => text.push("Undefined"),
            Self::None => text.push("None"),
            Self::Bool(value) => text.push(if *value { "True" } else { "False" }),
            Self::Int(number) => text.push(&number.to_string()),
            Self::Float(number) => text.push(&float_text(*number)),
            Self::Str(own) => write_quoted(own, text),
            Self::List(list) => {
                text.push(if list.is_tuple { "(" } else { "[" })?;
                for (index, item) in list.items.iter().enumerate() {
                    text.push(if index > 0 { ", " } else { "" })?;
                    item.write_repr(text)?;
                }
                text.push(match list.is_tuple {
                    true if list.items.len() == 1 => ",)",
                    true => ")",
                    false => "]",
                })
            }
            Self::Mapping(mapping) => {
                text.push("{")?;
                for (index, (key, value)) in mapping.entries.iter().enumerate() {
                    text.push(if index > 0 { ", " } else { "" })?;
                    key.write_repr(text)?;
                    text.push(": ")?;
                    value.write_repr(text)?;
                }
                text.push("}")
            }
            // What a namespace holds is not written: templates do not.
            _ => text.push("<object>"),
        }
    }
}

/// What `str` makes of `value`.
pub(super) fn text_of(value: &Value, budget: &Budget) -> Result<Rc<str>> {
    if let Value::Str(text) = value {
        return Ok(text.clone());
    }
    let mut text = budget.text();
    value.write(&mut text)?;
    let text = text.into_string();
    budget.bytes(text.len())?;
    Ok(text.into())
}

/// A float as `repr` writes it: the shortest text that is read back as the same number.
pub(super) fn float_text(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        _ if number.fract() == 0.0 => format!("{number:.1}"),
        _ => number.to_string(),
    }
}

fn write_quoted(own: &str, text: &mut Text<'_>) -> Result<()> {
    let quote = if own.contains('\'') && !own.contains('"') { '"' } else { '\'' };
    text.push_char(quote)?;
    for character in own.chars() {
        match character {
            '\n' => text.push("\\n")?,
            '\r' => text.push("\\r")?,
            '\t' => text.push("\\t")?,
            '\\' => text.push("\\\\")?,
            _ if character == quote => text.push(&format!("\\{character}"))?,
            _ if character.is_control() && u32::from(character) < 0x100 => {
                text.push(&format!("\\x{:02x}", u32::from(character)))?;
            }
            _ => text.push_char(character)?,
        }
    }
    text.push_char(quote)
}

/// Whether Python's `==` holds.
pub(super) fn equal(a: &Value, b: &Value, budget: &Budget) -> Result<bool> {
    budget.steps(1)?;
    Ok(match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(a), Value::Str(b)) => {
            budget.reads(a.len().min(b.len()))?;
            a == b
        }
        (Value::List(a), Value::List(b)) => {
            if a.is_tuple != b.is_tuple || a.items.len() != b.items.len() {
                return Ok(false);
            }
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal(a, b, budget)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Mapping(a), Value::Mapping(b)) => {
            if a.entries.len() != b.entries.len() {
                return Ok(false);
            }
            for (key, value) in &a.entries {
                match b.get(key, budget)? {
                    Some(other) if equal(value, other, budget)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
        (Value::Macro(a), Value::Macro(b)) => Rc::ptr_eq(a, b),
        (Value::Function(a), Value::Function(b)) => a == b,
        _ => match (a.as_int(), b.as_int()) {
            (Some(a), Some(b)) => a == b,
            _ => a.as_float().zip(b.as_float()).is_some_and(|(a, b)| a == b),
        },
    })
}

/// The order of two values, where Python's `<` has one; none where a NaN is among them.
pub(super) fn order(a: &Value, b: &Value, budget: &Budget) -> Result<Option<Ordering>> {
    budget.steps(1)?;
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => {
            budget.reads(a.len().min(b.len()))?;
            Ok(Some(a.cmp(b)))
        }
        (Value::List(a), Value::List(b)) if a.is_tuple == b.is_tuple => {
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal(a, b, budget)? {
                    return order(a, b, budget);
                }
            }
            Ok(Some(a.items.len().cmp(&b.items.len())))
        }
        _ => match (a.as_int(), b.as_int(), a.as_float(), b.as_float()) {
            (Some(a), Some(b), ..) => Ok(Some(a.cmp(&b))),
            (.., Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
            _ => {
                let (a, b) = (a.defined()?.kind(), b.defined()?.kind());
                Err(broken(format!("{a} and {b} cannot be compared")))
            }
        },
    }
}
