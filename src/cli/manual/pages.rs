//! The manual pages: what the definition of a command says, and the sections that readers of manuals look for.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use clap_mangen::Man;

use super::super::Exit;
use crate::server::shutdown::Stop;

const OF_SERVICE: [(&str, &str); 6] = [
    (
        "LEASEHOLD_URL",
        "The URL of the service; http://127.0.0.1:7625 without it.",
    ),
    (
        "LEASEHOLD_CA_FILE",
        "For https: the certificates of the only authorities to trust.",
    ),
    (
        "LEASEHOLD_CLIENT_CERT_FILE",
        "For https: the certificate to show to a service that asks for one.",
    ),
    (
        "LEASEHOLD_CLIENT_KEY_FILE",
        "The private key of that certificate.",
    ),
    ("LEASEHOLD_API_KEY", "The key of the service."),
    ("LEASEHOLD_API_KEY_FILE", "The file with the key."),
];
const OF_COMMAND: [(&str, &str); 5] = [
    (
        "LEASEHOLD_LOCK_NAME",
        "Set for the command: the locks, separated by a space.",
    ),
    (
        "LEASEHOLD_LOCK_TOKEN",
        "Set for the command: the token of the claim.",
    ),
    (
        "LEASEHOLD_FENCING_TOKEN",
        "Set for the command: the fencing tokens, in the order of the locks.",
    ),
    (
        "LEASEHOLD_EXPIRES_AT",
        "Set for the command: when the lease ends if it is never renewed.",
    ),
    (
        "LEASEHOLD_HOLD_COUNT",
        "Set for the command: the depth of re-entry.",
    ),
];
const OF_SERVER: [(&str, &str); 2] = [
    (
        "LEASEHOLD_CONFIG",
        "The file of settings, unless --config names one.",
    ),
    (
        "LEASEHOLD_*",
        "Every setting has a variable, which is named with its flag.",
    ),
];

/// Writes the page of a command, and those of its commands.
pub(super) fn write(command: &Command, directory: &Path) -> io::Result<()> {
    let within = || {
        command
            .get_subcommands()
            .filter(|within| !within.is_hide_set())
    };
    for within in within() {
        write(within, directory)?;
    }
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if within().next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    let help = command
        .get_before_help()
        .into_iter()
        .chain(command.get_after_help());
    let help: Vec<_> = help.map(ToString::to_string).collect();
    texts(&help.join("\n\n"), &mut page)?;
    entries("EXIT STATUS", exit_codes(command), &mut page)?;
    entries("ENVIRONMENT", variables(command), &mut page)?;
    see_also(command, &mut page)?;
    File::create(directory.join(man.get_filename()))?.write_all(&page)
}

/// The paragraphs around the help: examples line by line, everything else as running text. Exit codes have a section of
/// their own.
fn texts(help: &str, page: &mut Vec<u8>) -> io::Result<()> {
    let is_about_codes = |text: &&str| {
        ["The exit code", "Exit codes"]
            .iter()
            .any(|begin| text.starts_with(begin))
    };
    let paragraphs = help
        .split("\n\n")
        .filter(|text| !text.is_empty() && !is_about_codes(text));
    let (examples, notes): (Vec<_>, Vec<_>) =
        paragraphs.partition(|text| text.starts_with("Example"));
    if !notes.is_empty() {
        writeln!(page, ".SH NOTES")?;
    }
    for note in notes {
        writeln!(page, ".PP")?;
        lines(note.lines(), page)?;
    }
    for example in examples {
        writeln!(page, ".SH EXAMPLES\n.EX")?;
        lines(example.lines().skip(1), page)?;
        writeln!(page, ".EE")?;
    }
    Ok(())
}

fn lines<'a>(mut lines: impl Iterator<Item = &'a str>, page: &mut Vec<u8>) -> io::Result<()> {
    lines.try_for_each(|line| writeln!(page, "{}", escaped(line)))
}

fn entries<'a>(
    heading: &str,
    entries: impl IntoIterator<Item = (String, &'a str)>,
    page: &mut Vec<u8>,
) -> io::Result<()> {
    let mut entries = entries.into_iter().peekable();
    if entries.peek().is_some() {
        writeln!(page, ".SH \"{heading}\"")?;
    }
    for (name, meaning) in entries {
        writeln!(
            page,
            ".TP\n\\fB{}\\fR\n{}",
            escaped(&name),
            escaped(meaning)
        )?;
    }
    Ok(())
}

/// The exit codes that the command can have.
fn exit_codes(command: &Command) -> impl Iterator<Item = (String, &'static str)> {
    let is_client = has(command, "url") && has(command, "ca_file");
    let name = command.get_name().to_owned();
    let can_have = move |exit: &Exit| match exit {
        Exit::Done | Exit::Misused => true,
        Exit::Failed => ["leasehold", "serve", "doctor", "healthcheck"].contains(&name.as_str()),
        Exit::Internal => !["leasehold", "serve", "healthcheck"].contains(&name.as_str()),
        Exit::Unreachable => is_client || name == "doctor",
        Exit::Busy => ["run", "acquire"].contains(&name.as_str()),
        Exit::Lost => ["run", "renew", "release"].contains(&name.as_str()),
        Exit::Misconfigured => !["openapi", "completions", "man"].contains(&name.as_str()),
        Exit::NotExecutable | Exit::NotFound | Exit::Command(_) => name == "run",
        Exit::Stopped(Stop::HangUp | Stop::Interrupt | Stop::Terminate) => {
            ["leasehold", "serve"].contains(&name.as_str())
        }
    };
    let exits = Exit::ALL.into_iter().filter(can_have);
    exits.map(|exit| (exit.code().to_string(), exit.meaning()))
}

fn variables(command: &Command) -> impl Iterator<Item = (String, &'static str)> {
    let of_service: &[_] = match has(command, "url") && has(command, "ca_file") {
        true => &OF_SERVICE,
        false => &[],
    };
    let own: &[_] = match command.get_name() {
        "run" => &OF_COMMAND,
        "renew" | "release" => &[(
            "LEASEHOLD_LOCK_TOKEN",
            "The token, unless --token gives it.",
        )],
        _ if has(command, "config") => &OF_SERVER,
        _ => &[],
    };
    let all = of_service.iter().chain(own);
    all.map(|(name, meaning)| ((*name).to_owned(), *meaning))
}

fn see_also(command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    let page_of = |command: &Command| {
        let name = command.get_display_name().unwrap_or(command.get_name());
        format!("\\fB{}\\fR(1)", escaped(name))
    };
    let within = command
        .get_subcommands()
        .filter(|within| !within.is_hide_set());
    let mut pages: Vec<_> = within.map(page_of).collect();
    if command.get_name() != "leasehold" {
        pages.insert(0, "\\fBleasehold\\fR(1)".to_owned());
    }
    writeln!(page, ".SH \"SEE ALSO\"\n{}", pages.join(", "))
}

fn has(command: &Command, argument: &str) -> bool {
    command
        .get_arguments()
        .any(|known| known.get_id() == argument)
}

/// A line that the formatter takes for text, with hyphens that can be copied.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line,
    }
}
