//! The command line: commands, their help and their exit codes. Each command has its own file; the configuration flags
//! are generated from the configuration keys.

mod config;
mod exit;
mod flags;
mod healthcheck;
mod key_files;
mod run;
mod serve;
mod service;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{ArgMatches, Command};

use crate::config::ConfigError;
use crate::http;
pub use exit::Exit;
use serve::ServeError;
use service::ClientError;

const EXAMPLES: &str = "\
Examples:
  leasehold                                           Serve on 127.0.0.1:7625, locks in memory
  leasehold --store redis://127.0.0.1                 Serve with locks in Redis
  leasehold --listen 0.0.0.0:7625 --api-key-file key  Serve to other machines, with a key
  leasehold config print                              Show every setting and where it came from

  curl -X POST localhost:7625/locks/backup            Take a lock: 201, or 423 when it is held";

/// `EXAMPLES` come first, because most readers of the help want to get started.
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
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl CliError {
    fn exit(&self) -> Exit {
        match self {
            Self::Config(_) | Self::Serve(ServeError::Refused(_)) => Exit::Misconfigured,
            Self::Serve(_) | Self::Unhealthy(_) => Exit::Failed,
            Self::Client(error) => error.exit(),
        }
    }
}

/// Runs the command given by the arguments; the first argument is the program itself. The exit code is one of [`Exit`].
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> ExitCode {
    let matches = match command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(mut stop) => {
            flags::add_tips(&mut stop);
            // Help and version end up here too, and go to stdout. A closed pipe is not an error worth reporting.
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
            // Not logged: the log may be off or not initialised yet, and this line is the command's only output.
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
        Some(("run", matches)) => run::run(matches, &environment),
        Some((run::guard::COMMAND, matches)) => Ok(run::guard::run(matches)),
        Some(("openapi", _)) => Ok(print(&http::openapi::json())),
        Some(("config", matches)) => config::run(matches, environment),
        Some((name, _)) => unreachable!("clap knows no command {name}"),
    }
}

/// Prints a command's output. A closed pipe (`leasehold … | head`) is not a failure.
fn print(text: &str) -> Exit {
    let _ = std::io::stdout().write_all(text.as_bytes());
    Exit::Done
}

/// The definition of all commands and flags, from which the help and the reference are generated.
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
                .about("Run the server (the default command)")
                .after_help(flags::secrets_help())
                .args(flags::all()),
        )
        .subcommand(run::options::command())
        .subcommand(run::guard::command())
        .subcommand(healthcheck::command())
        .subcommand(config::command())
        .subcommand(Command::new("openapi").about("Print the OpenAPI document"))
}
