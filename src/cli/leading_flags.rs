//! Flags before the command: `leasehold --url URL get NAME` means `leasehold get --url URL NAME`.
//!
//! Which flags a command takes is decided where it is defined, so the flags are moved there before anything is parsed.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};

/// The arguments of the program with all flags behind the words of the command. Arguments that name no command, or begin
/// with a flag that no command has, stay as they are.
pub(super) fn moved(arguments: Vec<OsString>, program: &Command) -> Vec<OsString> {
    let begins_with_flag = |argument: &OsString| argument.as_encoded_bytes().starts_with(b"-");
    if !arguments.get(1).is_some_and(begins_with_flag) {
        return arguments;
    }
    // The commands define their flags when they are built.
    let mut program = program.clone();
    program.build();
    let program = &program;
    let mut words = 1;
    while let Some(width) = arguments
        .get(words)
        .and_then(|flag| width_of(flag, program))
    {
        words += width;
    }
    let mut end = words;
    let mut command = program;
    while let Some(within) = arguments
        .get(end)
        .and_then(|word| command.find_subcommand(word))
    {
        command = within;
        end += 1;
    }
    if end == words {
        return arguments;
    }
    let (name, flags) = (&arguments[..1], &arguments[1..words]);
    [name, &arguments[words..end], flags, &arguments[end..]].concat()
}

/// How many arguments a flag and its value are; none if no command has it.
fn width_of(flag: &OsString, program: &Command) -> Option<usize> {
    let flag = flag.to_str()?;
    let (arg, is_joined) = match flag.strip_prefix("--") {
        Some(long) => {
            let (name, is_joined) = match long.split_once('=') {
                Some((name, _)) => (name, true),
                None => (long, false),
            };
            (
                find(&|arg| arg.get_long() == Some(name), program)?,
                is_joined,
            )
        }
        None => {
            let mut letters = flag.strip_prefix('-')?.chars();
            let letter = letters.next()?;
            let is_joined = letters.next().is_some();
            let arg = find(&|arg| arg.get_short() == Some(letter), program)?;
            // Several letters are a flag with its value, or several flags that have none.
            (arg, is_joined || !arg.get_action().takes_values())
        }
    };
    // No command has this one, and it answers for all of them.
    if matches!(arg.get_action(), ArgAction::Version) {
        return None;
    }
    let takes_next = arg.get_action().takes_values() && !arg.is_require_equals_set();
    Some(if takes_next && !is_joined { 2 } else { 1 })
}

fn find<'a>(is_meant: &impl Fn(&Arg) -> bool, command: &'a Command) -> Option<&'a Arg> {
    let own = command.get_arguments().find(|arg| is_meant(arg));
    own.or_else(|| {
        let mut within = command.get_subcommands();
        within.find_map(|within| find(is_meant, within))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arranged(line: &str) -> String {
        let arguments = line.split(' ').map(OsString::from).collect();
        let arranged = moved(arguments, &super::super::command());
        let words = arranged.iter().map(|word| word.to_str().expect("ASCII"));
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn flags_before_the_command_are_moved_behind_it() {
        for (before, after) in [
            ("l --url u get a", "l get --url u a"),
            ("l --url=u --json get a", "l get --url=u --json a"),
            (
                "l --store memory: config check --auth none",
                "l config check --store memory: --auth none",
            ),
            (
                "l --redis-grace-on-empty-start serve",
                "l serve --redis-grace-on-empty-start",
            ),
            ("l --url u run a -- get", "l run --url u a -- get"),
            ("l -q get a", "l get -q a"),
            ("l -v -t 5s run a -- ls", "l run -v -t 5s a -- ls"),
            (
                "l -nt5s --shared run a -- ls",
                "l run -nt5s --shared a -- ls",
            ),
        ] {
            assert_eq!(arranged(before), after);
        }
    }

    #[test]
    fn arguments_without_a_command_stay_as_they_are() {
        for line in [
            "l",
            "l --listen serve",
            "l --listen serve --auth none",
            "l --nonsense get a",
            "l nonsense",
            "l --url",
            "l -x get a",
            "l -h",
            "l -",
            "l -- get",
            "l --version get a",
            "l -V get a",
        ] {
            assert_eq!(arranged(line), line);
        }
    }
}
