//! The messages of the client commands, on stderr. Standard output has their results, or belongs to the command of
//! `run`.

use std::io::{self, IsTerminal as _, Write as _};

use crate::domain::text::printable;

/// Which messages a command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verbosity {
    /// Only why it failed.
    Quiet,
    /// Whom it waits for, and what the reader should know.
    Normal,
    /// Everything.
    Verbose,
}

/// Writes lines for people.
#[derive(Debug, Clone, Copy)]
pub(super) struct Notices {
    verbosity: Verbosity,
    is_terminal: bool,
}

impl Notices {
    pub(super) fn new(verbosity: Verbosity) -> Self {
        Self {
            verbosity,
            is_terminal: io::stderr().is_terminal(),
        }
    }

    /// Why the command was ended, or what went wrong; always written.
    pub(super) fn problem(self, text: &str) {
        write(text);
    }

    /// What the reader should know although nothing failed.
    pub(super) fn note(self, text: &str) {
        if self.shows_notes() {
            write(text);
        }
    }

    pub(super) fn detail(self, text: &str) {
        if self.verbosity == Verbosity::Verbose {
            write(text);
        }
    }

    pub(super) fn shows_notes(self) -> bool {
        self.verbosity >= Verbosity::Normal
    }

    /// Whether every change is printed at once, because stderr is a terminal.
    pub(super) fn shows_progress(self) -> bool {
        match self.verbosity {
            Verbosity::Quiet => false,
            Verbosity::Normal => self.is_terminal,
            Verbosity::Verbose => true,
        }
    }
}

/// Writes one line. Parts of it may be from others, such as an owner or the detail of a problem. A closed stderr is no
/// reason to fail.
fn write(text: &str) {
    let _ = writeln!(io::stderr(), "leasehold: {}", printable(text));
}
