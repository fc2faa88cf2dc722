//! The output of the client commands: a table for people, the service's document for programs, or as little as
//! possible.

use std::borrow::Cow;
use std::fs::{self, File, Metadata};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use clap::{Arg, ArgAction, ArgMatches};
use hyper::body::Bytes;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::Exit;
use super::notices::{Notices, Verbosity};
use crate::domain::{duration, text};

const HEADER: Style = Style::new().bold();
/// Spaces between columns.
const GAP: usize = 2;

/// How a command writes its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputForm {
    Table,
    Json,
    Quiet,
}

impl OutputForm {
    pub(super) fn of(matches: &ArgMatches) -> Self {
        match (matches.get_flag("json"), matches.get_flag("quiet")) {
            (true, _) => Self::Json,
            (false, true) => Self::Quiet,
            (false, false) => Self::Table,
        }
    }

    /// What the command says beside its result.
    pub(super) fn notices(self) -> Notices {
        Notices::new(match self {
            Self::Quiet => Verbosity::Quiet,
            Self::Table | Self::Json => Verbosity::Normal,
        })
    }
}

/// `--json` and `--quiet`.
pub(super) fn arguments(json: &'static str, quiet: &'static str) -> [Arg; 2] {
    let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
    [
        flag("json").conflicts_with("quiet").help(json),
        flag("quiet").short('q').help(quiet),
    ]
}

/// Writes to standard output, without colours unless it is a terminal that wants them.
///
/// # Errors
/// The reader has closed it, or the disk is full.
pub(super) fn write(text: &str) -> io::Result<()> {
    is_writable()?;
    let mut stdout = anstream::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Checks that standard output is open for writing. Otherwise a write would seem to succeed: the standard library takes
/// it for an output that was closed on purpose.
///
/// # Errors
/// It is not.
pub(super) fn is_writable() -> io::Result<()> {
    match access_mode()? {
        OFlag::O_RDONLY => Err(io::Error::other("standard output is not open for writing")),
        _ => Ok(()),
    }
}

/// Whether standard output is the null device and was opened for reading too: so the standard library opens it if it was
/// closed, while a shell opens it for writing alone if its user wants no output.
pub(super) fn may_be_closed() -> bool {
    let device = |file: io::Result<Metadata>| file.ok().map(|file| file.rdev());
    let stdout = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    let stdout = stdout.and_then(|file| file.metadata());
    access_mode().is_ok_and(|mode| mode == OFlag::O_RDWR)
        && device(stdout).is_some_and(|of| of != 0 && Some(of) == device(fs::metadata("/dev/null")))
}

fn access_mode() -> io::Result<OFlag> {
    let flags = fcntl(io::stdout(), FcntlArg::F_GETFL)?;
    Ok(OFlag::from_bits_retain(flags) & OFlag::O_ACCMODE)
}

/// Writes a result, as [`write`] does. The command has done its work, so only its exit code reports a failure.
pub(super) fn show(text: &str) -> Exit {
    match write(text) {
        Ok(()) => Exit::Done,
        Err(error) => after_failure(&error),
    }
}

/// How a command ends if its result cannot be written. A closed pipe (`leasehold … | head`) is not a failure: its
/// reader has seen enough.
pub(super) fn after_failure(error: &io::Error) -> Exit {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Exit::Done;
    }
    Notices::new(Verbosity::Normal).problem(&format!("cannot write the result: {error}"));
    Exit::Internal
}

/// A document of the service as a line.
pub(super) fn document(text: &Bytes) -> String {
    format!("{}\n", json(String::from_utf8_lossy(text).trim_end()))
}

/// The same JSON value, without characters that could control a terminal: JSON has them only in texts, where each has
/// an escape.
pub(super) fn json(document: &str) -> Cow<'_, str> {
    let is_space = |letter: char| letter.is_ascii_whitespace();
    if !document.contains(|letter| text::is_unprintable(letter) || is_space(letter)) {
        return Cow::Borrowed(document);
    }
    let mut escaped = String::with_capacity(document.len());
    for letter in document.chars() {
        if is_space(letter) {
            // It is between values, where a carriage return would move the cursor to the beginning of the line.
            escaped.push(' ');
        } else if text::is_unprintable(letter) {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                escaped.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            escaped.push(letter);
        }
    }
    Cow::Owned(escaped)
}

/// A table that may be written in parts: its columns are as wide as the widest text so far.
pub(super) struct TextTable {
    header: Option<Vec<Cell>>,
    widths: Vec<usize>,
}

/// The text of one field, and how it looks on a terminal.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    text: String,
    style: Style,
}

impl TextTable {
    pub(super) fn new(header: &[&str]) -> Self {
        let cells = header.iter().map(|name| Cell {
            text: (*name).to_owned(),
            style: HEADER,
        });
        Self {
            header: Some(cells.collect()),
            widths: vec![0; header.len()],
        }
    }

    /// These rows, after the header if they are the first.
    pub(super) fn text_of(&mut self, rows: Vec<Vec<Cell>>) -> String {
        let rows: Vec<_> = self.header.take().into_iter().chain(rows).collect();
        for row in &rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width());
            }
        }
        let mut text = String::new();
        for row in rows {
            let last = row.iter().rposition(|cell| !cell.text.is_empty());
            for (index, cell) in row.iter().enumerate().take(last.map_or(0, |last| last + 1)) {
                let Cell { text: shown, style } = cell;
                let padding = match Some(index) == last {
                    true => 0,
                    false => self.widths[index] - cell.width() + GAP,
                };
                text.push_str(&format!("{style}{shown}{style:#}{:padding$}", ""));
            }
            text.push('\n');
        }
        text
    }
}

impl Cell {
    /// The state of a lock, in its colour.
    pub(super) fn state(state: &str) -> Self {
        match state {
            "free" => Self::good(state),
            "held" => Self::doubtful(state),
            _ => Self::in_colour(state, AnsiColor::Cyan),
        }
    }

    pub(super) fn good(text: &str) -> Self {
        Self::in_colour(text, AnsiColor::Green)
    }

    pub(super) fn doubtful(text: &str) -> Self {
        Self::in_colour(text, AnsiColor::Yellow)
    }

    pub(super) fn bad(text: &str) -> Self {
        Self::in_colour(text, AnsiColor::Red)
    }

    fn in_colour(text: &str, colour: AnsiColor) -> Self {
        Self {
            style: colour.on_default(),
            ..Self::from(text)
        }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl<T: ToString + ?Sized> From<&T> for Cell {
    /// Texts of others must not move the cursor.
    fn from(text: &T) -> Self {
        Self {
            text: text::printable(&text.to_string()).into_owned(),
            style: Style::new(),
        }
    }
}

/// A time that is left, in whole seconds.
pub(super) fn time_left(left: Duration) -> String {
    let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    duration::format(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(texts: &[&str]) -> Vec<Cell> {
        texts.iter().copied().map(Cell::from).collect()
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn columns_are_aligned_and_lines_end_with_their_last_text() {
        let mut table = TextTable::new(&["A", "B"]);
        let text = table.text_of(vec![row(&["long", "x"]), row(&["s", ""])]);
        assert_eq!(plain(&text), "A     B\nlong  x\ns\n");
        assert_eq!(plain(&table.text_of(vec![row(&["s", "y"])])), "s     y\n");
    }

    #[test]
    fn a_text_of_somebody_else_cannot_control_the_terminal() {
        let cell = Cell::from("a\u{1b}[2J\nb");
        assert_eq!(cell.text, "a\u{fffd}[2J\u{fffd}b");
    }

    #[test]
    fn json_for_a_terminal_is_one_line_with_the_same_value() {
        let document = "{\"a\":\r\n\t\"\u{7f}\u{202e}\u{e0061} \u{1f527}\\n\"}";
        let text = json(document);
        assert_eq!(
            text,
            "{\"a\":   \"\\u007f\\u202e\\udb40\\udc61 \u{1f527}\\n\"}"
        );
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(value(&text), value(document));
    }

    #[test]
    fn a_time_is_rounded_up_to_seconds() {
        assert_eq!(time_left(Duration::from_millis(61_001)), "1m2s");
        assert_eq!(time_left(Duration::ZERO), "0s");
    }
}
