//! What the runner does while its command runs: it passes signals on, follows the lease and the guard, and gives the
//! terminal to the command and takes it back.

use std::io;

use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::Pid;
use tokio::sync::mpsc;

use super::boottime::{AsyncAlarm, BootTime};
use super::guarded::GuardedCommand;
use super::keeper::LeaseNews;
use super::messages::{CommandDeadline, Order, Report};
use super::say::Say;
use super::signals::RunSignals;
use super::terminal::Terminal;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandEnd {
    /// By itself or by a signal, with this exit code.
    Exited { code: u8, by_signal: bool },
    /// It could not be executed, for this reason of the system.
    NotStarted { errno: i32 },
    /// The runner killed it, because its guard did not act.
    Killed,
}

/// The end of a command, and whether the lease was lost before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SupervisedEnd {
    pub(super) end: CommandEnd,
    pub(super) is_lost: bool,
}

/// A running command with all that concerns it.
pub(super) struct Supervision<'a> {
    command: GuardedCommand,
    signals: &'a mut RunSignals,
    news: mpsc::Receiver<LeaseNews>,
    terminal: Terminal,
    say: Say,
    /// The process group of the command, from when it runs.
    group: Option<Pid>,
    /// `None` if the command may go on without its lease.
    deadline: Option<CommandDeadline>,
    alarm: AsyncAlarm,
    /// Whether the runner was asked to stop and has passed that on.
    is_stop_asked: bool,
    is_lost: bool,
}

impl<'a> Supervision<'a> {
    pub(super) fn new(
        command: GuardedCommand,
        deadline: Option<CommandDeadline>,
        news: mpsc::Receiver<LeaseNews>,
        signals: &'a mut RunSignals,
        say: Say,
    ) -> io::Result<Self> {
        let alarm = AsyncAlarm::new()?;
        if let Some(deadline) = deadline {
            alarm.set(deadline.kill_at)?;
        }
        Ok(Self {
            command,
            signals,
            news,
            terminal: Terminal::new(),
            say,
            group: None,
            deadline,
            alarm,
            is_stop_asked: false,
            is_lost: false,
        })
    }

    /// Waits until the command and its processes are gone.
    pub(super) async fn until_end(mut self) -> io::Result<SupervisedEnd> {
        let end = loop {
            // The alarm first: a runner that was stopped past the deadline kills before it does anything else.
            let end = tokio::select! {
                biased;
                gone_off = self.alarm.goes_off() => {
                    gone_off?;
                    self.kill().await
                }
                report = self.command.report() => match report {
                    Some(report) => self.on_report(report)?,
                    None => {
                        self.say.problem("the guard of the command was killed; killing the command");
                        self.kill().await
                    }
                },
                Some(news) = self.news.recv() => {
                    self.on_news(news)?;
                    None
                }
                signal = self.signals.next() => {
                    self.on_signal(signal);
                    None
                }
            };
            if let Some(end) = end {
                break end;
            }
        };
        self.terminal.take_back();
        if !matches!(
            end,
            CommandEnd::Exited {
                by_signal: false,
                ..
            }
        ) {
            self.terminal.restore_settings();
        }
        self.command.dismiss();
        let is_lost = self.is_lost;
        Ok(SupervisedEnd { end, is_lost })
    }

    /// Kills the command and its processes in place of the guard.
    async fn kill(&mut self) -> Option<CommandEnd> {
        let left = self.command.kill().await;
        if !left.is_empty() {
            let pids: Vec<_> = left.iter().map(Pid::to_string).collect();
            let pids = pids.join(" ");
            self.say.problem(&format!(
                "these processes cannot be killed and may go on without the lock: {pids}"
            ));
        }
        Some(CommandEnd::Killed)
    }

    fn on_report(&mut self, report: Report) -> io::Result<Option<CommandEnd>> {
        match report {
            Report::Started { command } => {
                let group = Pid::from_raw(command);
                self.group = Some(group);
                self.terminal.hand_over_at_start(group);
                self.say.detail(&format!("the command runs as process {command}"));
            }
            Report::NotStarted { errno } => return Ok(Some(CommandEnd::NotStarted { errno })),
            Report::Paused { signal } => self.on_pause(signal),
            Report::Ending => self.on_loss("it could not be renewed in time")?,
            Report::Remaining { processes } => self.say.note(&format!(
                "the command has ended; holding the lock until {processes} of its processes have ended too"
            )),
            Report::Gone { code, signal } => {
                let by_signal = signal.is_some();
                return Ok(Some(CommandEnd::Exited { code, by_signal }));
            }
        }
        Ok(None)
    }

    fn on_news(&mut self, news: LeaseNews) -> io::Result<()> {
        match news {
            LeaseNews::Renewed(deadline) if self.deadline.is_some() && !self.is_lost => {
                self.deadline = Some(deadline);
                self.command.order(Order::Until(deadline));
                self.alarm.set(deadline.kill_at)
            }
            LeaseNews::Renewed(_) => Ok(()),
            LeaseNews::Trouble(text) => {
                self.say
                    .note(&format!("cannot renew the lock, trying again: {text}"));
                Ok(())
            }
            LeaseNews::Lost(reason) => self.on_loss(&reason),
        }
    }

    fn on_loss(&mut self, reason: &str) -> io::Result<()> {
        if self.is_lost {
            return Ok(());
        }
        self.is_lost = true;
        let Some(deadline) = self.deadline else {
            self.say.problem(&format!(
                "the lock is lost: {reason}; the command goes on without it"
            ));
            return Ok(());
        };
        self.say
            .problem(&format!("the lock is lost: {reason}; ending the command"));
        let kill_after = deadline.terminate_at.until(deadline.kill_at);
        let kill_at = deadline.kill_at.min(BootTime::now().after(kill_after));
        self.command.order(Order::End { kill_at });
        self.alarm.set(kill_at)
    }

    fn on_signal(&mut self, signal: Signal) {
        if let (Signal::SIGCONT, Some(group)) = (signal, self.group) {
            self.terminal.hand_over_at_start(group);
        }
        self.say
            .detail(&format!("passing {signal} on to the command"));
        self.is_stop_asked |= signal == Signal::SIGTSTP;
        self.command.order(Order::Signal(signal as i32));
    }

    /// The command was stopped. If it wants the terminal, it gets it. If that is not ours to give, or if the user pressed
    /// Ctrl-Z, the runner stops too, as the shell expects; nobody renews the lease meanwhile.
    fn on_pause(&mut self, signal: i32) {
        self.say.detail("the command was stopped");
        let is_for_terminal = [Signal::SIGTTIN as i32, Signal::SIGTTOU as i32].contains(&signal);
        if self.is_stop_asked {
            // The rest of the job was asked too, if a terminal asked.
            self.terminal.take_back();
            let _ = raise(Signal::SIGSTOP);
        } else if let (true, Some(group)) = (is_for_terminal, self.group)
            && self.terminal.hand_over(group)
        {
            self.command.order(Order::Signal(Signal::SIGCONT as i32));
        } else if self.terminal.is_handed_over() || (is_for_terminal && self.terminal.is_there()) {
            self.terminal.take_back();
            // Zero is the whole job: the group of the runner, in which the guard and the command are not.
            let _ = kill(Pid::from_raw(0), Signal::SIGSTOP);
        }
        self.is_stop_asked = false;
    }
}
