//! `leasehold completions` and `leasehold man`: both are made from the definition of the commands.

mod pages;

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;

use super::{Exit, command, output};

const EXAMPLES: &str = "\
Examples:
  leasehold completions bash > /etc/bash_completion.d/leasehold
  leasehold completions fish > ~/.config/fish/completions/leasehold.fish
  With ~/.zfunc in fpath, before compinit:
    leasehold completions zsh > ~/.zfunc/_leasehold";

/// The manual pages cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write manual pages to {}: {error}", directory.display())]
pub(super) struct ManualError {
    directory: PathBuf,
    error: std::io::Error,
}

pub(super) fn commands() -> [Command; 2] {
    let shell = Arg::new("shell")
        .value_name("SHELL")
        .required(true)
        .value_parser(value_parser!(Shell))
        .help("The shell to write the script for");
    let directory = Arg::new("directory")
        .value_name("DIR")
        .required(true)
        .value_parser(value_parser!(PathBuf))
        .help("The directory to write them to; it is made if it is not there");
    [
        Command::new("completions")
            .about("Print a script by which a shell completes commands and flags")
            .after_help(EXAMPLES)
            .arg(shell),
        Command::new("man")
            .about("Write a manual page for each command")
            .after_help("Example:\n  leasehold man /usr/local/share/man/man1")
            .arg(directory),
    ]
}

pub(super) fn completions(matches: &ArgMatches) -> Exit {
    let shell = *matches.get_one::<Shell>("shell").expect("it is required");
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "leasehold", &mut script);
    output::show(&String::from_utf8_lossy(&script))
}

/// # Errors
/// The directory or a file cannot be written.
pub(super) fn man(matches: &ArgMatches) -> Result<Exit, ManualError> {
    let directory: &PathBuf = matches.get_one("directory").expect("it is required");
    let mut program = command().disable_help_subcommand(true);
    program.build();
    let written =
        std::fs::create_dir_all(directory).and_then(|()| pages::write(&program, directory));
    written.map_err(|error| ManualError {
        directory: directory.clone(),
        error,
    })?;
    Ok(Exit::Done)
}
