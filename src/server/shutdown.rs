//! Stop signals, and the token that is cancelled when draining begins: readiness fails, waits and streams end.
//!
//! SIGHUP reloads what can be reloaded. If there is nothing, it stops the process like SIGTERM: without a handler the
//! closing of a terminal would end the process without a drain. Under `nohup`, which sets the signal to ignored, it then
//! stays ignored. The server closes the connections.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// One request to stop may arrive as two signals: `timeout` signals a process and then its group, and runners of several
/// programs send SIGTERM to those that got SIGINT from the keyboard too. So signals within this window count as one,
/// whichever they are; a deliberate second signal comes later.
const DUPLICATE_SIGNAL_WINDOW: Duration = Duration::from_millis(100);

/// A signal that asks the process to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// SIGINT, from the keyboard.
    Interrupt,
    /// SIGTERM, from the supervisor of the process.
    Terminate,
    /// SIGHUP, from a terminal that was closed.
    HangUp,
}

impl Stop {
    /// The exit code of a process that was ended by this signal, by the convention of shells (128 + signal).
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
            Self::HangUp => 129,
        }
    }
}

/// Receives the signals that ask the process to stop, from the moment this is created.
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Option<Signal>,
}

impl StopSignals {
    /// Installs the handlers; from here on the signals no longer end the process by themselves. SIGHUP is one of those
    /// that stop it unless it `reloads`.
    ///
    /// # Errors
    ///
    /// When the system refuses a signal handler.
    pub fn listen(reloads: bool) -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: match reloads || is_ignored(SignalKind::hangup()) {
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

    /// Begins draining at the first signal, and completes with the second one, which asks to stop at once.
    pub async fn announce(mut self, draining: CancellationToken) -> Stop {
        let first = self.next().await;
        tracing::info!(signal = ?first, "stopping; another signal ends the process at once");
        draining.cancel();
        let duplicates = async {
            loop {
                self.next().await;
            }
        };
        let _: Result<(), _> = tokio::time::timeout(DUPLICATE_SIGNAL_WINDOW, duplicates).await;
        self.next().await
    }
}

/// Receives the signals that ask the process to reload, from the moment this is created.
pub struct ReloadSignals(Option<Signal>);

impl ReloadSignals {
    /// Installs the handler, if the process `reloads` anything.
    ///
    /// # Errors
    ///
    /// When the system refuses a signal handler.
    pub fn listen(reloads: bool) -> io::Result<Self> {
        let hang_up = reloads.then(|| signal(SignalKind::hangup()));
        Ok(Self(hang_up.transpose()?))
    }

    /// Waits for the next signal.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) {
        received(self.0.as_mut()).await;
    }
}

/// Completes with the next signal, or never if there is no handler for it.
async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Whether the parent process set the signal to ignored. `false` where the system has no `/proc`.
fn is_ignored(kind: SignalKind) -> bool {
    IgnoredSignals::read().contains(kind)
}

/// The signals that the parent process set to ignored: none where the system has no `/proc`.
pub(crate) struct IgnoredSignals(u64);

impl IgnoredSignals {
    /// Reads those of this process.
    pub(crate) fn read() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        Self(mask.unwrap_or(0))
    }

    /// Whether this signal is one of them.
    pub(crate) fn contains(&self, kind: SignalKind) -> bool {
        self.0 >> (kind.as_raw_value() - 1) & 1 == 1
    }
}

/// Completes `delay` after draining has begun. During the delay, load balancers notice that readiness fails, and
/// requests that they still send are served.
pub async fn announced(draining: CancellationToken, delay: Duration) {
    draining.cancelled().await;
    tokio::time::sleep(delay).await;
}
