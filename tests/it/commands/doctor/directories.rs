//! What `doctor` finds of the directory of a `file:` store.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use super::{assert_found, doctor};
use crate::process::Serving;
use crate::run::assert_code;

#[test]
fn a_directory_is_checked_without_being_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/locks");
    let store = format!("file:{}", path.display());
    let examined = doctor(&["--store", &store], &[]);
    assert_code(&examined, 0);
    assert_found(&examined, "directory", "ok", "is not there");
    assert!(!path.exists());
    let _serving = Serving::start(&["--store", &store]);
    assert_found(
        &doctor(&["--store", &store], &[]),
        "directory",
        "ok",
        "can be written",
    );
    std::fs::write(directory.path().join("file"), "").unwrap();
    let store = format!("file:{}/file", directory.path().display());
    let examined = doctor(&["--store", &store], &[]);
    assert_code(&examined, 78);
    assert_found(&examined, "directory", "error", "is no directory");
}

/// What happens to a directory.
type Change = fn(&Path);

/// Changes a directory that a server has left, and lets the doctor look at it.
fn examined_after(change: Change) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks");
    let store = format!("file:{}", path.display());
    drop(Serving::start(&["--store", &store]));
    change(&path);
    let file = path.join("leases.redb");
    let before = fs::read(&file).unwrap();
    let examined = doctor(&["--store", &store], &[]);
    assert_eq!(fs::read(&file).unwrap(), before);
    examined
}

#[test]
fn a_damaged_directory_is_found_before_a_server_refuses_it() {
    assert_found(&examined_after(|_| ()), "content", "ok", "can load");
    let damages: [(Change, &str); 4] = [
        (
            |path| fs::write(path.join("leases.redb"), "other").unwrap(),
            "backup",
        ),
        (
            |path| fs::write(path.join("leases.redb"), "").unwrap(),
            "it is empty",
        ),
        (
            |path| {
                let file = fs::OpenOptions::new()
                    .write(true)
                    .open(path.join("leases.redb"));
                file.unwrap().set_len(5_000).unwrap();
            },
            "backup",
        ),
        (
            |path| {
                fs::remove_file(path.join("reserve")).unwrap();
                fs::create_dir(path.join("reserve")).unwrap();
            },
            "move it away",
        ),
    ];
    for (damage, advice) in damages {
        let examined = examined_after(damage);
        assert_code(&examined, 78);
        assert_found(&examined, "content", "error", advice);
    }
}

#[test]
fn rights_of_other_users_on_a_directory_are_found() {
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let examined = examined_after(|_| ());
    assert_code(&examined, 0);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks");
    let store = format!("file:{}", path.display());
    let serving = Serving::start(&["--store", &store]);
    for (path, mode, advice) in [
        (path.clone(), 0o777, "chmod 700"),
        (
            path.join("leases.redb"),
            0o644,
            "leases.redb; run chmod 600",
        ),
        (path.join("reserve"), 0o606, "reserve; run chmod 600"),
    ] {
        let before = fs::metadata(&path).unwrap().permissions();
        set(&path, mode);
        let examined = doctor(&["--store", &store], &[]);
        assert_code(&examined, 1);
        assert_found(&examined, "permissions", "warning", advice);
        assert_found(&examined, "content", "ok", "a server uses the directory");
        fs::set_permissions(&path, before).unwrap();
    }
    drop(serving);
}
