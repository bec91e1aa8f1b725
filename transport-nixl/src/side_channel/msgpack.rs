//! The little msgpack that the side channel needs.
//!
//! By hand over `rmp`, not by serde: an error has to name the key that it is about, text and bytes are two things for vLLM's decoder, and
//! no length that a peer claims may be allocated.

use rmp::{
    Marker,
    decode::{self, DecodeStringError, MarkerReadError, NumValueReadError, RmpRead, ValueReadError},
    encode::{self, ByteBuf},
};

use super::{CodecError, payload::MAX_TEXT};

/// What is left to read, and whose value it is.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    key: &'static str,
}

impl<'a> Reader<'a> {
    /// `key` is what errors name until [`Reader::at`].
    pub(super) fn new(bytes: &'a [u8], key: &'static str) -> Self {
        Self { rest: bytes, key }
    }

    /// What is read next is `key`'s.
    pub(super) fn at(&mut self, key: &'static str) -> &mut Self {
        self.key = key;
        self
    }

    /// An integer of any width, 0 to `max`.
    pub(super) fn uint(&mut self, max: u64) -> Result<u64, CodecError> {
        let got = decode::read_int::<i128, _>(&mut self.rest).map_err(|error| match error {
            NumValueReadError::TypeMismatch(_) => self.expected("an integer"),
            _ => self.truncated(),
        })?;
        match u64::try_from(got) {
            Ok(got) if got <= max => Ok(got),
            _ => Err(CodecError::Range { key: self.key, got, max }),
        }
    }

    /// An integer of any width, of 64 bits at most.
    pub(super) fn number(&mut self) -> Result<u64, CodecError> {
        self.uint(u64::MAX)
    }

    /// An integer of any width, of 32 bits at most.
    pub(super) fn int(&mut self) -> Result<u32, CodecError> {
        // It was compared with the largest one.
        self.uint(u32::MAX.into()).map(|got| u32::try_from(got).unwrap_or(u32::MAX))
    }

    /// A float of 64 bits.
    pub(super) fn float(&mut self) -> Result<f64, CodecError> {
        decode::read_f64(&mut self.rest).map_err(|error| self.value("a float of 64 bits", error))
    }

    /// Text of at most `max` bytes, borrowed.
    pub(super) fn text(&mut self, max: usize) -> Result<&'a str, CodecError> {
        let (text, rest) = decode::read_str_from_slice(self.rest).map_err(|error| match error {
            DecodeStringError::TypeMismatch(_) => self.expected("text"),
            DecodeStringError::InvalidUtf8(..) => self.expected("text in UTF-8"),
            _ => self.truncated(),
        })?;
        self.rest = rest;
        self.bounded(text.len(), max)?;
        Ok(text)
    }

    /// Text of at most [`MAX_TEXT`] bytes.
    pub(super) fn name(&mut self) -> Result<String, CodecError> {
        self.text(MAX_TEXT).map(str::to_owned)
    }

    /// Bytes, borrowed.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], CodecError> {
        let len = decode::read_bin_len(&mut self.rest).map_err(|error| self.value("bytes", error))?;
        self.take(len.into())
    }

    /// Whether the value is nil, which is then read.
    pub(super) fn nil(&mut self) -> bool {
        let nil = decode::read_nil(&mut &*self.rest).is_ok();
        if nil {
            self.rest = self.rest.get(1..).unwrap_or_default();
        }
        nil
    }

    /// How many values a list has, at most `max`.
    pub(super) fn list_len(&mut self, max: usize) -> Result<usize, CodecError> {
        let len = decode::read_array_len(&mut self.rest).map_err(|error| self.value("a list", error))?;
        self.bounded(usize::try_from(len).unwrap_or(usize::MAX), max)
    }

    /// How many pairs a map has, at most `max`.
    pub(super) fn map_len(&mut self, max: usize) -> Result<usize, CodecError> {
        let len = decode::read_map_len(&mut self.rest).map_err(|error| self.value("a map", error))?;
        self.bounded(usize::try_from(len).unwrap_or(usize::MAX), max)
    }

    /// A list of at most `max` values. Grows as they come: every one takes at least a byte.
    pub(super) fn list<T>(
        &mut self,
        max: usize,
        item: impl Fn(&mut Self) -> Result<T, CodecError>,
    ) -> Result<Vec<T>, CodecError> {
        let mut list = Vec::new();
        for _ in 0..self.list_len(max)? {
            list.push(item(self)?);
        }
        Ok(list)
    }

    /// Two integers.
    pub(super) fn pair(&mut self) -> Result<(u64, u64), CodecError> {
        match decode::read_array_len(&mut self.rest).map_err(|error| self.value("a list of two", error))? {
            2 => Ok((self.uint(u64::MAX)?, self.uint(u64::MAX)?)),
            _ => Err(self.expected("a list of two")),
        }
    }

    /// Nil, or what `read` reads.
    pub(super) fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, CodecError>) -> Result<Option<T>, CodecError> {
        if self.nil() { Ok(None) } else { read(self).map(Some) }
    }

    /// Reads over one value, however deep: every step takes a byte, and none is on the stack.
    pub(super) fn skip(&mut self) -> Result<(), CodecError> {
        let mut left = 1u64;
        while let Some(after) = left.checked_sub(1) {
            let marker = decode::read_marker(&mut self.rest).map_err(|MarkerReadError(_)| self.truncated())?;
            let (bytes, values) = self.extent(marker)?;
            self.take(bytes)?;
            left = after.saturating_add(values);
        }
        Ok(())
    }

    /// How many bytes, and how many values, follow a marker and its length.
    fn extent(&mut self, marker: Marker) -> Result<(u64, u64), CodecError> {
        Ok(match marker {
            Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => (0, 0),
            Marker::U8 | Marker::I8 => (1, 0),
            Marker::U16 | Marker::I16 => (2, 0),
            Marker::U32 | Marker::I32 | Marker::F32 => (4, 0),
            Marker::U64 | Marker::I64 | Marker::F64 => (8, 0),
            Marker::FixStr(len) => (len.into(), 0),
            Marker::Str8 | Marker::Bin8 => (self.len8()?, 0),
            Marker::Str16 | Marker::Bin16 => (self.len16()?, 0),
            Marker::Str32 | Marker::Bin32 => (self.len32()?, 0),
            Marker::FixArray(len) => (0, len.into()),
            Marker::Array16 => (0, self.len16()?),
            Marker::Array32 => (0, self.len32()?),
            Marker::FixMap(len) => (0, u64::from(len).saturating_mul(2)),
            Marker::Map16 => (0, self.len16()?.saturating_mul(2)),
            Marker::Map32 => (0, self.len32()?.saturating_mul(2)),
            // The type of an extension is one more byte.
            Marker::FixExt1 => (2, 0),
            Marker::FixExt2 => (3, 0),
            Marker::FixExt4 => (5, 0),
            Marker::FixExt8 => (9, 0),
            Marker::FixExt16 => (17, 0),
            Marker::Ext8 => (self.len8()?.saturating_add(1), 0),
            Marker::Ext16 => (self.len16()?.saturating_add(1), 0),
            Marker::Ext32 => (self.len32()?.saturating_add(1), 0),
            Marker::Reserved => return Err(self.expected("msgpack")),
        })
    }

    /// Nothing may follow.
    pub(super) fn end(self) -> Result<(), CodecError> {
        if self.rest.is_empty() { Ok(()) } else { Err(CodecError::Trailing { bytes: self.rest.len() }) }
    }

    /// The error that says what this key's value has to be.
    pub(super) fn expected(&self, expected: &'static str) -> CodecError {
        CodecError::Type { key: self.key, expected }
    }

    fn len8(&mut self) -> Result<u64, CodecError> {
        self.rest.read_data_u8().map(u64::from).map_err(|error| self.value("msgpack", error))
    }

    fn len16(&mut self) -> Result<u64, CodecError> {
        self.rest.read_data_u16().map(u64::from).map_err(|error| self.value("msgpack", error))
    }

    fn len32(&mut self) -> Result<u64, CodecError> {
        self.rest.read_data_u32().map(u64::from).map_err(|error| self.value("msgpack", error))
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], CodecError> {
        let taken = usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len));
        let (bytes, rest) = taken.ok_or_else(|| self.truncated())?;
        self.rest = rest;
        Ok(bytes)
    }

    fn bounded(&self, got: usize, max: usize) -> Result<usize, CodecError> {
        if got <= max { Ok(got) } else { Err(CodecError::TooLong { key: self.key, got, max }) }
    }

    fn value(&self, expected: &'static str, error: ValueReadError) -> CodecError {
        match error {
            ValueReadError::TypeMismatch(_) => self.expected(expected),
            _ => self.truncated(),
        }
    }

    fn truncated(&self) -> CodecError {
        CodecError::Truncated { key: self.key }
    }
}

/// Writes to memory, which does not fail. Lengths are checked before: rmp writes those above `u32::MAX` wrong.
#[derive(Default)]
pub(super) struct Writer(ByteBuf);

impl Writer {
    pub(super) fn uint(&mut self, value: u64) {
        let Ok(_) = encode::write_uint(&mut self.0, value);
    }

    pub(super) fn float(&mut self, value: f64) {
        let Ok(()) = encode::write_f64(&mut self.0, value);
    }

    pub(super) fn text(&mut self, text: &str) {
        let Ok(()) = encode::write_str(&mut self.0, text);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        let Ok(()) = encode::write_bin(&mut self.0, bytes);
    }

    pub(super) fn list_len(&mut self, len: usize) {
        let Ok(_) = encode::write_array_len(&mut self.0, u32::try_from(len).unwrap_or(u32::MAX));
    }

    pub(super) fn map_len(&mut self, len: usize) {
        let Ok(_) = encode::write_map_len(&mut self.0, u32::try_from(len).unwrap_or(u32::MAX));
    }

    pub(super) fn list<T>(&mut self, list: &[T], mut item: impl FnMut(&mut Self, &T)) {
        self.list_len(list.len());
        for value in list {
            item(self, value);
        }
    }

    pub(super) fn pair(&mut self, (first, second): (u64, u64)) {
        self.list_len(2);
        self.uint(first);
        self.uint(second);
    }

    /// Nil, or what `write` writes.
    pub(super) fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => {
                let Ok(()) = encode::write_nil(&mut self.0);
            }
        }
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0.into_vec()
    }
}
