//! Proof by linking: lease-proto needs neither std nor alloc, and the operations called here cannot panic.
//!
//! The panic handler calls a function that exists nowhere. If the optimizer can rule every panic out, handler and call are
//! dropped and this links; if one can be reached, the linker names `a_panic_can_be_reached`. Inputs go through `black_box`, so
//! nothing is known about them, not even their lengths. Arithmetic that overflows counts as a panic.
//!
//! Called are operations of `id`, `time`, `frame` and `wire`; the state machines are not here yet. Another compiler's optimizer
//! may see less: where it does, make the code plainer.
//!
//! Exempt, since the optimizer does not see what a reader does:
//! - `wire::vllm::decode`, and with it `wire::decode`: `str::rsplit_once` slices where its own search found a colon.
//! - `wire::vllm::encode_completion`, and all of `Display` and `Debug`: `core::fmt` adds up lengths with checks.
//! - `RenewWriter::push`: copies into as many bytes as a token has, but their number comes out of a saturating sum.
//! - overflow inside dependencies (see `Cargo.toml`).
#![no_std]
#![no_main]

use core::{hint::black_box, panic::PanicInfo};

use lease_proto::{
    frame::Frame,
    id::{EngineId, Entropy, Incarnation, ReaderRank, RequestId, Seq, Session, Token},
    time::{Duration, Instant, PeerInstant},
    wire::{
        native::{self, Body, RenewWriter, RenewedWriter},
        vllm::{self, HeartbeatWriter},
    },
};

// Where the start-up code comes from that calls `main`, and where the name below does not.
#[link(name = "c")]
unsafe extern "C" {
    fn a_panic_can_be_reached() -> !;
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    // SAFETY: never runs; a program that could call it does not link.
    unsafe { a_panic_can_be_reached() }
}

// SAFETY: the one `main` of this program, as C's start-up code calls one without arguments.
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    let bytes = black_box(&[0; 64][..]);
    let (mut out, mut entropy) = ([0; 64], Entropy::from_seed(black_box([0; 16])));
    let token = Token { number: black_box(1), nonce: entropy.draw() };
    ids(bytes, token);
    time(black_box("30.5"), black_box(Duration::from_nanos(1)));
    frame(bytes, black_box(&mut out[..]));
    native_wire(bytes, black_box(&mut out[..]));
    vllm_wire(bytes, black_box(&mut out[..]));
    0
}

fn ids(bytes: &[u8], token: Token) {
    let _ = black_box((RequestId::new(bytes), EngineId::new(bytes)));
    let _ = black_box(ReaderRank::new(black_box(1), black_box(2)));
    let _ = black_box(token == Token::from_bytes(black_box(token.to_bytes())));
}

fn time(text: &str, duration: Duration) {
    let _ = black_box((text.parse::<Duration>(), text.parse::<Instant>(), text.parse::<PeerInstant>()));
    let now = black_box(Instant::from_nanos(1));
    let _ = black_box((now.saturating_add(duration), now.saturating_sub(duration), now.saturating_since(black_box(now))));
    let _ = black_box(duration.scale(black_box(2), black_box(3)));
}

fn frame(bytes: &[u8], out: &mut [u8]) {
    let _ = black_box((Frame::decode(bytes), Frame::decode_prefix(bytes)));
    let _ = black_box(Frame::encode(black_box(Incarnation(1)), bytes, out));
}

fn native_wire(bytes: &[u8], out: &mut [u8]) {
    let (session, seq) = black_box((Session(1), Seq(2)));
    if let Ok((session, seq, body)) = black_box(native::decode(bytes)) {
        match &body {
            Body::Renew(renew) => renew.tokens.iter().for_each(|token| _ = black_box(token)),
            Body::Renewed(renewed) => renewed.exceptions.iter().for_each(|exception| _ = black_box(exception)),
            _ => {}
        }
        let _ = black_box(native::encode(session, seq, &body, out));
    }
    if let Ok(renew) = RenewWriter::new(out, black_box(ReaderRank::ONLY)) {
        let _ = black_box((renew.count(), renew.finish(session, seq)));
    }
    if let Ok(mut renewed) = RenewedWriter::new(out, black_box(3)) {
        renewed.push(black_box(0), black_box(Ok(Duration::from_nanos(1))));
        let _ = black_box(renewed.finish(session, seq, black_box(seq), black_box(3), black_box(Duration::from_nanos(1))));
    }
    let _ = black_box(native::tokens_that_fit(black_box(1), black_box(2)));
}

fn vllm_wire(bytes: &[u8], out: &mut [u8]) {
    let mut beat = HeartbeatWriter::new(out);
    while beat.push(bytes) == Ok(true) {}
    let _ = black_box(beat.finish());
    let _ = black_box(vllm::check_id(bytes));
}
