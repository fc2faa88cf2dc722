//! The command line: commands, their help and their exit codes. Each command has its own file; the configuration flags
//! are generated from the configuration keys.

mod acquisition;
mod announcement;
mod arguments;
mod boottime;
mod certificate_files;
mod claims;
mod config;
mod doctor;
mod exit;
mod flags;
mod healthcheck;
mod issuer_keys;
mod key_files;
mod keys;
mod leading_flags;
mod locks;
mod manual;
mod notices;
mod output;
mod outputs;
mod refusals;
mod rereads;
mod run;
mod serve;
mod service;
mod signals;
mod views;
mod watch;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{ArgMatches, Command};

use crate::config::ConfigError;
use crate::http;
pub use exit::Exit;
use notices::{Notices, Verbosity};
use serve::ServeError;
use service::ClientError;

const EXAMPLES: &str = "\
Examples:
  Serve on 127.0.0.1:7625, locks in memory, in Redis or in a directory:
    leasehold
    leasehold --store redis://127.0.0.1
    leasehold --store file:/var/lib/leasehold
  Serve to other machines, with a key:
    leasehold --listen 0.0.0.0:7625 --api-key-file key
  Show every setting and where it came from:
    leasehold config print
  Run a command under a lock of a server:
    leasehold run backup -- ./backup.sh
  Take a lock with any HTTP client; 201, or 423 when it is held:
    curl -X POST localhost:7625/locks/backup";

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
    #[error(transparent)]
    Manual(#[from] manual::ManualError),
    #[error(transparent)]
    Keys(#[from] keys::KeysError),
}

impl CliError {
    fn exit(&self) -> Exit {
        match self {
            Self::Config(_)
            | Self::Serve(ServeError::Refused(_) | ServeError::Tls(_) | ServeError::Traces(_)) => {
                Exit::Misconfigured
            }
            Self::Serve(_) | Self::Unhealthy(_) => Exit::Failed,
            Self::Client(error) => error.exit(),
            Self::Manual(_) => Exit::Internal,
            Self::Keys(error) => error.exit(),
        }
    }
}

/// Runs the command given by the arguments; the first argument is the program itself. The exit code is one of [`Exit`].
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> ExitCode {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let program = match arguments.get(1) {
        // Every run starts both, which need none of the other commands.
        Some(first) if first == run::guard::COMMAND => {
            Command::new("leasehold").subcommand(run::guard::command())
        }
        Some(first) if first == run::launch::COMMAND => {
            Command::new("leasehold").subcommand(run::launch::command())
        }
        _ => command(),
    };
    let arguments = leading_flags::moved(arguments, &program);
    let matches = match program.try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(mut stop) => {
            flags::add_tips(&mut stop);
            let printed = stop.print();
            if stop.use_stderr() {
                return Exit::Misused.into();
            }
            // Help and version end up here too, and go to stdout.
            let printed = printed.and_then(|()| io::stdout().flush());
            return match printed {
                Ok(()) => Exit::Done.into(),
                Err(error) => output::after_failure(&error).into(),
            };
        }
    };
    match dispatch(&matches, environment.into_iter().collect()) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            // Not logged: the log may be off or not initialised yet, and this line is the command's only output.
            Notices::new(Verbosity::Quiet).problem(&failure.to_string());
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
        Some(("acquire", matches)) => Ok(claims::acquire(matches, &environment)?),
        Some(("renew", matches)) => Ok(claims::renew(matches, &environment)?),
        Some(("release", matches)) => Ok(claims::release(matches, &environment)?),
        Some(("get", matches)) => Ok(locks::get(matches, &environment)?),
        Some(("ls", matches)) => Ok(locks::ls(matches, &environment)?),
        Some(("watch", matches)) => Ok(watch::run(matches, &environment)?),
        Some(("evict", matches)) => Ok(locks::evict(matches, &environment)?),
        Some((run::guard::COMMAND, matches)) => Ok(run::guard::run(matches, &environment)),
        Some((run::launch::COMMAND, matches)) => Ok(run::launch::run(matches)),
        Some(("completions", matches)) => Ok(manual::completions(matches)),
        Some(("man", matches)) => Ok(manual::man(matches)?),
        Some(("openapi", _)) => Ok(output::show(&http::openapi::json())),
        Some(("doctor", matches)) => Ok(doctor::run(matches, &environment)?),
        Some(("keys", matches)) => Ok(keys::run(matches, environment)?),
        Some(("config", matches)) => config::run(matches, environment),
        Some((name, _)) => unreachable!("clap knows no command {name}"),
    }
}

/// The definition of all commands and flags for people, from which help, reference and manual pages are generated.
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
                .defer(|serve| serve.args(flags::all())),
        )
        .subcommand(run::options::command())
        .subcommands(claims::commands())
        .subcommands(locks::commands())
        .subcommand(watch::command())
        .subcommand(healthcheck::command())
        .subcommand(config::command())
        .subcommand(keys::command())
        .subcommand(doctor::command())
        .subcommand(Command::new("openapi").about("Print the OpenAPI document"))
        .subcommands(manual::commands())
}
