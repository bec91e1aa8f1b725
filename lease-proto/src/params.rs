//! The one key that kvlease adds to vLLM's `kv_transfer_params`: `"kvlease"`, an opaque string.
//!
//! It holds what a reader needs: the token, the holder's life and terms, how to reach each of its ranks, and the keys to its memory. Routers pass it on
//! unread. Whoever has it may renew, read and complete: it is a bearer secret, shown only redacted, never to end clients.
//!
//! As bytes it is a [`Frame`] around a postcard body, so that damage on the way is noticed; as text it is base64url without padding.

use core::fmt;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use serde::{Deserialize, Serialize};

use crate::{
    frame::{Frame, FrameError, HEADER},
    id::{Incarnation, MAX_ID, Token},
    time::Duration,
    wire::canonical,
};

const VERSION: u8 = 1;

/// What a reader is told about one lease.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Parameters<'a> {
    /// The right to the lease.
    pub token: Token,
    /// The life of the holder's engine.
    pub incarnation: Incarnation,
    /// The holder's engine id, up to [`MAX_ID`] bytes.
    pub engine: &'a [u8],
    /// How many ranks hold the lease.
    pub ranks: u16,
    /// By how much a renewal extends.
    pub extension: Duration,
    /// Drift bound of the holder's clock in parts per million.
    pub drift_ppm: u32,
    /// The frames with each rank's transport metadata, one after the other, all of this incarnation.
    pub frames: &'a [u8],
    /// Frames with the exported regions that the blocks lie in, one after the other, any number, all of this incarnation. Which is
    /// whose, and where in it the blocks are, the engine knows. Empty where it exchanges them by itself.
    pub regions: &'a [u8],
}

#[derive(Serialize, Deserialize)]
struct Repr<'a> {
    version: u8,
    token: Token,
    #[serde(borrow)]
    engine: &'a [u8],
    ranks: u16,
    extension: Duration,
    drift_ppm: u32,
    #[serde(borrow)]
    frames: &'a [u8],
    #[serde(borrow)]
    regions: &'a [u8],
}

/// Why a `kvlease` key cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamsError {
    /// Not base64url without padding.
    #[error("the kvlease key is not base64url without padding: pass it on unchanged")]
    Text,
    /// Damaged, or of something else.
    #[error("the kvlease key is damaged: {0}")]
    Frame(FrameError),
    /// Of a version this build does not read.
    #[error("the kvlease key has version {got}, expected {VERSION}: both sides must run versions of kvlease that overlap")]
    Version {
        /// The version it claims.
        got: u8,
    },
    /// Whole, but not what a holder writes.
    #[error("the kvlease key does not hold what a holder writes")]
    Malformed,
    /// The buffer is too small.
    #[error("the kvlease key needs a buffer of {needed} bytes")]
    Room {
        /// Bytes needed, at most.
        needed: usize,
    },
}

impl<'a> Parameters<'a> {
    /// Reads the key's bytes.
    ///
    /// # Errors
    /// Anything that [`Parameters::encode`] did not write, as far as that can be told.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, ParamsError> {
        let frame = Frame::decode(bytes).map_err(ParamsError::Frame)?;
        let version = frame.payload().first().copied().ok_or(ParamsError::Malformed)?;
        if version != VERSION {
            return Err(ParamsError::Version { got: version });
        }
        let repr = canonical::whole::<Repr<'a>>(frame.payload()).map_err(|_| ParamsError::Malformed)?;
        let Repr { token, engine, ranks, extension, drift_ppm, frames, regions, .. } = repr;
        let params = Self { token, incarnation: frame.incarnation(), engine, ranks, extension, drift_ppm, frames, regions };
        let ours = |frame: &Result<Frame<'_>, FrameError>| frame.as_ref().is_ok_and(|it| it.incarnation() == params.incarnation);
        // Not `count`: of this the optimizer can see that it does not overflow.
        let there = each_frame(frames).try_fold(0u16, |ranks, frame| if ours(&frame) { ranks.checked_add(1) } else { None });
        let all_ours = each_frame(regions).all(|frame| ours(&frame));
        if there == Some(ranks) && ranks > 0 && all_ours && engine.len() <= MAX_ID {
            Ok(params)
        } else {
            Err(ParamsError::Malformed)
        }
    }

    /// Reads the key's text; `buffer` must hold three bytes for every four characters.
    ///
    /// # Errors
    /// As [`Parameters::decode`], and text that is not base64url.
    pub fn from_text(text: &str, buffer: &'a mut [u8]) -> Result<Self, ParamsError> {
        let needed = text.len().div_ceil(4).saturating_mul(3);
        if buffer.len() < needed {
            return Err(ParamsError::Room { needed });
        }
        Self::decode(Base64UrlUnpadded::decode(text, buffer).map_err(|_| ParamsError::Text)?)
    }

    /// Writes the key's bytes and returns their length.
    ///
    /// # Errors
    /// `Room` if `out` is too small.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, ParamsError> {
        let Self { token, incarnation, engine, ranks, extension, drift_ppm, frames, regions } = *self;
        let needed = self.longest();
        let repr = Repr { version: VERSION, token, engine, ranks, extension, drift_ppm, frames, regions };
        // Behind the room for the header first; then the frame around it in place.
        let body = out
            .get_mut(HEADER..)
            .and_then(|body| postcard::to_slice(&repr, body).ok())
            .ok_or(ParamsError::Room { needed })?
            .len();
        Frame::seal(incarnation, body, out).map_err(ParamsError::Frame)
    }

    /// Writes the key's text; `buffer` is for the bytes in between.
    ///
    /// # Errors
    /// `Room` if either is too small.
    pub fn to_text<'o>(&self, buffer: &mut [u8], out: &'o mut [u8]) -> Result<&'o str, ParamsError> {
        let length = self.encode(buffer)?;
        let bytes = buffer.get(..length).unwrap_or_default();
        Base64UrlUnpadded::encode(bytes, out).map_err(|_| ParamsError::Room { needed: length.saturating_mul(2) })
    }

    /// The key's text.
    ///
    /// # Errors
    /// `Frame` if the metadata is too large for a frame.
    #[cfg(any(feature = "alloc", test))]
    pub fn to_string(&self) -> Result<alloc::string::String, ParamsError> {
        let mut buffer = alloc::vec![0; self.longest()];
        let length = self.encode(&mut buffer)?;
        buffer.truncate(length);
        Ok(Base64UrlUnpadded::encode_string(&buffer))
    }

    /// Bytes of the key, at most.
    pub fn longest(&self) -> usize {
        let blobs = [self.engine, self.frames, self.regions];
        blobs.iter().fold(HEADER.saturating_add(64), |longest, blob| longest.saturating_add(blob.len()))
    }

    /// The metadata of one rank of the holder.
    pub fn rank_frame(&self, rank: u16) -> Option<Frame<'a>> {
        each_frame(self.frames).nth(usize::from(rank))?.ok()
    }

    /// The exported regions.
    pub fn regions(&self) -> impl Iterator<Item = Frame<'a>> + use<'a> {
        each_frame(self.regions).map_while(Result::ok)
    }
}

/// The frames in these bytes; the first that is none ends them.
fn each_frame<'a>(mut rest: &'a [u8]) -> impl Iterator<Item = Result<Frame<'a>, FrameError>> + use<'a> {
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let read = Frame::decode_prefix(rest);
        rest = read.as_ref().map_or(&[], |(_, rest)| rest);
        Some(read.map(|(frame, _)| frame))
    })
}

impl fmt::Debug for Parameters<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parameters")
            .field("token", &self.token)
            .field("incarnation", &self.incarnation)
            .field("engine", &format_args!("{}", self.engine.escape_ascii()))
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use alloc::{format, vec::Vec};

    use super::*;

    fn frames(ranks: u64) -> Vec<u8> {
        let mut frames = Vec::new();
        for rank in 0..ranks {
            let mut buffer = [0; 64];
            let n = Frame::encode(Incarnation(9), &rank.to_le_bytes(), &mut buffer).unwrap();
            frames.extend_from_slice(&buffer[..n]);
        }
        frames
    }

    fn sample(frames: &[u8]) -> Parameters<'_> {
        let token = Token { number: 3, nonce: 0xfeed_f00d_dead_beef };
        Parameters {
            token,
            incarnation: Incarnation(9),
            engine: b"p0",
            ranks: 2,
            extension: Duration::from_secs(20),
            drift_ppm: 500,
            frames,
            regions: &[],
        }
    }

    #[test]
    fn it_reads_back_what_it_wrote_with_every_rank() {
        let frames = frames(2);
        let (text, mut buffer) = (sample(&frames).to_string().unwrap(), [0; 512]);
        let read = Parameters::from_text(&text, &mut buffer).unwrap();
        assert_eq!(read, sample(&frames));
        assert_eq!(read.rank_frame(1).unwrap().payload(), 1u64.to_le_bytes());
        assert_eq!(read.rank_frame(2), None);
    }

    #[test]
    fn any_damage_is_noticed() {
        let frames = frames(2);
        let text = sample(&frames).to_string().unwrap();
        for at in 0..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[at] = if damaged[at] == b'A' { b'B' } else { b'A' };
            let damaged = std::string::String::from_utf8(damaged).unwrap();
            let mut buffer = [0; 512];
            assert!(Parameters::from_text(&damaged, &mut buffer).is_err() || damaged == text, "character {at}");
            assert!(Parameters::from_text(&text[..at], &mut [0; 512]).is_err());
        }
        for junk in ["", "=", "a b", "kvlease", "\u{fe}"] {
            assert!(Parameters::from_text(junk, &mut [0; 64]).is_err());
        }
    }

    #[test]
    fn a_count_of_ranks_that_does_not_match_is_malformed() {
        for ranks in [0, 1, 3] {
            let (frames, mut buffer) = (frames(2), [0; 512]);
            let n = Parameters { ranks, ..sample(&frames) }.encode(&mut buffer).unwrap();
            assert_eq!(Parameters::decode(&buffer[..n]), Err(ParamsError::Malformed));
        }
    }

    #[test]
    fn any_number_of_regions_is_read_back_in_order() {
        let frames = frames(2);
        for count in 0..4 {
            let regions = super::tests::frames(count);
            let params = Parameters { regions: &regions, ..sample(&frames) };
            let (text, mut buffer) = (params.to_string().unwrap(), [0; 512]);
            let read = Parameters::from_text(&text, &mut buffer).unwrap();
            assert_eq!(read, params);
            let payloads: Vec<Vec<u8>> = read.regions().map(|frame| frame.payload().to_vec()).collect();
            assert_eq!(payloads, (0..count).map(|region| region.to_le_bytes().to_vec()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn regions_that_are_cut_or_no_frames_or_of_another_life_are_malformed() {
        let (frames, whole, mut other) = (frames(2), frames(2), [0; 64]);
        let length = Frame::encode(Incarnation(8), b"region", &mut other).unwrap();
        for regions in [&whole[..whole.len() - 1], &whole[1..], b"junk", &[whole.as_slice(), &other[..length]].concat()] {
            let mut buffer = [0; 512];
            let n = Parameters { regions, ..sample(&frames) }.encode(&mut buffer).unwrap();
            assert_eq!(Parameters::decode(&buffer[..n]), Err(ParamsError::Malformed));
        }
    }

    #[test]
    fn metadata_of_another_life_is_malformed() {
        let (frames, mut buffer) = (frames(2), [0; 512]);
        let n = Parameters { incarnation: Incarnation(8), ..sample(&frames) }.encode(&mut buffer).unwrap();
        assert_eq!(Parameters::decode(&buffer[..n]), Err(ParamsError::Malformed));
    }

    #[test]
    fn only_the_canonical_form_is_read() {
        let (frames, mut buffer) = (frames(2), [0; 512]);
        let n = sample(&frames).encode(&mut buffer).unwrap();
        assert_eq!(buffer[HEADER + 20], 2, "the count of ranks");
        buffer.copy_within(HEADER + 21..n, HEADER + 22);
        buffer[HEADER + 20..HEADER + 22].copy_from_slice(&[0x82, 0x00]);
        let n = Frame::seal(Incarnation(9), n + 1 - HEADER, &mut buffer).unwrap();
        assert_eq!(Parameters::decode(&buffer[..n]), Err(ParamsError::Malformed));
        // Bits to spare in the last character must be zero.
        let text = sample(&frames).to_string().unwrap();
        let padded = text.strip_suffix(text.chars().last().unwrap()).unwrap();
        let read = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
            .chars()
            .filter(|last| Parameters::from_text(&format!("{padded}{last}"), &mut [0; 512]).is_ok());
        assert_eq!(read.count(), 1);
    }

    #[test]
    fn it_is_a_secret_and_shown_as_one() {
        let frames = frames(2);
        let shown = format!("{:?}", sample(&frames));
        assert!(shown.contains("redacted") && !shown.contains("feed") && !shown.contains("3735928559"));
    }

    #[test]
    fn too_small_a_buffer_is_an_error_and_not_a_cut() {
        let frames = frames(2);
        assert!(matches!(sample(&frames).encode(&mut [0; 40]), Err(ParamsError::Room { .. })));
        let text = sample(&frames).to_string().unwrap();
        assert!(matches!(Parameters::from_text(&text, &mut [0; 10]), Err(ParamsError::Room { .. })));
    }
}
