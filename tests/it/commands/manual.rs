//! Completions, manual pages, and flags before the command.

use std::process::Command;

use super::printed;
use crate::process::{Serving, leasehold, output};
use crate::run::assert_code;

fn script(shell: &str) -> String {
    let printed = output(&["completions", shell]);
    assert_code(&printed, 0);
    String::from_utf8(printed.stdout).unwrap()
}

#[test]
fn bash_completes_commands_and_flags() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leasehold");
    std::fs::write(&file, script("bash")).unwrap();
    let completed = |words: &str| {
        let script = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            _leasehold leasehold \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; echo \"${{COMPREPLY[@]}}\"",
            file.display()
        );
        let ran = Command::new("bash")
            .args(["--norc", "-c", &script])
            .output()
            .unwrap();
        String::from_utf8(ran.stdout).unwrap().trim_end().to_owned()
    };
    assert_eq!(completed("leasehold acq"), "acquire");
    assert_eq!(completed("leasehold run --skip"), "--skip-ok");
    assert_eq!(completed("leasehold guard"), "");
}

#[test]
fn every_shell_gets_a_script_without_the_guard() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = script(shell);
        assert!(script.contains("acquire"), "{shell}");
        assert!(!script.contains("guard-command"), "{shell}");
    }
}

#[test]
fn every_command_has_a_manual_page_that_can_be_shown() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("man1");
    assert_code(&output(&["man", pages.to_str().unwrap()]), 0);
    for page in [
        "leasehold",
        "leasehold-run",
        "leasehold-config-check",
        "leasehold-acquire",
    ] {
        let file = pages.join(format!("{page}.1"));
        let shown = Command::new("man")
            .arg("-l")
            .arg(&file)
            .env("MANWIDTH", "80")
            .output()
            .unwrap();
        let text = String::from_utf8(shown.stdout).unwrap();
        for section in ["SYNOPSIS", "EXIT STATUS", "ENVIRONMENT", "SEE ALSO"] {
            assert!(text.contains(section), "{page} {section}: {text}");
        }
    }
    let run = std::fs::read_to_string(pages.join("leasehold-run.1")).unwrap();
    let examples = run.split_once(".SH EXAMPLES\n.EX\n").unwrap().1;
    assert!(
        examples.contains("\n    leasehold run backup \\-\\- ./backup.sh\n"),
        "{examples}"
    );
    assert!(!pages.join("leasehold-guard-command.1").exists());
    assert_code(&output(&["man", "/proc/none"]), 70);
}

#[test]
fn the_help_has_its_examples_as_they_are_typed() {
    for command in [
        &["--help"][..],
        &["run", "--help"],
        &["acquire", "--help"],
        &["watch", "--help"],
        &["completions", "--help"],
    ] {
        let printed = String::from_utf8(output(command).stdout).unwrap();
        let examples = printed.split_once("\nExamples:\n").unwrap().1;
        let examples = examples.split("\n\n").next().unwrap();
        for line in examples.lines() {
            let is_whole = line.starts_with("  ") && line.len() <= 80;
            assert!(is_whole, "{command:?} {line:?}: {examples}");
        }
    }
    let codes = String::from_utf8(output(&["run", "--help"]).stdout).unwrap();
    for code in ["64", "69", "70", "75", "76", "78", "126", "127"] {
        assert!(codes.contains(&format!("{code}  ")), "{code}: {codes}");
    }
}

#[test]
fn flags_work_before_and_after_the_command() {
    let serving = Serving::start(&[]);
    printed(&serving, &["--url", &serving.url, "--json", "get", "a"]);
    let mut before = leasehold(&["--url", &serving.url, "get", "a", "-q"]);
    assert_eq!(before.output().unwrap().stdout, b"free\n");
    let mut short = leasehold(&["-q", "get", "--url", &serving.url, "a"]);
    assert_eq!(short.output().unwrap().stdout, b"free\n");
    assert_code(&output(&["-V", "get", "a"]), 0);
    let checked = output(&["--store", "memory:", "config", "check", "--auth", "none"]);
    assert_code(&checked, 0);
    // A flag that the command does not have is refused wherever it stands.
    assert_code(&output(&["--store", "memory:", "get", "a"]), 64);
}
