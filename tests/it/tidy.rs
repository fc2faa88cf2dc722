//! The house rules that a machine can check: dependencies between layers, lengths, the beginning of every file.
//!
//! Each rule is a function from a file to its violations; `tidy::rules` has them, with an example of what each refuses.
//! This file only applies them to the repository.

mod chunks;
mod lua;
mod paths;
mod rules;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

/// A text file of the repository.
struct File {
    /// Relative to the root of the repository, with `/`.
    path: String,
    text: String,
}

impl File {
    fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension() == Some(extension.as_ref())
    }

    fn is_under(&self, directory: &str) -> bool {
        self.path.starts_with(directory)
    }
}

/// Every text file of the repository, including untracked ones that are not ignored.
fn files() -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let listed = Command::new("git")
        .args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "-z",
        ])
        .current_dir(root)
        .output()
        .expect("git lists the files");
    assert!(listed.status.success(), "git lists the files");
    String::from_utf8(listed.stdout)
        .expect("paths are in UTF-8")
        .split_terminator('\0')
        // A file that cannot be read is not text, or is deleted but not yet committed.
        .filter_map(|path| {
            let text = std::fs::read_to_string(root.join(path)).ok()?;
            let path = path.to_owned();
            Some(File { path, text })
        })
        .collect()
}

/// Applies a rule to every file and fails with all violations.
#[track_caller]
fn assert_none(rule: impl Fn(&File) -> Vec<String>) {
    let files = files();
    assert!(files.len() > 30, "only {} files were found", files.len());
    let wrong: Vec<_> = files
        .iter()
        .flat_map(|file| {
            let path = &file.path;
            rule(file)
                .into_iter()
                .map(move |what| format!("{path}: {what}"))
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn no_layer_uses_a_forbidden_path() {
    assert_none(paths::forbidden);
}

#[test]
fn every_rust_file_begins_with_its_purpose() {
    assert_none(rules::first_line);
}

#[test]
fn no_file_is_too_long() {
    assert_none(rules::too_long);
}

#[test]
fn no_name_is_that_of_two_types() {
    assert_eq!(rules::types_of_one_name(&files()), Vec::<String>::new());
}

#[test]
fn every_script_keeps_to_its_header() {
    assert_none(lua::header);
}

#[test]
fn no_script_turns_a_fence_into_text_and_loses_digits() {
    assert_none(chunks::fence_as_text);
}

#[test]
fn no_chunk_of_a_script_is_too_long() {
    assert_none(chunks::chunk_too_long);
}

#[test]
fn one_script_computes_fences() {
    assert_none(chunks::fence_computed_elsewhere);
}

#[test]
fn no_script_types_a_constant_again() {
    assert_none(chunks::constant_typed_again);
}

#[test]
fn no_script_fails_because_it_may_not_publish() {
    assert_none(chunks::publish_that_fails);
}

#[test]
fn nothing_unfinished_is_left_behind() {
    assert_none(rules::unfinished);
}

#[test]
fn no_file_names_a_path_of_a_developers_machine() {
    assert_none(rules::machine_paths);
}

#[test]
fn every_dependency_says_what_it_is_for() {
    assert_none(rules::dependencies);
}

/// A deliberate mistake.
#[derive(serde::Deserialize)]
struct Mistake {
    what: String,
    bug: Option<String>,
    file: String,
    text: String,
}

fn text_of<'a>(files: &'a [File], path: &str) -> Option<&'a String> {
    let file = files.iter().find(|file| file.path == path);
    file.map(|it| &it.text)
}

fn mistakes(files: &[File]) -> Vec<Mistake> {
    let list = text_of(files, "tests/mistakes.toml").expect("it is there");
    let mut list: HashMap<String, Vec<Mistake>> = toml::from_str(list).expect("it is a list");
    list.remove("mistake").expect("it has some")
}

/// `scripts/mistakes --known-bugs` makes each of them.
#[test]
fn the_bugs_that_lock_services_are_known_for_are_among_the_deliberate_mistakes() {
    let known = [
        "WAIT on another connection",
        "a dropped request that leaves its answer on the connection",
        "a fencing counter with a TTL",
        "a fencing token that becomes text in Lua",
        "a hand-over of the whole lease instead of a short reservation",
        "a newcomer that overtakes the queue",
        "a release without a check of the token",
        "a renewal of an expired lease",
        "a retry without an id of the request",
        "a second phase that does not need the lease of the first",
        "a wake-up by messages alone",
        "no check after a wake-up",
        "no check of the time after the second phase",
        "no pause of a node that came back empty",
        "the clock of a client as the time",
    ];
    let mut made: Vec<_> = mistakes(&files())
        .into_iter()
        .filter_map(|it| it.bug)
        .collect();
    made.sort_unstable();
    assert_eq!(made, known);
}

/// Else `scripts/mistakes` ends at that mistake, and nobody sees it until then.
#[test]
fn every_deliberate_mistake_can_be_made() {
    let files = files();
    let text_of = |path: &str| text_of(&files, path);
    let mistakes = mistakes(&files);
    let wrong = mistakes.iter().filter(|mistake| {
        let text = text_of(&mistake.file);
        text.is_none_or(|text| text.matches(&mistake.text).count() != 1)
    });
    let wrong: Vec<_> = wrong.map(|mistake| &mistake.what).collect();
    assert!(
        wrong.is_empty(),
        "their text does not occur once: {wrong:?}"
    );
}
