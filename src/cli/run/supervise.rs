//! The runner while its command runs: it passes signals on, follows the lease and the guard, and gives the terminal to
//! the command and takes it back.

use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::Pid;
use tokio::sync::mpsc;

use super::super::boottime::{AsyncAlarm, BootTime};
use super::super::notices::Notices;
use super::super::signals::{ClientSignals, is_stop};
use super::guarded::GuardedCommand;
use super::keeper::LeaseNews;
use super::messages::{CommandDeadline, Order, Report};
use super::nested::NestedRuns;
use super::terminal::Terminal;

/// How much longer the runner waits for a confirmation: if the runner itself was stopped, the guard may have confirmed
/// the order, and the runner has not read that yet.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_millis(100);

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

/// The end of a command, and what has become of the lease.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SupervisedEnd {
    pub(super) end: CommandEnd,
    pub(super) is_lost: bool,
    /// The signal that ended the wait for the nested runs, which go on with the lease.
    pub(super) stopped_by: Option<Signal>,
}

/// A running command with all that concerns it.
pub(super) struct Supervision<'a> {
    command: GuardedCommand,
    signals: &'a mut ClientSignals,
    news: mpsc::Receiver<LeaseNews>,
    terminal: Terminal,
    notices: Notices,
    /// The process group of the command, from when it runs.
    group: Option<Pid>,
    deadline: CommandDeadline,
    /// Whether the command may go on without its lease.
    ignores_loss: bool,
    /// How many orders the guard has not confirmed. It has until the last deadline that it has confirmed.
    unconfirmed: u32,
    alarm: AsyncAlarm,
    /// Whether the runner was asked to stop and has passed that on.
    is_stop_asked: bool,
    is_lost: bool,
}

impl<'a> Supervision<'a> {
    pub(super) fn new(
        command: GuardedCommand,
        (deadline, ignores_loss): (CommandDeadline, bool),
        news: mpsc::Receiver<LeaseNews>,
        signals: &'a mut ClientSignals,
        notices: Notices,
    ) -> io::Result<Self> {
        let alarm = AsyncAlarm::new()?;
        alarm.set(deadline.kill_at)?;
        Ok(Self {
            command,
            signals,
            news,
            terminal: Terminal::new(),
            notices,
            group: None,
            deadline,
            ignores_loss,
            unconfirmed: 1,
            alarm,
            is_stop_asked: false,
            is_lost: false,
        })
    }

    /// The order that gives the guard this deadline.
    pub(super) fn order(deadline: CommandDeadline, ignores_loss: bool) -> Order {
        match ignores_loss {
            true => Order::Confirm,
            false => Order::Until(deadline),
        }
    }

    /// Waits until the command and its processes are gone, and the nested runs have ended.
    pub(super) async fn until_end(mut self, nested: NestedRuns) -> io::Result<SupervisedEnd> {
        let end = loop {
            // The alarm first: a runner that was stopped past the deadline kills before it does anything else.
            let end = tokio::select! {
                biased;
                gone_off = self.alarm.goes_off() => {
                    gone_off?;
                    self.on_alarm().await?
                }
                report = self.command.report() => match report {
                    Some(report) => self.on_report(report)?,
                    None => {
                        self.notices.problem("the guard of the command was killed; killing the command");
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
        let stopped_by = self.until_nested_end(nested).await?;
        let is_lost = self.is_lost;
        Ok(SupervisedEnd {
            end,
            is_lost,
            stopped_by,
        })
    }

    /// Waits until the remaining nested runs have ended, such as one in a session of its own; or until the lease is lost,
    /// which they notice themselves; or until a signal asks to stop.
    async fn until_nested_end(&mut self, nested: NestedRuns) -> io::Result<Option<Signal>> {
        let mut joined = nested.close();
        if self.is_lost || joined.have_ended() {
            return Ok(None);
        }
        self.notices.note(
            "the command has ended; holding the lock until the runs within it have ended too",
        );
        self.alarm.set(self.deadline.kill_at)?;
        while !self.is_lost {
            tokio::select! {
                biased;
                gone_off = self.alarm.goes_off() => {
                    gone_off?;
                    self.on_loss_without_command("it could not be renewed in time");
                }
                () = joined.ended() => break,
                Some(news) = self.news.recv() => match news {
                    LeaseNews::Renewed(deadline) => {
                        self.deadline = deadline;
                        self.alarm.set(deadline.kill_at)?;
                    }
                    LeaseNews::Trouble(text) => self.on_trouble(&text),
                    LeaseNews::Lost(reason) => self.on_loss_without_command(&reason),
                },
                signal = self.signals.next() => {
                    if is_stop(signal) {
                        return Ok(Some(signal));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The lease may be over, or the guard does not confirm an order.
    async fn on_alarm(&mut self) -> io::Result<Option<CommandEnd>> {
        let left = self.deadline.kill_at.remaining();
        if !self.is_lost && !left.is_zero() {
            let report = self.command.report();
            let timeout = CONFIRMATION_TIMEOUT.min(left);
            if let Ok(Some(report)) = tokio::time::timeout(timeout, report).await {
                // Once more, unless this was what the guard had to confirm.
                self.alarm.set(BootTime::now())?;
                return self.on_report(report);
            }
            self.notices
                .problem("the guard of the command does not answer; killing the command");
        } else if !self.is_lost {
            self.is_lost = true;
            self.notices
                .problem("the lock is lost: it could not be renewed in time; killing the command");
        }
        Ok(self.kill().await)
    }

    /// Kills the command and its processes in place of the guard.
    async fn kill(&mut self) -> Option<CommandEnd> {
        let left = self.command.kill().await;
        if !left.is_empty() {
            let pids: Vec<_> = left.iter().map(Pid::to_string).collect();
            let pids = pids.join(" ");
            self.notices.problem(&format!(
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
                self.notices.detail(&format!("the command runs as process {command}"));
            }
            Report::Confirmed => self.on_confirmation()?,
            Report::NotStarted { errno } => {
                if errno == Errno::ECANCELED as i32 && !self.is_lost {
                    self.is_lost = true;
                    self.notices.problem("the lock was lost before the command could be started");
                }
                return Ok(Some(CommandEnd::NotStarted { errno }));
            }
            Report::Paused { signal } => self.on_pause(signal),
            Report::Ending => self.on_loss("it could not be renewed in time")?,
            Report::Remaining { processes } => self.notices.note(&format!(
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
            LeaseNews::Renewed(_) if self.is_lost => Ok(()),
            LeaseNews::Renewed(deadline) => {
                self.deadline = deadline;
                self.command.order(Self::order(deadline, self.ignores_loss));
                self.unconfirmed += 1;
                match self.ignores_loss && self.unconfirmed == 1 {
                    true => self.alarm.set(deadline.kill_at),
                    // Until the guard confirms, it may kill at the earlier deadline only.
                    false => Ok(()),
                }
            }
            LeaseNews::Trouble(text) => {
                self.on_trouble(&text);
                Ok(())
            }
            LeaseNews::Lost(reason) => self.on_loss(&reason),
        }
    }

    fn on_trouble(&self, text: &str) {
        self.notices
            .note(&format!("cannot renew the lock, trying again: {text}"));
    }

    /// The guard has confirmed its oldest order. If that was the last, it knows the deadline that counts.
    fn on_confirmation(&mut self) -> io::Result<()> {
        self.unconfirmed = self.unconfirmed.saturating_sub(1);
        match (self.unconfirmed, self.ignores_loss) {
            (0, true) => self.alarm.clear(),
            (0, false) if !self.is_lost => self.alarm.set(self.deadline.kill_at),
            _ => Ok(()),
        }
    }

    fn on_loss(&mut self, reason: &str) -> io::Result<()> {
        if self.is_lost {
            return Ok(());
        }
        self.is_lost = true;
        if self.ignores_loss {
            self.notices.problem(&format!(
                "the lock is lost: {reason}; the command goes on without it"
            ));
            return Ok(());
        }
        self.notices
            .problem(&format!("the lock is lost: {reason}; ending the command"));
        let deadline = self.deadline;
        let kill_after = deadline.terminate_at.until(deadline.kill_at);
        let kill_at = deadline.kill_at.min(BootTime::now().after(kill_after));
        self.command.order(Order::End { kill_at });
        self.alarm.set(kill_at)
    }

    /// The command has ended, and the nested runs end by themselves.
    fn on_loss_without_command(&mut self, reason: &str) {
        self.is_lost = true;
        self.notices.problem(&format!(
            "the lock was lost while runs within the command went on: {reason}"
        ));
    }

    fn on_signal(&mut self, signal: Signal) {
        if let (Signal::SIGCONT, Some(group)) = (signal, self.group) {
            self.terminal.hand_over_at_start(group);
        }
        self.notices
            .detail(&format!("passing {signal} on to the command"));
        self.is_stop_asked |= signal == Signal::SIGTSTP;
        self.command.order(Order::Signal(signal as i32));
    }

    /// The command was stopped. If it wants the terminal, it gets it. If the runner does not have the terminal, or if the
    /// user pressed Ctrl-Z, the runner stops too, as the shell expects; the lease is not renewed meanwhile.
    fn on_pause(&mut self, signal: i32) {
        self.notices.detail("the command was stopped");
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
