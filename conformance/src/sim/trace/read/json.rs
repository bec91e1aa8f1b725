//! JSON read strictly: a key that stands twice is refused at every depth, and so is one that nobody asks for.

use std::{
    cell::Cell,
    fmt::{self, Display},
    ops::RangeInclusive,
};

use lease_proto::time::Duration;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{super::super::time::WorldTime, TraceError};

/// The object in a line.
pub(super) fn object(line: usize, bytes: &[u8]) -> Result<Fields, TraceError> {
    let text = str::from_utf8(bytes)
        .map_err(|error| TraceError::new(line, None, format!("expected utf-8, got another byte at {}", error.valid_up_to())))?;
    let twice = Cell::new(None);
    let mut reader = serde_json::Deserializer::from_str(text);
    match Strict(&twice).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value)) {
        Ok(Value::Object(map)) => Ok(Fields::new(line, map)),
        Ok(value) => Err(TraceError::new(line, None, format!("expected a JSON object, got {}", shown(&value)))),
        Err(error) => Err(match twice.take() {
            Some(key) => TraceError::new(line, Some(&key), "stands twice in one object: expected it once"),
            None => TraceError::new(line, None, format!("expected a JSON object in one line, got {}", broken(&error))),
        }),
    }
}

/// What an object says, key by key. What is left in the end is unknown.
#[derive(Debug)]
pub(super) struct Fields {
    line: usize,
    /// Whose keys these are, where the line is not enough to tell.
    whose: String,
    left: Map<String, Value>,
    known: Vec<&'static str>,
}

impl Fields {
    fn new(line: usize, left: Map<String, Value>) -> Self {
        Self { line, whose: String::new(), left, known: Vec::new() }
    }

    /// Those of an object within this one.
    pub(super) fn within(&self, whose: impl Display, left: Map<String, Value>) -> Self {
        Self { whose: format!("{whose}: "), ..Self::new(self.line, left) }
    }

    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// Takes a key that may be absent; `read` says what it expects of a value.
    pub(super) fn optional<T>(&mut self, key: &'static str, read: impl FnOnce(&Value) -> Result<T, String>) -> Taken<Option<T>> {
        self.known.push(key);
        match self.left.shift_remove(key) {
            Some(value) => read(&value).map(Some).map_err(|expected| self.unexpected(key, expected, &value)),
            None => Ok(None),
        }
    }

    /// Takes a key that must be there. `read` must refuse null.
    pub(super) fn required<T>(&mut self, key: &'static str, read: impl Fn(&Value) -> Result<T, String>) -> Taken<T> {
        match self.optional(key, &read)? {
            Some(read) => Ok(read),
            None => Err(self.wrong(key, format!("{}, got nothing", read(&Value::Null).err().unwrap_or_default()))),
        }
    }

    /// Which of these keys is there; exactly one must be.
    pub(super) fn one_of<const N: usize>(&self, keys: [&'static str; N]) -> Taken<&'static str> {
        let mut there = keys.into_iter().filter(|key| self.left.contains_key(*key));
        match (there.next(), there.next()) {
            (Some(key), None) => Ok(key),
            (Some(first), Some(second)) => Err(self.wrong(second, format!("expected it or `{first}`, got both"))),
            (None, _) => Err(self.wrong(keys.first().unwrap_or(&""), format!("expected one of {}, got none", keys.join(", ")))),
        }
    }

    /// No key may be left.
    pub(super) fn finish(&self) -> Taken<()> {
        match self.left.keys().next() {
            None => Ok(()),
            Some(key) => Err(self.wrong(key, format!("unknown here: expected only {}", self.known.join(", ")))),
        }
    }

    pub(super) fn unexpected(&self, key: &str, expected: impl Display, got: &Value) -> TraceError {
        self.wrong(key, format!("{expected}, got {}", shown(got)))
    }

    pub(super) fn wrong(&self, key: &str, message: impl Display) -> TraceError {
        TraceError::new(self.line, Some(key), format!("{}{message}", self.whose))
    }
}

pub(super) type Taken<T> = Result<T, TraceError>;

pub(super) fn text(value: &Value) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| "expected a string".into())
}

pub(super) fn switch(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| "expected true or false".into())
}

pub(super) fn map(value: &Value) -> Result<Map<String, Value>, String> {
    value.as_object().cloned().ok_or_else(|| "expected an object".into())
}

pub(super) fn duration(value: &Value) -> Result<Duration, String> {
    let text = value.as_str().ok_or("expected a time as a string of seconds, such as \"30\" or \"0.25\"")?;
    text.parse().map_err(|error: lease_proto::time::TimeError| error.to_string())
}

pub(super) fn world_time(value: &Value) -> Result<WorldTime, String> {
    duration(value).map(WorldTime::after)
}

pub(super) fn whole<T: TryFrom<i128> + PartialOrd + Display>(range: RangeInclusive<T>) -> impl Fn(&Value) -> Result<T, String> {
    move |value| {
        let number = value.as_u64().map(i128::from).or_else(|| value.as_i64().map(i128::from));
        let number = number.and_then(|number| T::try_from(number).ok()).filter(|number| range.contains(number));
        number.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
    }
}

/// An even number of hexadecimal digits.
pub(super) fn hex(value: &Value) -> Result<Vec<u8>, String> {
    let digits = value.as_str().and_then(|text| text.chars().map(|char| char.to_digit(16)).collect::<Option<Vec<_>>>());
    let bytes = digits.as_deref().map(|digits| digits.as_chunks()).and_then(|(pairs, rest)| rest.is_empty().then_some(pairs));
    let byte = |&[high, low]: &[u32; 2]| u8::try_from(high << 4 | low).unwrap_or_default();
    bytes.map(|pairs| pairs.iter().map(byte).collect()).ok_or_else(|| "expected an even number of hexadecimal digits".into())
}

/// What is wrong with JSON, without a line number: it would count within the line.
fn broken(error: &serde_json::Error) -> String {
    let what = error.to_string();
    let what = what.split_once(" at line ").map_or(what.as_str(), |(what, _)| what);
    format!("none: {what} at column {}", error.column())
}

/// A value as it is shown in a complaint about it.
fn shown(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".into(),
        Value::Array(_) => "an array".into(),
        value => brief(&value.to_string()),
    }
}

/// The beginning of a text that may be long.
pub(super) fn brief(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Reads any value, but no object in which a key stands twice, which it leaves in the cell. serde_json bounds the depth.
#[derive(Clone, Copy)]
struct Strict<'a>(&'a Cell<Option<String>>);

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = access.next_element_seed(self)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if map.contains_key(&key) {
                self.0.set(Some(key));
                return Err(A::Error::custom("a key stands twice"));
            }
            map.insert(key, access.next_value_seed(self)?);
        }
        Ok(map.into())
    }
}
