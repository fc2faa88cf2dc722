//! How the process is asked to stop, and how the rest of it hears: signals, and the flag that readiness reads.
//!
//! SIGHUP stops as SIGTERM does. There is no configuration to load again, and without a handler the closing of a terminal
//! would end the process without a drain. Under `nohup`, which has the signal ignored, it stays ignored.
//! Closing connections is the server's business.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Supervisors such as `timeout` signal a process and then its group, so one wish to stop may arrive twice. Nobody who
/// insists is as quick as that.
const DUPLICATE_SIGNAL_WINDOW: Duration = Duration::from_millis(100);

/// Whether the process is about to stop. Clones share one state, which turns once and never back.
#[derive(Debug, Clone)]
pub struct Draining(watch::Sender<bool>);

impl Draining {
    /// A process that is not stopping.
    pub fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Announces the stop: readiness fails from here on, and whoever waits on [`begun`](Self::begun) continues.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Whether the stop has been announced.
    pub fn has_begun(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the stop is announced.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when this is dropped; another call sees the same state.
    pub async fn begun(&self) {
        let mut receiver = self.0.subscribe();
        receiver
            .wait_for(|begun| *begun)
            .await
            .expect("the sender lives in self");
    }
}

impl Default for Draining {
    fn default() -> Self {
        Self::new()
    }
}

/// A signal that asks the process to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// SIGINT, from the keyboard.
    Interrupt,
    /// SIGTERM, from whoever supervises the process.
    Terminate,
    /// SIGHUP, from a terminal that was closed.
    HangUp,
}

impl Stop {
    /// The exit code of a process that ended by this signal, as shells count it.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
            Self::HangUp => 129,
        }
    }
}

/// The signals that ask the process to stop, from the moment this is made.
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Option<Signal>,
}

impl StopSignals {
    /// Begins to listen; from here on the signals no longer end the process by themselves.
    ///
    /// # Errors
    ///
    /// When the system refuses a signal handler.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: match is_ignored(SignalKind::hangup()) {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            },
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.interrupt.recv() => Stop::Interrupt,
            _ = self.terminate.recv() => Stop::Terminate,
            () = received(self.hang_up.as_mut()) => Stop::HangUp,
        }
    }

    /// Announces the stop at the first signal, and completes with the second one: the person insists.
    pub async fn announce(mut self, draining: Draining) -> Stop {
        let first = self.next().await;
        tracing::info!(signal = ?first, "stopping; another signal ends the process at once");
        draining.begin();
        let echoes = async {
            loop {
                self.next().await;
            }
        };
        let _: Result<(), _> = tokio::time::timeout(DUPLICATE_SIGNAL_WINDOW, echoes).await;
        self.next().await
    }
}

/// Completes with the next signal, or never where it is not listened to.
async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Whether whoever started the process wants it to ignore the signal. Where the system does not tell, it is not so.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}

/// Completes `delay` after the stop was announced: the time in which load balancers notice that readiness fails, while
/// requests that they still send are served.
pub async fn announced(draining: Draining, delay: Duration) {
    draining.begun().await;
    tokio::time::sleep(delay).await;
}
