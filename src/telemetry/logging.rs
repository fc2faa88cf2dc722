//! The log: one line per event on stdout, as text or JSON; and the writer of its lines, which the audit stream uses too.
//! `http` logs the requests; nothing here knows about them.
//!
//! Lines go into a bounded buffer, and a thread of its own writes them to the output. A thread that logs never waits for
//! the reader of the log: when the buffer is full, the line is dropped and counted. Otherwise a pipe that is not read would
//! block the worker threads one by one, and with them every renewal.

#[cfg(test)]
mod tests;

use std::io::{IsTerminal as _, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;
use std::{io, thread};

use anstream::{AutoStream, ColorChoice};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{LogConfig, LogFormat};

/// Whether the log is text rather than JSON, which also means that a person probably reads it.
pub fn is_text(config: &LogConfig) -> bool {
    match config.format {
        LogFormat::Auto => io::stdout().is_terminal(),
        LogFormat::Text => true,
        LogFormat::Json => false,
    }
}

/// Whether stdout is a terminal that shows colours, and nobody has asked for none (`NO_COLOR`).
fn shows_colours() -> bool {
    AutoStream::choice(&io::stdout()) != ColorChoice::Never
}

/// Applies a global level up to `info` to this crate only, and sets libraries to `error`. They warn about things that
/// any client can cause as often as it likes, such as too many reset streams; this crate counts and limits those that
/// matter.
fn with_quiet_libraries(level: &str) -> String {
    let directives = level.split(',').map(str::trim).map(|directive| {
        let is_for_all = ["error", "warn", "info"]
            .iter()
            .any(|level| directive.eq_ignore_ascii_case(level));
        match is_for_all {
            true => format!("error,leasehold={directive}"),
            false => directive.to_owned(),
        }
    });
    directives.collect::<Vec<_>>().join(",")
}

/// Installs the log for the whole process and returns its writer, which must be flushed before the process ends.
///
/// JSON lines are flat: `timestamp` (RFC 3339), `level`, `message`, the fields of the event, `target`.
///
/// # Errors
///
/// When the system cannot start the writer's thread.
///
/// # Panics
///
/// When the process already has a log.
pub fn init_logging(config: &LogConfig) -> io::Result<LogWriter> {
    let writer = LogWriter::start(LineKind::Log, io::stdout(), config.buffer_bytes_max)?;
    let level = with_quiet_libraries(&config.level);
    let filter = EnvFilter::try_new(level).expect("the configuration has parsed this filter");
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(writer.clone());
    let installed = if is_text(config) {
        registry.with(layer.with_ansi(shows_colours())).try_init()
    } else {
        let layer = layer
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false);
        registry.with(layer).try_init()
    };
    installed.expect("this is the only log of the process");
    Ok(writer)
}

/// What the lines of a writer are, which its own line about dropped ones says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    /// The log.
    Log,
    /// The audit stream.
    Audit,
}

impl LineKind {
    fn thread_name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Audit => "audit",
        }
    }

    fn report(self, lines: u64) {
        match self {
            Self::Log => tracing::warn!(
                lines,
                "log lines were dropped because stdout was read too slowly"
            ),
            Self::Audit => tracing::warn!(
                lines,
                "audit lines were dropped because their output was too slow or failed"
            ),
        }
    }

    /// The output has begun to fail. For the log itself, its metric is the only place to say so.
    fn report_failure(self, error: &io::Error) {
        match self {
            Self::Log => {}
            Self::Audit => {
                tracing::warn!(%error, "audit lines cannot be written, and are dropped until they can");
            }
        }
    }
}

/// The writing end. Cloning is cheap; all clones share the buffer.
#[derive(Clone, Debug)]
pub struct LogWriter {
    shared: Arc<LogQueue>,
}

#[derive(Debug)]
struct LogQueue {
    buffer: Mutex<Buffer>,
    /// Notified when the buffer or its state has changed, for the thread and for `flush`.
    changed: Condvar,
    bytes_max: usize,
    dropped: AtomicU64,
    /// The writer thread. Its own line about dropped lines is never dropped.
    own_thread: OnceLock<ThreadId>,
}

#[derive(Debug, Default)]
struct Buffer {
    /// Whole lines that the thread has not taken yet.
    pending: Vec<u8>,
    lines: u64,
    /// Whether the thread has taken lines that it has not finished writing.
    is_writing: bool,
}

/// What the thread that writes knows of the lines before.
#[derive(Debug, Default)]
struct WriteState {
    /// How many dropped lines the log has been told of.
    reported: u64,
    /// Whether the last line was written in part.
    is_cut: bool,
    /// Whether the output has taken nothing, or not all, since the last time that it took everything.
    has_failed: bool,
}

impl LogWriter {
    /// Starts the thread that writes to `output`. The buffer holds up to `bytes_max`, and as many may be in the middle
    /// of being written.
    ///
    /// # Errors
    ///
    /// When the system cannot start the thread.
    pub fn start(
        kind: LineKind,
        output: impl Write + Send + 'static,
        bytes_max: usize,
    ) -> io::Result<Self> {
        let shared = Arc::new(LogQueue::new(bytes_max));
        let writer = Arc::clone(&shared);
        // Never joined: it may be blocked in a write to a pipe that is not read, and ends with the process.
        thread::Builder::new()
            .name(kind.thread_name().to_owned())
            .spawn(move || writer.write_out(kind, output))?;
        Ok(Self { shared })
    }

    /// The number of lines dropped so far, because the buffer was full or the output failed.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything logged so far is written, or until the timeout.
    pub fn flush(&self, timeout: Duration) {
        let buffer = self.shared.lock();
        let is_busy = |buffer: &mut Buffer| buffer.is_writing || !buffer.pending.is_empty();
        // After the timeout, unwritten lines are lost with the process, by design.
        let _ = self
            .shared
            .changed
            .wait_timeout_while(buffer, timeout, is_busy);
    }

    fn append(&self, line: &[u8]) {
        let shared = &self.shared;
        let mut buffer = shared.lock();
        let is_full = buffer.pending.len() + line.len() > shared.bytes_max;
        if is_full && !shared.is_own_thread() {
            shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let was_empty = buffer.pending.is_empty();
        buffer.pending.extend_from_slice(line);
        buffer.lines += 1;
        drop(buffer);
        if was_empty {
            shared.changed.notify_all();
        }
    }
}

/// The log layer writes each event as one whole line.
impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.append(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl LogQueue {
    fn new(bytes_max: usize) -> Self {
        Self {
            buffer: Mutex::default(),
            changed: Condvar::new(),
            bytes_max,
            dropped: AtomicU64::new(0),
            own_thread: OnceLock::new(),
        }
    }

    /// Ignores poisoning: a panic while the lock was held leaves at worst an incomplete line.
    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_own_thread(&self) -> bool {
        self.own_thread.get() == Some(&thread::current().id())
    }

    fn write_out(&self, kind: LineKind, mut output: impl Write) {
        self.own_thread.get_or_init(|| thread::current().id());
        let (mut batch, mut state) = (Vec::new(), WriteState::default());
        loop {
            let lines = self.take(&mut batch);
            self.write_batch(kind, &mut output, (&mut batch, lines), &mut state);
            self.lock().is_writing = false;
            self.changed.notify_all();
        }
    }

    /// Writes as many of these lines as the output takes, counts the others, and empties the batch.
    fn write_batch(
        &self,
        kind: LineKind,
        output: &mut impl Write,
        (batch, lines): (&mut Vec<u8>, u64),
        state: &mut WriteState,
    ) {
        if state.is_cut {
            // What was written of the line before stays a line of its own, and damages no other.
            batch.insert(0, b'\n');
        }
        let (bytes, written) = write_until_error(output, batch);
        if let Err(error) = &written {
            let ended = batch[..bytes].iter().filter(|&&it| it == b'\n').count() as u64;
            let whole = ended.saturating_sub(u64::from(state.is_cut));
            self.dropped
                .fetch_add(lines.saturating_sub(whole), Ordering::Relaxed);
            if !state.has_failed {
                kind.report_failure(error);
            }
        }
        let last = batch[..bytes].last();
        state.is_cut = last.map_or(state.is_cut, |&last| last != b'\n');
        state.has_failed = written.is_err();
        batch.clear();
        let dropped = self.dropped.load(Ordering::Relaxed);
        if written.is_ok() && dropped > state.reported {
            // The reader is back. The line goes through the log itself, so that it is formatted like all others.
            kind.report(dropped - state.reported);
            state.reported = dropped;
        }
    }

    /// Waits for lines, swaps them into the empty batch, and returns their number.
    fn take(&self, batch: &mut Vec<u8>) -> u64 {
        let buffer = self.lock();
        let has_none = |buffer: &mut Buffer| buffer.pending.is_empty();
        let waited = self.changed.wait_while(buffer, has_none);
        let mut buffer = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut buffer.pending, batch);
        buffer.is_writing = true;
        std::mem::take(&mut buffer.lines)
    }
}

/// Writes the bytes, and returns how many were written before an error. Whether those that an error of `flush` concerns
/// were written is not known, so they count as lost.
fn write_until_error(output: &mut impl Write, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match output.write(&bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(some) => written += some,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    match output.flush() {
        Ok(()) => (written, Ok(())),
        Err(error) => (0, Err(error)),
    }
}
