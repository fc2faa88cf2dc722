//! The processes of the machine, from `/proc`: which of them belong to a command.
//!
//! Runner and guard adopt the orphans among their descendants (`PR_SET_CHILD_SUBREAPER`), so every process that the
//! command has started stays a descendant of the guard, whatever group or session it makes for itself.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read as _;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A snapshot of all processes.
pub(super) struct ProcessTable(HashMap<i32, ProcessFacts>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessFacts {
    parent: i32,
    group: i32,
    session: i32,
    /// Not a zombie.
    is_alive: bool,
}

impl ProcessTable {
    /// Reads the table. It is empty where there is no `/proc`.
    pub(super) fn read() -> Self {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        // More than the fields need that are parsed. One read for each process, because a machine may have thousands.
        let mut buffer = [0; 512];
        let processes = entries.filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            // A process that has ended meanwhile has no file.
            let length = File::open(entry.path().join("stat"))
                .ok()?
                .read(&mut buffer);
            // The name of a program need not be UTF-8.
            let facts = String::from_utf8_lossy(&buffer[..length.ok()?]);
            Some((pid, ProcessFacts::parse(&facts)?))
        });
        Self(processes.collect())
    }

    /// The living processes of this group, and those descendants of `ancestor` that are in its session. A process that
    /// made a session of its own has left: a daemon does that.
    pub(super) fn of_command(&self, group: Pid, ancestor: Pid) -> Vec<Pid> {
        let session = self.0.get(&ancestor.as_raw()).map(|facts| facts.session);
        self.living(|pid, facts| {
            facts.group == group.as_raw()
                || (Some(facts.session) == session && self.descends(pid, ancestor.as_raw()))
        })
    }

    /// The living processes of this group and all living descendants of `ancestor`.
    pub(super) fn of_group_or_under(&self, group: Pid, ancestor: Pid) -> Vec<Pid> {
        self.living(|pid, facts| {
            facts.group == group.as_raw() || self.descends(pid, ancestor.as_raw())
        })
    }

    /// The living descendants of `ancestor` that are not in this group.
    pub(super) fn under_outside(&self, ancestor: Pid, group: Pid) -> Vec<Pid> {
        self.living(|pid, facts| {
            facts.group != group.as_raw() && self.descends(pid, ancestor.as_raw())
        })
    }

    /// The children of `parent` that have ended and are not yet reaped.
    pub(super) fn zombies_of(&self, parent: Pid) -> Vec<Pid> {
        let zombies = self.0.iter();
        let zombies =
            zombies.filter(|(_, facts)| !facts.is_alive && facts.parent == parent.as_raw());
        zombies.map(|(pid, _)| Pid::from_raw(*pid)).collect()
    }

    fn living(&self, belongs: impl Fn(i32, &ProcessFacts) -> bool) -> Vec<Pid> {
        let all = self.0.iter();
        let found = all.filter(|(pid, facts)| facts.is_alive && belongs(**pid, facts));
        found.map(|(pid, _)| Pid::from_raw(*pid)).collect()
    }

    fn descends(&self, pid: i32, ancestor: i32) -> bool {
        let mut current = pid;
        // Bounded, because the snapshot is not of one moment and could have a circle.
        for _ in 0..self.0.len() {
            match self.0.get(&current) {
                Some(facts) if facts.parent == ancestor => return true,
                Some(facts) => current = facts.parent,
                None => return false,
            }
        }
        false
    }
}

impl ProcessFacts {
    /// Parses `/proc/PID/stat`. The name of the program is in parentheses and may have any character.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        let mut number = || fields.next()?.parse().ok();
        Some(Self {
            parent: number()?,
            group: number()?,
            session: number()?,
            is_alive: !matches!(state, "Z" | "X"),
        })
    }
}

/// Sends a signal to each process. One that is gone or belongs to another user is passed over.
pub(super) fn signal_all(processes: &[Pid], signal: Signal) {
    for process in processes {
        let _ = kill(*process, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_program_may_have_parentheses_and_spaces() {
        let facts = ProcessFacts::parse("42 (a) b (c) S 7 41 40 0 -1").expect("valid");
        let expected = ProcessFacts {
            parent: 7,
            group: 41,
            session: 40,
            is_alive: true,
        };
        assert_eq!(facts, expected);
        let zombie = ProcessFacts::parse("42 (a) Z 7 41 40").expect("valid");
        assert!(!zombie.is_alive);
    }

    #[test]
    fn a_program_whose_name_is_not_text_is_in_the_table() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt as _;
        use std::process::{Command, Stdio};

        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join(OsStr::from_bytes(b"\xff) R 1"));
        std::os::unix::fs::symlink("/bin/cat", &program).expect("a link");
        let mut command = Command::new(&program);
        let mut process = command.stdin(Stdio::piped()).spawn().expect("it starts");
        let pid = i32::try_from(process.id()).expect("a pid");
        let table = ProcessTable::read();
        // The end of its input ends it.
        drop(process.stdin.take());
        process.wait().expect("it ends");
        let parent = table.0.get(&pid).map(|facts| facts.parent);
        assert_eq!(parent, i32::try_from(std::process::id()).ok());
    }

    #[test]
    fn a_daemon_has_left_its_command_but_is_still_found_when_the_lease_is_lost() {
        let facts = |parent, group, session| ProcessFacts {
            parent,
            group,
            session,
            is_alive: true,
        };
        // The guard is 10, the command 20; 21 made a group of its own, 22 a session; 30 is not ours.
        let table = [
            (10, facts(1, 10, 5)),
            (20, facts(10, 20, 5)),
            (21, facts(20, 21, 5)),
            (22, facts(10, 22, 22)),
            (30, facts(1, 30, 5)),
        ];
        let table = ProcessTable(table.into());
        let sorted = |mut pids: Vec<Pid>| {
            pids.sort();
            pids.into_iter().map(Pid::as_raw).collect::<Vec<_>>()
        };
        let [guard, group] = [10, 20].map(Pid::from_raw);
        assert_eq!(sorted(table.of_command(group, guard)), [20, 21]);
        let all = table.of_group_or_under(group, guard);
        assert_eq!(sorted(all), [20, 21, 22]);
    }
}
