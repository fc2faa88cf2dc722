//! The terminal: which process group is in its foreground.
//!
//! A command on a terminal reads from it and is reached by Ctrl-C and Ctrl-Z because its group is in the foreground. The
//! runner puts it there as a shell does, if it is there itself.

use std::io::{self, IsTerminal as _, Stdin};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The terminal that the runner shares with its command, if there is one.
pub(super) struct Terminal {
    stdin: Option<Stdin>,
    /// Whether the output goes there too: in a pipeline, another program may want to read from it.
    is_whole: bool,
    settings: Option<Termios>,
    is_handed_over: bool,
}

impl Terminal {
    pub(super) fn new() -> Self {
        let stdin = Some(io::stdin()).filter(Stdin::is_terminal);
        Self {
            settings: stdin.as_ref().and_then(|stdin| tcgetattr(stdin).ok()),
            stdin,
            is_whole: io::stdout().is_terminal(),
            is_handed_over: false,
        }
    }

    /// Puts the command in the foreground when it starts. In a pipeline that is left for when the command reads.
    pub(super) fn hand_over_at_start(&mut self, command: Pid) {
        if self.is_whole {
            self.hand_over(command);
        }
    }

    /// Puts the command in the foreground if the runner is there, and says whether it did.
    pub(super) fn hand_over(&mut self, command: Pid) -> bool {
        let Some(stdin) = &self.stdin else {
            return false;
        };
        let foreground = tcgetpgrp(stdin);
        if foreground == Ok(getpgrp()) || (self.is_handed_over && foreground == Ok(command)) {
            self.is_handed_over = from_background(|| tcsetpgrp(stdin, command)).is_ok();
            return self.is_handed_over;
        }
        false
    }

    /// Whether the command was put in the foreground and not yet taken back.
    pub(super) fn is_handed_over(&self) -> bool {
        self.is_handed_over
    }

    pub(super) fn is_there(&self) -> bool {
        self.stdin.is_some()
    }

    /// Puts the runner's own group in the foreground again.
    pub(super) fn take_back(&mut self) {
        if let (Some(stdin), true) = (&self.stdin, self.is_handed_over) {
            let _ = from_background(|| tcsetpgrp(stdin, getpgrp()));
            self.is_handed_over = false;
        }
    }

    /// As it was before the command, which was killed and may have left it without echo.
    pub(super) fn restore_settings(&self) {
        if let (Some(stdin), Some(settings)) = (&self.stdin, &self.settings) {
            let _ = from_background(|| tcsetattr(stdin, SetArg::TCSADRAIN, settings));
        }
    }
}

/// Changes the terminal while another group is in its foreground, which otherwise stops the caller.
fn from_background<T>(change: impl FnOnce() -> nix::Result<T>) -> nix::Result<T> {
    let mut stops = SigSet::empty();
    stops.add(Signal::SIGTTOU);
    let before = stops.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let changed = change();
    before.thread_set_mask()?;
    changed
}
