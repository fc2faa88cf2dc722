//! The shell blocks of a page, and interactive shells that run them as if somebody had pasted them.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The shells that people paste into. Unlike a script, an interactive zsh takes `#` for a command, and both shells read a
/// block line by line while its commands run.
pub(crate) const SHELLS: [Shell; 2] = [Shell::Bash, Shell::Zsh];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Shell {
    Bash,
    Zsh,
}

impl Shell {
    /// Pastes a text into the shell, which has no settings of its own and runs in this directory.
    pub(crate) fn paste(self, text: &str, directory: &Path, variables: &[(&str, &str)]) -> Output {
        let shell: &[&str] = match self {
            Self::Bash => &["bash", "--norc", "--noprofile", "-i"],
            Self::Zsh => &["zsh", "-f", "-i"],
        };
        // In a session of its own it cannot take the terminal from which somebody runs the tests.
        let mut child = Command::new("setsid")
            .args(["--wait", "timeout", "120"])
            .args(shell)
            .current_dir(directory)
            .envs(variables.iter().copied())
            .env("no_proxy", "*")
            .env("PS1", "")
            .env("PS2", "")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("scripts/setup-tests installs the shells");
        let mut stdin = child.stdin.take().unwrap();
        // Fails if the shell ends before it has read everything; its status tells why.
        let _ = stdin.write_all(text.as_bytes());
        drop(stdin);
        child.wait_with_output().unwrap()
    }
}

/// The blocks of a page that are marked as shell, without the indentation of a list.
pub(crate) fn blocks(page: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(indentation) = line.strip_suffix("```sh") else {
            continue;
        };
        let inside = lines.by_ref().take_while(|line| line.trim() != "```");
        let block = inside.map(|line| line.strip_prefix(indentation).unwrap_or(line));
        blocks.push(block.map(|line| format!("{line}\n")).collect());
    }
    blocks
}
