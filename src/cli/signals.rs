//! The signals that a client command handles.

use std::io;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::mpsc;

use crate::server::shutdown::IgnoredSignals;

/// Passed on to the command.
const FORWARDED: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];
/// End a runner that waits for its lock.
const STOPS: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
];
/// Stop and continue the command together with the runner.
const JOB_CONTROL: [Signal; 2] = [Signal::SIGTSTP, Signal::SIGCONT];

/// Receives the signals, from the moment this is created.
pub(super) struct ClientSignals(mpsc::Receiver<Signal>);

/// Whether a signal asks to stop.
pub(super) fn is_stop(signal: Signal) -> bool {
    STOPS.contains(&signal)
}

impl ClientSignals {
    /// Installs the handlers. A signal that the parent set to ignored stays ignored, for the command too: so does
    /// SIGHUP under `nohup`, and SIGINT of a background job in a script.
    pub(super) fn listen() -> io::Result<Self> {
        let (tx, rx) = mpsc::channel(16);
        let ignored = IgnoredSignals::read();
        for signal in FORWARDED.into_iter().chain(JOB_CONTROL) {
            let kind = SignalKind::from_raw(signal as i32);
            if ignored.contains(kind) {
                continue;
            }
            let mut stream = unix::signal(kind)?;
            let tx = tx.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && tx.send(signal).await.is_ok() {}
            });
        }
        Ok(Self(rx))
    }

    /// The next signal.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            // All are ignored.
            None => std::future::pending().await,
        }
    }

    /// The next signal that asks to stop.
    pub(super) async fn next_stop(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if is_stop(signal) {
                return signal;
            }
            if signal == Signal::SIGTSTP {
                let _ = nix::sys::signal::raise(Signal::SIGSTOP);
            }
        }
    }
}
