//! `leasehold watch`: the events of locks, as they happen. One lock on a terminal is a table whose TTL counts down;
//! everything else is a line for each event.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};
use hyper::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::notices::{Notices, Verbosity};
use super::output;
use super::service::{self, ClientError};
use super::{Environment, Exit, arguments, flags, views};
use crate::client::{
    Call, Client, EventStream, RetryPauses, RetryPolicy, ServiceAnswer, StreamAnswer, StreamedEvent,
};
use crate::domain::{LockName, text};

/// How long to try a service that is away.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// A stream that was open for this long was a success: the pauses between attempts begin again with the shortest.
const STEADY_AFTER: Duration = Duration::from_secs(5);
/// How often the TTL is shown anew.
const REDRAW: Duration = Duration::from_secs(1);
/// The most holders that are shown, so that the table fits on a screen.
const HOLDERS_MAX: usize = 10;

const EXAMPLES: &str = "\
Examples:
  On a terminal, the state, the holders and the time they have left:
    leasehold watch backup
  A line for whatever happens to these locks, for people or for programs:
    leasehold watch --prefix jobs/
    leasehold watch --prefix jobs/ --json";

pub(super) fn command() -> Command {
    let name = Arg::new("name")
        .value_name("NAME")
        .value_parser(arguments::lock_name())
        .help("The lock; all locks without it");
    let prefix = Arg::new("prefix")
        .long("prefix")
        .value_name("PREFIX")
        .conflicts_with("name")
        .help("All locks whose names begin with this");
    let json = Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print each event as a line of JSON, with its data as the service wrote them");
    Command::new("watch")
        .about("Show what happens to a lock or to many, until it is stopped")
        .after_help(EXAMPLES)
        .args([name, prefix, json])
        .args(service::arguments())
}

/// # Errors
/// The key does not allow it, or the service is away for a minute.
pub(super) fn run(matches: &ArgMatches, environment: &Environment) -> Result<Exit, ClientError> {
    let watcher = LockWatch {
        client: service::client(matches, environment)?,
        path: path(matches),
        after: None,
        seen_at: Instant::now(),
        opened_at: Instant::now(),
        is_away: false,
        was_reset: false,
        pauses: RetryPauses::default(),
        notices: Notices::new(Verbosity::Normal),
    };
    let name = matches.get_one::<LockName>("name");
    let is_json = matches.get_flag("json");
    let is_dumb = flags::variable(environment, "TERM").is_some_and(|term| term == "dumb");
    let can_redraw = io::stdout().is_terminal() && !is_dumb;
    service::block_on(async {
        match name {
            Some(name) if !is_json && can_redraw => watcher.show_table(name).await,
            _ => watcher.write_lines(is_json).await,
        }
    })
}

fn path(matches: &ArgMatches) -> String {
    if let Some(name) = matches.get_one::<LockName>("name") {
        return Call::of_lock(Method::GET, name).path;
    }
    let prefix = matches.get_one::<String>("prefix");
    let prefix = prefix.map_or("", String::as_str);
    format!(
        "/events?prefix={}",
        utf8_percent_encode(prefix, NON_ALPHANUMERIC)
    )
}

/// A stream that is opened again when it ends.
struct LockWatch {
    client: Client,
    path: String,
    /// The id of the last event.
    after: Option<String>,
    /// When the service last answered.
    seen_at: Instant,
    /// When the last stream was opened.
    opened_at: Instant,
    /// Whether it has been said that no events come.
    is_away: bool,
    /// Whether the last event was a reset.
    was_reset: bool,
    pauses: RetryPauses,
    notices: Notices,
}

impl LockWatch {
    /// Writes a line for each event until standard output is closed.
    async fn write_lines(mut self, is_json: bool) -> Result<Exit, ClientError> {
        loop {
            let mut stream = self.open().await?;
            while let Some(event) = self.next_of(&mut stream).await {
                let text = match is_json {
                    true => json_line(&event),
                    false => line(&event),
                };
                if let Err(error) = output::write(&text) {
                    return Ok(output::after_failure(&error));
                }
            }
            self.pause().await;
        }
    }

    /// Shows the lock, and the time that its holders have left.
    async fn show_table(mut self, name: &LockName) -> Result<Exit, ClientError> {
        let mut screen = LockScreen::new();
        loop {
            let mut stream = self.open().await?;
            loop {
                tokio::select! {
                    event = self.next_of(&mut stream) => match event {
                        Some(_) => match self.lock(name).await {
                            // The stream ends with the service, and is opened again when that is back.
                            Err(ClientError::Unreachable(_) | ClientError::OverQuota(_)) => break,
                            lock => screen.lock = Some(lock?),
                        },
                        None => break,
                    },
                    _ = screen.redraws.tick() => {}
                }
                if let Err(error) = screen.draw() {
                    return Ok(output::after_failure(&error));
                }
            }
            screen.leave();
            self.pause().await;
        }
    }

    /// The lock as it is now, and when it was asked for.
    async fn lock(&mut self, name: &LockName) -> Result<(Value, Instant), ClientError> {
        let asked_at = Instant::now();
        let call = Call::of_lock(Method::GET, name);
        let answer = self
            .client
            .send_repeatedly(&call, RetryPolicy::Always)
            .await;
        let answer = service::expect(|answer| answer.is_lock(name), answer, &self.client)?;
        Ok((answer.body, asked_at))
    }

    /// Opens the stream, and keeps trying while the service may be restarting.
    async fn open(&mut self) -> Result<EventStream, ClientError> {
        loop {
            let opened = self
                .client
                .open_stream(&self.path, self.after.as_deref())
                .await;
            let (error, answer) = match opened {
                Ok(StreamAnswer::Open(stream)) => {
                    self.seen_at = Instant::now();
                    self.opened_at = self.seen_at;
                    return Ok(stream);
                }
                Ok(StreamAnswer::Refused(answer)) => {
                    let error = ClientError::refused(&answer, self.client.url());
                    (error, Some(answer))
                }
                Err(error) if error.is_final() => {
                    return Err(ClientError::no_answer(&error));
                }
                Err(error) => (ClientError::no_answer(&error), None),
            };
            let may_pass = answer.as_ref().is_none_or(ServiceAnswer::is_temporary);
            let pause = self.pauses.next(answer.as_ref());
            if !may_pass || self.seen_at.elapsed() + pause > AWAY_MAX {
                return Err(error);
            }
            if !self.is_away {
                self.notices.note(&format!("{error}; trying again"));
                self.is_away = true;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Between two streams.
    async fn pause(&mut self) {
        if self.opened_at.elapsed() > STEADY_AFTER {
            self.pauses.reset();
            self.is_away = false;
        }
        if !self.is_away {
            let url = self.client.url();
            self.notices
                .note(&format!("lost the events of {url}; trying again"));
            self.is_away = true;
        }
        let pause = self.pauses.next(None);
        tokio::time::sleep(pause).await;
    }

    /// The next event; none if the stream has to be opened again. Of several resets without another event between them,
    /// only the first is one.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    async fn next_of(&mut self, stream: &mut EventStream) -> Option<StreamedEvent> {
        let event = loop {
            let event = stream.next().await.ok().flatten()?;
            let is_reset = event.kind == "reset";
            if !is_reset || !self.was_reset {
                self.was_reset = is_reset;
                break event;
            }
        };
        // A service whose store is away begins each stream with a reset, and ends it.
        if !self.was_reset {
            self.pauses.reset();
            self.is_away = false;
        }
        self.seen_at = Instant::now();
        if event.id.is_some() {
            self.after.clone_from(&event.id);
        }
        Some(event)
    }
}

/// The event as JSON; its data stay as they are.
fn json_line(event: &StreamedEvent) -> String {
    let line = EventLine {
        event: &event.kind,
        id: event.id.as_deref(),
        // A stream breaks lines only where JSON allows a space.
        data: RawValue::from_string(output::json(&event.data).into_owned()).unwrap_or_default(),
    };
    let line = serde_json::to_string(&line).unwrap_or_default();
    format!("{}\n", output::json(&line))
}

/// The event for people: the time, the event, the lock, the owner, and the fencing token.
fn line(event: &StreamedEvent) -> String {
    let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
    let text = |value: &Value| text::printable(value.as_str().unwrap_or_default()).into_owned();
    let (at, kind, about) = match event.kind.as_str() {
        // The lock as it is when the stream begins.
        "state" => ("now".to_owned(), text(&data["state"]), &data["holders"][0]),
        "reset" => {
            let missing = "reset: events may be missing here";
            return format!("{:24}  {missing}\n", "now");
        }
        kind => (text(&data["at"]), text::printable(kind).into_owned(), &data),
    };
    let fence = about["fencing_token"]
        .as_u64()
        .map(|fence| fence.to_string());
    let parts = [
        text(&data["name"]),
        text(&about["owner"]),
        fence.unwrap_or_default(),
    ];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    format!("{at:24}  {kind:8}  {}\n", parts.join("  "))
}

/// A line for programs.
#[derive(Serialize)]
struct EventLine<'a> {
    event: &'a str,
    id: Option<&'a str>,
    data: Box<RawValue>,
}

/// The table of one lock, drawn over itself again and again.
struct LockScreen {
    /// The lock, and when it was asked for.
    lock: Option<(Value, Instant)>,
    redraws: Interval,
    lines_drawn: usize,
}

impl LockScreen {
    fn new() -> Self {
        let mut redraws = tokio::time::interval(REDRAW);
        redraws.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            lock: None,
            redraws,
            lines_drawn: 0,
        }
    }

    fn draw(&mut self) -> io::Result<()> {
        let Some((lock, asked_at)) = &self.lock else {
            return Ok(());
        };
        let rows = views::lock_rows(lock, asked_at.elapsed(), HOLDERS_MAX);
        let text = views::lock_table().text_of(rows);
        let mut control = String::new();
        if self.lines_drawn > 0 {
            // To the first line of the table, in its first column.
            control = format!("\x1b[{}F", self.lines_drawn);
        }
        // Clears what is below. A line that is too long is cut off, because a line that is broken would be two.
        control.push_str("\x1b[J\x1b[?7l");
        io::stdout().write_all(control.as_bytes())?;
        output::write(&text)?;
        io::stdout().write_all(b"\x1b[?7h")?;
        self.lines_drawn = text.lines().count();
        io::stdout().flush()
    }

    /// Leaves the table where it is. The next one is drawn below.
    fn leave(&mut self) {
        self.lines_drawn = 0;
    }
}
