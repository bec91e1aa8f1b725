//! The owner's side of a read: check, then send the bytes (proof C).
//!
//! Few bytes are copied, if the reader wants that, and the token is checked once more, so the answer says that all is settled. Many
//! are sent from where they lie, and the reader asks once more when it has them all: a permit that is there then was there while they were read.

use std::{ptr, sync::Arc};

use ucx_sys::sys as ucx;

use super::{
    Mapped,
    mailbox::Mailbox,
    operation::{self, EAGER, Kind, Operation, RENDEZVOUS},
};
use crate::messages::{Ask, Data, Reason, Refusal, id};

/// Most answers that wait for one reader: twice what an honest one asks for at a time.
const SHARE: usize = 32;
/// Up to so many bytes are copied, for a reader that wants it.
const COPIED: usize = 64 << 10;

/// Answers an ask, or counts it as refused (`None`) where not even a refusal can be sent.
///
/// # Safety
/// `reply` must be valid, of the worker that owns `mailbox`, and this its thread.
pub(super) unsafe fn answer(mailbox: &Mailbox, reply: ucx::ucp_ep_h, ask: &Ask<'_>) -> Option<()> {
    let prepared = prepare(mailbox, reply, ask);
    let (message, flags, operation) = match prepared {
        Ok((operation, flags)) => (id::DATA, flags, operation),
        // A reader waits for its answer however long that is held up: only more than honest readers ask for goes without.
        Err(_) if mailbox.refusing.get() >= mailbox.limits.refusing => return None,
        Err(reason) => {
            let refusal = Refusal { landing: ask.landing, reason }.to_bytes();
            (id::REFUSAL, EAGER, mailbox.operation_with(Kind::Refuse(reply), &refusal))
        }
    };
    // SAFETY: the caller vouches for the endpoint.
    let sent = unsafe { operation::send(mailbox, reply, ask.ids.checked_add(message)?, flags, operation) };
    if sent.is_err() && message == id::DATA {
        let refusal = Refusal { landing: ask.landing, reason: Reason::Failed }.to_bytes();
        let refusal = mailbox.operation_with(Kind::Refuse(reply), &refusal);
        // A reader that cannot be answered at all learns it from its own connection.
        // SAFETY: as above.
        let _ = unsafe { operation::send(mailbox, reply, ask.ids.checked_add(id::REFUSAL)?, EAGER, refusal) };
    }
    Some(())
}

fn prepare(mailbox: &Mailbox, reply: ucx::ucp_ep_h, ask: &Ask<'_>) -> Result<(Box<Operation>, u32), Reason> {
    let served = &mailbox.served;
    if !served.permits.holds(ask.token) {
        return Err(Reason::Rejected);
    }
    let region = served.regions.get(ask.region).ok_or(Reason::Rejected)?;
    let parts = || ask.parts().map(|part| (usize::try_from(part.offset).unwrap_or(usize::MAX), part.length as usize));
    if parts().any(|(offset, length)| region.at(offset, length).is_none()) {
        return Err(Reason::Invalid);
    }
    let settled = match ask.length() {
        0 => true,
        length => ask.settle && length <= COPIED && region.is_host(),
    };
    // A reader that has stopped takes nothing from the others: it holds its share and no more, and copies have a bound of their own.
    let most = mailbox.limits.serving;
    if mailbox.served_by(!settled).get() >= most || mailbox.waiting_on(reply) >= SHARE.min(most.div_ceil(2)) {
        return Err(Reason::Busy);
    }
    let mut operation = mailbox.operation(Kind::Serve(reply));
    if settled {
        parts().for_each(|(offset, length)| copy(&region, offset, length, operation.buffer()));
        // What was copied after the permit or the region had gone may be anything.
        if !(served.permits.holds(ask.token) && served.regions.holds(ask.region)) {
            return Err(Reason::Rejected);
        }
    } else {
        let mut all = parts();
        match (all.next(), all.next()) {
            (Some((offset, length)), None) => operation.touch(&region, offset, length),
            _ => operation.touch_many(&region, parts()),
        }
        .ok_or(Reason::Invalid)?;
    }
    operation.set_header(&Data { landing: ask.landing, settled }.to_bytes());
    Ok((operation, if settled { EAGER } else { RENDEZVOUS }))
}

fn copy(region: &Arc<Mapped>, offset: usize, length: usize, out: &mut Vec<u8>) {
    let (Some(from), start) = (region.at(offset, length), out.len()) else { return };
    out.resize(start + length, 0);
    if let Some(place) = out.get_mut(start..) {
        // SAFETY: `length` bytes inside mapped host memory, and a place of as many. Whether the engine wrote to them meanwhile is
        // checked afterwards; until then they are only bytes.
        unsafe { ptr::copy_nonoverlapping(from.cast_const(), place.as_mut_ptr(), length) };
    }
}
