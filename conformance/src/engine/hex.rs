//! Bytes as text.

use std::fmt::Write as _;

/// Bytes as lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

/// The inverse of [`hex`].
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.bytes().map(|byte| (byte as char).to_digit(16)).collect::<Option<Vec<u32>>>()?;
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    Some(pairs.iter().map(|[high, low]| (high * 16 + low) as u8).collect())
}
