//! `leasehold config`: checks the configuration, or prints each setting with its origin.

use clap::{ArgMatches, Command};

use super::{CliError, Environment, Exit, flags, output};
use crate::config::Config;

pub(super) fn command() -> Command {
    let check =
        Command::new("check").about("Check the configuration: exit 0, or 78 with the reason");
    let print = Command::new("print").about("Print every setting and its origin, without secrets");
    Command::new("config")
        .about("Check or print the configuration")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(check.defer(|check| check.args(flags::all())))
        .subcommand(print.defer(|print| print.args(flags::all())))
}

pub(super) fn run(matches: &ArgMatches, environment: Environment) -> Result<Exit, CliError> {
    let (name, matches) = matches.subcommand().expect("clap requires a subcommand");
    let (config, settings) = Config::load(&flags::sources(matches, environment))?;
    if name == "print" {
        return Ok(output::show(&settings.to_string()));
    }
    let warnings: String = config
        .warnings()
        .iter()
        .map(|warning| format!("warning: {warning}\n"))
        .collect();
    Ok(output::show(&format!(
        "{warnings}the configuration is valid\n"
    )))
}
