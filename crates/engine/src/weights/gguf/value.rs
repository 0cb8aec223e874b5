//! Values of a GGUF file's metadata.

use std::borrow::Cow;

/// A value of one of the types that GGUF has.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// The name of its type: `U8`, `String`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "U8",
            Self::I8(_) => "I8",
            Self::U16(_) => "U16",
            Self::I16(_) => "I16",
            Self::U32(_) => "U32",
            Self::I32(_) => "I32",
            Self::F32(_) => "F32",
            Self::Bool(_) => "Bool",
            Self::String(_) => "String",
            Self::Array(_) => "Array",
            Self::U64(_) => "U64",
            Self::I64(_) => "I64",
            Self::F64(_) => "F64",
        }
    }

    /// A whole number of any type.
    pub fn as_i128(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(value) => value.into(),
            Self::I8(value) => value.into(),
            Self::U16(value) => value.into(),
            Self::I16(value) => value.into(),
            Self::U32(value) => value.into(),
            Self::I32(value) => value.into(),
            Self::U64(value) => value.into(),
            Self::I64(value) => value.into(),
            _ => return None,
        })
    }

    /// A whole number of any type, from 0 on.
    pub fn as_u64(&self) -> Option<u64> {
        self.as_i128().and_then(|value| u64::try_from(value).ok())
    }

    /// A text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }
}

impl From<Vec<Value>> for Value {
    fn from(values: Vec<Value>) -> Self {
        Self::Array(Array::Values(values))
    }
}

/// The elements of an array. Those types that vocabularies are of take no more memory than they need.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// 32-bit integers.
    I32(Vec<i32>),
    /// 32-bit floats.
    F32(Vec<f32>),
    /// Texts.
    Strings(Strings),
    /// Any others.
    Values(Vec<Value>),
}

impl Array {
    /// The elements in order.
    pub fn iter(&self) -> Box<dyn Iterator<Item = Cow<'_, Value>> + '_> {
        match self {
            Self::I32(values) => Box::new(values.iter().map(|&value| Cow::Owned(Value::I32(value)))),
            Self::F32(values) => Box::new(values.iter().map(|&value| Cow::Owned(Value::F32(value)))),
            Self::Strings(texts) => {
                Box::new(texts.iter().map(|text| Cow::Owned(Value::String(text.to_owned()))))
            }
            Self::Values(values) => Box::new(values.iter().map(Cow::Borrowed)),
        }
    }

    /// The elements, all of which are texts.
    ///
    /// # Errors
    /// One that is none.
    pub fn strings(&self) -> Result<Vec<&str>, Cow<'_, Value>> {
        match self {
            Self::Strings(texts) => Ok(texts.iter().collect()),
            Self::Values(values) => {
                values.iter().map(|value| value.as_str().ok_or(Cow::Borrowed(value))).collect()
            }
            Self::I32(_) | Self::F32(_) => self.iter().next().map_or(Ok(vec![]), Err),
        }
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

/// Texts one after another in one string: each takes its bytes and eight more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    /// Where each ends in `text`.
    ends: Vec<usize>,
}

impl Strings {
    /// Room for `count` texts.
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self { text: String::new(), ends: Vec::with_capacity(count) }
    }

    pub(crate) fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.ends.push(self.text.len());
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The memory that they take, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<usize>()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.text[start..end])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}
