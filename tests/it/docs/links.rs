//! Every link between documentation pages leads to an existing file and heading.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// The pages and their texts, by path from the root.
fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .args(["--", "*.md"])
        .current_dir(root)
        .output()
        .unwrap();
    let paths = String::from_utf8(listed.stdout).unwrap();
    let read = paths.lines().filter_map(|path| {
        let text = std::fs::read_to_string(root.join(path)).ok()?;
        Some((PathBuf::from(path), text))
    });
    read.collect()
}

/// The text without code blocks.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_fence && !is_code
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The targets of all links and images.
fn targets(text: &str) -> Vec<String> {
    let text = prose(text);
    let after = text.split("](").skip(1);
    after
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.to_owned())
        .collect()
}

/// The anchors of a page, as GitHub generates them from its headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let text = prose(text);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| line.trim_start_matches('#').trim().to_lowercase())
        .map(|heading| {
            let letters = heading.chars().filter_map(|letter| match letter {
                ' ' => Some('-'),
                '-' | '_' => Some(letter),
                letter => letter.is_alphanumeric().then_some(letter),
            });
            letters.collect()
        })
        .collect()
}

/// The path with `.` and `..` resolved.
fn normal(path: &Path) -> PathBuf {
    path.components()
        .fold(PathBuf::new(), |mut so_far, part| match part {
            Component::ParentDir => {
                so_far.pop();
                so_far
            }
            Component::CurDir => so_far,
            part => so_far.join(part),
        })
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    assert!(pages.len() > 10, "only {} pages were found", pages.len());
    let mut broken = Vec::new();
    for (path, text) in &pages {
        for target in targets(text) {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let directory = path.parent().unwrap();
            let linked = match file {
                "" => path.clone(),
                file => normal(&directory.join(file)),
            };
            let is_there = Path::new(env!("CARGO_MANIFEST_DIR")).join(&linked).exists();
            let page = pages.iter().find(|(page, _)| *page == linked);
            let has_anchor =
                anchor.is_empty() || page.is_some_and(|(_, text)| anchors(text).contains(anchor));
            if !is_there || !has_anchor {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

#[test]
fn the_index_names_every_page() {
    let index = pages()
        .into_iter()
        .find(|(path, _)| path == Path::new("docs/README.md"));
    let (index_path, text) = index.expect("docs/README.md is the index");
    let linked: BTreeSet<_> = targets(&text)
        .iter()
        .map(|target| target.split('#').next().unwrap_or(target))
        .map(|file| normal(&index_path.parent().unwrap().join(file)))
        .collect();
    for (path, _) in pages() {
        assert!(
            path == index_path || linked.contains(&path),
            "docs/README.md does not name {}",
            path.display()
        );
    }
}

#[test]
fn anchors_are_those_of_github() {
    let made = anchors("# `lease.ttl_max`\n```sh\n# no heading\n```\n## What, and why\n");
    let expected = ["leasettl_max", "what-and-why"].map(str::to_owned);
    assert_eq!(made, BTreeSet::from(expected));
}
