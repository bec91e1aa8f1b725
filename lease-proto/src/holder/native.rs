//! What a holder does with messages of the native wire: one answer to each well-formed request of a live session.

use super::{
    BY_NUMBER, Claim, Completion, Ended, Holder, Lease, Peer, Stop,
    peers::{BY_ENGINE, BY_SESSION},
};
use crate::{
    counters::add,
    drive::{Handled, Sent, Transmit},
    event::{Context, Event, Freed, Refused},
    frame::{Frame, FrameError},
    id::{EngineId, Incarnation, ReaderRank, Seq, Session, Token},
    table::Slots,
    time::{Duration, PeerInstant},
    wire::{
        Rejected,
        native::{self, About, Answer, Body, Gone, Hello, Refusal, Renew, RenewedWriter, TimeReply},
    },
};

impl<L: Slots<Lease>, P: Slots<Peer>, E: Slots<Ended>> Holder<L, P, E> {
    pub(super) fn handle_native<'m>(
        &mut self,
        cx: &mut Context<'_>,
        session: Session,
        seq: Seq,
        body: Body<'m>,
        out: &mut [u8],
    ) -> Handled<'m> {
        let request = match body {
            Body::Hello(hello) => return self.greeted(cx, seq, hello, out),
            Body::Renew(_) | Body::Complete(_) | Body::Release(_) | Body::Time => body,
            _ => return Handled::NotMine,
        };
        let known = self.peers.find(BY_SESSION, session.0, |peer| peer.session() == session);
        let anyone = |index: &u32| self.peers.get(*index).is_some();
        let known = if broken!(SessionIgnored) { known.or_else(|| self.peers.indexes().find(anyone)) } else { known };
        let Some(key) = known else {
            cx.reject(Rejected::StaleSession);
            return Handled::Done;
        };
        let Some(peer) = self.peers.get_mut(key) else { return Handled::Done };
        peer.heard = cx.now;
        let (reader, theirs) = (peer.incarnation, peer.theirs);
        let highest = seq.max(peer.hello);
        if broken!(SequenceFilters) && core::mem::replace(&mut peer.hello, highest) >= seq {
            return Handled::Done;
        }
        match request {
            Body::Renew(renew) => self.renew(cx, key, reader, seq, renew, out),
            Body::Complete(about) => {
                let answer = match self.complete(cx, reader, about, (theirs, seq)) {
                    Ok(re) => Body::Completed(Answer { re, token: about.token }),
                    Err(why) => Body::Gone(Gone { re: seq, token: about.token, why }),
                };
                self.answer(cx, key, &answer, out)
            }
            Body::Release(about) => {
                let why = self.release(cx, reader, about);
                self.answer(cx, key, &Body::Gone(Gone { re: seq, token: about.token, why }), out)
            }
            _ => {
                let now = PeerInstant::from_nanos(cx.now.as_nanos());
                self.answer(cx, key, &Body::TimeReply(TimeReply { re: seq, received: now, sent: now }), out)
            }
        }
    }

    /// A hello counts only with a live token: a holder does not parse a stranger's address.
    fn greeted<'m>(&mut self, cx: &mut Context<'_>, seq: Seq, hello: Hello<'m>, out: &mut [u8]) -> Handled<'m> {
        if hello.lowest > native::VERSION || hello.highest < native::VERSION {
            cx.reject(Rejected::UnknownVersion);
            return Handled::Done;
        }
        if let Err((_, why)) = self.find(hello.token) {
            cx.refuse(None, Some(hello.token), why);
            return Handled::Done;
        }
        let party = hello.party;
        let (Ok(engine), Ok(_)) =
            (EngineId::new(party.engine), framed(hello.metadata, party.incarnation).inspect_err(|why| cx.reject(*why)))
        else {
            return Handled::Done;
        };
        let hash = self.id_hash.of_rank(party.engine, party.rank);
        let same = |peer: &Peer| peer.engine == engine && peer.rank == party.rank;
        // Another session is another conversation: who does not know the one there is cannot take its answers away.
        let known = |peer: &Peer| same(peer) && peer.incarnation == party.incarnation && peer.theirs == party.session;
        let known = self.peers.find(BY_ENGINE, hash, known);
        let key = match known {
            Some(key) => key,
            None => {
                if self.peers.find(BY_ENGINE, hash, |peer| same(peer) && peer.incarnation != party.incarnation).is_some() {
                    add(&mut cx.counters.peer_restarted);
                    cx.emit(Event::PeerRestarted { engine: party.engine });
                }
                let session = Session(self.entropy.draw());
                let peer = Peer::new(engine, hash, party.incarnation, party.rank, session, cx.now);
                let Some(key) = self.admit_peer(cx, peer) else { return Handled::Done };
                key
            }
        };
        self.give_up_connecting(cx, key);
        let Some(peer) = self.peers.get_mut(key) else { return Handled::Done };
        peer.theirs = party.session;
        peer.max_message = party.max_message;
        peer.hello = seq;
        peer.heard = cx.now;
        if peer.connection.is_some() {
            return if peer.may_answer(cx.now) {
                self.welcome(key, out).map_or(Handled::Done, Handled::Answer)
            } else {
                add(&mut cx.counters.answers_limited);
                Handled::Done
            };
        }
        if peer.connecting.is_some() { Handled::Done } else { Handled::Connect { key, metadata: hello.metadata } }
    }

    /// A slot for a new peer; one that missed its beats for an extension makes room, the most silent first.
    fn admit_peer(&mut self, cx: &mut Context<'_>, peer: Peer) -> Option<u32> {
        let key = match self.peers.insert(peer.clone()) {
            Ok(key) => Some(key),
            Err(_) => {
                let heard = |index: &u32| self.peers.get(*index).map(|peer| peer.heard);
                let silent = self.peers.indexes().filter(|index| heard(index).is_some()).min_by_key(heard)?;
                let beats = heard(&silent).is_some_and(|heard| heard.saturating_add(self.terms.extension()) > cx.now);
                if !beats && self.forget(silent) {
                    add(&mut cx.counters.evicted);
                    self.peers.insert(peer).ok()
                } else {
                    None
                }
            }
        };
        let Some(key) = key else {
            cx.refuse(None, None, Refused::Full);
            return None;
        };
        self.peers.set_deadline(key, Some(cx.now.saturating_add(self.terms.engine_ttl())));
        Some(key)
    }

    fn renew<'m>(
        &mut self,
        cx: &mut Context<'_>,
        key: u32,
        reader: Incarnation,
        re: Seq,
        renew: Renew<'_>,
        out: &mut [u8],
    ) -> Handled<'m> {
        let Some(peer) = self.peers.get(key) else { return Handled::Done };
        let (connection, theirs, session) = (peer.connection, peer.theirs, peer.session());
        let room = out.len().min(peer.max_message as usize);
        let count = renew.tokens.len();
        let Some(Ok(mut writer)) = out.get_mut(..room).map(|out| RenewedWriter::new(out, count)) else {
            cx.reject(Rejected::TooLarge);
            return Handled::Done;
        };
        let granted = self.extension(cx.now);
        for (index, token) in (0..count).zip(renew.tokens.iter()) {
            let what = self.renew_one(cx, reader, renew.reader, token, (key, session));
            if what != Ok(granted) {
                writer.push(index, what);
            }
        }
        let Some((to, seq)) = self.may_answer(cx, key).zip(connection).map(|(seq, to)| (to, seq)) else { return Handled::Done };
        let length = writer.finish(theirs, seq, re, count, granted);
        Handled::Answer(Transmit { to, length, key, sent: Sent::Answer })
    }

    fn renew_one(
        &mut self,
        cx: &mut Context<'_>,
        reader: Incarnation,
        rank: ReaderRank,
        token: Token,
        renewer: (u32, Session),
    ) -> Result<Duration, Refusal> {
        let index = self.find_or_refuse(cx, token)?;
        let before = self.leases.get(index).and_then(|lease| lease.claim);
        let result = self.claim(cx, index, reader, rank).and_then(|()| {
            let finished = self.leases.get(index).and_then(|lease| lease.claim?.finished(rank));
            finished.map_or_else(|| self.extend(cx, index), Err)
        });
        match (result, self.leases.get_mut(index)) {
            (Ok(_), Some(lease)) => lease.renewer = Some(renewer),
            (Err(refusal), Some(lease)) => {
                lease.claim = before; // only what is accepted claims
                cx.refuse(Some(lease.request.as_bytes()), Some(token), refusal.into());
            }
            (_, None) => {}
        }
        result
    }

    /// The number of a completion is proof (B) for the reader: the lease was held when its rank said that it had read. When the
    /// lease is over, that of an earlier one is repeated, for the reader may have read again since.
    fn complete(
        &mut self,
        cx: &mut Context<'_>,
        reader: Incarnation,
        about: About,
        (session, seq): Completion,
    ) -> Result<Seq, Refusal> {
        let About { token, reader: rank } = about;
        let index = match self.find(token) {
            Ok(index) => index,
            Err((refusal, why)) => {
                let ended = self.ended(token);
                if broken!(CompletedForAnybody) && ended.is_some_and(|ended| ended.why() == Freed::Completed) {
                    return Ok(seq);
                }
                if let Some(before) = ended.and_then(|ended| ended.completed_by(reader, rank, session)) {
                    return Ok(before); // its answer was lost
                }
                if ended.is_some_and(|ended| ended.why() == Freed::Expired) {
                    add(&mut cx.counters.read_after_expiry);
                }
                cx.refuse(None, Some(token), why);
                return Err(refusal);
            }
        };
        let failed = self.leases.get(index).is_some_and(|lease| lease.stop == Some(Stop::Failed));
        self.finish(cx, index, reader, rank, (!failed).then_some((session, seq)))?;
        // Held until now, but there was nothing to read (case 17).
        if failed { Err(Refusal::Failed) } else { Ok(seq) }
    }

    /// Why the lease is over, or will be, for its reader; who gave it up may as well be a third party with the token (case 32).
    fn release(&mut self, cx: &mut Context<'_>, reader: Incarnation, about: About) -> Refusal {
        let About { token, reader: rank } = about;
        let index = match self.find_or_refuse(cx, token) {
            Ok(index) => index,
            Err(refusal) => return refusal,
        };
        let third_party = self.leases.get(index).is_some_and(|lease| match lease.claim {
            Some(claim) => claim.reader != reader,
            // Before the grant it is kept like a completion.
            None => lease.granted && rank == ReaderRank::ONLY,
        });
        if third_party {
            self.stop(cx, index, Stop::Revoked);
            return Refusal::Released;
        }
        match self.finish(cx, index, reader, rank, None) {
            Ok(()) => Refusal::Released,
            Err(refusal) => refusal,
        }
    }

    /// One rank is done with a lease.
    fn finish(
        &mut self,
        cx: &mut Context<'_>,
        index: u32,
        reader: Incarnation,
        rank: ReaderRank,
        read: Option<Completion>,
    ) -> Result<(), Refusal> {
        if let Err(refusal) = self.claim(cx, index, reader, rank) {
            if let Some(lease) = self.leases.get(index) {
                cx.refuse(Some(lease.request.as_bytes()), Some(lease.token), refusal.into());
            }
            return Err(refusal);
        }
        let Some(lease) = self.leases.get_mut(index) else { return Err(Refusal::Unknown) };
        if let Some(claim) = &mut lease.claim {
            claim.finish(rank, read);
        }
        match lease.is_done() {
            _ if !lease.granted => add(&mut cx.counters.early_completions),
            Some(freed) => self.end(cx, index, freed),
            None => {}
        }
        Ok(())
    }

    /// The first accepted message about a lease claims it for its sender's incarnation and fixes how many ranks will read it.
    fn claim(&mut self, cx: &mut Context<'_>, index: u32, reader: Incarnation, rank: ReaderRank) -> Result<(), Refusal> {
        let Some(lease) = self.leases.get_mut(index) else { return Err(Refusal::Unknown) };
        if lease.consumers.is_some_and(|consumers| consumers != rank.of()) {
            return Err(Refusal::Inconsistent);
        }
        match &lease.claim {
            Some(claim) if claim.reader == reader && claim.of == rank.of() => Ok(()),
            Some(claim) if claim.reader == reader => Err(Refusal::Inconsistent),
            Some(_) if lease.promised && lease.expires > cx.now && !broken!(ClaimIgnored) => Err(Refusal::Claimed),
            // Nobody else is promised anything, or not any more: another one may read it.
            _ => {
                lease.claim = Some(Claim::new(reader, rank));
                Ok(())
            }
        }
    }

    /// The lease, or the announced request, that a token opens; else what to say, and what to count.
    fn find(&self, token: Token) -> Result<u32, (Refusal, Refused)> {
        if let Some(index) = self.leases.find(BY_NUMBER, token.number, |lease| lease.token.number == token.number) {
            return match self.leases.get(index) {
                Some(lease) if lease.token == token => Ok(index),
                // Not told apart on the wire: a guesser learns nothing.
                _ => Err((Refusal::Unknown, Refused::ForeignToken)),
            };
        }
        let ended = self.ended(token);
        let refusal = match ended {
            Some(ended) => ended.refusal(),
            None if token.number > self.highest => Refusal::NotYet,
            None => Refusal::Unknown,
        };
        Err((refusal, refusal.into()))
    }

    fn find_or_refuse(&self, cx: &mut Context<'_>, token: Token) -> Result<u32, Refusal> {
        self.find(token).map_err(|(refusal, why)| {
            cx.refuse(None, Some(token), why);
            refusal
        })
    }

    fn answer<'m>(&mut self, cx: &mut Context<'_>, key: u32, body: &Body<'_>, out: &mut [u8]) -> Handled<'m> {
        let Some(seq) = self.may_answer(cx, key) else { return Handled::Done };
        let Some((to, theirs)) = self.peers.get(key).and_then(|peer| Some((peer.connection?, peer.theirs))) else {
            return Handled::Done;
        };
        match native::encode(theirs, seq, body, out) {
            Ok(length) => Handled::Answer(Transmit { to, length, key, sent: Sent::Answer }),
            Err(_) => Handled::Done,
        }
    }

    fn may_answer(&mut self, cx: &mut Context<'_>, key: u32) -> Option<Seq> {
        let peer = self.peers.get_mut(key)?;
        if !peer.may_answer(cx.now) {
            add(&mut cx.counters.answers_limited);
            return None;
        }
        Some(peer.next_seq())
    }
}

fn framed(metadata: &[u8], incarnation: Incarnation) -> Result<(), Rejected> {
    match Frame::decode(metadata) {
        Ok(frame) if frame.incarnation() == incarnation => Ok(()),
        Ok(_) => Err(Rejected::StaleSession),
        Err(FrameError::Truncated { .. }) => Err(Rejected::Truncated),
        Err(FrameError::Trailing { .. }) => Err(Rejected::TrailingBytes),
        Err(FrameError::TooLarge { .. }) => Err(Rejected::TooLarge),
        Err(FrameError::Version { .. }) => Err(Rejected::UnknownVersion),
        Err(FrameError::Magic | FrameError::Checksum) => Err(Rejected::NotCanonical),
    }
}
