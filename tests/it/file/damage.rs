//! Directories that a process must not use.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Output, Stdio};

use leasehold::store::file::{Examination, examine};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::Value;
use tokio::time::Instant;

use super::{serve, url_of};
use crate::process::{Serving, leasehold};
use crate::support::{EFFECT_TIMEOUT, eventually, stores};

const FILE: &str = "leases.redb";

/// Starts a process that is expected to refuse, and returns what it says.
pub(super) fn refused(directory: &Path) -> String {
    refused_by(&["--listen", "127.0.0.1:0", "--store", &url_of(directory)])
}

fn refused_by(arguments: &[&str]) -> String {
    let mut process = leasehold(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let give_up = Instant::now() + EFFECT_TIMEOUT;
    while process.try_wait().unwrap().is_none() && Instant::now() < give_up {
        std::thread::yield_now();
    }
    // It would serve for ever if it were not refused.
    process.kill().unwrap();
    let Output {
        status,
        stdout,
        stderr,
    } = process.wait_with_output().unwrap();
    let said = String::from_utf8([stdout, stderr].concat()).unwrap();
    assert_eq!(status.code(), Some(78), "{said}");
    said
}

#[test]
fn a_second_process_is_refused_until_the_first_has_ended() {
    let directory = stores::directory();
    let first = serve(directory.path());
    let said = refused(directory.path());
    assert!(
        said.contains("another process uses the directory"),
        "{said}"
    );
    // Also if somebody has removed what says so.
    fs::remove_file(directory.path().join("lock")).unwrap();
    let said = refused(directory.path());
    assert!(said.contains("another process uses"), "{said}");
    drop(first);
    serve(directory.path());
}

/// Without it, an older copy or the database of another directory would be used.
#[test]
fn a_file_lock_that_is_damaged_is_refused() {
    let damages: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes[0] ^= 1,
        |bytes| bytes[20] ^= 1,
        |bytes| bytes[31] ^= 1,
        |bytes| bytes.truncate(20),
    ];
    let directory = stores::directory();
    let store = directory.path().join("store");
    drop(serve(&store));
    let lock = store.join("lock");
    let sound = fs::read(&lock).unwrap();
    for damage in damages {
        let mut bytes = sound.clone();
        damage(&mut bytes);
        fs::write(&lock, bytes).unwrap();
        let found = examine(&store, 1_000);
        assert!(matches!(found, Examination::Unusable(_)), "{found:?}");
        let said = refused(&store);
        assert!(said.contains("cannot be used"), "{said}");
    }
    fs::write(&lock, sound).unwrap();
    drop(serve(&store));
    // A loss of power may leave an empty one.
    fs::write(&lock, "").unwrap();
    serve(&store);
}

#[test]
fn a_file_of_another_program_is_refused_and_left_alone() {
    let directory = stores::directory();
    let file = directory.path().join(FILE);
    for content in [
        "not a database".repeat(10_000),
        "x".to_owned(),
        String::new(),
    ] {
        fs::write(&file, &content).unwrap();
        let said = refused(directory.path());
        assert!(said.contains(FILE) && said.contains("backup"), "{said}");
        assert_eq!(said.contains("it is empty"), content.is_empty(), "{said}");
        assert_eq!(fs::read_to_string(&file).unwrap(), content);
    }
}

#[tokio::test]
async fn a_file_that_is_cut_off_or_changed_is_refused() {
    let directory = stores::directory();
    let serving = serve(directory.path());
    for number in 0..500 {
        assert_eq!(post(&serving, &format!("/locks/a/{number}")).await.0, 201);
    }
    drop(serving);
    let file = directory.path().join(FILE);
    let whole = fs::read(&file).unwrap();
    for left in [whole.len() / 2, whole.len() / 4] {
        fs::write(&file, &whole[..left]).unwrap();
        assert!(refused(directory.path()).contains("backup"));
    }
    // In all pages, because some are not used any more.
    let mut changed = whole.clone();
    for at in 0..changed.len() - 4 {
        if &changed[at..at + 4] == b"la/1" {
            changed[at + 1] = b'b';
        }
    }
    assert_ne!(changed, whole);
    fs::write(&file, &changed).unwrap();
    assert!(refused(directory.path()).contains("backup"));
    fs::write(&file, &whole).unwrap();
    serve(directory.path());
}

/// redb takes a damaged last commit for one that was cut short, and would go on from the commit before it.
#[tokio::test]
async fn a_database_without_the_last_grant_is_refused_wherever_its_last_pages_are_damaged() {
    const PAGE: usize = 4096;
    let directory = stores::directory();
    let file = directory.path().join(FILE);
    let serving = serve(directory.path());
    assert_eq!(post(&serving, "/locks/first").await.0, 201);
    let older = fs::read(&file).unwrap();
    assert_eq!(post(&serving, "/locks/last").await.0, 201);
    drop(serving);
    let whole = fs::read(&file).unwrap();
    let pages: Vec<_> = (0..whole.len())
        .step_by(PAGE)
        .filter(|at| older.get(*at..*at + PAGE) != Some(&whole[*at..*at + PAGE]))
        .collect();
    let mut refusals = 0;
    for at in &pages {
        let differs = |at: &usize| older.get(*at) != Some(&whole[*at]);
        let at = (*at..*at + PAGE).find(differs).unwrap();
        let mut changed = whole.clone();
        changed[at] ^= 1;
        fs::write(&file, &changed).unwrap();
        let examined = examine(directory.path(), 1_000);
        if matches!(examined, Examination::Unusable(_)) {
            refusals += 1;
            assert!(refused(directory.path()).contains("backup"));
        } else {
            // What was changed is of no use to it, as in a page that the last commit has left.
            assert_eq!(post(&serve(directory.path()), "/locks/last").await.0, 423);
        }
    }
    assert!(refusals > 0, "nothing was damaged in {} pages", pages.len());
}

#[tokio::test]
async fn an_older_copy_is_refused_and_an_empty_directory_begins_anew() {
    let directory = stores::directory();
    let file = directory.path().join(FILE);
    drop(serve(directory.path()));
    let older = fs::read(&file).unwrap();
    let serving = serve(directory.path());
    assert_eq!(post(&serving, "/locks/last").await.0, 201);
    drop(serving);
    fs::write(&file, &older).unwrap();
    let said = refused(directory.path());
    assert!(said.contains("it is an older copy"), "{said}");
    fs::remove_file(&file).unwrap();
    let warns = |serving: &Serving| {
        let mut lines = serving.lines_so_far.iter();
        lines.any(|line| {
            line["message"]
                .as_str()
                .is_some_and(|it| it.contains("is gone"))
        })
    };
    assert!(warns(&serve(directory.path())));
    assert!(!warns(&serve(directory.path())));
}

#[test]
fn a_directory_that_cannot_be_made_is_refused() {
    let directory = stores::directory();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [&file, &file.join("store")] {
        let said = refused(path);
        assert!(said.contains("a file is in its place"), "{said}");
    }
}

/// A creation that was cut short leaves a file of another name.
#[test]
fn what_an_interrupted_creation_left_is_replaced() {
    let directory = stores::directory();
    fs::write(directory.path().join("leases.redb.new"), "half").unwrap();
    serve(directory.path());
    assert!(directory.path().join(FILE).exists());
}

/// It would take room that a full disk lacks.
#[test]
fn what_an_interrupted_copy_left_is_removed() {
    let directory = stores::directory();
    drop(serve(directory.path()));
    let left = directory.path().join("leases.redb.new");
    fs::write(&left, "half").unwrap();
    serve(directory.path());
    assert!(!left.exists());
}

/// Acquires a lock. Returns the status and the body.
pub(super) async fn post(serving: &Serving, path: &str) -> (u16, Value) {
    static CLIENT: std::sync::LazyLock<reqwest::Client> =
        std::sync::LazyLock::new(reqwest::Client::new);
    let request = CLIENT.post(format!("{}{path}?ttl=1h", serving.url));
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// What happens to the directory of a process.
type Happening = fn(&Path);

/// What is written to a file that has no name any more is gone with the process, and a second process would grant the
/// same locks.
#[tokio::test]
async fn a_process_whose_files_are_removed_or_replaced_grants_nothing_more() {
    let replace_directory = |directory: &Path| {
        let aside = directory.with_extension("aside");
        fs::rename(directory, &aside).unwrap();
        fs::create_dir(directory).unwrap();
        for name in [FILE, "lock"] {
            fs::copy(aside.join(name), directory.join(name)).unwrap();
        }
    };
    let cut_off = |directory: &Path| {
        let file = fs::OpenOptions::new()
            .write(true)
            .open(directory.join(FILE));
        let file = file.unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    };
    let ways: [(Happening, &str); 4] = [
        (
            |store| fs::remove_file(store.join(FILE)).unwrap(),
            "was removed or replaced",
        ),
        (
            |store| fs::remove_file(store.join("lock")).unwrap(),
            "was removed or replaced",
        ),
        (replace_directory, "was removed or replaced"),
        (cut_off, "was cut off"),
    ];
    for (happen, what) in ways {
        let directory = stores::directory();
        let store = directory.path().join("store");
        let mut serving = serve(&store);
        let client = reqwest::Client::new();
        let claim = async |name: &str| {
            let claimed = client.post(format!("{}/locks/{name}", serving.url)).send();
            claimed.await.unwrap().status()
        };
        assert_eq!(claim("before").await, 201);
        happen(&store);
        assert_eq!(claim("after").await, 503);
        assert_eq!(claim("later").await, 503);
        let ready = reqwest::get(format!("{}/readyz?verbose", serving.url)).await;
        let said = ready.unwrap().text().await.unwrap();
        assert!(
            said.contains(what) && said.contains("restart the process"),
            "{said}"
        );
        serving.wait_for_line("the store is closed; restart the process");
    }
}

/// A process that nobody asks for anything finds it out, too.
#[tokio::test]
async fn a_process_without_requests_notices_that_its_file_is_removed_or_cut_off() {
    let ways: [fn(&Path); 2] = [
        |file| fs::remove_file(file).unwrap(),
        |file| drop(fs::File::create(file).unwrap()),
    ];
    for happen in ways {
        let directory = stores::directory();
        let serving = serve(directory.path());
        happen(&directory.path().join(FILE));
        eventually("it is not ready", async || {
            let ready = reqwest::get(format!("{}/readyz", serving.url)).await;
            (ready.unwrap().status() == 503).then_some(())
        })
        .await;
    }
}

/// Otherwise the process would serve, and grant nothing for lack of a reserve.
#[test]
fn a_directory_in_the_place_of_the_reserve_is_refused() {
    for name in ["reserve", "reserve.new"] {
        let directory = stores::directory();
        fs::create_dir(directory.path().join(name)).unwrap();
        let said = refused(directory.path());
        assert!(
            said.contains("cannot be used as the reserve") && said.contains("move it away"),
            "{said}"
        );
    }
}

/// A FIFO would keep the process waiting, and a link would lead it to a file of another directory.
#[test]
fn what_is_no_regular_file_is_refused_by_its_name_and_by_what_it_is() {
    let elsewhere = stores::directory();
    let target = elsewhere.path().join("target");
    for name in ["lock", FILE, "reserve"] {
        for what in ["a FIFO", "a symbolic link", "a directory"] {
            let directory = stores::directory();
            let path = directory.path().join(name);
            match what {
                "a FIFO" => mkfifo(&path, Mode::S_IRWXU).unwrap(),
                "a symbolic link" => symlink(&target, &path).unwrap(),
                _ => fs::create_dir(&path).unwrap(),
            }
            let url = url_of(directory.path());
            for said in [
                refused(directory.path()),
                refused_by(&["doctor", "--store", &url]),
            ] {
                let expected = match (name, what) {
                    // Moved away, it would leave a database without the leases.
                    (FILE, "a symbolic link") => "name the directory of the file".to_owned(),
                    _ => format!("it is {what} instead of a regular file; move it away"),
                };
                let shown = path.display().to_string();
                assert!(said.contains(&expected) && said.contains(&shown), "{said}");
            }
        }
    }
    assert!(!target.exists());
}
