//! The command line: what the commands are called, how they are explained, and what their exit codes mean. Each
//! command is a file of its own; the flags of the configuration are made from its keys.

mod config;
mod exit;
mod flags;
mod healthcheck;
mod key_files;
mod openapi;
mod serve;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{ArgMatches, Command};

use crate::config::ConfigError;
pub use exit::Exit;
use serve::ServeError;

const EXAMPLES: &str = "\
Examples:
  leasehold                                           Serve on 127.0.0.1:7625, locks in memory
  leasehold --store redis://127.0.0.1                 Serve with locks in Redis
  leasehold --listen 0.0.0.0:7625 --api-key-file key  Serve to other machines, with a key
  leasehold config print                              Show every setting and where it came from

  curl -X POST localhost:7625/locks/backup            Take a lock: 201, or 423 when it is held";

/// `EXAMPLES` come first: who asks for help wants to start, not to study.
const TEMPLATE: &str = "\
{name} {version}
{about}

{before-help}{usage-heading} {usage}

{all-args}{after-help}";

type Environment = Vec<(OsString, OsString)>;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("not healthy: {0}")]
    Unhealthy(#[from] healthcheck::Unhealthy),
}

impl CliError {
    fn exit(&self) -> Exit {
        match self {
            Self::Config(_) | Self::Serve(ServeError::Refused(_)) => Exit::Misconfigured,
            Self::Serve(_) | Self::Unhealthy(_) => Exit::Failed,
        }
    }
}

/// Runs the command that the arguments name; the first argument is the program itself. The exit code is one of [`Exit`].
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> ExitCode {
    let matches = match command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(stop) => {
            // Help and version arrive here too, for stdout. A closed pipe is no news to whoever closed it.
            let _ = stop.print();
            return match stop.use_stderr() {
                true => Exit::Misused.into(),
                false => Exit::Done.into(),
            };
        }
    };
    match dispatch(&matches, environment.into_iter().collect()) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            // The log may be off or not there yet, and this line is the whole answer of the command.
            let _ = writeln!(std::io::stderr(), "leasehold: {failure}");
            failure.exit().into()
        }
    }
}

fn dispatch(matches: &ArgMatches, environment: Environment) -> Result<Exit, CliError> {
    match matches.subcommand() {
        None => serve::run(&flags::sources(matches, environment)),
        Some(("serve", matches)) => serve::run(&flags::sources(matches, environment)),
        Some(("healthcheck", matches)) => healthcheck::run(matches, environment),
        Some(("openapi", _)) => Ok(openapi::run()),
        Some(("config", matches)) => config::run(matches, environment),
        Some((name, _)) => unreachable!("clap knows no command {name}"),
    }
}

/// Prints what a command was asked for. A reader that went away, such as `head`, is no failure.
fn print(text: &str) -> Exit {
    let _ = std::io::stdout().write_all(text.as_bytes());
    Exit::Done
}

/// The definition of all commands and flags, from which help and reference are made.
#[must_use]
pub fn command() -> Command {
    Command::new("leasehold")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Leases on named locks over plain HTTP, in front of the Redis you already run.")
        .before_help(EXAMPLES)
        .after_help(flags::secrets_help())
        .help_template(TEMPLATE)
        .max_term_width(100)
        .args(flags::all())
        .args_conflicts_with_subcommands(true)
        .subcommand(
            Command::new("serve")
                .about("Serve locks; what happens when no command is given")
                .after_help(flags::secrets_help())
                .args(flags::all()),
        )
        .subcommand(healthcheck::command())
        .subcommand(config::command())
        .subcommand(openapi::command())
}
