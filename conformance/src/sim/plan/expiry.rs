//! How long a lease lasts when its reader falls silent, and how likely it runs out although its reader lives.

use lease_proto::wire::Wire;

use super::{
    inputs::{Inputs, seconds},
    rhythm::Rhythm,
};

/// Points at which a distribution is looked at; the middles of equal shares.
const POINTS: u32 = 64;
/// Losses in a row that are looked at, and the probability below which they are not.
const ROW: u32 = 64;
const NEVER: f64 = 1e-15;

/// The times that decide, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expiry<'a> {
    inputs: &'a Inputs,
    rhythm: Rhythm,
    hold: f64,
    loss: f64,
    lease: f64,
    /// In whole polls: the holder looks at a lease only then.
    extension: f64,
    delay: f64,
    poll: f64,
}

/// How the leases of a reader end that has fallen silent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// Seconds until a lease is freed.
    pub(super) mean: f64,
    /// The longest that it can take.
    pub(super) worst: f64,
    /// The probability that a stall outlasts it, once the beats after it may get lost too.
    pub(super) outlasted: f64,
}

impl<'a> Expiry<'a> {
    pub(super) fn of(inputs: &'a Inputs) -> Self {
        let poll = seconds(inputs.asked.poll);
        let extension = seconds(inputs.terms.extension());
        Self {
            inputs,
            rhythm: Rhythm::of(&inputs.terms),
            hold: inputs.hold,
            loss: inputs.asked.loss,
            lease: seconds(inputs.terms.lease()),
            extension: if poll > 0.0 { (extension / poll - 1e-9).ceil() * poll } else { extension },
            delay: seconds(inputs.asked.delay),
            poll,
        }
    }

    /// A lease in flight whose reader falls silent at some moment: its age is exponential, and the latest beat lies up to one
    /// interval back; the renewal with which it was tracked counts too, and so does its first time to live.
    pub(super) fn silence(&self) -> Silence {
        let (mut mean, mut outlasted) = (0.0, 0.0);
        for age in shares().map(|share| -self.hold * share.ln()) {
            for beat in shares().map(|share| share * self.rhythm.mean()) {
                let (left, killed) = self.left(age, beat);
                mean += left;
                outlasted += killed;
            }
        }
        let points = f64::from(POINTS * POINTS);
        // A beat under way waits for one poll, and its end for another.
        let worst = (self.lease + self.poll).max(self.delay + self.poll + self.extension);
        Silence { mean: mean / points, worst, outlasted: outlasted / points }
    }

    /// Seconds left of a lease of that age whose latest beat lies so far back, over what may have been lost of it; and the
    /// probability that a stall outlasts them.
    fn left(&self, age: f64, beat: f64) -> (f64, f64) {
        let first = self.lease - age + self.poll / 2.0;
        let renewed = |ago: f64| first.max(self.extension + self.delay + self.poll / 2.0 - ago);
        let (mut left, mut killed, mut chance) = (0.0, 0.0, 1.0);
        let mut add = |chance: f64, this: f64| {
            left += chance * this.max(0.0);
            killed += chance * self.killed(this, this - self.delay);
        };
        let mut ago = beat;
        while ago < age && chance > NEVER {
            add(chance * (1.0 - self.loss), renewed(ago));
            chance *= self.loss;
            ago += self.rhythm.mean();
        }
        add(chance * (1.0 - self.loss), renewed(age));
        add(chance * self.loss, first);
        (left, killed)
    }

    /// The probability that a stall ends a lease that runs out, if nothing comes, in `runs_out`, and that a beat saves if it is
    /// sent within `left`.
    ///
    /// A stall that outlasts it finds the lease needed: no read ends in a stall. Where it ends before, and the beats after it get
    /// lost, the lease must still be needed when it runs out; what is left of its hold is exponential. One that has run out
    /// already was ended by losses.
    fn killed(&self, runs_out: f64, left: f64) -> f64 {
        if runs_out <= 0.0 {
            return 0.0;
        }
        let (outlasted, needed) = (self.inputs.stalls_longer(left), (-runs_out / self.hold).exp());
        outlasted + needed * (self.no_beat(left) - outlasted).max(0.0)
    }

    /// The probability that no beat after a stall comes within `left`: E[loss^N] over the N beats that are sent by then.
    fn no_beat(&self, left: f64) -> f64 {
        let (mut sum, mut chance) = (0.0, 1.0);
        for beats in 0..ROW {
            let slack = left - f64::from(beats) * self.rhythm.mean();
            sum += chance * (1.0 - self.loss) * self.inputs.stalls_longer(slack);
            chance *= self.loss;
            if chance < NEVER {
                break;
            }
        }
        sum
    }

    /// The probability that a request's lease runs out although its reader lives: by losses alone, and by stalls.
    pub(super) fn false_expiry(&self, silence: &Silence) -> f64 {
        // Leases in flight when the stall begins, and those that are granted meanwhile and wait for its end.
        let stalls = self.inputs.stall_rate() * (self.hold * silence.outlasted + self.inputs.stalled_beyond(self.lease));
        (self.by_losses() + self.given_up() + stalls).min(1.0)
    }

    /// On the native wire a reader gives a lease up when nothing was answered for long, whether its renewals came or not. Beats slow
    /// down meanwhile.
    fn given_up(&self) -> f64 {
        let (terms, mean) = (&self.inputs.terms, self.rhythm.mean());
        if terms.wire() == Wire::Vllm {
            return 0.0;
        }
        let (patience, fast) = (seconds(terms.lost_after()), f64::from(terms.max_unanswered()));
        let slow = (2.0 * seconds(terms.interval())).min(seconds(terms.extension()) / 2.0);
        let beats = (patience / mean).min(fast + ((patience - fast * mean) / slow).max(0.0)).floor();
        let answered = (1.0 - self.loss).powi(2);
        answered * (1.0 - answered).powf(beats) * self.hold / mean * (-patience / self.hold).exp()
    }

    /// Every renewal that comes begins a window; the lease runs out if all other beats in it get lost, and if it is still needed.
    fn by_losses(&self) -> f64 {
        // Until the end of the first time to live, and after a renewal; a beat may come while the end waits for its poll.
        let first = self.lease + self.poll / 2.0 - self.delay;
        let window = self.extension + self.poll / 2.0;
        let needed = |time: f64| (-time / self.hold).exp();
        let rate = (1.0 - self.loss) / self.rhythm.mean();
        // Early renewals end later than they would: with the first time to live.
        let early = (first - window).max(0.0);
        let in_early = shares().map(|share| self.lost(first - share * early)).sum::<f64>() / f64::from(POINTS);
        let by_beats = rate * (early * needed(first) * in_early + self.hold * needed(early + window) * self.lost(window));
        // The renewal with which it is tracked. Others' beats go on meanwhile, unless there are none.
        let alone = (-self.inputs.per_pair()).exp();
        let after = |time: f64| alone * self.lost(time) + (1.0 - alone) * self.lost_between(time);
        let tracked = |chance: f64, time: f64| chance * needed(time) * after(time);
        by_beats + tracked(1.0 - self.loss, first.max(window)) + tracked(self.loss, first)
    }

    fn lost(&self, window: f64) -> f64 {
        if self.poll == 0.0 {
            return self.rhythm.all_lost(self.loss, window);
        }
        // The poll that ends it comes at any time of its period.
        const PHASES: u32 = 8;
        let phase = |number| (f64::from(number) + 0.5) / f64::from(PHASES) - 0.5;
        (0..PHASES).map(|number| self.rhythm.all_lost(self.loss, window + phase(number) * self.poll)).sum::<f64>()
            / f64::from(PHASES)
    }

    /// As [`Expiry::lost`], for a window that begins anywhere between two beats.
    fn lost_between(&self, window: f64) -> f64 {
        let after = |share: f64| {
            let first = share * self.rhythm.mean();
            if first > window { 1.0 } else { self.loss * self.lost(window - first) }
        };
        shares().map(after).sum::<f64>() / f64::from(POINTS)
    }
}

fn shares() -> impl Iterator<Item = f64> {
    (0..POINTS).map(|point| (f64::from(point) + 0.5) / f64::from(POINTS))
}
