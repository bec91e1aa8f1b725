//! vLLM's `NixlHandshakePayload`.

use std::fmt;

use super::{
    CodecError,
    msgpack::{Reader, Writer},
};

/// Most bytes of a payload. An engine of a thousand regions needs some 100 KiB.
pub const MAX_PAYLOAD: usize = 16 << 20;

/// Most bytes of a name or an id.
pub(super) const MAX_TEXT: usize = 1024;

/// Most pairs of a map, known and unknown: far above the 21 keys of version 15.
pub(super) const MAX_KEYS: usize = 256;

/// What P answers: which engines it can serve, and the metadata, which vLLM's reader decodes only if they fit.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    /// SHA-256 in hexadecimal of all that has to be the same in both engines, as vLLM computes it.
    pub compatibility_hash: String,
    /// An encoded [`AgentMetadata`](super::AgentMetadata).
    pub agent_metadata_bytes: Vec<u8>,
}

/// Without the metadata, whose keys open the memory to whoever has them.
impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.agent_metadata_bytes.len();
        let mut shown = f.debug_struct("Payload");
        shown.field("compatibility_hash", &self.compatibility_hash);
        shown.field("agent_metadata_bytes", &format_args!("{bytes} bytes")).finish()
    }
}

impl Payload {
    /// The bytes that vLLM's decoder takes.
    ///
    /// # Errors
    /// `TooLong`.
    pub fn encode(&self) -> Result<Vec<u8>, CodecError> {
        at_most("compatibility_hash", self.compatibility_hash.len(), MAX_TEXT)?;
        at_most("payload", self.agent_metadata_bytes.len().saturating_add(MAX_TEXT.saturating_mul(2)), MAX_PAYLOAD)?;
        let mut writer = Writer::default();
        writer.map_len(2);
        writer.text("compatibility_hash");
        writer.text(&self.compatibility_hash);
        writer.text("agent_metadata_bytes");
        writer.bytes(&self.agent_metadata_bytes);
        Ok(writer.into_bytes())
    }

    /// Reads what P answered. Unknown keys are ignored; of a key that comes twice the last one counts, as for vLLM.
    ///
    /// # Errors
    /// Anything that vLLM's decoder refuses, and more than [`MAX_PAYLOAD`] bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        at_most("payload", bytes.len(), MAX_PAYLOAD)?;
        let mut reader = Reader::new(bytes, "payload");
        let (mut hash, mut metadata) = (None, None);
        for _ in 0..reader.map_len(MAX_KEYS)? {
            match reader.at("payload").text(MAX_TEXT)? {
                "compatibility_hash" => hash = Some(reader.at("compatibility_hash").text(MAX_TEXT)?),
                "agent_metadata_bytes" => metadata = Some(reader.at("agent_metadata_bytes").bytes()?),
                _ => reader.skip()?,
            }
        }
        reader.end()?;
        Ok(Self {
            compatibility_hash: hash.ok_or(CodecError::Missing { key: "compatibility_hash" })?.to_owned(),
            agent_metadata_bytes: metadata.ok_or(CodecError::Missing { key: "agent_metadata_bytes" })?.to_owned(),
        })
    }
}

pub(super) fn at_most(key: &'static str, got: usize, max: usize) -> Result<(), CodecError> {
    if got <= max { Ok(()) } else { Err(CodecError::TooLong { key, got, max }) }
}
