//! How fast requests may come: a bucket that fills up continuously (GCRA), of which each request takes one. Whose requests
//! they are is not known here.

use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use tokio::time::Instant;

use crate::config::RequestRate;

/// The requests that may begin now.
#[derive(Debug)]
pub struct RequestBucket {
    rate: RequestRate,
    clock: BucketClock,
    limiter: RateLimiter<NotKeyed, InMemoryState, BucketClock, StateInformationMiddleware>,
}

/// What a bucket has after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketLevel {
    /// How fast it fills up, and its size.
    pub rate: RequestRate,
    /// How many requests may follow at once.
    pub remaining: u32,
}

/// An empty bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketEmpty {
    /// How fast it fills up, and its size.
    pub rate: RequestRate,
    /// When it has one request again.
    pub retry_in: Duration,
}

impl RequestBucket {
    /// A full bucket.
    #[must_use]
    pub fn new(rate: RequestRate) -> Self {
        let quota = Quota::per_second(rate.per_second).allow_burst(rate.burst);
        let clock = BucketClock(Instant::now());
        Self {
            rate,
            clock,
            limiter: RateLimiter::direct_with_clock(quota, clock).with_middleware(),
        }
    }

    /// Takes one request. Never waits.
    ///
    /// # Errors
    /// There is none. An attempt costs nothing, so a sender that keeps trying gets its full rate.
    pub fn take(&self) -> Result<BucketLevel, BucketEmpty> {
        let rate = self.rate;
        match self.limiter.check() {
            Ok(state) => Ok(BucketLevel {
                rate,
                remaining: state.remaining_burst_capacity(),
            }),
            Err(until) => Err(BucketEmpty {
                rate,
                retry_in: until.wait_time_from(self.clock.now()),
            }),
        }
    }
}

impl BucketLevel {
    /// When the bucket is full again, if no request comes.
    #[must_use]
    pub fn full_in(&self) -> Duration {
        let missing = self.rate.burst.get().saturating_sub(self.remaining);
        Duration::from_secs(missing.into()) / self.rate.per_second.get()
    }
}

impl From<BucketEmpty> for BucketLevel {
    fn from(BucketEmpty { rate, .. }: BucketEmpty) -> Self {
        Self { rate, remaining: 0 }
    }
}

/// The time since the bucket was made, by the clock that tests can stop.
#[derive(Clone, Copy, Debug)]
struct BucketClock(Instant);

impl Clock for BucketClock {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn bucket(per_second: u32, burst: u32) -> RequestBucket {
        let number = |number| NonZeroU32::new(number).expect("not zero");
        RequestBucket::new(RequestRate {
            per_second: number(per_second),
            burst: number(burst),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_gives_its_burst_at_once_and_then_its_rate() {
        let bucket = bucket(10, 3);
        let remaining = [(); 3].map(|()| bucket.take().map(|level| level.remaining));
        assert_eq!(remaining, [Ok(2), Ok(1), Ok(0)]);
        let empty = bucket.take().expect_err("the burst is over");
        assert_eq!(empty.retry_in, Duration::from_millis(100));
        assert_eq!(
            BucketLevel::from(empty).full_in(),
            Duration::from_millis(300)
        );
        tokio::time::advance(empty.retry_in).await;
        assert!(bucket.take().is_ok());
        assert!(bucket.take().is_err(), "one came back, not more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_request_takes_nothing() {
        let bucket = bucket(1, 1);
        assert!(bucket.take().is_ok());
        for _ in 0..100 {
            assert!(bucket.take().is_err());
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(bucket.take().is_ok());
    }
}
