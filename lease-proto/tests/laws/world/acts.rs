//! What engines, their routers and the fabric do.

use conformance::loopback::{Fault, Link};
use lease_proto::{
    holder::{Abort, Grant},
    id::{ReaderRank, RequestId, Token},
    params::Parameters,
    reader::{ReadOutcome, Track},
    time::{Duration, Instant},
};

use super::{
    super::{
        junk::junk,
        script::{Act, How},
        trace::What,
    },
    Granted, Harness, Later, Tracked, World,
};

impl World {
    fn pick_engine(&self, engine: usize) -> usize {
        engine % self.engines.len()
    }

    fn pick_lease(&self, lease: usize) -> Option<usize> {
        self.leases.len().checked_sub(1).map(|last| last - lease % self.leases.len())
    }

    fn pick_track(&self, track: usize) -> Option<usize> {
        self.tracks.len().checked_sub(1).map(|last| last - track % self.tracks.len())
    }

    pub fn act(&mut self, act: Act) {
        match act {
            Act::Expect { engine, id } => self.expect(self.pick_engine(engine), id),
            Act::Grant { engine, id, consumers, ttl, lag } => {
                self.grant(self.pick_engine(engine), id, consumers, ttl.map(Duration::from_nanos), lag);
            }
            Act::Track { lease, engine, both } => self.track(lease, engine, both),
            Act::Read { track, lasts, how } => self.read(track, lasts, how),
            Act::Finish { track } => {
                if let Some(track) = self.pick_track(track) {
                    self.finish(track);
                }
            }
            Act::Abort { lease, failed } => {
                let Some(lease) = self.pick_lease(lease) else { return };
                let why = if failed { Abort::Failed } else { Abort::Cancelled };
                for life in self.leases[lease].lives.clone() {
                    self.abort(life, self.leases[lease].token, why);
                }
            }
            Act::Drain { engine, within } => {
                for life in self.engines[self.pick_engine(engine)].clone() {
                    let by = self.clock(life).saturating_add(Duration::from_nanos(within)).as_nanos();
                    self.trace.put(life, What::Drains { by });
                    self.call(life, |holder, _, cx| holder.drain(cx, Duration::from_nanos(within)));
                    let announced = self.leases.iter().filter(|lease| lease.lives.contains(&life)).map(|lease| lease.token);
                    let withdrawn: Vec<Token> = announced.filter(|token| !self.granted_here(life, *token)).collect();
                    withdrawn.into_iter().for_each(|token| self.trace.put(life, What::Withdrawn(token)));
                }
            }
            Act::Release { lease, engine } => {
                let before = self.tracks.len();
                self.track(lease, engine, false);
                (before..self.tracks.len()).for_each(|track| self.finish(track));
            }
            Act::Kill { engine } => self.kill(self.pick_engine(engine)),
            Act::Restart { engine, origin } => self.start(self.pick_engine(engine), origin),
            Act::Stall { engine, lasts } => {
                let until = self.now() + lasts;
                for life in self.engines[self.pick_engine(engine)].clone() {
                    if let Some(node) = &mut self.lives[life].node {
                        node.stalled_until = until;
                    }
                }
            }
            Act::Fault { from, to, fault, lasts } => {
                let (from, to) = (self.engines[self.pick_engine(from)].clone(), self.engines[self.pick_engine(to)].clone());
                for (from, to) in from.iter().flat_map(|from| to.iter().map(move |to| (*from, *to))) {
                    if let Some(link) = self.link(from, to) {
                        self.fault(link, fault);
                        self.later(self.now() + lasts, Later::Heal(link));
                    }
                }
            }
            Act::Replay { nth, to } => {
                let bytes = self.trace.sent(nth);
                self.inject(to, bytes);
            }
            Act::Junk { kind, nth, at, to } => {
                let bytes = junk(self.script.wire, kind, at, self.trace.sent(nth));
                self.inject(to, bytes);
            }
        }
    }

    fn inject(&mut self, to: usize, bytes: Option<Vec<u8>>) {
        self.trace.stir();
        let to = self.engines[self.pick_engine(to)].first().and_then(|life| self.link(*life, *life));
        if let (Some(Link { to, .. }), Some(bytes), true) = (to, bytes, self.harness != Harness::Silent) {
            self.fabric.inject(to, &bytes);
        }
    }

    fn expect(&mut self, engine: usize, id: u8) {
        let request = request(id);
        let Some(token) = self.mint(engine) else { return };
        self.remember(engine, request.clone(), token);
        for life in self.engines[engine].clone() {
            if self.call(life, |holder, _, cx| holder.expect(cx, &request, token)) == Some(Ok(())) {
                self.trace.put(life, What::Announced { request: request.to_string(), token });
            }
        }
    }

    fn mint(&mut self, engine: usize) -> Option<Token> {
        let first = *self.engines[engine].first()?;
        self.call(first, |holder, _, _| holder.mint())
    }

    fn remember(&mut self, engine: usize, request: RequestId, token: Token) {
        let lives = self.engines[engine].clone();
        let frames = lives.iter().filter_map(|life| self.lives[*life].node.as_ref()).map(|node| node.frame.clone());
        self.leases.push(Granted { engine, request, token, ttl: None, frames: (0..).zip(frames).collect(), lives });
    }

    fn grant(&mut self, engine: usize, id: u8, consumers: Option<u16>, ttl: Option<Duration>, lag: u64) {
        let request = request(id);
        let Some(&first) = self.engines[engine].first() else { return };
        let announced = self.call(first, |holder, _, _| holder.announced(&request)).flatten();
        let Some(token) = announced.or_else(|| self.mint(engine)) else { return };
        if announced.is_none() {
            self.remember(engine, request, token);
        }
        if let Some(lease) = self.leases.iter_mut().find(|lease| lease.token == token) {
            lease.ttl = ttl;
        }
        for (rank, life) in (0..).zip(self.engines[engine].clone()) {
            let at = self.lives[life].told.max(self.now() + rank * lag);
            self.lives[life].told = at;
            self.later(at, Later::Grant { life, id, token, consumers, ttl });
        }
        self.do_what_is_due();
    }

    fn abort(&mut self, life: usize, token: Token, why: Abort) {
        let granted = self.granted_here(life, token);
        if self.call(life, |holder, _, cx| holder.abort(cx, token, why)) == Some(Ok(())) && !granted {
            self.trace.put(life, What::Withdrawn(token));
        }
    }

    fn granted_here(&self, life: usize, token: Token) -> bool {
        self.trace.any(life, |what| matches!(what, What::Granted { token: granted, .. } if *granted == token))
    }

    fn track(&mut self, lease: usize, engine: usize, both: bool) {
        let Some(lease) = self.pick_lease(lease) else { return };
        // Nobody reads from itself.
        let others = self.engines.len() - 1;
        let engine = (self.leases[lease].engine + 1 + engine % others) % self.engines.len();
        let lives = self.engines[engine].clone();
        let both = both && lives.len() == 1;
        let of = if both { 2 } else { lives.len() as u16 };
        for rank in 0..of {
            let life = if both { lives.first() } else { lives.get(usize::from(rank)) };
            if let (Some(life), Some(reader)) = (life, ReaderRank::new(rank, of)) {
                self.track_as(lease, *life, reader);
            }
        }
    }

    fn track_as(&mut self, lease: usize, life: usize, reader: ReaderRank) {
        let Granted { lives, request, token, frames, .. } = &self.leases[lease];
        let (request, token, targets, identity) =
            (request.clone(), *token, frames.clone(), self.lives[lives[0]].identity.clone());
        let (extension, drift_ppm) = (self.terms.extension(), self.terms.drift_ppm());
        let handle = self.call(life, |_, at, cx| {
            let (engine, frames) =
                (identity.engine.as_bytes(), targets.iter().flat_map(|(_, frame)| frame.clone()).collect::<Vec<_>>());
            let (incarnation, ranks) = (identity.incarnation, identity.ranks);
            let params = Parameters { token, incarnation, engine, ranks, extension, drift_ppm, frames: &frames, regions: &[] };
            at.track(cx, Track { request: &request, params: &params, reader }, targets)
        });
        if let Some(Ok(handle)) = handle {
            let since = self.now();
            self.tracks.push(Tracked { life, handle, lease, since, reading: false, abandoned: false, began: since });
        }
    }

    fn read(&mut self, track: usize, lasts: u64, how: How) {
        let Some(track) = self.pick_track(track) else { return };
        let Tracked { life, handle, .. } = self.tracks[track];
        if self.call(life, |_, reader, cx| reader.begin_read(cx, handle)) == Some(Ok(())) {
            let now = self.now();
            (self.tracks[track].reading, self.tracks[track].began) = (true, now);
            if how == How::Abandoned {
                self.finish(track);
            }
            self.later(now + lasts, Later::EndRead { track, how });
            self.do_what_is_due();
        }
    }

    /// Ends a read now. No fabric reads a process that is dead. What a holder serves, or a fabric fences, it only does while the
    /// lease lives: that is their proof.
    pub fn end_read(&mut self, track: usize, how: How) {
        let Tracked { life, handle, lease, began, .. } = self.tracks[track];
        let alive = self.leases[lease].lives.iter().all(|life| self.lives[*life].node.is_some());
        let outcome = match how {
            _ if !alive => ReadOutcome::Failed,
            How::OneSided | How::Abandoned => ReadOutcome::OneSided,
            How::Failed => ReadOutcome::Failed,
            How::Served | How::Fenced if !self.held(lease) => ReadOutcome::Failed,
            How::Served => ReadOutcome::Served,
            How::Fenced => ReadOutcome::Fenced,
        };
        self.trace.put(life, What::ReadEnded(track));
        (self.tracks[track].reading, self.tracks[track].since) = (false, self.now());
        let early = (self.harness == Harness::JudgesEarly).then(|| Instant::from_nanos(self.lives[life].clock.read(began)));
        let ended = self.call(life, |_, reader, cx| {
            cx.now = early.unwrap_or(cx.now);
            reader.read_ended(cx, handle, outcome)
        });
        if ended.is_some_and(|ended| ended.is_err()) {
            self.wrong(format!("the end of a read of track {track} was refused"));
        }
    }

    fn held(&self, lease: usize) -> bool {
        let Granted { lives, token, .. } = &self.leases[lease];
        let freed = |life| self.trace.any(life, |what| matches!(what, What::Freed { token: freed, .. } if freed == token));
        lives.iter().all(|life| self.granted_here(*life, *token) && !freed(*life))
    }

    fn finish(&mut self, track: usize) {
        let Tracked { life, handle, reading, .. } = self.tracks[track];
        self.tracks[track].abandoned |= reading;
        self.call(life, |_, reader, cx| reader.finish(cx, handle));
    }

    /// Engines end what they still wait for.
    pub fn finish_all(&mut self) {
        for track in 0..self.tracks.len() {
            if !self.tracks[track].reading {
                self.finish(track);
            }
        }
    }

    pub(super) fn do_what_is_due(&mut self) {
        while let Some((&key, _)) = self.later.first_key_value().filter(|((at, _), _)| *at <= self.now()) {
            match self.later.remove(&key).unwrap() {
                Later::Grant { life, id, token, consumers, ttl } => {
                    let request = request(id);
                    self.call(life, |holder, _, cx| holder.grant(cx, Grant { request: &request, token, consumers, ttl }).is_ok());
                }
                Later::EndRead { track, how } if self.lives[self.tracks[track].life].node.is_some() => self.end_read(track, how),
                Later::EndRead { .. } => {}
                Later::Heal(link) => self.fault(link, Fault::default()),
            }
        }
    }
}

fn request(id: u8) -> RequestId {
    RequestId::try_from(format!("r{id}").as_str()).unwrap()
}
