//! Sizes of the messages that leases cost, from messages as they are written.

use lease_proto::{
    id::{ReaderRank, Seq, Session, Token},
    time::Duration,
    wire::{
        Wire,
        native::{self, About, Answer, Body, RenewWriter, RenewedWriter, tokens_that_fit},
        vllm::{HeartbeatWriter, encode_completion},
    },
};

use super::inputs::Inputs;

/// Bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    /// A renewal of nothing, and what each lease adds.
    pub(super) renew: f64,
    pub(super) per_lease: f64,
    pub(super) complete: f64,
    /// The answers; zero where there are none.
    pub(super) renewed: f64,
    pub(super) completed: f64,
    /// Leases that one message may name.
    pub(super) fit: f64,
}

impl Sizes {
    pub(super) fn of(inputs: &Inputs) -> Self {
        let room = inputs.asked.max_notification as usize;
        match inputs.asked.wire {
            Wire::Native => native(room),
            Wire::Vllm => vllm(room, inputs.asked.id_length),
        }
    }
}

fn native(room: usize) -> Sizes {
    let (mut out, token) = ([0; 512], Token { number: u64::MAX, nonce: u64::MAX });
    let mut renew = |leases: u32| {
        let Ok(mut writer) = RenewWriter::new(&mut out, ReaderRank::ONLY) else { return 0 };
        for _ in 0..leases {
            let _ = writer.push(token); // there is room
        }
        writer.finish(Session(1), Seq(1))
    };
    let (none, one) = (renew(0) as f64, renew(1) as f64);
    let renewed = RenewedWriter::new(&mut out, 1).map_or(0, |writer| writer.finish(Session(1), Seq(1), Seq(1), 1, Duration::MAX));
    let mut size = |body: &Body<'_>| native::encode(Session(1), Seq(1), body, &mut out).unwrap_or(0) as f64;
    Sizes {
        renew: none,
        per_lease: one - none,
        complete: size(&Body::Complete(About { token, reader: ReaderRank::ONLY })),
        renewed: renewed as f64,
        completed: size(&Body::Completed(Answer { re: Seq(1), token })),
        fit: tokens_that_fit(room, room) as f64,
    }
}

fn vllm(room: usize, id_length: usize) -> Sizes {
    let (mut out, id) = (vec![0; room], vec![b'x'; id_length]);
    let mut beat = |leases: u32| {
        let mut writer = HeartbeatWriter::new(&mut out);
        let mut written = 0u32;
        while written < leases && matches!(writer.push(&id), Ok(true)) {
            written += 1;
        }
        (written, writer.finish().unwrap_or(0) as f64)
    };
    let ((_, one), (fit, all)) = (beat(1), beat(u32::from(u16::MAX)));
    let per_lease = if fit > 1 { (all - one) / f64::from(fit - 1) } else { one };
    let complete = encode_completion(&id, 1, &mut out).unwrap_or(0) as f64;
    Sizes { renew: one - per_lease, per_lease, complete, fit: f64::from(fit), ..Sizes::default() }
}
