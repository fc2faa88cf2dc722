//! The reference pages with lists generated from the code: configuration, command line and problems. The tests compare
//! the text between a page's marks with the generated one; `UPDATE=1` writes it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, Command};
use leasehold::cli::{self, Exit};
use leasehold::config::keys::{self, Kind, SettingKey};
use serde_json::Value;

use super::checked;
use crate::api::support::{Api, get};

/// Compares the text between `<!-- NAME: begin -->` and `<!-- NAME: end -->` with the generated block.
#[track_caller]
fn assert_blocks(page: &str, blocks: &[(&str, String)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let committed = std::fs::read_to_string(&path).unwrap();
    let made = blocks
        .iter()
        .fold(committed.clone(), |text, (name, block)| {
            let marks = [
                format!("<!-- {name}: begin -->"),
                format!("<!-- {name}: end -->"),
            ];
            let (before, rest) = text.split_once(&marks[0]).expect("the page has the mark");
            let (_, after) = rest.split_once(&marks[1]).expect("the page has the mark");
            format!("{before}{}\n\n{block}\n{}{after}", marks[0], marks[1])
        });
    #[expect(
        clippy::disallowed_methods,
        reason = "a switch for people, not configuration"
    )]
    let is_update = std::env::var_os("UPDATE").is_some();
    if is_update {
        std::fs::write(&path, made).unwrap();
        return;
    }
    assert!(
        committed == made,
        "{page} is stale; run `UPDATE=1 cargo test --locked --test it -- docs::reference` and commit it"
    );
}

#[test]
fn the_page_of_the_configuration_has_every_key() {
    assert_blocks("docs/reference/configuration.md", &[("keys", key_list())]);
}

#[test]
fn the_page_of_the_command_line_has_every_command_and_exit_code() {
    let blocks = [("commands", command_list()), ("exit codes", exit_codes())];
    assert_blocks("docs/reference/command-line.md", &blocks);
}

#[tokio::test]
async fn the_page_of_the_problems_has_every_code() {
    let answer = Api::new().await.send(get("/problems")).await;
    assert_blocks(
        "docs/reference/problems.md",
        &[("problems", problem_list(&answer.json()))],
    );
}

fn problem_list(answer: &Value) -> String {
    let (mut text, mut last) = (String::new(), None);
    for problem in answer["problems"].as_array().unwrap() {
        let word = |field: &str| problem[field].as_str().unwrap();
        let status = problem["status"].as_u64().unwrap();
        if last.replace(status) != Some(status) {
            writeln!(text, "## {status}\n").unwrap();
        }
        writeln!(text, "### `{}`\n\n{}.\n", word("code"), word("title")).unwrap();
        let sentences = [word("meaning"), word("what_to_do")].join(" ");
        writeln!(text, "{sentences}\n").unwrap();
    }
    text.trim_end().to_owned() + "\n"
}

fn key_list() -> String {
    let (mut text, mut section) = (String::new(), None);
    for key in keys::all() {
        if section != Some(key.section()) {
            section = Some(key.section());
            let heading = match key.section() {
                "" => "Without a section".to_owned(),
                section => format!("`[{section}]`"),
            };
            writeln!(text, "## {heading}\n").unwrap();
        }
        writeln!(text, "### `{}`\n", key.name).unwrap();
        writeln!(text, "{}\n", key.documentation).unwrap();
        writeln!(text, "{}. {}\n", kind_and_default(key), ways_to_give(key)).unwrap();
    }
    text.trim_end().to_owned() + "\n"
}

fn kind_and_default(key: &SettingKey) -> String {
    let kind = match key.kind {
        Kind::Text => "Text",
        Kind::Duration => "Duration",
        Kind::Integer => "Whole number",
        Kind::Boolean => "`true` or `false`",
    };
    match key.default.as_str() {
        "" => format!("{kind}, empty by default"),
        default => format!("{kind}, default `{default}`"),
    }
}

fn ways_to_give(key: &SettingKey) -> String {
    let command = cli::command();
    let flag = command
        .get_arguments()
        .find(|arg| arg.get_id() == key.name.as_str());
    let flag = match flag.and_then(Arg::get_long) {
        Some(flag) => format!("Flag `--{flag}`"),
        None => "No flag".to_owned(),
    };
    format!("{flag}, variable `{}`.", key.variable())
}

fn command_list() -> String {
    let mut command = cli::command();
    command.build();
    let mut text = String::new();
    describe("leasehold", &command, &mut text);
    text.trim_end().to_owned() + "\n"
}

/// A command, followed by its subcommands.
fn describe(name: &str, command: &Command, text: &mut String) {
    let about = command
        .get_about()
        .expect("every command is explained")
        .to_string();
    let about = about.trim_end_matches('.');
    let usage = command.clone().render_usage().to_string();
    let usage: Vec<_> = usage
        .trim_start_matches("Usage:")
        .lines()
        .map(str::trim)
        .collect();
    writeln!(
        text,
        "### `{name}`\n\n{about}.\n\n```text\n{}\n```\n",
        usage.join("\n")
    )
    .unwrap();
    // Client commands have a flag of the same name as a setting.
    let takes_settings = command.get_arguments().any(|arg| arg.get_id() == "config");
    let (settings, own): (Vec<_>, Vec<_>) = command
        .get_arguments()
        .partition(|arg| takes_settings && keys::find(arg.get_id().as_str()).is_some());
    // Flags that every command has are listed only for the first.
    let is_shown =
        |arg: &&Arg| name == "leasehold" || !["config", "help"].contains(&arg.get_id().as_str());
    let own: Vec<_> = own.into_iter().filter(is_shown).map(row).collect();
    if !own.is_empty() {
        writeln!(
            text,
            "| flag | default | meaning |\n|---|---|---|\n{}",
            own.concat()
        )
        .unwrap();
    }
    if !settings.is_empty() {
        let page = "[configuration](configuration.md)";
        writeln!(text, "It takes `--config` and the flags of the {page}.\n").unwrap();
    }
    // Every command has `help`, so it is not listed.
    let within = command
        .get_subcommands()
        .filter(|command| command.get_name() != "help" && !command.is_hide_set());
    within.for_each(|within| describe(&format!("{name} {}", within.get_name()), within, text));
}

fn row(arg: &Arg) -> String {
    let short = arg
        .get_short()
        .map(|short| format!("`-{short}`, "))
        .unwrap_or_default();
    let value = match arg.get_action().takes_values() {
        true => arg
            .get_value_names()
            .unwrap_or_default()
            .iter()
            .map(|name| format!(" {name}"))
            .collect(),
        false => String::new(),
    };
    let name = match arg.get_long() {
        Some(long) => format!("`--{long}{value}`"),
        None => format!("`{}`", value.trim_start()),
    };
    let default: Vec<_> = arg
        .get_default_values()
        .iter()
        .filter(|value| !value.is_empty())
        .map(|value| format!("`{}`", value.display()))
        .collect();
    let help = arg.get_help().expect("every flag is explained");
    format!(
        "| {short}{name} | {} | {help}{} |\n",
        default.join(" "),
        values(arg)
    )
}

/// The values of a flag that takes only some.
fn values(arg: &Arg) -> String {
    let values = match arg.get_action().takes_values() {
        true => arg.get_possible_values(),
        false => Vec::new(),
    };
    let values: Vec<_> = values
        .iter()
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    match values.is_empty() {
        true => String::new(),
        false => format!(": {}", values.join(", ")),
    }
}

fn exit_codes() -> String {
    let rows = Exit::ALL.map(|exit| format!("| {} | {} |\n", exit.code(), exit.meaning()));
    format!("| code | meaning |\n|---|---|\n{}", rows.concat())
}

#[test]
fn every_exit_code_means_one_thing() {
    let codes: BTreeSet<_> = Exit::ALL.into_iter().map(Exit::code).collect();
    assert_eq!(codes.len(), Exit::ALL.len());
}

/// The variables that the page lists besides those of the keys must not prevent a server from starting.
#[test]
fn the_variables_on_the_page_are_known() {
    let page = include_str!("../../../docs/reference/command-line.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `LEASEHOLD_"));
    let names = rows.filter_map(|row| Some(format!("LEASEHOLD_{}", row.split_once('`')?.0)));
    let names: Vec<_> = names.collect();
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        // An empty file, which is a valid configuration where a file is expected.
        let file = tempfile::NamedTempFile::new().unwrap();
        let value = file.path().to_str().unwrap().to_owned();
        let output = checked(&[(&name, value)]);
        assert_eq!(output.status.code(), Some(0), "{name}: {output:?}");
    }
}
