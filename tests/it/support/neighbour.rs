//! Another program on the same Redis, whose scripts let everybody wait, and its keys.

use std::time::Duration;

use tokio::time::Instant;

use super::redis_server::RedisServer;

/// How long one of its scripts takes.
pub(crate) const BUSY: Duration = Duration::from_millis(300);

/// How long it waits between two of them.
pub(crate) const PAUSE: Duration = Duration::from_millis(700);

/// Not bounded by time: to the scripts of some versions it stands still.
const SPIN: &str =
    "local sum = 0 for step = 1, tonumber(ARGV[1]) do sum = sum + step end return sum";

/// The steps with which its speed is measured.
const TRIED: u64 = 2_000_000;

/// The keys of the other program begin with this, and end with a number.
pub(crate) const FOREIGN_KEY: &str = "foreign:";

const FILL: &str = "for number = ARGV[2], ARGV[3] do redis.call('SET', ARGV[1] .. number, 'x') end";

impl RedisServer {
    /// Writes this number of keys of the other program into database 0, in steps of ten thousand.
    pub(crate) async fn fill_with_foreign_keys(&self, count: usize) {
        for first in (0..count).step_by(10_000) {
            let (first, last) = (first.to_string(), (first + 9_999).to_string());
            let words = ["EVAL", FILL, "0", FOREIGN_KEY, &first, &last];
            self.command(&words).await;
        }
    }

    /// How many steps of a script take this long.
    pub(crate) async fn steps_in(&self, duration: Duration) -> u64 {
        let began = Instant::now();
        self.spin(TRIED).await;
        let took = began.elapsed().as_micros().max(1);
        let steps = u128::from(TRIED) * duration.as_micros() / took;
        u64::try_from(steps).expect("not that many")
    }

    /// Runs a script with this number of steps.
    pub(crate) async fn spin(&self, steps: u64) {
        self.command(&["EVAL", SPIN, "0", &steps.to_string()]).await;
    }

    /// Sets how long a script may run until Redis answers `BUSY` to all others. Its default is five seconds.
    pub(crate) async fn answers_busy_after(&self, ms: u32) {
        let set = ["CONFIG", "SET", "lua-time-limit", &ms.to_string()];
        self.command(&set).await;
    }

    /// How often it has answered `BUSY`.
    pub(crate) async fn busy_answers(&self) -> u64 {
        let found = self.info_if_any("errorstats", "errorstat_BUSY").await;
        let count = found.as_deref().and_then(|it| it.strip_prefix("count="));
        count.map_or(0, |it| it.parse().expect("a number"))
    }
}
