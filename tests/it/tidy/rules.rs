//! Rules for single lines, lengths and dependencies.

use std::collections::BTreeMap;

use super::File;

/// The most lines that a file may have, unit tests not counted.
const FILE_LINES_MAX: usize = 400;

/// A Rust file begins with `//!`.
pub(super) fn first_line(file: &File) -> Vec<String> {
    if !file.has_extension("rs") || file.text.starts_with("//! ") {
        return Vec::new();
    }
    vec!["the first line is not `//! …`: say what lives here".to_owned()]
}

/// The text without the unit tests at its end.
pub(super) fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or(text)
}

/// No file is too long. Clippy counts the lines of functions.
pub(super) fn too_long(file: &File) -> Vec<String> {
    let lines = without_tests(&file.text).lines().count();
    if !file.has_extension("rs") || lines <= FILE_LINES_MAX {
        return Vec::new();
    }
    vec![format!("{lines} lines, at most {FILE_LINES_MAX}")]
}

/// No two types of the service have the same name: a reader who searches for it finds one. Types within functions and
/// within tests are not counted.
pub(super) fn types_of_one_name(files: &[File]) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in files {
        if file.is_under("src/") && file.has_extension("rs") {
            for line in without_tests(&file.text).lines() {
                if let Some(name) = defined_type(line) {
                    places.entry(name).or_default().push(&file.path);
                }
            }
        }
    }
    let repeated = places.iter().filter(|(_, places)| places.len() > 1);
    repeated
        .map(|(name, places)| format!("{name}: {}", places.join(", ")))
        .collect()
}

/// The name of the type that a line at the left margin defines.
fn defined_type(line: &str) -> Option<&str> {
    let line = match line.strip_prefix("pub") {
        Some(line) if line.starts_with('(') => line.split_once(") ")?.1,
        Some(line) => line.strip_prefix(' ')?,
        None => line,
    };
    let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
    let rest = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
    rest.split(|letter: char| !letter.is_alphanumeric()).next()
}

/// No ignored tests and no to-do markers. Clippy refuses the macros for unfinished code.
pub(super) fn unfinished(file: &File) -> Vec<String> {
    if !file.has_extension("rs") {
        return Vec::new();
    }
    // Written so that this file does not contain them.
    let refused = [
        concat!("#[", "ignore"),
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
    ];
    let found = refused.iter().filter(|what| file.text.contains(**what));
    found.map(|what| format!("{what} is left in it")).collect()
}

/// No paths of a developer's machine.
pub(super) fn machine_paths(file: &File) -> Vec<String> {
    let directories = ["work", "root", "farm"].map(|directory| format!("/{directory}/"));
    let lines = file.text.lines().enumerate();
    lines
        .filter(|(_, line)| directories.iter().any(|path| names_path(line, path)))
        .map(|(number, line)| format!("line {}: {}", number + 1, line.trim()))
        .collect()
}

/// Whether the line has an absolute path that begins with this; within a longer path or a URL it does not count.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|letter| letter.is_alphanumeric() || "._-~}/".contains(letter))
    })
}

/// Every dependency, or its group, has a comment above it.
pub(super) fn dependencies(file: &File) -> Vec<String> {
    if file.path != "Cargo.toml" {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    let (mut lists_dependencies, mut is_explained) = (false, false);
    for line in file.text.lines() {
        if line.starts_with('[') {
            lists_dependencies = line.ends_with("dependencies]");
            is_explained = false;
        } else if line.is_empty() {
            is_explained = false;
        } else if line.starts_with('#') {
            is_explained = true;
        } else if lists_dependencies && !is_explained {
            let name = line.split_whitespace().next().unwrap_or(line);
            wrong.push(format!("{name} does not say what it is for"));
        }
    }
    wrong
}

mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        let (path, text) = (path.to_owned(), text.to_owned());
        File { path, text }
    }

    #[test]
    fn a_rust_file_without_a_first_sentence_is_refused() {
        assert_eq!(first_line(&file("src/a.rs", "use b;\n")).len(), 1);
        assert_eq!(first_line(&file("src/a.rs", "//! What it is.\n")).len(), 0);
        assert_eq!(first_line(&file("a.md", "# A\n")).len(), 0);
    }

    #[test]
    fn a_long_file_is_refused() {
        let wrong = |text: &str| too_long(&file("src/a.rs", text));
        assert_eq!(wrong(&"// x\n".repeat(400)).len(), 0);
        assert!(wrong(&"// x\n".repeat(401))[0].starts_with("401 lines"));
        let tests = "        g();\n".repeat(500);
        let tested = format!("// x\n#[cfg(test)]\nmod tests {{\n{tests}}}\n");
        assert_eq!(wrong(&tested).len(), 0, "unit tests do not count");
    }

    #[test]
    fn what_is_unfinished_is_refused() {
        for what in [
            concat!("#[", "ignore]"),
            concat!("// TO", "DO: x"),
            concat!("// FIX", "ME"),
        ] {
            assert_eq!(unfinished(&file("src/a.rs", what)).len(), 1, "{what}");
        }
        assert_eq!(unfinished(&file("src/a.rs", "ignore_todo(x)")).len(), 0);
    }

    #[test]
    fn a_path_of_a_machine_is_refused_and_a_part_of_another_path_is_not() {
        let path = concat!("/wo", "rk/a");
        for line in [path.to_owned(), format!("cd {path}"), format!("\"{path}\"")] {
            assert_eq!(machine_paths(&file("a.md", &line)).len(), 1, "{line}");
        }
        for line in [format!("src{path}"), format!("example.com{path}")] {
            assert_eq!(machine_paths(&file("a.md", &line)).len(), 0, "{line}");
        }
    }

    #[test]
    fn a_dependency_without_a_reason_is_refused() {
        let wrong = |text: &str| dependencies(&file("Cargo.toml", text));
        let explained = "[dependencies]\n# For x.\na = \"1\"\nb = \"1\"\n[lints]\nc = 1\n";
        assert_eq!(wrong(explained).len(), 0);
        assert_eq!(wrong("[dependencies]\na = \"1\"\n").len(), 1);
        let apart = "[dev-dependencies]\n# For x.\na = \"1\"\n\nb = \"1\"\n";
        assert!(wrong(apart)[0].starts_with("b "));
    }

    #[test]
    fn two_types_of_one_name_are_refused() {
        let files = [
            ("src/a.rs", "pub(super) struct Place<'a> {\n"),
            ("src/b.rs", "enum Place {\n"),
            ("src/c.rs", "pub type Other = u8;\n"),
            ("tests/it/d.rs", "pub struct Other;\n"),
            ("src/e.rs", "#[cfg(test)]\nmod tests {\nstruct Other;\n}\n"),
        ];
        let files = files.map(|(path, text)| file(path, text));
        assert_eq!(types_of_one_name(&files), ["Place: src/a.rs, src/b.rs"]);
    }
}
