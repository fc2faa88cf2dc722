//! A process that starts while its disk fails or is full.

use std::path::Path;
use std::process::Stdio;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::Instant;

use super::damage::post;
use super::full::used;
use super::url_of;
use crate::process::{Serving, leasehold};
use crate::support::disk::FaultyDisk;
use crate::support::{EFFECT_TIMEOUT, stores};

fn serve_below(disk: &FaultyDisk, directory: &Path) -> Serving {
    let mut command = leasehold(&[]);
    disk.attach_below(&mut command, directory, None);
    Serving::start_as(command, &["--store", &url_of(directory)])
}

/// Damage would be for a person to repair, and a process that exits is not started again by everyone.
#[tokio::test]
async fn a_process_that_starts_while_the_disk_fails_goes_on_when_it_can() {
    for error in [Errno::EIO, Errno::ENOSPC] {
        let (directory, records) = (stores::directory(), stores::directory());
        let disk = FaultyDisk::new(records.path());
        let serving = serve_below(&disk, directory.path());
        assert_eq!(post(&serving, "/locks/held").await.0, 201);
        serving.signal(Signal::SIGKILL);
        drop(serving);
        disk.fail_with(error);
        let serving = std::thread::scope(|scope| {
            let starting = scope.spawn(|| serve_below(&disk, directory.path()));
            let give_up = Instant::now() + EFFECT_TIMEOUT;
            while !disk.has_failed() && Instant::now() < give_up {
                std::thread::yield_now();
            }
            assert!(disk.has_failed() && !starting.is_finished());
            disk.repair();
            starting.join().expect("it starts")
        });
        let lines = serving.lines_so_far.iter();
        let said: Vec<_> = lines.filter(|line| line["level"] == "ERROR").collect();
        let [said] = &said[..] else {
            panic!("one line says what fails: {said:?}");
        };
        assert!(
            said["message"]
                .as_str()
                .is_some_and(|it| it.contains("the disk fails"))
        );
        assert_eq!(post(&serving, "/locks/held").await.0, 423);
    }
}

/// Otherwise only a second signal would end it.
#[test]
fn a_process_that_waits_for_its_disk_ends_with_the_first_signal() {
    let (directory, records) = (stores::directory(), stores::directory());
    let disk = FaultyDisk::new(records.path());
    drop(serve_below(&disk, directory.path()));
    disk.fail();
    let mut command = leasehold(&["--listen", "127.0.0.1:0"]);
    disk.attach_below(&mut command, directory.path(), None);
    command.args(["--store", &url_of(directory.path())]);
    let mut process = command.stdout(Stdio::null()).spawn().expect("it starts");
    let give_up = Instant::now() + EFFECT_TIMEOUT;
    while !disk.has_failed() && Instant::now() < give_up {
        std::thread::yield_now();
    }
    let has_tried = disk.has_failed();
    let pid = Pid::from_raw(i32::try_from(process.id()).expect("a pid"));
    kill(pid, Signal::SIGTERM).expect("nobody has waited for it");
    while process.try_wait().expect("it is ours").is_none() && Instant::now() < give_up {
        std::thread::yield_now();
    }
    // It would wait for ever if the signal had no effect.
    let _ = process.kill();
    let ended = process.wait().expect("it has a signal");
    assert_eq!((has_tried, ended.code()), (true, Some(0)));
}

/// On some file systems, each change of the file needs room. A process that does not start renews no lease.
#[tokio::test]
async fn a_process_starts_on_a_full_disk_with_the_room_of_the_reserve() {
    let (directory, records) = (stores::directory(), stores::directory());
    let disk = FaultyDisk::new(records.path());
    let serving = serve_below(&disk, directory.path());
    assert_eq!(post(&serving, "/locks/held").await.0, 201);
    serving.signal(Signal::SIGKILL);
    drop(serving);
    disk.copy_on_write();
    disk.limit(used(directory.path()));
    let serving = std::thread::scope(|scope| {
        let starting = scope.spawn(|| serve_below(&disk, directory.path()));
        let give_up = Instant::now() + EFFECT_TIMEOUT;
        while !starting.is_finished() && Instant::now() < give_up {
            std::thread::yield_now();
        }
        let has_started = starting.is_finished();
        if !has_started {
            // Otherwise it would try for ever.
            disk.limit(u64::MAX / 2);
        }
        let serving = starting.join().expect("it starts");
        assert!(has_started, "it starts without more room");
        serving
    });
    assert_eq!(post(&serving, "/locks/held").await.0, 423);
    let (_, problem) = post(&serving, "/locks/other").await;
    assert_eq!(problem["code"], "store_full", "{problem}");
}
