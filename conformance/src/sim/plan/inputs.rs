//! What a plan is made from, checked.

use lease_proto::{
    config::{Config, Terms, TermsError},
    id::MAX_ID,
    time::Duration,
    wire::Wire,
};

use super::closed::Grid;

/// What an operator asks for; two of requests in flight, rate and hold tell the third.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The wire that is spoken.
    pub wire: Wire,
    /// The terms of every engine.
    pub config: Config,
    /// Prefill instances, from 1 to 100.
    pub prefills: u32,
    /// Decode instances, from 1 to 1000.
    pub decoders: u32,
    /// Leases in flight in the whole fleet.
    pub requests: Option<u32>,
    /// Leases granted per second in the whole fleet.
    pub rate: Option<f64>,
    /// How long a lease is needed on average, from its grant to the end of its read.
    pub hold: Option<Duration>,
    /// Bytes of the blocks of one request.
    pub request_bytes: u64,
    /// Bytes of a request id.
    pub id_length: usize,
    /// Period of a prefill instance's forward loop; zero: it acts at once.
    pub poll: Duration,
    /// The fabric's limit in bytes.
    pub max_notification: u32,
    /// One way.
    pub delay: Duration,
    /// Probability that a message gets lost: 0 to 0.8.
    pub loss: f64,
    /// Stalls of each decode instance per hour.
    pub stalls_per_hour: f64,
    /// Their mean length; lengths are exponential.
    pub stall_mean: Duration,
    /// No stall is longer than this. It also becomes the term of that name.
    pub longest_stall: Option<Duration>,
    /// False expiries per year in the whole fleet that are accepted.
    pub target: f64,
    /// For the sampled run.
    pub seed: u64,
    /// Seconds of real time for the sampled run.
    pub budget: f64,
    /// World time to sample; `None`: as much as the terms want.
    pub span: Option<Duration>,
}

impl Default for Asked {
    fn default() -> Self {
        Self {
            wire: Wire::Native,
            config: Config::default(),
            prefills: 4,
            decoders: 8,
            requests: None,
            rate: None,
            hold: None,
            request_bytes: 512 << 20,
            id_length: 64,
            poll: Duration::from_millis(50),
            max_notification: 65_536,
            delay: Duration::from_millis(1),
            loss: 0.001,
            stalls_per_hour: 1.0,
            stall_mean: Duration::from_secs(1),
            longest_stall: None,
            target: 1.0,
            seed: 0,
            budget: 10.0,
            span: None,
        }
    }
}

/// Requests in flight and hold where neither is given.
const REQUESTS: f64 = 400.0;
const HOLD: f64 = 5.0;
/// Where more gets lost, whole handshakes and the beats that slow down decide, which the closed form leaves out.
const MOST_LOSS: f64 = 0.8;
/// Names of sampled requests tell the decode instance and a number.
const SHORTEST_ID: usize = 16;

/// What a plan is made from.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// As asked, with poll and longest stall among the terms asked for.
    pub asked: Asked,
    /// The terms that hold.
    pub terms: Terms,
    /// Leases in flight in the whole fleet.
    pub requests: f64,
    /// Leases granted per second in the whole fleet.
    pub rate: f64,
    /// Seconds that a lease is needed on average.
    pub hold: f64,
}

/// Why no plan can be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A number is too small, too large, or none.
    #[error("{name} is {got}, expected {least} to {most}{unit}")]
    OutOfRange {
        /// Which.
        name: &'static str,
        /// What was asked for.
        got: f64,
        /// The least that works.
        least: f64,
        /// The most that works.
        most: f64,
        /// Of these numbers, after a space.
        unit: &'static str,
    },
    /// Three numbers that do not fit together.
    #[error(
        "{requests} requests in flight are not {rate} a second held for {hold} s, which makes {product}: leave one of the three out"
    )]
    Little {
        /// In flight.
        requests: f64,
        /// Per second.
        rate: f64,
        /// Seconds.
        hold: f64,
        /// In flight by the two others.
        product: f64,
    },
    /// The terms do not hold.
    #[error("{error}{}", .lease.map_or(String::new(), |lease| format!("; the shortest lease that would do: --lease {lease}")))]
    Terms {
        /// Why.
        error: TermsError,
        /// The shortest lease whose terms would hold.
        lease: Option<Duration>,
    },
}

impl Asked {
    /// Checks it.
    ///
    /// # Errors
    /// The first number that is out of its range, or the term to change.
    pub fn check(mut self) -> Result<Inputs, PlanError> {
        range("prefill instances", self.prefills, 1.0, 100.0, "")?;
        range("decode instances", self.decoders, 1.0, 1000.0, "")?;
        range("bytes per request", self.request_bytes as f64, 1.0, 1e15, "")?;
        range("id length", self.id_length as f64, SHORTEST_ID as f64, MAX_ID as f64, " bytes")?;
        range("poll", seconds(self.poll), 0.0, 3600.0, " s")?;
        range("max notification", self.max_notification, 512.0, 16_777_216.0, " bytes")?;
        range("delay", seconds(self.delay), 0.0, 10.0, " s")?;
        range("loss", self.loss, 0.0, MOST_LOSS, ": beyond that the closed form does not hold")?;
        range("stall rate", self.stalls_per_hour, 0.0, 3600.0, " an hour")?;
        range("stall mean", seconds(self.stall_mean), 0.001, 3600.0, " s")?;
        range("longest stall", self.longest_stall.map_or(1.0, seconds), 0.001, 3600.0, " s")?;
        range("target", self.target, 1e-9, 1e12, " false expiries a year")?;
        range("budget", self.budget, 0.1, 3600.0, " s")?;
        range("span", self.span.map_or(1.0, seconds), 1.0, 1e7, " s")?;
        range("time stalled", self.stalls_per_hour * self.stall_seconds(), 0.0, 1800.0, " s an hour")?;
        let (requests, rate, hold) = self.little()?;
        // Zero is a loop that never waits; the term wants some time.
        self.config.poll.get_or_insert(self.poll);
        self.config.longest_stall = self.longest_stall.or(self.config.longest_stall);
        let terms = self.config.validate(self.wire).map_err(|error| self.terms_error(error))?;
        Ok(Inputs { terms, requests, rate, hold, asked: self })
    }

    /// Names the shortest lease that would do where a longer one may.
    fn terms_error(&self, error: TermsError) -> PlanError {
        let grid = Grid::of(self.wire);
        let holds = |lease: &Duration| Config { lease: *lease, ..self.config.clone() }.validate(self.wire).is_ok();
        let lease = match error {
            // An extension that is given does not follow from the lease.
            TermsError::CannotHold { .. } | TermsError::TooLong { .. } if self.config.extension.is_none() => {
                grid.all().find(holds)
            }
            _ => None,
        };
        PlanError::Terms { error, lease }
    }

    /// The mean of exponential stalls, and the share of them that the longest one leaves out.
    fn stalls(&self) -> (f64, f64) {
        let mean = seconds(self.stall_mean);
        (mean, self.longest_stall.map_or(0.0, |longest| (-seconds(longest) / mean).exp()))
    }

    /// The mean of stalls without those that are longer than the longest.
    fn stall_seconds(&self) -> f64 {
        let (mean, cut) = self.stalls();
        mean - self.longest_stall.map_or(0.0, seconds) * cut / (1.0 - cut)
    }

    /// Requests in flight, rate and hold: the first is the product of the others.
    fn little(&self) -> Result<(f64, f64, f64), PlanError> {
        let (requests, rate, hold) = (self.requests.map(f64::from), self.rate, self.hold.map(seconds));
        let in_range = |requests: Option<f64>, rate: Option<f64>, hold: Option<f64>| {
            rate.map_or(Ok(()), |rate| range("rate", rate, 1e-3, 1e6, " requests a second"))?;
            hold.map_or(Ok(()), |hold| range("hold", hold, 0.01, 3600.0, " s"))?;
            requests.map_or(Ok(()), |requests| range("requests in flight", requests, 1.0, 1e6, ""))
        };
        in_range(requests, rate, hold)?;
        let all = match (requests, rate, hold) {
            (Some(requests), Some(rate), Some(hold)) => {
                let product = rate * hold;
                if (product - requests).abs() > requests * 0.01 {
                    return Err(PlanError::Little { requests, rate, hold, product });
                }
                (requests, rate, hold)
            }
            (Some(requests), Some(rate), None) => (requests, rate, requests / rate),
            (None, Some(rate), hold) => (rate * hold.unwrap_or(HOLD), rate, hold.unwrap_or(HOLD)),
            (requests, None, hold) => {
                let (requests, hold) = (requests.unwrap_or(REQUESTS), hold.unwrap_or(HOLD));
                (requests, requests / hold, hold)
            }
        };
        in_range(Some(all.0), Some(all.1), Some(all.2)).map(|()| all)
    }
}

impl Inputs {
    /// The same fleet with another lease, where its terms hold; vLLM's do where they need no warning.
    pub(super) fn with_lease(&self, lease: Duration) -> Option<Self> {
        let mut inputs = self.clone();
        inputs.asked.config.lease = lease;
        inputs.terms = inputs.asked.config.validate(self.asked.wire).ok().filter(|terms| terms.warning().is_none())?;
        Some(inputs)
    }

    /// Leases in flight between one prefill and one decode instance.
    pub(super) fn per_pair(&self) -> f64 {
        self.requests / f64::from(self.asked.prefills) / f64::from(self.asked.decoders)
    }

    /// Leases granted per second by one prefill instance.
    pub(super) fn rate_per_prefill(&self) -> f64 {
        self.rate / f64::from(self.asked.prefills)
    }

    /// Stalls of a decode instance per second.
    pub(super) fn stall_rate(&self) -> f64 {
        self.asked.stalls_per_hour / 3600.0
    }

    /// Seconds from the end of a stall to the next one, on average, if there are any.
    pub(super) fn between_stalls(&self) -> Option<f64> {
        (self.stall_rate() > 0.0).then(|| 1.0 / self.stall_rate() - self.asked.stall_seconds())
    }

    /// The length of a stall that a share of all stalls, from 0 to 1, are longer than.
    pub(super) fn stall_quantile(&self, longer: f64) -> f64 {
        let (mean, cut) = self.asked.stalls();
        -mean * (longer * (1.0 - cut) + cut).ln()
    }

    /// How many of the seconds of a stall come after so many, on average: the integral of [`Inputs::stalls_longer`] from there on.
    pub(super) fn stalled_beyond(&self, start: f64) -> f64 {
        let (mean, cut) = self.asked.stalls();
        let left_out = self.asked.longest_stall.map_or(0.0, |longest| (mean + (seconds(longest) - start).max(0.0)) * cut);
        ((mean * (-start / mean).exp() - left_out) / (1.0 - cut)).max(0.0)
    }

    /// The share of stalls that are longer than so many seconds.
    pub(super) fn stalls_longer(&self, than: f64) -> f64 {
        let (mean, cut) = self.asked.stalls();
        (((-than.max(0.0) / mean).exp() - cut) / (1.0 - cut)).max(0.0)
    }
}

fn range(name: &'static str, got: impl Into<f64>, least: f64, most: f64, unit: &'static str) -> Result<(), PlanError> {
    let got = got.into();
    if (least..=most).contains(&got) { Ok(()) } else { Err(PlanError::OutOfRange { name, got, least, most, unit }) }
}

/// A length of time as a number to calculate with.
pub(super) fn seconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e9
}

/// The length of time nearest to so many seconds.
pub(super) fn duration(seconds: f64) -> Duration {
    Duration::from_nanos((seconds * 1e9) as u64) // saturates, and a number that is none becomes zero
}
