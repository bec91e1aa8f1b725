//! What a holder does with vLLM's text: ids for tokens, no answers.

use super::{BY_ID, Counted, Ended, Holder, Lease, Peer};
use crate::{
    counters::add,
    drive::Handled,
    event::{Context, Freed, Refused},
    table::Slots,
    transport::PeerId,
    wire::vllm::Message,
};

impl<L: Slots<Lease>, P: Slots<Peer>, E: Slots<Ended>> Holder<L, P, E> {
    pub(super) fn handle_vllm<'m>(&mut self, cx: &mut Context<'_>, from: Option<PeerId>, message: Message<'m>) -> Handled<'m> {
        match message {
            Message::Heartbeat(ids) => {
                for id in ids.iter() {
                    // A beat for a request that has no lease yet is forgotten, as in vLLM.
                    let result = match self.find_request(id, |_| true) {
                        Some(index) => self.extend(cx, index).map(|_| ()).map_err(Refused::from),
                        None => Err(self.ended_as(id)),
                    };
                    if let Err(why) = result {
                        cx.refuse(Some(id), None, why);
                    }
                }
                Handled::Done
            }
            Message::Completion { id, consumers } => {
                match self.find_request(id, |_| true) {
                    Some(index) => self.count(cx, index, from, consumers),
                    None => {
                        let why = self.ended_as(id);
                        if why == Refused::Expired {
                            add(&mut cx.counters.read_after_expiry);
                        }
                        cx.refuse(Some(id), None, why);
                    }
                }
                Handled::Done
            }
            Message::PushRegistration(_) => Handled::NotMine,
        }
    }

    fn count(&mut self, cx: &mut Context<'_>, index: u32, from: Option<PeerId>, consumers: u32) {
        let Some(lease) = self.leases.get_mut(index) else { return };
        if !lease.counted.get_or_insert_with(Counted::default).add(from, consumers) {
            cx.refuse(Some(lease.request.as_bytes()), None, Refused::Inconsistent); // told; vLLM's rule takes the last one (case 13)
        }
        match lease.is_done() {
            _ if !lease.granted => add(&mut cx.counters.early_completions),
            Some(freed) => self.end(cx, index, freed),
            None => {}
        }
    }

    /// Why an id is not leased, as far as it is remembered.
    fn ended_as(&self, id: &[u8]) -> Refused {
        let hash = self.id_hash.of(id);
        let same = |ended: &Ended| ended.id_hash() == hash && ended.until() > self.clock;
        let ended = self.ended.find(BY_ID, hash, same).and_then(|at| self.ended.get(at));
        match ended.map(Ended::why) {
            Some(Freed::Expired) => Refused::Expired,
            Some(Freed::Aborted | Freed::Drained | Freed::Revoked) => Refused::Revoked,
            Some(Freed::Completed | Freed::Released) | None => Refused::Unknown,
        }
    }
}
